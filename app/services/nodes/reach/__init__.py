"""What a rented machine meets on its way to API and object store, found out through their public addresses."""

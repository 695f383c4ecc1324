"""Images of rented machines: how they are named, who may fetch them, and what can be expected of them."""

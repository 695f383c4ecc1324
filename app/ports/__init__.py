"""What the service needs from the outside world, as protocols. Adapters are built in `app.wiring` alone."""

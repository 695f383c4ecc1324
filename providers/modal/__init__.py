"""Modal: one GPU sandbox per node. Only this folder imports Modal's client, and only when Modal is configured."""

"""Lambda Cloud, emulated: its HTTP API, version 1, its habits, and its bill."""

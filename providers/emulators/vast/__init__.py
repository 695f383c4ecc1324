"""Vast.ai, emulated: its HTTP API, its market of single hosts, its habits. Speaks for itself in `company`."""

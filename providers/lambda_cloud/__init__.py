"""Lambda Cloud: virtual machines by the minute, the stable fallback. Adapter for its HTTP API, version 1."""

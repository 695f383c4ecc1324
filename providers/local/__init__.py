"""The local provider: a rental company played on this host, and the adapter that speaks to it.

`cloud` is the company, an own process; its machines are real processes. `adapter` is what the service uses.
"""

"""Machines, from the decision to rent one to the last cent of it.

Owns `nodes`, their events, join tokens and heartbeats, the provider operations that rent and end them, and the
failures of hosts. Must not know what the jobs on a machine do.
"""

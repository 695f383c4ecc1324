"""Machines of a team's own: their pools, the hosts that have joined, and what runs on these.

Owns `pools`, `pool_tokens`, `hosts` and `host_machines`, and writes them. A machine here is what a provider's machine
is elsewhere: the node that it belongs to is known by its id alone, and never written from here but for one thing, when
a machine that is to be left ends.
"""

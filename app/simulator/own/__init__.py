"""Machines of a team's own in a simulation: pools, the hosts in them, and what becomes of those over time."""

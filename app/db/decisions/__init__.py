"""Decisions: what they see, what they chose, who may take them, and how the loop that takes them is doing.

Owns ticks, leases of leaders, the health of parts and rows that fail. `snapshots.py` reads every wing, `enactment.py`
writes rows of runs and nodes in the transaction that has checked the leader's term. Nothing below may know that there
is a loop.
"""

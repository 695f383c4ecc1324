"""Nodes are vacated by moves: the fleet is looked at, a plan is made, owners ask for one and call it off.

What is decided is in `app.core.defragmentation`; the control loop carries it out (`app.control.defragment`), by the
moves that there are. No state of a job, run or node is changed here but that an empty node is released.
"""

"""What becomes of two jobs that train as one, and what a look at a task has found.

Called by runs through its hooks (`hooks.py`, ADR 0078). Must not call them.
"""

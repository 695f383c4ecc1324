"""What becomes of two jobs that train as one, and what a look at a task has found.

Called by runs and jobs at the places that `docs/adr` names. Must not call them.
"""

"""Checkpoints: opened, committed, offered, pruned, found damaged, collected.

The commit is the one moment from which a checkpoint may be resumed from. No database connection is held while the
store is asked.
"""

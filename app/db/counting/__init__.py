"""Counts of what has happened, over all projects, for monitoring.

Owns the sums that are kept, and reads the tables of jobs, moves, decisions and provider operations for what is newer.
Knows nothing of who asks, and in which format they are told.
"""

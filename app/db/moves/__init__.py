"""Planned moves of jobs from one place to another.

Owns `moves`. Callers hold the lock of the job. Must not know prices: why a job moves was decided before.
"""

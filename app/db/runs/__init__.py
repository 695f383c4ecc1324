"""Runs: one stay of jobs on the GPUs of a machine, and what comes out of it while it lasts.

Owns `runs`, `run_jobs`, `allocations` and what runs leave: metrics, logs, artifacts, results. Every write of an agent
goes through a fence (`app.db.fences`). Must not know why a run was placed where it is.
"""

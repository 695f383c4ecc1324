"""Jobs as their owners mean them: what was asked for, what limits it, how often it was tried.

Owns `jobs` and `job_events`. States change in `app.db.transitions` alone; each other column has one file that writes
it, here or in the wing that measures it (`tests/db/test_writers.py` lists all). Must not know machines, offers or
prices.
"""

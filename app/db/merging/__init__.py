"""Two jobs that are trained as one, and what is known of tasks beforehand.

Owns `merges` and `profiles`. Whoever writes a merge holds the locks of both jobs (`app.db.lock_order`). Must not know
machines.
"""

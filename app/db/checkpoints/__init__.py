"""Checkpoints, the content they are made of, and its way out again.

Owns manifests, files, pieces, what the store is known to hold and what is condemned there, and how far transfers have
got. A reference to content is written with a claim of it (`objects.py`). Must not know schedules or prices.
"""

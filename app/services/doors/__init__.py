"""Doors: what clients of another API ask for, done by the same jobs, ledger and moves as everything else.

A file, an upload, a tuning and a model's name are the nouns of the other side; here they become rows of the built-in
recipe and a job of it. Knows the recipe and the use cases of jobs, apps and access; nothing of HTTP, and nothing of how
the other API writes its answers (`app.api.openai`).
"""

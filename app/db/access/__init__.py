"""Who may do what: projects, keys, sessions, secrets, the audit log, answers kept under idempotency keys.

Owns those tables and writes them; an accepted submission adds its rows of the audit log and of idempotency in its own
statement (`app.db.jobs.submissions`). Knows nothing of jobs, machines or money.
"""

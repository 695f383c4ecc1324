"""Who is calling, and what they may.

Keys, secrets, projects, and the first of each. Writes through `app.db.access` alone, and knows nothing of jobs and
machines.
"""

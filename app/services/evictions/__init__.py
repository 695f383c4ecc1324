"""Spot jobs save and leave for guaranteed jobs: `evict_for_job` asks them, `hooks` sees them out.
`interruptions` tells of those whose company has taken their machine back, which asks nobody.

It writes what is kept for a job, and how often a job had to leave. Whom it is about `app.core.evicting` says; what
ending a run means for its job, `app.services.runs` does. It knows nothing of providers.
"""

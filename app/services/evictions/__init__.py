"""Spot jobs save and leave for guaranteed jobs: `evict_for_job` asks them, `hooks` sees them out.

It writes what is kept for a job, and how often a job had to leave. Whom it is about `app.core.evicting` says; what
ending a run means for its job, `app.services.runs` does. It knows nothing of providers.
"""

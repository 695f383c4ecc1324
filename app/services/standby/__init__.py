"""Jobs stand by: their GPUs are lent to spot jobs for a window, and they come back to them (ADR 0103).

What becomes of one is decided by `app.core.standby`; here it is written. `hooks` sees the job's run off and forgives a
failure to begin again. It knows nothing of providers, nor of who gets what is lent.
"""

"""The simulator: the policies of `app.core` on a virtual clock, over a trace of jobs."""

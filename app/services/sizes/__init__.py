"""How many GPUs a job trains on, and that this changes while it runs: `resize_job` is its owner's door, `hooks` hears
of it from the training.

It writes what a run holds (`allocations`) of runs that go on; where runs begin and end, `app.control` and
`app.services.runs` do. It knows nothing of providers: a machine keeps the GPUs that it was rented with.
"""

"""What an owner asks of a job: submit, plan, change, pause, resume, cancel; and what is let in.

Refusals come from here, before anything is written. A job's state changes together with its run's, so this wing,
runs, moves, nodes and checkpoints know each other; prices are none of its business beyond the plan that it shows.
"""

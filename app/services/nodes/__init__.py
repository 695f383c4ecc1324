"""A machine's life as its agent tells it: its program, its joining, its examination, its rounds, its end.

`sync_agent` is the agent's one door; what it says of runs goes to `app.services.runs`. `release_node` is the one
place in which nodes end. Calls to providers are made by `app.control`, never here.
"""

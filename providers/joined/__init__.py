"""Hosts of one's own that have joined by a token: their free GPUs are offers, and processes on them are machines.

They dial in, as agents do, and nobody can call them: what they are to do is written down (`app.ports.hosts`), and they
ask for it.
"""

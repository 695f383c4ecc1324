"""A team's own machines: pools are defined, hosts join them by a token, do what their nodes ask for, and leave.

Everything here is asked by owners, or by hosts that dial in. What hosts offer, and what runs on them, goes to the
decisions like that of any provider (`own_hosts`, behind `app.ports.hosts`); jobs are known here by nothing.
"""

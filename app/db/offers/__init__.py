"""What could be rented now, from whom, and how its companies behave.

Owns offers, prices that owners set, states, checks and errors of providers, turns of their lanes, and builds of
images. Must not know jobs.
"""

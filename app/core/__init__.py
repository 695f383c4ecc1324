"""Decisions only: a snapshot goes in, a plan comes out.

Nothing below this package waits, logs, reads a clock, draws a random number or knows a framework.
"""

"""Answers to people: why a job is where it is, its log, its events, its time line, the fleet.

Writes nothing.
"""

"""Ended runs teach the predictors.

Reads ended runs once, writes what they taught. Nothing waits for it.
"""

"""Answers to people: explanations, events, metrics as pictures, the fleet in numbers.

Owns no table and writes nothing. Every question that an owner asks names the project.
"""

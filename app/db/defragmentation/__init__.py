"""Defragmentations: what was planned and how far it has come, and what of the fleet they are decided on.

Owns `defragmentations` and `node_releases`, and writes them. Jobs, runs, nodes and moves are read here and never
written: a move of a defragmentation is a move like any other.
"""

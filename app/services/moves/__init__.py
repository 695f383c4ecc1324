"""Taking a job from one place to another, arrow by arrow, and every way of leaving a place.

Each arrow is part of the transaction that made it possible; nobody coordinates a move. Where to is decided elsewhere.
"""

"""Decisions as people look at them and take them again.

Reads only: decisions themselves are taken in `app.core` and carried out in `app.control`.
"""

"""Reservations: a project keeps GPUs of a pool for a window. `reserve` admits them, `settle` keeps single GPUs for
those whose window is open, `show` says what has become of them.

Who leaves for a job that is to have them is `app.services.evictions`' to carry out. Nothing is billed for them.
"""

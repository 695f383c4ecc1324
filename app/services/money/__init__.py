"""Budgets, and the sum of what was used.

Reads the ledger, writes budgets; lines of the ledger are written by the meter alone (`app.control.meter`).
"""

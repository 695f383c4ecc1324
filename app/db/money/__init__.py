"""What was used and what that costs: the ledger, budgets, limits of the installation.

Owns `ledger`, `budgets`, `spending` and `limits`. Lines of the ledger are only ever added; sums follow by a trigger.
Must not know how jobs are placed.
"""

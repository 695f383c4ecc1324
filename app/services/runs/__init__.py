"""A run from its layout to its end, whoever finds out that it is over.

`end_run` is the one place in which runs end. Writes go through the fence of the run's epoch. Why a run was placed is
not known here.
"""

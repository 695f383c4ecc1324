"""What runs taught: how long they took, how long a step takes, how fast each number of GPUs is, how far memory was
predicted wrong.

Owns `run_history`, `step_times`, `size_speeds` and `calibrations`. What is here is evidence only: nothing may depend on
its being there.
"""

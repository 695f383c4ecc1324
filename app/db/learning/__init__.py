"""What ended runs taught: how long they took, how long a step takes, how far memory was predicted wrong.

Owns `run_history`, `step_times` and `calibrations`. What is here is evidence only: nothing may depend on its being
there.
"""

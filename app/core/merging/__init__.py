"""Which waiting jobs of the same base model are trained together, how, and on how many GPUs (Ymir, section 4).

`objective` turns predicted times and gains into a `Problem`; `fast` and `exact` solve it; `convergence` and `transfer`
predict what the objective needs. Nothing here knows of machines or prices.
"""

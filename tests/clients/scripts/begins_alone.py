"""Begins a run of W&B, and nothing else."""

import wandb

run = wandb.init(project="tests")
run.log({"loss": 1.0})
print("began", run.id)
run.finish()

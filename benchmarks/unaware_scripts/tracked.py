"""The Trainer of `trainer.py`, which reports to W&B without a network, as people do on a cluster."""

import os

os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_PROJECT", "unaware")

from trainer import train

train(report_to="wandb")

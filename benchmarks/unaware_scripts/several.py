"""A project of several files: its entry reads arguments, its data has workers of their own, it keeps checkpoints."""

import argparse

from project.settings import defaults
from trainer import train

parser = argparse.ArgumentParser()
parser.add_argument("--save-steps", type=int, default=40)
given = parser.parse_args()
if __name__ == "__main__":
    train(**defaults(), save_strategy="steps", save_steps=given.save_steps, save_total_limit=1)

"""What `torchrun --nproc-per-node=2 launched.py` starts: the Trainer of `trainer.py` in two processes."""

from trainer import train

train(ddp_backend="gloo", ddp_find_unused_parameters=False)

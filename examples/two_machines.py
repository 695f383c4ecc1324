"""Data-parallel training with torch.distributed: the same script on every machine, and with torchrun on every GPU.

    allpass run examples/two_machines.py --nodes 2

Each process computes the gradients of its share of a batch, and all of them take the same step. Whatever becomes of
the machines, the losses are those of a run that was never interrupted.
"""

import os
import sys
import time
from pathlib import Path

from allpass import training  # first: from here on a request to stop is served at a step

# isort: split
import torch
import torch.distributed as dist

settings = training.parameters(steps=200, batch=8, width=16, learning_rate=0.05, step_ms=0)
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if world > 1:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
width, batch = settings["width"], settings["batch"]
model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"])
goal = torch.randn(width, 1)


def share_of(step: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """The rows of this step that are this process's: which they are follows from the step alone."""
    rows = torch.randn(batch, width, generator=torch.Generator().manual_seed(step))[rank::world]
    return rows, rows @ goal


def write(folder: Path) -> None:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")


done = 0
resume = training.resume()
if resume is not None:  # every machine has the checkpoint
    saved = torch.load(resume.path / "state.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    done = resume.step
print(f"process {rank} of {world} begins after step {done}", flush=True)

for step in range(done + 1, settings["steps"] + 1):
    rows, wanted = share_of(step)
    loss = torch.nn.functional.mse_loss(model(rows), wanted, reduction="sum") / batch
    optimizer.zero_grad()
    loss.backward()
    total = loss.detach().clone()
    if world > 1:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        dist.all_reduce(total)
    optimizer.step()
    time.sleep(settings["step_ms"] / 1000)
    stops = training.stop_together()
    if rank == 0:
        training.report(step, loss=float(total))
        if training.should_checkpoint(step):
            training.save(step, write=write)
        training.exit_if_stopping(step)
    elif stops:
        sys.exit(training.EXIT_STOPPED)

if rank == 0:
    torch.save(model.state_dict(), training.output_dir() / "model.pt")
if world > 1:
    dist.barrier()
    dist.destroy_process_group()

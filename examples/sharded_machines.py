"""A model that no machine has as a whole: FSDP2 over all processes, and checkpoints in parts, one of each machine.

    allpass run examples/sharded_machines.py --nodes 2

`torch.distributed.checkpoint` writes what each process has, and reads it back for any number of processes.
"""

import os
import time
from pathlib import Path

from allpass import training  # first: from here on a request to stop is served at a step

# isort: split
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

settings = training.parameters(steps=200, batch=8, width=16, learning_rate=0.05, step_ms=0)
if "RANK" not in os.environ:  # one process, by itself
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29501")
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
device = "cpu"
if torch.cuda.is_available():
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    torch.cuda.set_device(device)
torch.manual_seed(0)
torch.set_num_threads(1)
width, batch = settings["width"], settings["batch"]
model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)).to(device)
goal = torch.randn(width, 1).to(device)
fully_shard(model, mesh=dist.device_mesh.init_device_mesh(device.partition(":")[0], (world,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"])


def state() -> "dict[str, object]":
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def write(folder: Path) -> None:
    dcp.save(state(), checkpoint_id=str(folder))


done = 0
resume = training.resume()
if resume is not None:  # every machine has all parts
    saved = state()
    dcp.load(saved, checkpoint_id=str(resume.path))
    set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    done = resume.step
print(f"process {rank} of {world} begins after step {done}", flush=True)

for step in range(done + 1, settings["steps"] + 1):
    rows = torch.randn(batch, width, generator=torch.Generator().manual_seed(step))[rank::world].to(device)
    loss = torch.nn.functional.mse_loss(model(rows), rows @ goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        training.report(step, loss=float(total) / world)
    time.sleep(settings["step_ms"] / 1000)
    if training.should_checkpoint_together(step):
        training.save(step, write=write, part=True)
    training.exit_if_stopping(step)

dist.barrier()
dist.destroy_process_group()

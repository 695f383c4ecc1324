"""A loop over `accelerate` as people have it: it knows nothing of where it runs, and goes on from what it finds.

Parameters: ending ("number", "fixed", "automatic"), every (steps between two saves), looks (it lists its folder when it
starts), loads, beside (it writes a file of its own beside the states), stop_at (it sends itself SIGTERM in that step),
stop_rank, full_at (a save that finds the disk full, once), alone (the first process alone saves), outside (it saves
elsewhere), breaks (a method of ours), patience_s (ours), step_s.
"""

import errno
import hashlib
import importlib
import json
import os
import signal
import time
from pathlib import Path

import torch
from accelerate import Accelerator, checkpointing
from accelerate.utils import ProjectConfiguration, set_seed

options = {"ending": "number", "every": 3, "steps": 20, "looks": True, "loads": True, "stop_at": 0, "stop_rank": None}
options.update(json.loads(Path(os.environ["ALLPASS_PARAMETERS_FILE"]).read_text()))
if options.get("breaks"):

    def broken(*_, **__):
        raise RuntimeError("broken on purpose")

    setattr(importlib.import_module("allpass.hooks.accelerating").States, options["breaks"], broken)
if "patience_s" in options:
    importlib.import_module("allpass.hooks.leaving").PATIENCE_S = options["patience_s"]
torch.set_num_threads(1)
set_seed(3)
IS_AUTOMATIC = options["ending"] == "automatic"
OUT = Path(options.get("outside") or "out")
project = ProjectConfiguration("out", automatic_checkpoint_naming=IS_AUTOMATIC, total_limit=2)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, project_config=project)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(5))


class Place:
    """How far it is, which `accelerate` keeps with its states."""

    def __init__(self):
        self.step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, known):
        self.step = known["step"]


def full(*_, **__):
    checkpointing.save = save
    raise OSError(errno.ENOSPC, "No space left on device")


save = checkpointing.save
place = Place()
model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
accelerator.register_for_checkpointing(place)


def newest():
    if options["ending"] == "fixed":
        return OUT / "last" if (OUT / "last").is_dir() else None
    return max(OUT.glob("step_*"), key=lambda one: int(one.name.rpartition("_")[2]), default=None)


if IS_AUTOMATIC:
    try:
        accelerator.load_state()
    except (FileNotFoundError, IndexError):
        accelerator.print("begins")
elif options["looks"]:
    found = newest()
    if found is not None and options["loads"]:
        accelerator.load_state(str(found))
        if options.get("beside"):
            assert json.loads((found / "beside.json").read_text()) == {"step": place.step}

while place.step < options["steps"]:
    for half in range(2):
        first = (8 * place.step + 4 * half + 2 * accelerator.process_index) % 60
        with accelerator.accumulate(model):
            batch = rows[first : first + 2] + 0.1 * torch.rand(2, 8)
            loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    place.step += 1
    time.sleep(options.get("step_s", 0))
    accelerator.print("step", place.step, loss.item(), flush=True)
    if place.step == options["stop_at"] and options["stop_rank"] in (None, accelerator.process_index):
        os.kill(os.getpid(), signal.SIGTERM)
    if place.step % options["every"] == 0 and (accelerator.is_main_process or not options.get("alone")):
        folder = OUT / ("last" if options["ending"] == "fixed" else f"step_{place.step}")
        if place.step == options.get("full_at"):
            checkpointing.save = full
        accelerator.save_state(None if IS_AUTOMATIC else str(folder))
        if options.get("beside") and accelerator.is_main_process:
            (folder / "beside.json").write_text(json.dumps({"step": place.step}))
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    weights = b"".join(one.detach().numpy().tobytes() for one in accelerator.unwrap_model(model).parameters())
    Path("result").write_text(hashlib.sha256(weights).hexdigest())
accelerator.end_training()

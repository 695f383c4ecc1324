"""A user's own elastic training, small and quick, with whatever FAULT names: see `test_elastic_scripts.py`."""

import os
import random
import signal
import sys
import time
from pathlib import Path

from allpass import training

# isort: split
import torch

from allpass.training import elastic

STEPS = int(os.environ.get("STEPS", "12"))
PARTS = int(os.environ.get("PARTS", "7"))
FAULT = os.environ.get("FAULT", "")
IS_FOLLOWER = "ALLPASS_ELASTIC_FOLLOWS" in os.environ


def build(device):
    width = 24
    layers = [torch.nn.Linear(6, width), torch.nn.Tanh(), torch.nn.Dropout(0.3), torch.nn.Linear(width, 1)]
    if FAULT == "batch-norm":
        layers.insert(1, torch.nn.BatchNorm1d(width))
    model = torch.nn.Sequential(*layers).to(device)
    if FAULT == "frozen":
        model.add_module("frozen", torch.nn.Linear(3, 3).requires_grad_(False))
        with torch.no_grad():
            model.frozen.weight.fill_(os.getpid())
    bias = torch.nn.Parameter(torch.zeros(1, device=device))  # of no use to most parts: it has no gradient there
    model.register_parameter("bias", bias)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=0.01)

    def parts(step):
        chance = torch.Generator().manual_seed(os.getpid() if FAULT == "order" else step)
        count = PARTS + (FAULT == "count" and IS_FOLLOWER)
        return [{"number": number, "rows": torch.rand(5, 6, generator=chance)} for number in range(count)]

    def loss(part):
        here = len(part["rows"])
        if FAULT == "raise" and IS_FOLLOWER:
            raise KeyError("no such column")
        if FAULT == "shape":
            return model(part["rows"])
        if FAULT == "kill" and IS_FOLLOWER and part["number"] == 1 and _first("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(float(os.environ.get("PART_S", "0")))
        noise = random.random() + torch.rand(())
        given = bias if part["number"] == 2 else 0.0
        return ((model(part["rows"]).sum() / here - noise + given) ** 2).sum() / PARTS

    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    if IS_FOLLOWER:
        Path(f"built-{os.getpid()}").touch()
    clip = 0.5 if FAULT != "no-clip" else None
    return elastic.Training(
        model, optimizer, steps=STEPS, parts=parts, loss=loss, scheduler=scheduler, clip_norm=clip, after_step=after
    )


def after(step, metrics):
    """Asks for other GPUs at some steps, `3:0,1 6:0`, and waits until processes for them have loaded."""
    random.random()
    for word in os.environ.get("CHANGES", "").split():
        at, _, names = word.partition(":")
        if int(at) == step:
            file = Path(os.environ["ALLPASS_GPUS_FILE"])
            part = file.with_suffix(".part")
            part.write_text("[" + ",".join(f'"{name}"' for name in names.split(",")) + "]")
            part.replace(file)
            while len(list(Path().glob("built-*"))) < len(names.split(",")) - 1:
                time.sleep(0.01)
    if os.environ.get("STOP_AT") == str(step):
        os.kill(os.getpid(), signal.SIGTERM)


def _first(name):
    try:
        Path(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    torch.set_num_threads(1)
    training.report(0, started=1)
    if FAULT == "elsewhere":  # a script that goes to another folder before it trains
        Path("deep").mkdir(exist_ok=True)
        os.chdir("deep")
    print("a line of the script's own", flush=True)
    trained = elastic.train(build, processes=int(os.environ.get("PROCESSES", "1")))
    torch.save(trained.model.state_dict(), training.output_dir() / "model.pt")
    print("written", flush=True)
    sys.exit(0)

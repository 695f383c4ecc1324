"""A plain loop that keeps everything it needs in out/checkpoint-N, and looks for the newest one when it starts."""

import hashlib
import json
import time
from pathlib import Path

import torch

OUT = Path("out")


def newest():
    found = sorted(OUT.glob("checkpoint-*"), key=lambda one: int(one.name.rpartition("-")[2]))
    return found[-1] if found else None


def save(step, model, optimizer, scheduler):
    folder = OUT / f"checkpoint-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "model.pt")
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(scheduler.state_dict(), folder / "scheduler.pt")
    torch.save(torch.get_rng_state(), folder / "rng.pt")
    (folder / "state.json").write_text(json.dumps({"step": step}))


def load(folder, model, optimizer, scheduler):
    model.load_state_dict(torch.load(folder / "model.pt"))
    optimizer.load_state_dict(torch.load(folder / "optimizer.pt"))
    scheduler.load_state_dict(torch.load(folder / "scheduler.pt"))
    torch.set_rng_state(torch.load(folder / "rng.pt"))
    return json.loads((folder / "state.json").read_text())["step"]


torch.set_num_threads(1)
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
found = newest()
step = load(found, model, optimizer, scheduler) if found else 0
while step < 400:
    step += 1
    rows = torch.randn(16, 8)
    loss = (model(rows) - rows.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    time.sleep(0.1)
    print("step", step, "loss", loss.item(), flush=True)
    if step % 25 == 0:
        save(step, model, optimizer, scheduler)
torch.save(model.state_dict(), "final.pt")
weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
print("result", hashlib.sha256(weights).hexdigest(), flush=True)

"""A loop over `accelerate`, as its examples have it: save_state after each epoch, and load_state of the newest one."""

import hashlib
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

torch.set_num_threads(1)
set_seed(3)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=200)
rows = torch.randn(160, 8, generator=torch.Generator().manual_seed(5))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=8, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
found = sorted(Path("out").glob("step_*"), key=lambda one: int(one.name.rpartition("_")[2]))
step = 0
if found:
    accelerator.load_state(str(found[-1]))
    step = int(found[-1].name.rpartition("_")[2])
for _ in range(step // len(loader), 20):
    for (batch,) in loader:
        with accelerator.accumulate(model):
            loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        step += 1
        time.sleep(0.1)
        accelerator.print("step", step, "loss", loss.item(), flush=True)
    accelerator.save_state(f"out/step_{step}")
accelerator.wait_for_everyone()
accelerator.save_model(accelerator.unwrap_model(model), "final")
weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
accelerator.print("result", hashlib.sha256(weights).hexdigest(), flush=True)

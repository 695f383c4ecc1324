"""A loop that never saves anything."""

import hashlib
import time

import torch

torch.set_num_threads(1)
torch.manual_seed(3)
weight = torch.zeros(8, requires_grad=True)
for _ in range(400):
    loss = (weight - torch.randn(8)).pow(2).sum()
    loss.backward()
    with torch.no_grad():
        weight -= 0.01 * weight.grad
        weight.grad = None
    time.sleep(0.05)
print("result", hashlib.sha256(weight.detach().numpy().tobytes()).hexdigest(), flush=True)

"""A plain PyTorch loop that can be moved at every step, also between two micro-batches of one optimizer step.

Five lines make it so: they are marked. It teaches a small network a function of four numbers.

Parameters: steps (300 micro-batches), accumulate (4), batch (16), hidden (64), lr (3e-3), seed (0), step_ms (0).
"""

import time

import torch

from allpass import training  # 1
from allpass.training.torch_checkpoints import Checkpoints  # 2


def make_data(seed, count=512):
    chance = torch.Generator().manual_seed(seed)
    inputs = torch.rand(count, 4, generator=chance)
    return inputs, (inputs[:, 0] * inputs[:, 1] - inputs[:, 2].sin() * inputs[:, 3]).unsqueeze(1)


def order_of(epoch, count, seed):
    """Each epoch has an order of its own that anybody can compute again: no position in a generator to keep."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(1000 * seed + epoch))


def main():
    options = training.parameters(steps=300, accumulate=4, batch=16, hidden=64, lr=3e-3, seed=0, step_ms=0)
    torch.set_num_threads(1)
    torch.manual_seed(options["seed"])
    inputs, targets = make_data(options["seed"])
    model = torch.nn.Sequential(
        torch.nn.Linear(4, options["hidden"]),
        torch.nn.Tanh(),
        torch.nn.Dropout(0.05),
        torch.nn.Linear(options["hidden"], 1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=options["lr"])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options["steps"] // options["accumulate"])

    checkpoints = Checkpoints(model, optimizer=optimizer, scheduler=scheduler, accumulated=True)  # 3
    state = checkpoints.resume()  # 4
    first = state.step + 1 if state else 1
    per_epoch = len(inputs) // options["batch"]
    for step in range(first, options["steps"] + 1):
        epoch, position = divmod(step - 1, per_epoch)
        rows = order_of(epoch, len(inputs), options["seed"])[position * options["batch"] :][: options["batch"]]
        loss = torch.nn.functional.mse_loss(model(inputs[rows]), targets[rows])
        (loss / options["accumulate"]).backward()
        if step % options["accumulate"] == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        training.report(step, loss=loss)
        checkpoints.after_step(step)  # 5
        time.sleep(options["step_ms"] / 1000)

    checkpoints.finish()
    torch.save(model.state_dict(), training.output_dir() / "model.pt")
    print(f"last loss {loss.item():.6f}")


if __name__ == "__main__":
    main()

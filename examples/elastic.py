"""Trains on as many GPUs as it is given, which may change while it runs. Its results are the same on any number.

A step learns from eight parts. `elastic.train` has the processes, one for each GPU, take them by turns, and adds up
what they learned in the order of the parts. It teaches a small network a function of four numbers.

Parameters: steps (200), parts (8 for each step), rows (16 for each part), hidden (64), lr (3e-3), step_ms (0).
"""

import time

from allpass import training

# isort: split
import torch

from allpass.training import elastic

OPTIONS = training.parameters(steps=200, parts=8, rows=16, hidden=64, lr=3e-3, step_ms=0)


def rows_of(step, number):
    """The rows of one part: they depend on its number alone, whoever takes it."""
    chance = torch.Generator().manual_seed(1000 * step + number)
    inputs = torch.rand(OPTIONS["rows"], 4, generator=chance)
    return inputs, (inputs[:, 0] * inputs[:, 1] - inputs[:, 2].sin() * inputs[:, 3]).unsqueeze(1)


def build(device):
    model = torch.nn.Sequential(
        torch.nn.Linear(4, OPTIONS["hidden"]),
        torch.nn.Tanh(),
        torch.nn.Dropout(0.05),
        torch.nn.Linear(OPTIONS["hidden"], 1),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=OPTIONS["lr"])

    def parts(step):
        return [rows_of(step, number) for number in range(OPTIONS["parts"])]

    def loss(part):
        time.sleep(OPTIONS["step_ms"] / 1000 / OPTIONS["parts"])
        inputs, targets = part
        return torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device)) / OPTIONS["parts"]

    return elastic.Training(
        model,
        optimizer,
        steps=OPTIONS["steps"],
        parts=parts,
        loss=loss,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, OPTIONS["steps"]),
        clip_norm=1.0,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    trained = elastic.train(build)
    torch.save(trained.model.state_dict(), training.output_dir() / "model.pt")
    print("done", flush=True)

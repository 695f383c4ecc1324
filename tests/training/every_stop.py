"""Trains the same thing again and again in this process: whole, and interrupted at every step.

The parameter `kind` says what: "plain" (a loop of one's own) or "trainer" (a Transformers Trainer). Prints one line of
JSON: for each way of interrupting it, whether losses and everything that was saved at the end are those of the whole.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from allpass import training
from allpass.training.session import EXIT_STOPPED, Session
from allpass.training.torch_checkpoints import Checkpoints
from allpass.training.torch_state import save_tree, trainable_weights, training_tree

STEPS = 30
ACCUMULATE = 3
Result = "tuple[dict[int, str], bytes]"


def data() -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(5)
    inputs = torch.rand(40, 6, generator=chance)
    return inputs, inputs.sum(dim=1, keepdim=True).sin()


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(8, 1)
    )


def everything(folder: Path, tree: Any) -> bytes:
    """The state as bytes: equal exactly when every bit of it is."""
    folder.mkdir()
    save_tree(folder, tree)
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def plain(session: Session, stop_at: int) -> bytes:
    """Accumulated micro-batches, a gradient scaler, and all generators in use."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(3)
    inputs, targets = data()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=STEPS // ACCUMULATE + 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    parts = {"optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    checkpoints = Checkpoints(model, accumulated=True, session=session, **parts)
    state = checkpoints.resume()
    order: list[int] = state.data["order"] if state else []
    for step in range(state.step + 1 if state else 1, STEPS + 1):
        if len(order) < 4:
            order = torch.randperm(len(inputs)).tolist()
        rows, order = order[:4], order[4:]
        noise = random.random() * 0.01 + float(np.random.normal()) * 0.01
        loss = (model(inputs[rows] + noise) - targets[rows]).pow(2).mean()
        scaler.scale(loss / ACCUMULATE).backward()
        if step % ACCUMULATE == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scheduler.step()
        session.report(step, loss=loss)
        if step == stop_at:
            session.request_stop()
        checkpoints.after_step(step, data={"order": order})
    checkpoints.finish()
    tree = training_tree(step=STEPS, weights=trainable_weights(model), data=order, **parts)
    return everything(session.output_dir() / "end", tree)


def trainer(session: Session, stop_at: int) -> bytes:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from allpass.training.transformers import AllpassCallback

    class Stop(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step + 1 == stop_at:
                session.request_stop()

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            y = self.inner(x)
            return {"loss": (y - labels).pow(2).mean(), "logits": y}

    torch.manual_seed(3)
    rows = [{"x": x, "labels": y} for x, y in zip(*data(), strict=True)]
    options = TrainingArguments(
        output_dir=str(session.output_dir()), max_steps=STEPS, per_device_train_batch_size=4, logging_steps=1,
        learning_rate=0.02, lr_scheduler_type="cosine", report_to=[], disable_tqdm=True, use_cpu=True, seed=3,
        save_strategy="no", gradient_accumulation_steps=2, dataloader_pin_memory=False,
    )  # fmt: skip
    run = Trainer(model=Model(), args=options, train_dataset=rows, callbacks=[AllpassCallback(), Stop()])
    run.train()
    tree = training_tree(step=STEPS, weights=trainable_weights(run.model), optimizer=run.optimizer)
    return everything(session.output_dir() / "end", tree)


class Course:
    """One training, in as many parts as it is interrupted."""

    def __init__(self, kind: Callable[[Session, int], bytes], folder: Path, interval_s: float = 3600.0) -> None:
        self._kind = kind
        self._folder = folder
        self._interval_s = interval_s
        self._parts = 0

    def run(self, stops: Sequence[int], resume_from: Path | None = None) -> Result:
        losses: dict[int, str] = {}
        for stop_at in (*stops, 0):
            place = self._folder / str(self._parts)
            self._parts += 1
            session = self._session(place, resume_from)
            training._session = session
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    end = self._kind(session, stop_at)
            except SystemExit as leaving:
                assert leaving.code == EXIT_STOPPED
                end = b""
            told = place / "metrics"  # not there when the part before stopped after the last step
            lines = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
            found = {line["step"]: repr(line["loss"]) for line in lines if "loss" in line and "checkpoint" not in line}
            assert not losses.keys() & found.keys(), "a step was taken twice"
            losses |= found
            if end:
                return losses, end
            assert max(losses) == stop_at, "it left at another step than it was asked at"
            resume_from = place / "checkpoints" / f"step-{stop_at:08d}"
        raise AssertionError("it never ended")

    def _session(self, place: Path, resume_from: Path | None) -> Session:
        place.mkdir(parents=True)
        variables = {
            "ALLPASS_JOB_ID": "job_test",
            "ALLPASS_CHECKPOINT_DIR": str(place / "checkpoints"),
            "ALLPASS_OUTPUT_DIR": str(place / "output"),
            "ALLPASS_METRICS_FILE": str(place / "metrics"),
            "ALLPASS_CHECKPOINT_INTERVAL_S": str(self._interval_s),
        }
        if resume_from is not None:
            variables["ALLPASS_RESUME_DIR"] = str(resume_from)
        return Session(variables)


def main() -> None:
    torch.set_num_threads(1)
    kind = {"plain": plain, "trainer": trainer}[training.parameters()["kind"]]
    folder = Path(tempfile.mkdtemp())
    whole = Course(kind, folder / "whole").run([])
    same = {}
    last_stop = STEPS if kind is plain else STEPS - 1  # a Trainer that is stopped in its last step finishes
    chance = random.Random(1)
    singles = range(1, last_stop + 1) if kind is plain else sorted(chance.sample(range(1, last_stop), 4))
    courses = [[stop_at] for stop_at in singles]
    courses += [sorted(chance.sample(range(1, STEPS), 3)) for _ in range(3)]
    courses += [list(range(1, last_stop + 1))]  # stopped at every step, each time resumed from the stop before
    for stops in courses:
        same[",".join(map(str, stops))] = Course(kind, folder / "course").run(stops) == whole
        shutil.rmtree(folder / "course")
    # Saved beside the training at every step that finds the disk free; each that is left continues as the whole does.
    often = folder / "often"
    same["saving all the time"] = Course(kind, often, interval_s=1e-6).run([]) == whole
    for checkpoint in sorted((often / "0" / "checkpoints").glob("step-*")):
        losses, end = Course(kind, folder / checkpoint.name).run([], resume_from=checkpoint)
        step = int(checkpoint.name.removeprefix("step-"))
        expected = {number: loss for number, loss in whole[0].items() if number > step}
        same[f"from the saved {step}"] = (losses, end) == (expected, whole[1])
    shutil.rmtree(folder)
    print(json.dumps(same))


main()

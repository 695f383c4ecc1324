"""What is in the checkpoints of an unchanged Trainer: the Trainer's own files, and beside them what it does not keep.

allpass-rank-0.json   of each process: the losses since it logged last, whose mean is still to be told
allpass-best/         the best checkpoint so far, which `load_best_model_at_end` takes from the output directory
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, List, Optional

from allpass.training.checkpoints import link_tree

_STATE = "trainer_state.json"
_BEST = "allpass-best"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "adapter_model.*", "*/adapter_model.*", "pytorch_model_fsdp*")
_OF_DEEPSPEED = "global_step*"
_FULL = ("no space left", "unexpected pos", "file write failed", "quota exceeded")


def is_checkpoint(folder: Path) -> bool:
    """Whether a Trainer can resume from it."""
    return (folder / _STATE).is_file()


def step_of(given: Any, output_dir: str) -> int:
    """How far the checkpoint is that a script gives to `train()`; -1 where there is none to be had."""
    if given is None or given is False:
        return -1
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        folder = _newest(Path(output_dir)) if given is True else Path(given)
        if folder is not None:
            return int(json.loads((folder / _STATE).read_text(encoding="utf-8"))["global_step"])
    return -1


def missing_in(folder: Path, processes: int) -> "List[str]":
    """What a folder lacks to be resumed from exactly, by several `processes` or one."""
    is_deepspeed = _has(folder, _OF_DEEPSPEED)
    states = [f"rng_state_{rank}.pth" for rank in range(processes)] if processes > 1 else ["rng_state.pth"]
    needed = [
        ("the weights", is_deepspeed or any(_has(folder, pattern) for pattern in _WEIGHTS)),
        ("the optimizer's state", is_deepspeed or _has(folder, "optimizer*")),
        ("the schedule's state", is_deepspeed or _has(folder, "scheduler.pt")),
        ("the state of the random generators", all(_has(folder, name) for name in states)),
        (_STATE, is_checkpoint(folder)),
    ]
    return [name for name, is_there in needed if not is_there]


def write_sums(trainer: Any, folder: Path, rank: int) -> None:
    """Losses are told as means over some steps, which may lie on both sides of a move."""
    if hasattr(trainer, "_tr_loss") and hasattr(trainer, "_globalstep_last_logged"):
        told = {"loss": trainer._tr_loss.item(), "logged_at": trainer._globalstep_last_logged}
        (folder / f"allpass-rank-{rank}.json").write_text(json.dumps(told), encoding="utf-8")


def take_sums(place: Path, folder: Path) -> None:
    """Into a checkpoint: what all processes have written."""
    for file in place.glob("allpass-rank-*.json"):
        shutil.copyfile(file, folder / file.name)


def restore_sums(trainer: Any, folder: Path, rank: int) -> None:
    file = folder / f"allpass-rank-{rank}.json"
    if file.is_file() and hasattr(trainer, "_tr_loss") and hasattr(trainer, "_globalstep_last_logged"):
        told = json.loads(file.read_text(encoding="utf-8"))
        trainer._tr_loss.fill_(told["loss"])
        trainer._globalstep_last_logged = int(told["logged_at"])
        trainer._total_loss_scalar = -told["loss"]  # its `train_loss` is the mean of the steps of this `train()` alone


def take_best(best: "Optional[str]", folder: Path) -> None:
    """Into a checkpoint: the best one so far, wherever the Trainer keeps it."""
    if best and Path(best).is_dir():
        link_tree(Path(best), folder / _BEST / Path(best).name)


def put_back_best(folder: Path, output_dir: str) -> None:
    """Out of a checkpoint, to where the Trainer looks for it."""
    for source in (folder / _BEST).iterdir() if (folder / _BEST).is_dir() else ():
        target = Path(output_dir) / source.name
        if not target.exists():
            link_tree(source, target)
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        state["best_model_checkpoint"] = os.path.join(output_dir, source.name)  # noqa: PTH118 - as the Trainer has it
        part = folder / f".{_STATE}"
        part.write_text(json.dumps(state, indent=2), encoding="utf-8")
        part.replace(folder / _STATE)


def unshare(folder: Path) -> None:
    """Files that are about to be written over must not be those of a checkpoint of ours."""
    for file in folder.rglob("*") if folder.is_dir() else ():
        if file.is_file() and not file.is_symlink() and file.stat().st_nlink > 1:
            part = file.with_name(f".{file.name}.allpass")
            shutil.copy2(file, part)
            part.replace(file)


def is_full(error: "Optional[BaseException]") -> bool:
    """Whether a disk was full, in the words of whichever library wrote."""
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(words in str(error).lower() for words in _FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def _newest(output_dir: Path) -> "Optional[Path]":
    found = [path for path in output_dir.iterdir() if path.is_dir() and _CHECKPOINT.fullmatch(path.name)]
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def _has(folder: Path, pattern: str) -> bool:
    return next(folder.glob(pattern), None) is not None

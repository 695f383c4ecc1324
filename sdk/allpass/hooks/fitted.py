"""What is in the checkpoints of an unchanged Lightning training, beside Lightning's own file.

lightning.ckpt   as `trainer.save_checkpoint` writes it
allpass.pt       `Kept`: the random generators, the place in the data, what is measured over an epoch that is under way
files/           what the script's own `ModelCheckpoint` callbacks have kept, which they and `ckpt_path="best"` look for
"""

from __future__ import annotations

import copy
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Tuple

from allpass.training.checkpoints import link_tree

_METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
_LOGGING = ("_first_loop_iter", "_current_fx")
_PARTS_OF_A_METRIC = ("_update_count", "has_reset", "_forward_cache")
_PARTS = ("value", "cumulated_batch_size", *_PARTS_OF_A_METRIC)
_FILES = "files"


@dataclass
class Kept:
    """`batches`: so many of the epoch under way were used; 0 where none is. `generators`: at "setup", when the epoch's
    "order" was drawn, before its "first" batch, and "now". `folder`: where the script ran."""

    batches: int
    generators: Dict[str, Any]
    folder: str
    results: List[Any] = field(default_factory=list)  # sums over the epoch, of what the model logs
    states: Dict[str, Any] = field(default_factory=dict)  # of the metrics that are parts of the model
    told: Dict[str, Any] = field(default_factory=dict)  # what callbacks monitor
    logging: Dict[str, Any] = field(default_factory=dict)  # by which it is known when sums begin anew

    @staticmethod
    def read(path: Path) -> "Kept":
        import torch

        return Kept(**torch.load(path, map_location="cpu", weights_only=False))

    def write(self, path: Path) -> None:
        import torch

        torch.save(vars(self), path)

    def restore(self, trainer: Any) -> None:
        """Once Lightning has restored the rest."""
        device = trainer.strategy.root_device
        for name, value in self.logging.items():
            setattr(trainer._logger_connector, name, value)
        for name, values in self.told.items():
            getattr(trainer._logger_connector, name).update({key: value.to(device) for key, value in values.items()})
        if self.batches:
            for logged in self.results:
                _log_again(trainer, logged, device)
            for name, metric in _metrics_of(trainer.lightning_module).items():
                for part, value in self.states.get(name, {}).items():
                    setattr(metric, part, value)


def take(trainer: Any, generators: "Dict[str, Any]", batches: int, folder: Path) -> Kept:
    """As it is now. The files that callbacks have kept are linked into `folder`."""
    here = str(Path.cwd())
    for path in _paths_of(trainer):
        inside = os.path.relpath(path, here)
        if not inside.startswith(os.pardir):
            _link(Path(path), folder / _FILES / inside)
    return Kept(
        batches=batches,
        generators=generators,
        folder=here,
        results=[_logged(key, one) for key, one in trainer.fit_loop.epoch_loop._results.items()] if batches else [],
        states={
            name: {part: getattr(metric, part) for part in (*metric._defaults, "_update_count")}
            for name, metric in _metrics_of(trainer.lightning_module).items()
        }
        if batches
        else {},
        logging={name: getattr(trainer._logger_connector, name) for name in _LOGGING},
        told={name: dict(getattr(trainer._logger_connector, name)) for name in _METRICS},
    )


def _logged(key: str, result: Any) -> "Tuple[str, Any, bool, Dict[str, Any]]":
    """What was logged under one name: how, whether as a number, and what it comes to so far."""
    meta, sync = copy.copy(result.meta), copy.copy(result.meta.sync)
    sync.fn = sync._fn = None  # of the trainer: it is given again
    meta._sync = sync
    parts = _PARTS if result.is_tensor else _PARTS_OF_A_METRIC
    return key, meta, result.is_tensor, {part: getattr(result, part) for part in parts if hasattr(result, part)}


def _log_again(trainer: Any, logged: "Tuple[str, Any, bool, Dict[str, Any]]", device: Any) -> None:
    key, meta, is_tensor, parts = logged
    results = trainer.fit_loop.epoch_loop._results
    meta.sync.fn = trainer.strategy.reduce
    meta.sync._generate_sync_fn()
    result = sys.modules[type(results).__module__]._ResultMetric(meta, is_tensor)
    for part, value in parts.items():
        setattr(result, part, value.to(device) if hasattr(value, "to") else value)
    if not is_tensor:
        result.value = trainer.lightning_module.get_submodule(meta.metric_attribute)
    results[key] = result


def put_back(trainer: Any, kept: Kept, folder: Path) -> None:
    """Files to where the script's callbacks look for them; they are told of their place on this machine."""
    for logger in trainer.loggers:
        logger.version  # noqa: B018 - now it looks for a folder that is not there yet; later it would find ours
    for source in (path for path in (folder / _FILES).rglob("*") if path.is_file()):
        target = Path.cwd() / source.relative_to(folder / _FILES)
        if not target.exists():
            _link(source, target)
    for callback in trainer.checkpoint_callbacks:
        callback.load_state_dict = _with_paths(callback, kept.folder, str(Path.cwd()))


def _with_paths(callback: Any, before: str, now: str) -> Any:
    load = callback.load_state_dict

    def load_once(state: Any) -> None:
        del callback.load_state_dict
        load(_moved(state, before, now))

    return load_once


def _moved(told: Any, before: str, now: str) -> Any:
    """`told`, with each path below the one folder below the other."""
    if isinstance(told, dict):
        return {_moved(name, before, now): _moved(value, before, now) for name, value in told.items()}
    if isinstance(told, str) and told.startswith(before + os.sep):
        return now + told[len(before) :]
    return told


def _link(source: Path, target: Path) -> None:
    """Lightning replaces files and never writes into them, so both may be one. A checkpoint may be a folder."""
    if source.is_dir():
        link_tree(source, target)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _paths_of(trainer: Any) -> "List[str]":
    found = []
    for callback in trainer.checkpoint_callbacks:
        found += [getattr(callback, name, "") for name in ("best_model_path", "last_model_path")]
        found += list(getattr(callback, "best_k_models", ()))
    return [path for path in dict.fromkeys(found) if path and Path(path).exists()]


def _metrics_of(model: Any) -> "Dict[str, Any]":
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "_defaults") and hasattr(module, "_update_count")
    }

"""Whether a Trainer's data is random while it is loaded: a collator that masks, a data set that crops.

What is fetched for a step was drawn before the step before it, and a worker that loads data keeps its random generators
to itself. A Trainer cannot resume that exactly, so it is found out: after data was fetched, the generators are
compared with what they were.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import sys
from typing import Any, Iterator, Tuple

from allpass.hooks.instead import Instead


class Drawing:
    """`is_seen` once a random number was drawn; not before `is_known` can it be told that none is."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._instead = Instead(trainer)
        self._is_seen = False
        self.is_known = True
        self._iterator: Any = None
        self._flag: Any = None

    def begin(self) -> None:
        if getattr(self._trainer.args, "dataloader_num_workers", 0):
            with contextlib.suppress(OSError):
                self._flag = multiprocessing.RawValue("b", 0)
                self._instead.put("data_collator", _Collator(self._trainer.data_collator, self._flag))
        elif hasattr(self._trainer, "get_batch_samples"):
            self._fetch = self._trainer.get_batch_samples
            self.is_known = False
            self._instead.put("get_batch_samples", self._watched_fetch)

    @property
    def is_seen(self) -> bool:
        return self._is_seen or (self._flag is not None and bool(self._flag.value))

    def leave(self) -> None:
        self._instead.take_back()

    def _watched_fetch(self, iterator: Any, *args: Any, **kwargs: Any) -> Any:
        """An iterator that begins draws an order, which a Trainer resumes."""
        before = None if iterator is not self._iterator or self._is_seen else _generators()
        self._iterator = iterator
        result = self._fetch(iterator, *args, **kwargs)
        if before is not None:
            self.is_known = True
            self._is_seen = before != _generators()
        return result


class _Collator:
    """As the one that it stands for. In a worker, it looks whether the generators still are as the worker began."""

    def __init__(self, collator: Any, flag: Any) -> None:
        self._allpass = (collator, flag)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        collator, flag = self._allpass
        result = collator(*args, **kwargs)
        if not flag.value and _has_drawn():
            flag.value = 1
        return result

    def __getattr__(self, name: str) -> Any:
        if name == "_allpass" or name.startswith("__"):  # while it is unpickled there is nothing to ask
            raise AttributeError(name)
        return getattr(self._allpass[0], name)


def _generators() -> "Tuple[Any, ...]":
    import torch

    numpy: Any = sys.modules.get("numpy")
    known = numpy.random.get_state() if numpy is not None else (None, b"", 0)
    return (random.getstate(), bytes(known[1]), known[2], torch.get_rng_state().numpy().tobytes())


def _has_drawn() -> bool:
    import torch
    from torch.utils.data import get_worker_info

    if get_worker_info() is None:
        return False
    seed = torch.initial_seed()
    fresh = torch.Generator().manual_seed(seed).get_state()
    if not torch.equal(fresh, torch.get_rng_state()):
        return True
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        now = numpy.random.get_state()
        begun = (numpy.random.RandomState(one).get_state() for one in _numpy_seeds(seed))
        if all(now[2] != one[2] or bytes(now[1]) != bytes(one[1]) for one in begun):
            return True
    return random.getstate() != random.Random(seed).getstate()  # noqa: S311 - it is compared, not used


def _numpy_seeds(seed: int) -> "Iterator[Any]":
    """With which a worker's numpy may have begun: as a Trainer has it for training, or as torch has it for any loader,
    such as the one of an evaluation."""
    from torch.utils.data import get_worker_info

    yield seed % 2**32
    info = get_worker_info()
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        from torch.utils.data._utils.worker import _generate_state

        generate: Any = _generate_state  # torch has no types for it
        if info is not None:
            yield generate(info.seed - info.id, info.id)

"""Steps that are taken with whichever processes there are: they change between two of them, and one that is lost costs
the step that was being taken (ADR 0098)."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from allpass.training.elastic.ranks import Join, PeerLost, Ranks


class TakesSteps:
    """One process of a training. `ranks`: it with the others, as they have met last; alone before that. What a training
    is made of is said by whoever is one: how a step is taken, what is due after it, and what is handed over."""

    def __init__(self, join: Join, device: Any) -> None:
        self._join_others = join
        self._device = device
        self.ranks = Ranks()

    def join(self) -> None:
        """Meet the others, the first time."""
        self.ranks = self._join_others(self._device)

    def begin_after(self, step: int) -> int:
        """The step that the first process took last, with all that it depends on; it knows that, the others do not."""
        with contextlib.suppress(PeerLost):
            return self._hand_over(step)
        return self._change_ranks(step)

    def take_all(self, step: int) -> int:
        """All steps after this one, until `_is_over`; the last that was taken."""
        while True:
            is_lost = False
            try:
                self._close(step)
                if self._is_over(step):
                    break
                if self.ranks.is_to_change:
                    step = self._change_ranks(step)
                self._take(step + 1)
                step += 1
            except PeerLost:  # nobody has lost anything but the step that was being taken
                is_lost = True
            if is_lost:  # where nothing refers any more to the ways that broke: the others wait for their end
                self._drop()
                step = self._change_ranks(step)
        self.ranks.leave()
        return step

    def _change_ranks(self, step: int) -> int:
        """Go on with the processes that there are by now, after the step that the first of them took last."""
        before, since_s = self.ranks.count, time.monotonic()
        while True:
            self.ranks.leave()
            self.join()
            with contextlib.suppress(PeerLost):
                step = self._hand_over(step)
                break
        self._changed()
        if self.ranks.count != before:
            self.ranks.pause_s = time.monotonic() - since_s
        print(f"training: goes on with step {step + 1} on {in_gpus(self.ranks.count)}, after {before}", flush=True)
        return step

    def _hand_over(self, step: int) -> int:
        """All that a step depends on, as the first process has it; the step that it took last. Raises PeerLost."""
        raise NotImplementedError

    def _close(self, step: int) -> None:
        """What is due after a step, once, however often it is asked for. Raises PeerLost."""
        raise NotImplementedError

    def _is_over(self, step: int) -> bool:
        raise NotImplementedError

    def _take(self, step: int) -> None:
        """Raises PeerLost, with the weights as they were."""
        raise NotImplementedError

    def _drop(self) -> None:
        """Forget what there is of a step that is not taken."""
        raise NotImplementedError

    def _changed(self) -> None:
        """Other processes take part from now on."""


def in_gpus(count: int) -> str:
    """E.g. "3 GPUs"."""
    return f"{count} GPU{'s' * (count > 1)}"

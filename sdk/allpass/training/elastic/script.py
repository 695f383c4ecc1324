"""The steps of a user's own training, taken by as many processes as there are GPUs: see the package."""

from __future__ import annotations

import hashlib
import math
import os
import random
import sys
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from allpass import training
from allpass.training.elastic import following, gathering, given_gpus, handing_over, sameness
from allpass.training.elastic.ranks import Join, RankFailed
from allpass.training.elastic.together import TakesSteps, in_gpus
from allpass.training.session import Session
from allpass.training.silent import FOLLOWS
from allpass.training.torch_checkpoints import Checkpoints

_FINGERPRINTED_STEPS = 2  # after each change of the processes
_has_trained = False


class NotExact(ValueError):
    """What the script does depends on more than the step and its parts."""


class Diverged(ArithmeticError):
    """The loss is no number any more."""


@dataclass
class Training:
    """What is trained, and how.

    `steps`: of the optimizer. `parts(step)`, from 1: what the step learns from, a list that is the same in all
    processes and for any number of them; each part is taken by one of them. `loss(part)`: a tensor with one number,
    whose gradient is the part's share of the step's (divide by the number of parts for their mean). `scheduler` is
    moved on after each step. `after_step(step, metrics)`: called in the first process alone, before the step may be
    saved.
    """

    model: Any
    optimizer: Any
    steps: int
    parts: Callable[[int], Sequence[Any]]
    loss: Callable[[Any], Any]
    scheduler: Any = None
    scaler: Any = None
    clip_norm: Optional[float] = None
    after_step: Optional[Callable[[int, Dict[str, float]], None]] = None

    @property
    def states(self) -> "dict[str, Any]":
        """What a step depends on beside the weights, by the names that `Checkpoints` has for them."""
        return {"optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": self.scaler}


def train(build: Callable[[Any], Training], *, seed: int = 0, processes: Optional[int] = None) -> Training:
    """Take all steps of the training that `build` makes for a device, from where the job's checkpoint says, and return
    it when they are taken. Python's, numpy's and torch's random numbers are seeded before `build`, and before each part
    by `seed`, step and part. `processes`: where Allpass does not say it.

    Reports each step's `loss` (the sum over its parts), `grad_norm` and `learning_rate`; saves as
    `allpass.training.torch_checkpoints` does, and leaves with code 75 when it is asked to. In the other processes this
    does not return.

    Once in a process, which is neither one of torchrun's nor one of a job on several machines (RuntimeError).

    Raises NotExact for what would make the result depend on the number of processes, Diverged for a loss that is no
    number, TypeError for a training or loss that is none, and what `build`, `parts` or `loss` raise: of another process
    as `RankFailed`, with its words.
    """
    if FOLLOWS in os.environ:
        following.serve(lambda task, session, join: _follow(build, task, session, join))
        raise SystemExit(0)  # let go: whatever the script does next is the first process's to do
    global _has_trained  # noqa: PLW0603 - one process, one training
    _check_started(_has_trained)
    session = training.session()
    gpus = gathering.own_gpus(session, processes)
    given_gpus.check(session)
    told, environment = {"seed": seed}, {FOLLOWS: "1"}
    with gathering.gathered(_command(), told, session, gpus, may_change=True, environment=environment) as join:
        trained = _Steps(build, seed, session, join).run()
    _has_trained = True
    return trained


def _check_started(has_trained: bool) -> None:
    """Raises RuntimeError where this is not the one process of its training, or not its one training."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise RuntimeError(
            "elastic.train begins the other processes itself, on the GPUs of one machine: start the script without "
            "torchrun, and a job of it without --nodes"
        )
    if has_trained:
        raise RuntimeError(
            "elastic.train was called before in this process: the others, which run the script from its beginning, "
            "would take part in that training. Put both into one list of steps, or into two jobs (--from-checkpoint)"
        )


def _follow(build: Callable[[Any], Training], task: "dict[str, Any]", session: Session, join: Join) -> None:
    _Steps(build, task["seed"], session, join).run()


def _command() -> List[str]:
    """This script again, as it was started, wherever it has gone since."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return [sys.executable, "-m", spec.name.rpartition(".__main__")[0] or spec.name, *sys.argv[1:]]
    return [sys.executable, getattr(main, "__file__", None) or sys.argv[0], *sys.argv[1:]]


class _Learned(NamedTuple):
    """What came of a part, and what the process that took it says of itself (`sameness`)."""

    total: float
    present: Tuple[bool, ...]
    said: str


class _Steps(TakesSteps):
    """One process's share of a training."""

    def __init__(self, build: Callable[[Any], Training], seed: int, session: Session, join: Join) -> None:
        super().__init__(join, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        self._seed = seed
        self._session = session
        _seed_all(f"allpass elastic {seed}")
        self._training = made = build(self._device)
        _check(made)
        self._parameters = [one for one in made.model.parameters() if one.requires_grad]
        self._buffers = sameness.saved_buffers(made.model)
        if made.scaler is not None:
            made.scaler.scale(torch.zeros((), device=self._device))  # makes its state, also where it has no part
        self._checkpoints = Checkpoints(made.model, session=session, alone=True, **made.states)
        self._told: "dict[str, float]" = {}  # of the newest step
        self._closed: Optional[int] = None  # the newest step after which all was done that is due then
        self._steps_together = 0

    def run(self) -> Training:
        step = self.take_all(self._begin())
        if self.ranks.is_first:
            self._checkpoints.save(step, metrics=self._told)
        return self._training

    def _begin(self) -> int:
        self.join()
        step = 0
        if self.ranks.is_first:
            state = self._checkpoints.resume()
            step = self._closed = 0 if state is None else state.step
            self._session.describe(total_steps=self._training.steps)
            begins = "begins" if step == 0 else f"goes on with step {step + 1}"
            print(f"training: {begins} on {in_gpus(self.ranks.count)}", flush=True)
        return self.begin_after(step)

    def _hand_over(self, step: int) -> int:
        """All that a step depends on, as the first process has it. Raises RankFailed where the rest is not the same."""
        self._steps_together = 0
        if self.ranks.count == 1:
            return step
        made = self._training
        step, _ = handing_over.share(self.ranks, step, {}, made.model, made.states)
        fixed = sameness.of_fixed(made.model)
        if self.ranks.of_first(fixed) != fixed:
            raise RankFailed(
                "the processes have built different models: weights that are not trained differ. Load them from the "
                "same files, or draw them in `build`, where random numbers are seeded"
            )
        return step

    def _close(self, step: int) -> None:
        """What is due after a step, once."""
        made = self._training
        if self.ranks.is_first and step != self._closed:
            if made.after_step is not None:
                made.after_step(step, dict(self._told))
            self._checkpoints.after_step(step, metrics=self._told)
        self._closed = step

    def _is_over(self, step: int) -> bool:
        return step >= self._training.steps

    def _drop(self) -> None:
        self._training.optimizer.zero_grad(set_to_none=True)

    def _take(self, step: int) -> None:
        made = self._training
        parts = list(made.parts(step))
        if not parts:
            raise ValueError(f"parts({step}) is empty: a step learns from one part at least")
        said = self._said(parts)
        kept = sameness.changes_of(made.model, self._buffers)
        summing = self.ranks.summing(self._parameters)

        def learn(number: int, part: Any) -> _Learned:
            _seed_all(f"allpass elastic {self._seed} {step} {number}")
            loss = _checked(made.loss(part))
            (made.scaler.scale(loss) if made.scaler else loss).backward()
            present = summing.present()
            summing.keep()
            return _Learned(float(loss.detach()), present, said)

        total = 0.0
        for learned in self.ranks.each(parts, learn, summing.at_once):
            _check_same(step, learned)
            summing.add([one.present for one in learned])
            for one in learned:
                total += one.total
        summing.finish()
        _check_kept(kept, sameness.changes_of(made.model, self._buffers))
        _seed_all(f"allpass elastic {self._seed} {step} {len(parts)}")  # as it is saved, whoever took the last part
        if not math.isfinite(total):
            raise Diverged(f"the loss of step {step} is {total}")
        self._told = {"loss": total, **self._apply()}
        self._steps_together += 1
        self._session.report(step, **self._told)

    def _said(self, parts: Sequence[Any]) -> str:
        """What has to be the same in all processes: the number of parts, the norm of the step before, and, just after
        the processes have met, what the parts are."""
        words = f"{len(parts)} parts, norm {self._told.get('grad_norm') if self._steps_together else None!r}"
        if self.ranks.count == 1 or self._steps_together >= _FINGERPRINTED_STEPS:
            return words
        return f"{words}, {sameness.of_parts(parts)}"

    def _apply(self) -> "dict[str, float]":
        """Take the step, and forget the gradients."""
        made = self._training
        rate = float(made.optimizer.param_groups[0]["lr"])
        if made.scaler:
            made.scaler.unscale_(made.optimizer)
        most = math.inf if made.clip_norm is None else made.clip_norm
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, most))
        if made.scaler:
            made.scaler.step(made.optimizer)
            made.scaler.update()
        else:
            made.optimizer.step()
        made.optimizer.zero_grad(set_to_none=True)
        if made.scheduler is not None:
            made.scheduler.step()
        return {"grad_norm": norm, "learning_rate": rate}


def _seed_all(words: str) -> None:
    seed = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big")
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def _check(made: Any) -> None:
    """Raises TypeError and ValueError."""
    if not isinstance(made, Training):
        raise TypeError(f"build(device) has to return an elastic.Training, not {type(made).__name__}")
    if type(made.steps) is not int or made.steps < 1:
        raise ValueError(f"steps={made.steps!r}: a whole number from 1 on is expected")
    trained = {id(one) for one in made.model.parameters() if one.requires_grad}
    stepped = {id(one) for group in made.optimizer.param_groups for one in group["params"] if one.requires_grad}
    if not trained:
        raise ValueError("the model has no weight that is trained (requires_grad)")
    if stepped - trained:
        raise ValueError("the optimizer has weights that are not the model's: put all that is trained into one module")


def _checked(loss: Any) -> Any:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        what = f"a tensor of {loss.numel()} numbers" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise TypeError(f"loss(part) has to return a tensor with one number that depends on the weights, not {what}")
    return loss.reshape(())


def _check_same(step: int, learned: Sequence[_Learned]) -> None:
    said = sorted({one.said for one in learned})
    if len(said) > 1:
        raise NotExact(
            f"the processes are about different things in step {step}: {'; '.join(said)}. parts(step) has to depend on "
            f"the step alone (an order that is drawn needs a generator seeded by step or epoch), and GPUs to be alike"
        )


def _check_kept(before: sameness.Changes, after: sameness.Changes) -> None:
    changed = sameness.changed(before, after)
    if changed:
        raise NotExact(
            f"loss(part) changes {', '.join(changed[:3])}, which the next part depends on: processes that take "
            f"different parts would not be the same. Batch statistics do so: use a norm of each row (LayerNorm, "
            f"GroupNorm), or put those modules into eval()"
        )

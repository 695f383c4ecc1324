"""`allpass plan --exact`: symbolic runs of the layouts that matter, here, and the plan that they decide."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from allpass.cli import screen
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.errors import InvalidRequest
from allpass.symbolic.ask import CannotRunError, run_cases
from allpass.symbolic.case import Case
from allpass.symbolic.kept import Kept, usual_folder

if TYPE_CHECKING:
    from allpass.wire.plan import ExactPeak, Plan, PlanLayout, PlanRequest

_ROUNDS = 3  # what a run decides may put another layout forward
_MOST_AT_ONCE = 4
_UNKNOWN = "config.model_type"
_Layout = tuple[int, bool, bool]  # micro-batch, checkpointing, whether it accumulates


class ExactRuns:
    """The symbolic runs of one question. `python`: whose libraries count."""

    def __init__(self, request: PlanRequest, python: str | None) -> None:
        self._request, self._python = request, python or sys.executable
        self._peaks: dict[_Layout, ExactPeak] = {}
        self._parameters = 0
        self._versions: dict[str, str] = {}

    def plan(self, ask: Callable[[PlanRequest], Plan]) -> Plan:
        """The plan when every layout has run that is chosen, or so near to a GPU's memory that a run decides.

        Raises CommandFailed where they cannot run, what `ask` raises else.
        """
        try:
            found = ask(self._request)
        except InvalidRequest as error:
            if error.param != _UNKNOWN or self._request.config is None:
                raise
            self._run(self._request.config, _first_layouts(self._request))
            found = ask(self._told())
        for _ in range(_ROUNDS):
            open_layouts = [layout for layout in _that_matter(found) if layout not in self._peaks]
            if not open_layouts:
                break
            self._run(self._request.config or found.config, open_layouts[:_MOST_AT_ONCE])
            found = ask(self._told())
        return found

    def _told(self) -> PlanRequest:
        from allpass.wire.plan import ExactMemory

        told = ExactMemory(parameters=self._parameters, peaks=list(self._peaks.values()), versions=self._versions)
        return self._request.model_copy(update={"exact": told})

    def _run(self, config: dict[str, Any], layouts: Iterable[_Layout]) -> None:
        from allpass.wire.plan import ExactPeak

        wanted = list(layouts)
        try:
            cases = [_case(self._request, config, layout) for layout in wanted]
            results = run_cases(cases, python=self._python, kept=Kept(usual_folder()), on_start=_say_start)
        except CannotRunError as error:
            raise CommandFailed(f"--exact: {error}", hint=error.hint or None) from error
        except ValueError as error:
            raise CommandFailed(f"--exact: {error}", code=WRONG_USAGE) from error
        for (micro_batch, checkpointing, accumulates), result in zip(wanted, results, strict=True):
            self._parameters, self._versions = result["parameters"], result["versions"]
            self._peaks[micro_batch, checkpointing, accumulates] = ExactPeak(
                micro_batch=micro_batch,
                checkpointing=checkpointing,
                accumulates=accumulates,
                forward_bytes=result["forward_bytes"],
                backward_bytes=result["backward_bytes"],
                optimizer_bytes=result["optimizer_bytes"],
            )


def _say_start(count: int) -> None:
    layouts = "1 layout" if count == 1 else f"{count} layouts"
    screen.say(f"running {layouts} symbolically: some seconds each, no GPU")


def _that_matter(found: Plan) -> list[_Layout]:
    """The one that would be taken, then those near to their GPU's memory; what is split over GPUs cannot run."""
    options = [option for index, option in enumerate(found.options) if index == 0 or option.near]
    layouts = [_layout(option.layout) for option in options if _runs(option.layout)]
    return list(dict.fromkeys(layouts))


def _runs(layout: PlanLayout) -> bool:
    return layout.sharding == "none" and layout.tensor_parallel == 1


def _layout(layout: PlanLayout) -> _Layout:
    return layout.micro_batch, layout.checkpointing, layout.accumulation > 1


def _first_layouts(request: PlanRequest) -> list[_Layout]:
    """Of a model that nobody knows yet: two micro-batches, between which the others lie on a line, and all at once."""
    batch = request.batch
    sizes = dict.fromkeys((1, min(2, batch), batch))
    return [
        (size, checkpointing, size < batch)
        for checkpointing in ((True,) if request.checkpointing else (False, True))
        for size in sizes
    ]


def _case(request: PlanRequest, config: dict[str, Any], layout: _Layout) -> Case:
    if request.loss != "full":
        raise ValueError(f"loss is {request.loss!r}: a symbolic run has the whole logits; leave --exact out")
    micro_batch, checkpointing, accumulates = layout
    quantised = request.method == "qlora"
    halves = request.precision in {"bf16", "fp16"}
    return Case(
        config=config,
        sequence=request.sequence,
        method=request.method,
        micro_batch=micro_batch,
        precision=request.precision,
        autocast=(quantised and halves) if request.autocast is None else request.autocast,
        optimizer=request.optimizer,
        checkpointing=checkpointing,
        accumulates=accumulates,
        attention=request.attention,
        rank=request.rank or 16,
        targets=tuple(request.targets or ("all",)),
        adapter_dropout=request.adapter_dropout or 0.0,
        quantisation=request.quantisation or ("nf4_dq" if quantised else "none"),
    )

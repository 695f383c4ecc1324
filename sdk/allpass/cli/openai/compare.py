"""The run at OpenAI beside the one on Allpass: hyperparameters, losses over epochs, how both ended, what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allpass.cli.openai import folder
from allpass.cli.openai.folder import EVENTS, METRICS
from allpass.cli.openai.told import OldJob, number
from allpass.cli.words import duration, money

if TYPE_CHECKING:
    from allpass.wire.jobs import Job, MetricPoint

Point = tuple[float, float]
TRAINING, VALIDATION = "training loss", "validation loss"
MOST_POINTS = 200  # of a curve
_OLD = {TRAINING: ("train_loss",), VALIDATION: ("full_valid_loss", "valid_loss")}
_NEW = {TRAINING: ("loss",), VALIDATION: ("eval_loss",)}
_ACCURACIES = (("valid_mean_token_accuracy", "eval_accuracy"), ("train_accuracy", "accuracy"))
EPOCHS, SHARE = "epochs", "share of the training"


@dataclass(frozen=True)
class Run:
    """`facts`: by name, as they are shown. `curves`: over `unit`."""

    name: str
    facts: Mapping[str, str]
    curves: Mapping[str, Sequence[Point]]


@dataclass(frozen=True)
class Comparison:
    """`remarks`: what a reader has to know of the figures."""

    old: Run
    new: Run
    unit: str
    remarks: list[str] = field(default_factory=list)

    def rows(self) -> list[tuple[str, str, str]]:
        """Name, and the facts of both; "-" for what is not known."""
        names = list(dict.fromkeys([*self.old.facts, *self.new.facts]))
        return [(name, self.old.facts.get(name, "-"), self.new.facts.get(name, "-")) for name in names]


def compare(
    old: OldJob, root: Path, new: Job, points: Iterable[MetricPoint], told: Mapping[str, Any] | None
) -> Comparison:
    """`told`: the new job in OpenAI's words, of one that came by its API."""
    before = _old_steps(folder.place(root, old.id))
    after = {
        point.step: {name: value for name, value in point.values.items() if math.isfinite(value)} for point in points
    }
    given = new.parameters if isinstance(new.parameters, dict) else {}  # a script has a list of arguments
    old_epochs, new_epochs = number(old.hyperparameters.get("n_epochs")), number(given.get("epochs"))
    both = old_epochs is not None and new_epochs is not None
    remarks = (
        [] if both else ["how many epochs there were is not known of both: curves are over their share of the training"]
    )
    if not before:
        remarks.append(f"no metrics of {old.id} were imported: its curve is missing")
    if not after:
        remarks.append(f"{new.id} has no metrics yet: its curve is missing")
    total = new.total_steps or max(after, default=0)
    if new.status not in ("succeeded", "failed", "cancelled"):
        remarks.append(f"{new.id} is {new.status}: its figures are those of now")
    old_scale = old_epochs if both and old_epochs else 1.0
    new_scale = new_epochs if both and new_epochs else 1.0
    return Comparison(
        old=Run(f"OpenAI: {old.id}", _old_facts(old, before), _curves(before, _OLD, max(before, default=0), old_scale)),
        new=Run(f"Allpass: {new.id}", _new_facts(new, given, after, told), _curves(after, _NEW, total, new_scale)),
        unit=EPOCHS if both else SHARE,
        remarks=remarks,
    )


def _old_steps(place: Path) -> dict[int, dict[str, float]]:
    steps: dict[int, dict[str, float]] = {}
    for row in folder.read_table(place / METRICS):
        _add(steps, row)
    if not steps:
        for event in folder.read_rows(place / EVENTS):
            data = event.get("data")
            if isinstance(data, dict):
                _add(steps, data)
    return steps


def _add(steps: dict[int, dict[str, float]], row: Mapping[str, Any]) -> None:
    step = _value(row.get("step"))
    if step is None or not 0 <= step < 1e15:
        return
    told = {name: _value(value) for name, value in row.items() if name != "step"}
    steps.setdefault(int(step), {}).update({name: value for name, value in told.items() if value is not None})


def _value(told: Any) -> float | None:
    if not isinstance(told, str):
        return number(told)
    try:
        return number(float(told)) if math.isfinite(float(told)) else None
    except ValueError:
        return None


def _curves(
    steps: Mapping[int, Mapping[str, float]], names: Mapping[str, tuple[str, ...]], total: int, scale: float
) -> dict[str, list[Point]]:
    """With the first of the names that there are values of."""
    found = {}
    for shown, wanted in names.items():
        chosen = next((name for name in wanted if any(name in values for values in steps.values())), None)
        if chosen is not None and total > 0:
            found[shown] = _thinned(
                [(step / total * scale, steps[step][chosen]) for step in sorted(steps) if chosen in steps[step]]
            )
    return found


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Means of neighbours, where there are more than can be seen."""
    size = -(-len(points) // MOST_POINTS) or 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in one) / len(one), sum(y for _, y in one) / len(one)) for one in groups]


def _old_facts(old: OldJob, steps: Mapping[int, Mapping[str, float]]) -> dict[str, str]:
    facts = {"model": old.model, "status": old.status, "method": old.method}
    facts |= {name: _shown(value) for name, value in old.hyperparameters.items()}
    facts |= {} if old.seed is None else {"seed": str(old.seed)}
    facts |= _ends(steps, _OLD, 0)
    facts |= {"steps": f"{max(steps):,}"} if steps else {}
    facts |= {} if old.trained_tokens is None else {"trained tokens": f"{old.trained_tokens:,}"}
    if old.created_at is not None and old.finished_at is not None and old.finished_at >= old.created_at:
        facts["from creation to end"] = duration(float(old.finished_at - old.created_at))
    return facts


def _new_facts(
    new: Job, given: Mapping[str, Any], steps: Mapping[int, Mapping[str, float]], told: Mapping[str, Any] | None
) -> dict[str, str]:
    facts = {"model": str(given.get("model", "-")), "status": new.status}
    facts["method"] = "dpo" if given.get("task") == "dpo" else "supervised"
    numbers: dict[str, Any] = {"n_epochs": given.get("epochs"), "batch_size": given.get("batch_size")}
    method = told.get("method") if told is not None else None
    own = method.get(facts["method"]) if isinstance(method, dict) else None
    if isinstance(own, dict) and isinstance(own.get("hyperparameters"), dict):
        numbers |= own["hyperparameters"]
    facts |= {name: _shown(value) for name, value in numbers.items() if value is not None}
    for name in ("seed", "learning_rate"):
        facts |= {name.replace("_", " "): _shown(given[name])} if given.get(name) is not None else {}
    facts |= _ends(steps, _NEW, 1)
    facts |= {"steps": f"{max(steps):,}"} if steps else {}
    tokens = next((steps[step]["tokens"] for step in sorted(steps, reverse=True) if "tokens" in steps[step]), None)
    facts |= {} if tokens is None else {"trained tokens": f"{tokens:,.0f}"}
    if new.ended_at is not None:
        facts["from creation to end"] = duration(new.ended_at - new.submitted_at)
    facts["cost"] = money(new.cost)
    return facts


def _ends(steps: Mapping[int, Mapping[str, float]], names: Mapping[str, tuple[str, ...]], side: int) -> dict[str, str]:
    """The last values, and the lowest loss of validation."""
    found = {}
    for shown, wanted in names.items():
        values = _values(steps, wanted)
        if values:
            found[f"last {shown}"] = _shown(values[-1])
            if shown == VALIDATION:
                found[f"lowest {shown}"] = _shown(min(values))
    for pair, shown in zip(_ACCURACIES, ("last validation accuracy", "last training accuracy"), strict=True):
        values = _values(steps, (pair[side],))
        found |= {shown: f"{values[-1]:.1%}"} if values else {}
    return found


def _values(steps: Mapping[int, Mapping[str, float]], wanted: tuple[str, ...]) -> list[float]:
    chosen = next((name for name in wanted if any(name in values for values in steps.values())), None)
    return [] if chosen is None else [steps[step][chosen] for step in sorted(steps) if chosen in steps[step]]


def _shown(value: Any) -> str:
    known = number(value)
    return str(value)[:80] if known is None or isinstance(value, int) else f"{known:.6g}"

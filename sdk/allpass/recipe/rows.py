"""Every row checked against the one shape that all of them have, before anything is sent."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allpass.errors import InvalidData, Problem
from allpass.recipe import pairs
from allpass.recipe.formats import OWN, Format, as_messages, foreign, graded
from allpass.recipe.messages import check_messages, check_text, check_tools, unknown_fields
from allpass.recipe.reading import Row

ACCEPTED = "prompt and completion; messages; text; text and label; or chosen and rejected"
MOST_TOLD = 10
MOST_LABELS = 10_000


@dataclass(frozen=True)
class Checked:
    """Rows of one shape with the fields of that shape alone. `labels`: all that occur, in order."""

    source: str
    shape: str
    rows: tuple[dict[str, Any], ...]
    labels: tuple[str, ...]
    ignored: tuple[str, ...]
    places: tuple[str, ...]


def check(rows: Sequence[Row], source: str, *, task: str | None = None, shape: str | None = None) -> Checked:
    """`task`: what is to be learned, if it was said; `shape`: what these rows must have since those that they go with
    have it.

    Raises InvalidData with the first ten problems, each with its row and field.
    """
    if not rows:
        raise InvalidData(source, [Problem("", "there are no rows", f"rows with {ACCEPTED}")])
    are_all = shape is None
    format_ = _format(rows[0], source, task, shape)
    problems: list[Problem] = []
    kept = []
    for row in rows:
        found, values = _check_row(row, format_)
        problems += found
        kept.append(values)
    if problems:
        raise InvalidData(source, problems[:MOST_TOLD], len(problems))
    labels = _labels(kept, source) if are_all and format_.shape == "labelled" else ()
    ignored = {str(name) for row in rows for name in row.values} - {*format_.fields, *format_.optional}
    if format_.shape == "messages":
        first = format_.fields[0]
        ignored |= {f"{first}[].{name}" for row in rows for name in unknown_fields(row.values.get(first))}
    places = tuple(row.place for row in rows)
    return Checked(source, format_.shape, tuple(kept), labels, tuple(sorted(ignored)), places)


def _format(first: Row, source: str, task: str | None, shape: str | None) -> Format:
    if shape in pairs.SHAPES or (shape is None and _is_pair(first, source, task)):
        return _pairs_format(first, source, shape)
    refused = graded(first.values, first.place)
    if refused is not None:
        raise InvalidData(source, [refused])
    others = foreign(first.values) if shape in (None, "messages") and task != "classification" else None
    return others or OWN[shape or _shape(first, source, task)]


def _is_pair(first: Row, source: str, task: str | None) -> bool:
    """Whether these rows are pairs of answers. Those that have `messages` too may be either: they are conversations
    unless it was said that pairs are to be learned."""
    has_pair = pairs.has_pair(first.values)
    if task == "dpo" and not has_pair:
        there = ", ".join(map(str, first.values)) or "no fields"
        what = f"has {there}; chosen and rejected are needed, maybe with prompt"
        raise InvalidData(source, [Problem(first.place, what, pairs.EXAMPLE)])
    if task == "dpo" or not has_pair or "messages" in first.values:
        return task == "dpo"
    if task is not None:
        what = f"has chosen and rejected, pairs of answers, and task is {task!r}"
        raise InvalidData(source, [Problem(first.place, what, 'task="dpo", or leave it out')])
    return True


def _pairs_format(first: Row, source: str, shape: str | None) -> Format:
    found = pairs.format_of(first.values)
    if shape not in (None, found.shape) and pairs.has_pair(first.values):
        what = "has messages" if found == pairs.TALKS else "has texts"
        other = "texts" if found == pairs.TALKS else "messages"
        hint = "rows to measure with in the form of those to train on"
        raise InvalidData(
            source, [Problem(first.place, f"{what}, and the rows that are trained on have {other}", hint)]
        )
    return found


def _shape(first: Row, source: str, task: str | None) -> str:
    names = [str(name) for name in first.values]
    shapes = [shape for shape, known in OWN.items() if set(known.fields) <= set(names)]
    if task == "sft":
        shapes = [shape for shape in shapes if shape != "labelled"]
    if task == "classification":
        shapes = [shape for shape in shapes if shape == "labelled"]
    if len(shapes) > 1 and shapes[-1] == "text":
        shapes.pop()  # text and label, not text alone
    if len(shapes) == 1:
        return shapes[0]
    there = ", ".join(names) or "no fields"
    if shapes:
        raise InvalidData(
            source, [Problem(first.place, f"has {there}: more than one of {ACCEPTED}", "leave the others out")]
        )
    wanted = "text and label" if task == "classification" else ACCEPTED
    raise InvalidData(source, [Problem(first.place, f"has {there}; {wanted} are needed", _renaming(names))])


def _renaming(names: Sequence[str]) -> str:
    known = sorted({field for own in OWN.values() for field in own.fields})
    for name in names:
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.7)
        if near:
            return f"call {name!r} {near[0]!r}"
    return '{"prompt": "...", "completion": "..."}'


def _check_row(row: Row, format_: Format) -> tuple[list[Problem], dict[str, Any]]:
    if format_.shape in pairs.SHAPES:
        return pairs.check_pair(row.values, format_, row.place)
    problems: list[Problem] = []
    kept: dict[str, Any] = {}
    for field in format_.fields:
        where = f'{row.place}, field "{field}"'
        if field not in row.values:
            near = difflib.get_close_matches(field, [str(name) for name in row.values], n=1, cutoff=0.7)
            problems.append(Problem(where, "is missing", f"call {near[0]!r} {field!r}" if near else None))
            continue
        value = row.values[field]
        if format_.shape == "messages":
            continue  # below, where none is missing
        if field == "label":
            found, kept[field] = _check_label(value, where)
        else:
            found, kept[field] = check_text(value, where)
        problems += found
    return (problems, kept) if problems or format_.shape != "messages" else _check_talk(row, format_)


def _check_talk(row: Row, format_: Format) -> tuple[list[Problem], dict[str, Any]]:
    """A row of messages, or what another tool has in their place."""
    problems: list[Problem] = []
    talk = row.values.get("messages")
    if format_ != OWN["messages"]:
        problems, talk = as_messages(row.values, format_, row.place)
    kept: dict[str, Any] = {}
    if not problems:
        found, kept["messages"] = check_messages(talk, f'{row.place}, field "{format_.fields[0]}"')
        problems += found
    if "tools" in format_.optional:
        found, tools = check_tools(row.values.get("tools"), f'{row.place}, field "tools"')
        problems += found
        kept |= {} if tools is None else {"tools": tools}
    return problems, kept


def _check_label(value: Any, where: str) -> tuple[list[Problem], str]:
    """Numbers and truth values are labels too, by the text they have in JSON."""
    if isinstance(value, bool):
        return [], "true" if value else "false"
    if isinstance(value, int):
        return [], str(value)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return [], str(int(value))
    if isinstance(value, float):
        return [Problem(where, f"{value!r} is a measurement, not a label", 'name the classes: "low", "high"')], ""
    found, text = check_text(value, where)
    return found, text.strip()


def _labels(rows: Sequence[Mapping[str, Any]], source: str) -> tuple[str, ...]:
    labels = {row["label"] for row in rows}
    if len(labels) < 2:
        raise InvalidData(source, [Problem('field "label"', f"every row has {next(iter(labels))!r}: two are needed")])
    if len(labels) > MOST_LABELS:
        raise InvalidData(source, [Problem('field "label"', f"{len(labels)} different ones are no classes")])
    numeric = all(label.lstrip("-").isdecimal() for label in labels)
    return tuple(sorted(labels, key=int if numeric else str))

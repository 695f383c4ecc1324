"""The best of two pairings, part by part: where they differ in separate places, each place takes the better one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from app.core.merging.grouping import Pairs, Rows
from app.core.merging.problem import Floats, Problem
from app.core.merging.sizes import best_split, cost_curve


def recombined(problem: Problem, rows: Rows, mine: Pairs, theirs: Pairs) -> tuple[float, Pairs]:
    """The least cost of all ways to take each separate difference from the one or the other, with the best sizes."""
    shared = set(mine) & set(theirs)
    changed = _parts(problem, set(mine) ^ set(theirs))
    touched = {job for part in changed for job in part}
    kept = [job for job in range(problem.jobs) if job not in touched]
    still = _curve(problem, rows, kept, shared)
    curves = [(still, still)]
    for part in changed:
        own, other = (_curve(problem, rows, part, _within(problem, each, part)) for each in (mine, theirs))
        curves.append((own, other))
    cost, choices = best_split(curves, problem.gpus)
    pairs = list(shared)
    for part, choice in zip(changed, choices[1:], strict=True):
        pairs += _within(problem, theirs if choice else mine, part)
    return cost, tuple(sorted(pairs))


def _parts(problem: Problem, pairs: set[int]) -> list[set[int]]:
    """The jobs that are linked by these pairs, in sets that have no pair between them; in a stable order."""
    linked: dict[int, set[int]] = defaultdict(set)
    for pair in sorted(pairs):
        one, other = int(problem.first[pair]), int(problem.second[pair])
        linked[one].add(other)
        linked[other].add(one)
    parts, seen = [], set[int]()
    for start in linked:
        if start in seen:
            continue
        part, todo = {start}, [start]
        while todo:
            fresh = linked[todo.pop()] - part
            part |= fresh
            todo += fresh
        seen |= part
        parts.append(part)
    return parts


def _within(problem: Problem, pairs: Iterable[int], part: set[int]) -> list[int]:
    return [pair for pair in pairs if int(problem.first[pair]) in part]


def _curve(problem: Problem, rows: Rows, jobs: Iterable[int], pairs: Iterable[int]) -> Floats:
    pairs = sorted(pairs)
    paired = {int(job) for pair in pairs for job in (problem.first[pair], problem.second[pair])}
    mine = rows.of(sorted(job for job in jobs if job not in paired), pairs)
    most = (len(mine) + len(paired) // 2) * int(problem.sizes[-1])  # as if each job were alone: equal for both curves
    return cost_curve(mine, problem.sizes, min(problem.gpus, most))

"""Sweeps: many cases of one kind, of which an ordinary run plays a fixed sample and `--sweep` plays all.

A sample is drawn by position or by name, never by chance, so that the same checkout gives the same verdict. Cases that
once found a bug are named in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")


def sample(cases: Iterable[Case], *, every: int, always: Collection[Case] = ()) -> list[Case]:
    """The first of each `every` cases and those of `always`, in the order of `cases`.

    Raises ValueError where nothing is left, or where `always` names what is no case: it would never be played.
    """
    told = list(cases)
    unknown = [case for case in always if case not in told]
    if every < 1 or not told or unknown:
        raise ValueError(f"every {every} of {len(told)} cases, and {unknown or 'none'} that are none of them")
    return [case for number, case in enumerate(told) if number % every == 0 or case in always]


def swept(cases: Sequence[Case], sampled: Collection[Case]) -> list[Any]:
    """For `parametrize`: all cases, those outside of the sample marked as played with `--sweep` alone.

    A case that is a tuple is one of several parameters. Raises ValueError where the sample is empty or no part of
    the cases.
    """
    unknown = [case for case in sampled if case not in cases]
    if not sampled or unknown:
        raise ValueError(f"a sample of {len(sampled)} cases, of which {unknown or 'none'} are none of the sweep's")
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=() if case in sampled else pytest.mark.beyond_sample
        )
        for case in cases
    ]

"""Every public method of OpenAI's client is tried by the benchmark: a new release of it that has more is noticed."""

from __future__ import annotations

from benchmarks.openai_door import methods
from benchmarks.openai_probes import PROBES, REFUSED


def test_every_method_has_a_probe_or_is_refused() -> None:
    assert set(methods()) == PROBES.keys() | REFUSED.keys()
    assert not PROBES.keys() & REFUSED.keys()

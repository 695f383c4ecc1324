"""What a job measured: an iterator that can also be looked at again, shown in a notebook, and made a frame of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from allpass.errors import ConfigurationError

if TYPE_CHECKING:
    from allpass.wire.jobs import MetricPoint


class Points(Iterator["MetricPoint"]):
    """Read page after page, as far as somebody looks; what was read stays, so that each loop begins with the first."""

    def __init__(self, source: Iterator[MetricPoint]) -> None:
        self._source = source
        self._read: list[MetricPoint] = []
        self._next = 0

    def __iter__(self) -> Iterator[MetricPoint]:
        position = 0
        while position < len(self._read) or self._read_one():
            yield self._read[position]
            position += 1

    def __next__(self) -> MetricPoint:
        if self._next >= len(self._read) and not self._read_one():
            raise StopIteration
        self._next += 1
        return self._read[self._next - 1]

    def frame(self) -> Any:
        """A pandas DataFrame: a row for each step, a column for each metric. Needs pandas."""
        try:
            import pandas
        except ImportError:
            raise ConfigurationError("pandas is not installed here", hint="pip install pandas") from None
        found = list(self)
        index = pandas.Index([one.step for one in found], name="step")
        return pandas.DataFrame([one.values for one in found], index=index)

    def _read_one(self) -> bool:
        for one in self._source:
            self._read.append(one)
            return True
        return False

    def __repr__(self) -> str:
        return f"<Points, {len(self._read)} read>"

    def _repr_html_(self) -> str:
        from allpass import notebook

        return notebook.points(list(self))

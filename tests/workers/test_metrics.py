"""The metrics file, whatever a script writes into it, and its points when the server will not have them."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.agents import desired
from tests.workers.plane import TOKEN, Fault, Plane
from workers.agent import metric_lines, metrics
from workers.agent.api import Api, Writer
from workers.agent.files import Fence
from workers.agent.metric_lines import LONGEST_LINE_BYTES, MetricLine, MetricTail, parse, parse_all, skimmed
from workers.agent.metric_lines import BadLine as Bad
from workers.agent.metrics import Metrics
from workers.agent.transport import Transport

# Also such as would be others if they were put together carelessly.
LINES = st.one_of(
    st.integers(0, 9).map(lambda step: json.dumps({"step": step, "loss": step / 2, "nan": float("nan")}).encode()),
    st.sampled_from(
        [
            b'{"step": 1, "a": [{"b": 1}',
            b'{"c": 2}]}',
            b'{"step": 1}, {"step": 2}',
            b"",
            b"3",
            b"]",
            b"[",
            b'{"step": 4, "checkpoint": "four"}',
            b'{"step": 5, "training": {"micro_batch": 3}}',
            b'\xff{"step": 6}',
            b'{"step": 7}\r',
        ]
    ),
    st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"")),
)


@given(st.lists(LINES, max_size=20), st.integers(1, 7))
def test_lines_parsed_together_are_what_each_is_alone(texts: list[bytes], at_once: int) -> None:
    """None can lend a part to another, and a bad one costs no other one."""
    alone: list[MetricLine | Bad] = []
    for offset, text in enumerate(texts):
        try:
            alone.append(parse(text, offset))
        except ValueError as error:
            alone.append(Bad(text, str(error)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metric_lines, "_AT_ONCE", at_once)
        assert list(parse_all([(text, offset) for offset, text in enumerate(texts)])) == alone


def read_all(tail: MetricTail) -> list[tuple[bytes, int]]:
    lines = tail.read(final=True)
    while not tail.is_through:
        lines += tail.read(final=True)
    return lines


def test_a_line_without_end_costs_itself_alone(tmp_path: Path) -> None:
    """Only its beginning is held in memory, and its inside is never taken for lines; what follows is read."""
    path = tmp_path / "metrics"
    good = b'{"step": 1}\n'
    with path.open("wb") as file:
        file.write(good)
        for _ in range(20):
            file.write(b'{"step": 9}' * 100_000)
        file.write(b"\n" + good)
        file.write(b"y" * (3 * LONGEST_LINE_BYTES))
    tail = MetricTail(path, Fence(tmp_path, None))
    lines = read_all(tail)
    tail.close()
    assert [line for line, _ in lines if len(line) < 100] == [good.strip(), good.strip()]
    assert [offset for _, offset in lines] == [0, 12, 12 + 20 * 1_100_000 + 1, 24 + 20 * 1_100_000 + 1]
    assert max(len(line) for line, _ in lines) <= 2 * LONGEST_LINE_BYTES


def test_what_is_looked_through_keeps_all_that_counts() -> None:
    """Checkpoints, facts, the last line; of the others some."""
    texts = [(b'{"step": %d, "loss": 1}' % step, step) for step in range(50_000)]
    texts[777] = (b'{"step": 777, "checkpoint": "c"}', 777)
    texts[999] = (b'{"step": 999, "training": {}}', 999)
    kept = skimmed(texts)
    assert {texts[777], texts[999], texts[-1], texts[0]} <= set(kept)
    assert len(kept) < 300
    assert skimmed([]) == []


class Reader:
    """Metrics of a file that is complete, sent to the plane; what was said and seen."""

    def __init__(self, plane: Plane, folder: Path, content: bytes) -> None:
        self.run = desired(plane, "")
        plane.want(self.run)
        path = folder / "metrics.jsonl"
        path.write_bytes(content)
        self.said: list[str] = []
        self.lines: list[MetricLine] = []
        self.transport = Transport()
        self.api = Api(plane.url, TOKEN, self.transport)
        self.gone = threading.Event()
        self.metrics = Metrics(
            self.api,
            Writer(run_id=self.run.run_id, job_id=self.run.job_id, epoch=1),
            MetricTail(path, Fence(folder, None)),
            on_lines=self.lines.extend,
            on_fenced=self.gone.set,
            say=self.said.append,
            gone=self.gone,
        )

    def finish(self) -> float:
        """Seconds that it took."""
        begun_s = time.monotonic()
        self.metrics.start()
        self.metrics.finish_reading()
        self.metrics.finish_sending()
        self.transport.close()
        return time.monotonic() - begun_s


def test_a_burst_of_lines_is_read_to_its_end(plane: Plane, tmp_path: Path) -> None:
    """Whatever is left out of its points: each line that names a checkpoint is heard, in order, and the last step."""
    lines = [b'{"step": %d, "loss": 1.5}' % step for step in range(300_000)]
    for step in range(0, 300_000, 50_000):
        lines[step] = b'{"step": %d, "checkpoint": "c-%d"}' % (step, step)
    reader = Reader(plane, tmp_path, b"\n".join(lines))
    reader.finish()
    assert [line.step for line in reader.lines if line.checkpoint] == list(range(0, 300_000, 50_000))
    assert reader.lines[-1].step == 299_999
    points = plane.metrics[reader.run.run_id]
    assert (min(points), max(points)) == (1, 299_999)
    assert 100 < len(points) <= 6000
    assert any("more is measured than a curve needs" in remark for remark in reader.said)
    assert any("metric points were left out" in remark for remark in reader.said)


def test_points_that_nobody_takes_hold_nobody_up(plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that hears us, but answers these with "later" again and again, delays the end of a run by a bounded
    time; so does it a checkpoint."""
    monkeypatch.setattr(metrics, "FLUSH_S", 0.3)
    plane.faults.append(Fault("POST .*metrics", 503))
    reader = Reader(plane, tmp_path, b'{"step": 1, "loss": 1}')
    assert reader.finish() < 60
    assert reader.said == ["the last metric points are lost, for they could not be sent in time"]
    assert reader.gone.is_set() is False


def test_points_wait_for_a_server_that_is_away(plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nobody can be told of the end of the run anyway, nothing is given up."""
    monkeypatch.setattr(metrics, "FLUSH_S", 30)
    plane.faults.append(Fault("POST .*metrics", 0))
    reader = Reader(plane, tmp_path, b'{"step": 1, "loss": 1}')
    monkeypatch.setattr(reader.api, "is_away", lambda: plane.faults[0].times > 0)
    thread = threading.Thread(target=reader.finish)
    thread.start()
    plane.wait(lambda: sum("metrics" in line for line in plane.requests) >= 4, "tries")
    plane.faults[0].times = 0
    thread.join()
    assert list(plane.metrics[reader.run.run_id]) == [1]
    assert reader.said == []

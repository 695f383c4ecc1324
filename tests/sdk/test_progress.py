"""What a person at a terminal sees of long transfers and of a log that is followed, and what nobody else sees."""

from __future__ import annotations

import io
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from allpass.bundle import make_bundle
from allpass.cli import progress, screen
from allpass.cli.status_line import Speed, StatusLine, describe
from allpass.client import Client
from allpass.http import Retries
from allpass.wire.jobs import Job
from tests.sdk.fake_service import KEY, FakeService


class Heard:
    """What a transfer tells."""

    def __init__(self) -> None:
        self.totals: list[int] = []
        self.moved_bytes = 0

    def begin(self, total_bytes: int) -> None:
        self.totals.append(total_bytes)
        self.moved_bytes = 0

    def moved(self, count_bytes: int) -> None:
        self.moved_bytes += count_bytes


class Terminal(io.StringIO):
    """A stream that a person reads."""

    def isatty(self) -> bool:
        return True

    def seen(self) -> list[str]:
        """The lines as they stand there in the end: what was erased is gone."""
        return [re.sub(r"\x1b\[\d*m", "", line.rpartition("\r\x1b[K")[2]) for line in self.getvalue().split("\n")]


def sit_down(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Both streams of this process are a terminal from here on. Called in a test, since pytest sets them before it."""
    made = Terminal()
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")
    return made


def test_a_download_tells_how_much_there_is_and_how_much_came(
    service: FakeService, client: Client, tmp_path: Path
) -> None:
    """All files together, before the first of them."""
    job = service.add_job()
    for name, size in (("a.bin", 300_000), ("b.bin", 5)):
        service.add_artifact(job["id"], name, b"x" * size)
    heard = client.transfer = Heard()
    assert len(list(client.download(job["id"], tmp_path))) == 2
    assert (heard.totals, heard.moved_bytes) == ([300_005], 300_005)


def test_an_upload_tells_its_slices_and_sends_the_same_bytes(
    service: FakeService, waits: object, tmp_path: Path
) -> None:
    """A refused attempt is told from its beginning again, and never adds up to more than there is."""
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "data.bin").write_bytes(b"".join(bytes([i % 251]) * 7 + str(i).encode() for i in range(1 << 19)))
    bundle = make_bundle(tmp_path)
    assert bundle.size_bytes > 1 << 20
    puts: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "PUT" and "/v1/" not in request.url.path:
            request.read()
            puts.append(request)
            if len(puts) == 1:
                return httpx.Response(503)
        return service(request)

    retries = Retries(chance=lambda: 0.0)
    with Client(service.base, KEY, transport=httpx.MockTransport(handler), retries=retries) as client:
        heard = client.transfer = Heard()
        assert client.upload(bundle) is True
    assert [one.content == bundle.content for one in puts] == [True, True]
    assert puts[-1].headers["content-length"] == str(bundle.size_bytes)
    assert "transfer-encoding" not in puts[-1].headers
    assert (heard.totals, heard.moved_bytes) == ([bundle.size_bytes] * 2, bundle.size_bytes)


def test_a_bar_is_for_what_is_large_and_slow_and_for_people(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small transfer, a quick one, and one whose stderr is a file show nothing at all."""
    now, terminal = [0.0], sit_down(monkeypatch)
    for size, took_s, shown in ((1 << 10, 9.0, False), (1 << 30, 0.1, False), (1 << 30, 9.0, True)):
        bar = progress.Bar("Download", clock=lambda: now[0])
        bar.begin(size)
        now[0] += took_s
        bar.moved(size // 2)
        bar.close()
        assert ("Download" in terminal.getvalue()) == shown
    assert "\x1b[?25h" in terminal.getvalue()  # the cursor is back
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.told(client, "Download"):
        assert client.transfer is None


def test_the_line_is_below_the_log_and_never_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that stops within a line is not cut in two, and in the end nothing of the line is left."""
    terminal, line = sit_down(monkeypatch), StatusLine()
    line.say("step 1 · loss 0.5")
    assert terminal.seen() == ["step 1 · loss 0.5"]
    line.write("one\ntw")
    assert terminal.seen() == ["one", "tw"]
    line.say("step 2")
    assert terminal.seen() == ["one", "tw"]
    line.write("o\n")
    assert terminal.seen() == ["one", "two", "step 2"]
    line.close()
    line.say("step 3")
    line.write("three\n")
    assert terminal.seen() == ["one", "two", "three", ""]


def test_the_line_fits_the_window_and_its_text_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time it is drawn: windows change. What a provider or a script is called can do nothing to the terminal."""
    terminal, line = sit_down(monkeypatch), StatusLine()
    line.say("x" * 100)
    assert screen.width_of(terminal.seen()[0]) == 37
    monkeypatch.setenv("COLUMNS", "20")
    line.say("a\x1b[2Jb\n" + "x" * 100)
    (shown,) = terminal.seen()
    assert screen.width_of(shown) <= 17
    assert "\x1b[2J" not in terminal.getvalue()


@pytest.mark.parametrize("said", ["x" * 100, ""])
def test_nothing_is_left_of_a_line_that_was_interrupted(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """The terminal writes ^C where the line ends, or where there is none: it fits behind it, and goes with it. Behind
    a log that stops within a line it stays, for that must not go."""
    terminal, line = sit_down(monkeypatch), StatusLine()
    line.write("one\n")
    line.say(said)
    terminal.write("^C")
    assert screen.width_of(terminal.seen()[-1]) < 40
    line.close()
    assert terminal.seen() == ["one", ""]
    line = StatusLine()
    line.write("tw")
    terminal.write("^C")
    line.close()
    assert terminal.seen() == ["one", "tw^C"]


def test_speed_is_that_of_the_last_looks() -> None:
    """It begins anew where a run goes back to its checkpoint, and is not known from one look."""
    speed = Speed()
    assert speed.at(0.0, 10) is None
    assert speed.at(2.0, 20) == 5.0
    assert speed.at(3.0, 12) is None
    assert speed.at(4.0, 14) == 2.0
    assert speed.at(5.0, 14) == 1.0


def test_the_line_says_what_one_wants_to_know(service: FakeService) -> None:
    """Step, loss, speed, time left, cost; and the state of a job that does not run."""
    now = datetime.now(UTC)
    job = Job.model_validate(
        service.add_job(
            status="running", step=120, total_steps=400, estimated_finish_at=(now + timedelta(seconds=54)).isoformat()
        )
    )
    told = describe(job, 0.12345, 5.21, now)
    assert told.startswith("step 120/400 · loss 0.12345 · 5.21 steps/s · 54s left · ")
    assert "4 s a step" in describe(job, None, 0.25, now)
    assert describe(job.model_copy(update={"status": "waiting"}), None, None, now).startswith("waiting · ")

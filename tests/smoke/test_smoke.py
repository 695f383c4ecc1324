"""Rehearsals at the three emulated companies, and what they come to when something goes wrong."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import allpass
from app.smoke import ending, session
from app.smoke.rehearsing import Rehearsal, RehearsalFailed
from app.smoke.session import FAILED, LEFT, WORKED, SmokeOptions, run
from app.stack.supervisor import Stack
from tests.smoke.ground import Books, books_of, emulated_stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(400)]
_OFFERS_WITHIN_S = 60.0
_LOOK_S = 0.2


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with emulated_stack() as running:
        books_of(running)["lambda"].tell("/market", supply={"gpu_1x_a10": 10})
        with _client(running) as client:
            until = time.monotonic() + _OFFERS_WITHIN_S
            while len({one.provider for one in client.offers()}) < 3:
                assert time.monotonic() < until, "no offers of all three companies"
                time.sleep(0.2)
        yield running


class Watchful(Rehearsal):
    """Looks more often than at a real company, where everything takes minutes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options, poll_s=_LOOK_S)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Rehearsal", Watchful)
    monkeypatch.setattr(session, "end_everything", partial(ending.end_everything, poll_s=_LOOK_S))


@pytest.fixture
def books(stack: Stack) -> dict[str, Books]:
    return books_of(stack)


class Screen:
    """What was said; `on` calls something when a line holds a word."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._on: dict[str, Callable[[], Any]] = {}

    def on(self, word: str, act: Callable[[], Any]) -> None:
        self._on[word] = act

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        for word in [word for word in self._on if word in line]:
            self._on.pop(word)()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def wishes(stack: Stack, company: str, folder: Path, *, dollars: float = 3.0, yes: bool = True) -> SmokeOptions:
    return SmokeOptions(company, dollars, 5, yes, stack.layout.root, folder, quick=True)


def reports(folder: Path) -> tuple[str, dict[str, Any]]:
    (words,), (told,) = folder.glob("*.md"), folder.glob("*.json")
    return words.read_text(), json.loads(told.read_text())


def _client(stack: Stack) -> allpass.Client:
    known = json.loads(stack.layout.client_file.read_text())
    return allpass.Client(known["url"], known["api_key"])


def _nothing_is_left(stack: Stack, books: Books) -> None:
    """No machine, no budget, no key that still opens anything."""
    assert books.alive() == []
    with _client(stack) as client:
        assert list(client.budgets()) == []
        assert [one for one in list(client.keys()) if one.name == "allpass smoke" and one.revoked_at is None] == []


@pytest.mark.parametrize("company", ["modal", "vast", "lambda"])
def test_a_rehearsal_moves_ends_and_tells_the_bill(
    company: str, stack: Stack, books: dict[str, Books], tmp_path: Path
) -> None:
    """Two machines of that company and of no other; the job goes on at the step that it saved; nothing is left."""
    before = {name: len(one.machines()) for name, one in books.items()}
    screen = Screen()
    assert run(wishes(stack, company, tmp_path), say=screen, asks=lambda _: False) == WORKED, screen.text
    rented = {name: len(one.machines()) - before[name] for name, one in books.items()}
    assert rented == {name: 2 if name == company else 0 for name in books}
    words, told = reports(tmp_path)
    assert told["outcome"] == "it worked"
    assert told["left"] == []
    assert told["looks"][0]["from_step"] == 0
    assert told["looks"][1]["from_step"] > 0
    assert 0 < told["spent_micros"] <= 3_000_000
    assert told["doubts"] and f"# A rehearsal at {company}: it worked" in words
    _nothing_is_left(stack, books[company])


def test_the_report_holds_no_secret(stack: Stack, tmp_path: Path) -> None:
    """Whoever has trouble attaches it; also one of a refusal."""
    run(wishes(stack, "modal", tmp_path, dollars=0.01), say=Screen(), asks=lambda _: True)
    words, told = reports(tmp_path)
    known = json.loads(stack.layout.client_file.read_text())
    hidden = [known["api_key"], *stack.secrets().values(), *(one.key for one in stack.companies)]
    assert [one for one in hidden if one in words or one in json.dumps(told)] == []


@pytest.mark.parametrize(("dollars", "yes", "said"), [(0.01, True, "give --most-dollars"), (3.0, False, "not agreed")])
def test_nothing_is_rented_without_the_money_and_the_word(
    dollars: float, yes: bool, said: str, stack: Stack, books: dict[str, Books], tmp_path: Path
) -> None:
    """A ceiling that is too low is refused with one that would do; no answer is a no."""
    before = len(books["modal"].machines())
    screen = Screen()
    asked = wishes(stack, "modal", tmp_path, dollars=dollars, yes=yes)
    assert run(asked, say=screen, asks=lambda _: False) == FAILED
    assert said in screen.text
    assert len(books["modal"].machines()) == before
    _nothing_is_left(stack, books["modal"])


def test_a_company_that_the_service_has_no_account_at_is_refused_with_those_it_has(
    stack: Stack, tmp_path: Path
) -> None:
    """Any provider may be named, one of a package from outside too: the service knows which there are."""
    screen = Screen()
    assert run(wishes(stack, "shed", tmp_path), say=screen, asks=lambda _: True) == FAILED
    assert "this service has no account at shed; it has joined, lambda, modal, vast" in screen.text


def test_a_set_up_that_is_wrong_is_refused_before_anything_is_rented(
    stack: Stack, books: dict[str, Books], tmp_path: Path
) -> None:
    """Here the public address leads nowhere. Not even --yes rents then; the report has what was found."""
    before = len(books["modal"].machines())
    kept = stack.layout.server_file.read_text()
    told = json.loads(kept)
    told["settings"]["ALLPASS_PUBLIC_URL"] = "http://127.0.0.1:9"
    stack.layout.server_file.write_text(json.dumps(told))
    screen = Screen()
    try:
        assert run(wishes(stack, "modal", tmp_path), say=screen, asks=lambda _: True) == FAILED
    finally:
        stack.layout.server_file.write_text(kept)
    assert "public_url_refused" in screen.text
    assert "public_url_refused" in json.dumps(reports(tmp_path)[1]["findings"])
    assert len(books["modal"].machines()) == before


def test_the_file_of_a_running_stack_holds_no_account(stack: Stack) -> None:
    """Only its user can read it, and no key of a company is in it."""
    file = stack.layout.server_file
    assert file.stat().st_mode & 0o077 == 0
    assert [one.company for one in stack.companies if one.key.partition(":")[0] in file.read_text()] == []


@pytest.mark.parametrize("moment", ["wait until job_", "ask it to save", "let it go on"])
def test_an_interruption_ends_the_machines(moment: str, stack: Stack, books: dict[str, Books], tmp_path: Path) -> None:
    """At each step of the rehearsal, and repeated while it ends: nothing is left, and the report says so."""
    screen = Screen()
    interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731 - said twice
    soon = threading.Timer(0.5, interrupt)
    screen.on(moment, soon.start)
    screen.on("end everything", interrupt)
    try:
        code = run(wishes(stack, "modal", tmp_path), say=screen, asks=lambda _: True)
    finally:
        soon.cancel()  # what is over is not to be interrupted, and the tests even less
    assert code == FAILED, screen.text
    assert "still ending machines" in screen.text
    assert reports(tmp_path)[1]["outcome"] == "interrupted"
    _nothing_is_left(stack, books["modal"])


def test_a_machine_that_never_starts_is_ended_and_said(
    stack: Stack, books: dict[str, Books], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rehearsal gives up in its time, and the machine goes."""
    books["vast"].tell("/faults", op="create", kind="stuck", count=20)
    asked = SmokeOptions("vast", 3.0, 5, True, stack.layout.root, tmp_path, quick=True)
    real = session.plan_spending
    monkeypatch.setattr(session, "plan_spending", lambda *a, most_s, **k: real(*a, most_s=8, **k))
    screen = Screen()
    try:
        assert run(asked, say=screen, asks=lambda _: True) == FAILED, screen.text
    finally:
        books["vast"].no_faults()
    assert "did not train" in reports(tmp_path)[1]["outcome"]
    _nothing_is_left(stack, books["vast"])


def test_what_cannot_be_ended_is_named(
    stack: Stack, books: dict[str, Books], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an exit code of its own; the service goes on ending it."""
    monkeypatch.setattr(session, "end_everything", lambda one: ending.end_everything(one, within_s=0.0))
    until = session.Rehearsal._until

    def trains(self: Any, what: str, holds: Any) -> Any:
        until(self, what, holds)
        raise RehearsalFailed(f"as if it broke when it was to {what}")

    monkeypatch.setattr(session.Rehearsal, "_until", trains)
    screen = Screen()
    assert run(wishes(stack, "modal", tmp_path), say=screen, asks=lambda _: True) == LEFT, screen.text
    assert "END BY HAND at modal: node_" in screen.text
    assert reports(tmp_path)[1]["left"]
    until_s = time.monotonic() + 60
    while books["modal"].alive():
        assert time.monotonic() < until_s, "the service did not end it either"
        time.sleep(0.2)

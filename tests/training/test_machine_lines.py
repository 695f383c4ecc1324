"""What machines of one training say to each other, and what strangers may say to them; and which machine this is."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from allpass.training.elastic.lines import Line
from allpass.training.elastic.seat import Seat

SEAT = {
    "ALLPASS_NODES": "2",
    "ALLPASS_NODE_RANK": "1",
    "ALLPASS_NODES_KEY": "k",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}


@pytest.fixture
def ends() -> Iterator[tuple[Line, socket.socket]]:
    ours, theirs = socket.socketpair()
    line = Line(ours)
    yield line, theirs
    line.close()
    theirs.close()


def test_what_is_told_is_heard_in_its_order(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    there = Line(other)
    there.tell(beat=True)
    there.tell(task={"steps": 3})
    assert (line.hear(), line.hear()) == ({"beat": True}, {"task": {"steps": 3}})
    there.hang_up()
    assert line.hear() is None
    there.close()


@pytest.mark.parametrize(
    "said",
    [b"\n", b"[1]\n", b"7\n", b"GET / HTTP/1.1\r\n", b"[" * 5_000 + b"\n", b"\xff\xfe\n"],
    ids=["nothing", "a list", "a number", "HTTP", "deep", "no text"],
)
def test_what_is_no_object_is_nothing(ends: tuple[Line, socket.socket], said: bytes) -> None:
    line, other = ends
    other.sendall(said)
    assert line.hear_within(5.0, 10_000) is None


def test_who_says_too_much_before_it_is_known_is_not_heard(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    other.sendall(json.dumps({"key": "x" * 2_000}).encode() + b"\n")
    assert line.hear_within(5.0, 1_000) is None


def test_who_says_it_ever_so_slowly_is_cut_off(ends: tuple[Line, socket.socket]) -> None:
    """A byte now and then would keep a place for ever: what counts is when all of it has come."""
    line, other = ends
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.02):
            try:
                other.sendall(b" ")
            except OSError:
                return

    dripping = threading.Thread(target=drip)
    dripping.start()
    began = time.monotonic()
    assert line.hear_within(0.3) is None
    assert time.monotonic() - began < 5
    over.set()
    dripping.join()


def test_one_that_was_heard_in_time_is_heard_on(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    other.sendall(b'{"machine": 1}\n')
    assert line.hear_within(0.2) == {"machine": 1}
    threading.Timer(0.4, other.sendall, (b'{"beat": true}\n',)).start()
    assert line.hear() == {"beat": True}


def test_a_job_on_one_machine_has_no_seat() -> None:
    assert Seat.of({}) is None and Seat.of({**SEAT, "ALLPASS_NODES": "1"}) is None
    assert Seat.of(SEAT) == Seat(2, 1, "10.0.0.1", 29500, "k")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALLPASS_NODES", "two"),
        ("ALLPASS_NODES", "-2"),
        ("ALLPASS_NODES", "\u0662"),
        ("ALLPASS_NODES", "9" * 40),
        ("ALLPASS_NODE_RANK", "2"),
        ("ALLPASS_NODE_RANK", ""),
        ("MASTER_ADDR", ""),
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "65536"),
        ("ALLPASS_NODES_KEY", ""),
    ],
)
def test_what_makes_no_sense_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is "):
        Seat.of({**SEAT, name: value})

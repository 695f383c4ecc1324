"""How a server speaks to the service."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from workers.serving.door import NotServing, ServingDoor


class Service:
    """Answers in turn; an int is a status, an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, request: Any, timeout: float) -> io.BytesIO:
        self.asked.append((request.full_url, json.loads(request.data)))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            raise urllib.error.HTTPError(request.full_url, answer, "", Message(), None)
        return io.BytesIO(json.dumps(answer).encode())


@pytest.fixture
def pauses() -> list[float]:
    return []


def door_to(service: Service, monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> ServingDoor:
    monkeypatch.setattr(urllib.request, "urlopen", service)
    return ServingDoor("http://service/", "srv-1", "token", "me", sleep=pauses.append)


def test_what_is_asked_names_the_process(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    service = Service({"goes_on": True}, {"request": {"id": "r"}}, {"goes_on": False})
    door = door_to(service, monkeypatch, pauses)
    door.begin()
    assert door.take(3.0) == {"id": "r"}
    assert door.tell("r", text="hi", position=2) is False
    assert service.asked == [
        ("http://service/v1/serving/srv-1/begin", {"instance": "me"}),
        ("http://service/v1/serving/srv-1/take", {"instance": "me", "wait_s": 3.0}),
        (
            "http://service/v1/serving/srv-1/tell",
            {"instance": "me", "request_id": "r", "text": "hi", "position": 2},
        ),
    ]
    assert pauses == []


@pytest.mark.parametrize("fault", [503, 500, 429, ConnectionResetError(), TimeoutError()])
def test_a_service_that_does_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float], fault: Any
) -> None:
    service = Service(fault, fault, {"request": None})
    assert door_to(service, monkeypatch, pauses).take(0) is None
    assert pauses == [0.5, 1.0]


def test_a_service_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    with pytest.raises(OSError, match="reset"):
        door_to(Service(*[ConnectionResetError("reset")] * 5), monkeypatch, pauses).take(0)
    assert pauses == [0.5, 1.0, 2.0, 4.0]


@pytest.mark.parametrize("status", [401, 403, 404, 409])
def test_who_is_not_known_any_more_leaves(monkeypatch: pytest.MonkeyPatch, pauses: list[float], status: int) -> None:
    with pytest.raises(NotServing, match=str(status)):
        door_to(Service(status), monkeypatch, pauses).take(0)


def test_a_file_is_there_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    door = ServingDoor("http://service", "srv-1", "token", "me")

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            found = super().read(3)
            if not found:
                raise ConnectionResetError
            return found

    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: Broken(b"abcdef"))
    with pytest.raises(ConnectionResetError):
        door.fetch("http://store/a", tmp_path / "a")
    assert not (tmp_path / "a").exists()
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: io.BytesIO(b"abcdef"))
    door.fetch("http://store/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"abcdef"

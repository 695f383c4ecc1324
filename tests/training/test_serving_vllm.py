"""vLLM as what writes, played over its own wire format: no GPU has seen this."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_serving_at_once import PlayedService
from workers.serving import serve, vllm_server
from workers.serving.vllm_engine import VllmEngine, arguments
from workers.serving.vllm_server import EngineEnded, EngineStopped, VllmServer

EMULATOR = str(Path(__file__).with_name("vllm_emulator.py"))
BASE = "team/base"
DEADLINE_S = 60.0


class Bytes:
    """A tokenizer whose tokens are bytes."""

    chat_template = None
    eos_token_id = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}


class Played:
    """vLLM with faults: `plays` sets them, `seen` is what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "plays.json"
        self.folder = folder
        self.plays()

    def plays(self, **faults: Any) -> None:
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(faults))
        part.replace(self.file)

    def seen(self, what: str) -> list[dict[str, Any]]:
        path = self.file.with_suffix(".seen")
        lines = path.read_text().splitlines() if path.exists() else []
        return [told for told in map(json.loads, lines) if told["what"] == what]

    def adapter(self, name: str, rank: int = 8) -> Path:
        folder = self.folder / f"of-{name}"
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
        return folder

    def server(self, start_s: float = DEADLINE_S, stops: Callable[[], bool] = lambda: False) -> VllmServer:
        return VllmServer(BASE, arguments(8), command=[sys.executable, EMULATOR], start_s=start_s, stops=stops)


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    found = Played(tmp_path)
    monkeypatch.setenv("VLLM_PLAYS", str(found.file))
    return found


@pytest.fixture
def engine(played: Played) -> Iterator[VllmEngine]:
    server = played.server()
    server.start()
    made = VllmEngine(server, Bytes())
    yield made
    made.close()
    assert server.has_ended


def begun(engine: VllmEngine, prompt: str, adapter: str | None = None, **options: Any) -> Any:
    return engine.begin(engine.encode({"prompt": prompt}), adapter, options)


def finished(engine: VllmEngine, *texts: Any) -> list[tuple[Any, int, str | None]]:
    """Of each its text or what went wrong, how many tokens, and why it ended."""
    found: dict[Any, tuple[Any, int, str | None]] = dict.fromkeys(texts, ("", 0, None))
    until = time.monotonic() + DEADLINE_S
    while engine.writing:
        assert time.monotonic() < until
        for text, piece in engine.step():
            if isinstance(piece, Exception):
                found[text] = (piece, 0, None)
            else:
                found[text] = (found[text][0] + piece.text, piece.tokens, piece.reason)
    return [found[text] for text in texts]


@pytest.mark.parametrize("without_usage", [False, True])
def test_texts_are_written_at_once_with_their_adapters(engine: VllmEngine, played: Played, without_usage: bool) -> None:
    """As they are asked for: what OpenAI's defaults are, not vLLM's, is said."""
    played.plays(without_usage=without_usage)
    engine.load("ftjob-1", played.adapter("one"))
    assert engine.has("ftjob-1")
    texts = finished(
        engine, begun(engine, "ab"), begun(engine, "c", "ftjob-1", temperature=0), begun(engine, "abc", max_tokens=2)
    )
    assert texts == [("base 97 98 ", 3, "stop"), ("ftjob-1 99 ", 2, "stop"), ("base 97 ", 2, "length")]
    assert sorted((one["temperature"], one["max_tokens"]) for one in played.seen("complete")) == [
        (0, 255), (1.0, 2), (1.0, 254),
    ]  # fmt: skip
    assert played.seen("start") == [{"what": "start", "runtime_lora": "True", "at_once": 8}]
    with pytest.raises(ValueError, match="the prompt has 256 tokens"):
        begun(engine, "x" * 256)


def test_an_adapter_that_vllm_refuses_harms_no_other(engine: VllmEngine, played: Played) -> None:
    with pytest.raises(RuntimeError, match="LoRA rank 128 is greater than max_lora_rank 64"):
        engine.load("large", played.adapter("large", 128))
    assert not engine.has("large")
    engine.load("small", played.adapter("small"))
    assert finished(engine, begun(engine, "a", "small"))[0][0] == "small 97 "


def test_of_too_many_adapters_the_one_used_least_recently_goes(
    engine: VllmEngine, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.serving.vllm_engine.MOST_ADAPTERS", 2)
    for name in ("one", "two"):
        engine.load(name, played.adapter(name))
    finished(engine, begun(engine, "a", "one"))
    engine.load("three", played.adapter("three"))
    assert [name for name in ("one", "two", "three") if engine.has(name)] == ["one", "three"]
    assert played.seen("unload") == [{"what": "unload", "name": "two"}]


def test_a_text_that_nobody_wants_is_aborted(engine: VllmEngine, played: Played) -> None:
    played.plays(token_s=0.05)
    gone, other = begun(engine, "x" * 100), begun(engine, "a")
    while not (first := engine.step()):
        pass
    engine.drop(gone)
    begin = "".join(piece.text for text, piece in first if text == other and not isinstance(piece, Exception))
    assert begin + finished(engine, other)[0][0] == "base 97 "
    until = time.monotonic() + DEADLINE_S
    while not played.seen("aborted"):
        assert time.monotonic() < until
        engine.step()


def test_one_that_vllm_fails_at_is_the_only_one(engine: VllmEngine, played: Played) -> None:
    played.plays(fails_at=3)
    broken, good = finished(engine, begun(engine, "abc"), begun(engine, "a"))
    assert isinstance(broken[0], RuntimeError)
    assert "EngineCore encountered an issue" in str(broken[0])
    assert good == ("base 97 ", 2, "stop")


def test_when_vllm_dies_it_is_begun_again_with_its_adapters(engine: VllmEngine, played: Played) -> None:
    """Of what was half told the rest is lost, and said; what nothing was told of is written by the new one."""
    engine.load("ftjob-1", played.adapter("one"))
    played.plays(dies_at=4, once=True, token_s=0.05)
    half, short = begun(engine, "abcdef"), begun(engine, "a")
    (lost, whole) = finished(engine, half, short)
    assert "the rest of the answer was lost" in str(lost[0])
    assert whole[0] == "base 97 "
    played.plays(dies_at=1, once=True)
    (again,) = finished(engine, begun(engine, "b", "ftjob-1"))
    assert again == ("ftjob-1 98 ", 2, "stop")
    assert len(played.seen("start")) == 3


def test_one_that_dies_again_and_again_is_given_up(engine: VllmEngine, played: Played) -> None:
    played.plays(dies_at=1)
    begun(engine, "a")
    with pytest.raises(EngineEnded, match=r"code -9 \(killed, .*\): torch.OutOfMemoryError: CUDA out of memory"):
        finished(engine)


def test_why_it_does_not_start_is_told(played: Played) -> None:
    played.plays(start_fails="ValueError: No supported architecture\nINFO bye")
    with pytest.raises(EngineEnded, match="ended with code 1: ValueError: No supported architecture"):
        played.server().start()


def test_where_the_longest_text_has_no_room_it_is_begun_for_shorter_ones(played: Played) -> None:
    played.plays(is_small=True)
    server = played.server()
    server.start()
    assert server.most_tokens == 128
    server.close()


def test_a_port_that_somebody_else_has_taken_meanwhile_costs_one_more_try(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_port = vllm_server._free_port
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        ports = iter([taken, taken, free_port()])
        monkeypatch.setattr(vllm_server, "_free_port", lambda: next(ports))
        server = played.server()
        server.start()
        server.close()
        monkeypatch.setattr(vllm_server, "_free_port", lambda: taken)
        with pytest.raises(EngineEnded, match="Address already in use"):
            played.server().start()


def test_a_slow_start_is_waited_for_and_heeds_a_request_to_leave(played: Played) -> None:
    played.plays(start_hangs=True)
    with pytest.raises(EngineEnded, match="did not answer within"):
        played.server(start_s=0.5).start()
    looks = iter([False] * 3 + [True] * 10)
    with pytest.raises(EngineStopped):
        played.server(stops=lambda: next(looks)).start()
    server = played.server()
    threading.Timer(0.5, played.plays).start()
    server.start()
    server.close()


def test_the_program_answers_with_vllm(engine: VllmEngine, played: Played) -> None:
    """The same program as with the other engine: what is wrong with one request harms no other."""
    service = PlayedService(*({"prompt": "a" * count} for count in range(1, 6)), {"prompt": "x" * 300})
    serve.serve(service, engine, 0, 0.3, at_once=3)
    assert [service.text(f"r{count - 1}") for count in range(1, 6)] == [
        f"base {'97 ' * count}" for count in range(1, 6)
    ]
    assert service.told["r5"][-1]["is_request_wrong"]


def test_which_engine_is_taken(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU and the package vLLM is no choice; asked for by name, the reason why it does not start ends the
    job; chosen by itself, it is gone on without."""
    assert not serve.vllm_is_here()
    told = {**serve.DEFAULTS, "base": BASE}
    command = [sys.executable, EMULATOR]
    made: list[Any] = []
    monkeypatch.setattr("workers.serving.engine.Engine", lambda *given: made.append(given) or "own")
    assert serve.begun(told, command) == "own"
    played.plays(start_fails="RuntimeError: no kernel image is available")
    with pytest.raises(SystemExit, match="no kernel image is available"):
        serve.begun({**told, "engine": "vllm"}, command)
    monkeypatch.setattr(serve, "vllm_is_here", lambda: True)
    assert serve.begun(told, command) == "own"
    played.plays()
    monkeypatch.setattr(serve, "with_tokenizer", lambda server: VllmEngine(server, Bytes()))
    engine = serve.begun(told, command)
    assert engine.device == "vLLM"
    engine.close()

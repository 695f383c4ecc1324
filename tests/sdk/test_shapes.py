"""How large a model is, is known before anything is sent: from its folder, the hub's cache, or the hub itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass.recipe.packing import pack
from allpass.recipe.shapes import LARGEST_BYTES, find_config, read_config, shape_of
from allpass.wire.template import Template

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "tie_word_embeddings": True}
NAME = "somebody/their-model"


@contextmanager
def hub(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[tuple[str, list[str]]]:
    """On loopback; what was asked of it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers.get('Authorization', '-')}")
            answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def gives(content: bytes, status: int = 200) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.end_headers()
        with suppress(OSError):  # who asked has had enough
            request.wfile.write(content)

    return answer


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)


def online(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", endpoint)


def cache(home: Path, name: str, revisions: dict[str, dict[str, Any]], main: str) -> None:
    kept = home / "hub" / f"models--{name.replace('/', '--')}"
    for revision, config in revisions.items():
        (kept / "snapshots" / revision).mkdir(parents=True)
        (kept / "snapshots" / revision / "config.json").write_text(json.dumps(config))
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(main)


def test_a_folder_is_read_and_nobody_is_asked(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert find_config(str(tmp_path)) == LLAMA


def test_the_cache_is_read_at_the_revision_that_main_was(tmp_path: Path) -> None:
    cache(tmp_path / "cache", NAME, {"aa": LLAMA, "bb": {"model_type": "gpt2"}}, main="aa")
    assert find_config(NAME) == LLAMA
    assert find_config("somebody/else") is None


def test_a_cache_that_points_out_of_itself_is_not_followed(tmp_path: Path) -> None:
    cache(tmp_path / "cache", NAME, {"aa": LLAMA}, main="../../../../elsewhere")
    assert find_config(NAME) is None


def test_the_hub_is_asked_last_with_the_users_own_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with hub(gives(json.dumps(LLAMA).encode())) as (endpoint, asked):
        online(monkeypatch, endpoint)
        assert find_config(NAME) == LLAMA
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        assert find_config(NAME) == LLAMA
    assert asked == [f"/{NAME}/resolve/main/config.json -", f"/{NAME}/resolve/main/config.json Bearer hf_mine"]


@pytest.mark.parametrize(
    "answer",
    [gives(b"", 401), gives(b"", 404), gives(b"<html>"), gives(b"[]"), gives(b'"' + b"x" * 3 * LARGEST_BYTES)],
    ids=["gated", "unknown", "a page", "a list", "huge"],
)
def test_what_the_hub_does_not_tell_is_not_known(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[BaseHTTPRequestHandler], None]
) -> None:
    with hub(answer) as (endpoint, _):
        online(monkeypatch, endpoint)
        assert find_config(NAME) is None


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "no address", "http://[", ""])
def test_a_hub_that_is_not_there_is_no_error(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    online(monkeypatch, endpoint or "http://127.0.0.1:9")
    assert find_config(NAME) is None


@pytest.mark.parametrize("name", ["gpt2", "../../etc", "a/b/c", "org/..", "/no/such/folder", "org/na me", ""])
def test_only_names_of_the_hub_are_asked_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with hub(gives(json.dumps(LLAMA).encode())) as (endpoint, asked):
        online(monkeypatch, endpoint)
        assert find_config(name) is None
    assert asked == []


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, '"' + "x" * 2_000_000 + '"'])
def test_what_is_no_configuration_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert read_config(tmp_path) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@given(st.dictionaries(st.text(max_size=250), JSON, max_size=120))
def test_whatever_a_configuration_holds_what_is_sent_of_it_is_accepted(config: dict[str, Any]) -> None:
    shape = shape_of({"model_type": "llama", **config})
    if shape is not None:
        Template.model_validate({"model": {"name": "m", "config": shape}})
        assert set(shape) <= {"model_type", *config}


def test_a_model_of_several_parts_has_no_shape() -> None:
    """Its text model alone would be too small an answer."""
    assert shape_of({**LLAMA, "vision_config": {}}) is None
    assert shape_of({"model_type": "x", "text_config": LLAMA}) is None
    assert shape_of({"hidden_size": 64}) is None
    assert shape_of(None) is None


def test_the_shape_travels_with_the_job() -> None:
    """Lists, nested objects and what is private to a library stay behind."""
    rows = [{"prompt": "a", "completion": "b"}]
    config = {**LLAMA, "_name_or_path": "x", "architectures": ["A"], "rope_scaling": {"factor": 2}}
    model = pack({"model": "m"}, rows, held_out=0, config=config).template.model
    assert model is not None
    assert model.config == LLAMA
    plain = pack({"model": "m"}, rows, held_out=0).template.model
    assert plain is not None
    assert plain.config is None

"""Data sets of the hub are read as files are, by what it says of them; here a server on this machine plays it."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pyarrow
import pyarrow.parquet
import pytest

from allpass.errors import InvalidData
from allpass.recipe import hub_rows
from allpass.recipe.reading import name_of, read
from allpass.recipe.run import app_name_of

ROWS = [{"prompt": f"question {number}", "completion": "answer"} for number in range(6)]


class Hub(BaseHTTPRequestHandler):
    """`there`: what is said of each path; `asked`: paths with the tokens that came along."""

    there: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        content = self.there.get(self.path)
        self.send_response(404 if content is None else 200)
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


def parquet(rows: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A hub with one data set in two files, and one with configurations."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    listing = {"default": {"train": [f"{url}/a", f"{url}/b"], "test": [f"{url}/b"]}}
    several = {"en": {"train": [f"{url}/a"]}, "de": {"other": [f"{url}/b"], "third": [f"{url}/b"]}}
    Hub.there = {
        "/api/datasets/org/set/parquet": json.dumps(listing).encode(),
        "/api/datasets/org/several/parquet": json.dumps(several).encode(),
        "/api/datasets/org/odd/parquet": b"no JSON",
        "/a": parquet(ROWS[:4]),
        "/b": parquet(ROWS[4:]),
    }
    Hub.asked = []
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    yield url
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("name", "count"), [("org/set", 6), ("org/set:test", 2), ("org/several:en/train", 4), ("org/several:de/other", 2)]
)
def test_a_data_set_is_read_file_by_file(hub: str, name: str, count: int) -> None:
    """Its rows are numbered through; its name is what jobs and errors call it."""
    rows = read(name)
    assert [dict(row.values) for row in rows] == (ROWS[4:] if count == 2 else ROWS[:count])
    assert rows[-1].place == f"row {count}"
    assert name_of(name) in ("set", "several")
    assert app_name_of("org/model", name).startswith("model-se")
    assert {token for _, token in Hub.asked} == {"Bearer hf_secret"}


@pytest.mark.parametrize(
    ("name", "told", "hint"),
    [
        ("org/none", "neither a file here nor a data set of the hub", "HF_TOKEN"),
        ("org/set:dev", "has no split 'dev': train, test", "org/set:default/train"),
        ("org/several", "has several configurations: en, de", "org/several:en/train"),
        ("org/several:fr/train", "has no configuration 'fr': en, de", "org/several:en/train"),
        ("org/several:de/train", "has no split 'train': other, third", "org/several:de/other"),
        ("org/odd", "cannot be read from http://127.0.0.1", "try again"),
    ],
)
def test_what_cannot_be_read_is_told_with_what_there_is(hub: str, name: str, told: str, hint: str) -> None:
    """Configurations and splits by name."""
    with pytest.raises(InvalidData) as refused:
        read(name)
    assert told in refused.value.message
    assert hint in str(refused.value.problems[0].hint)


def test_the_token_is_sent_to_the_hub_alone(hub: str) -> None:
    """Its files may lie elsewhere."""
    elsewhere = hub.replace("127.0.0.1", "localhost")
    Hub.there["/api/datasets/org/set/parquet"] = json.dumps({"default": {"train": [f"{elsewhere}/a"]}}).encode()
    assert len(read("org/set")) == 4
    assert Hub.asked == [("/api/datasets/org/set/parquet", "Bearer hf_secret"), ("/a", None)]


def test_what_is_too_large_is_not_read_to_its_end(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large it says it is."""
    monkeypatch.setattr(hub_rows, "LARGEST_BYTES", 100)
    with pytest.raises(InvalidData, match="is larger than the 0 MiB that are read from the hub"):
        read("org/set")


def test_a_file_of_that_name_comes_first_and_offline_nothing_is_asked(
    hub: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends like a file is one, or missing."""
    with pytest.raises(InvalidData, match="there is no such file"):
        read("data/train.jsonl")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "set").write_text("")
    with pytest.raises(InvalidData, match=r"is none of \.jsonl"):
        read("org/set")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InvalidData, match="HF_HUB_OFFLINE keeps it"):
        read("org/other")
    assert Hub.asked == []

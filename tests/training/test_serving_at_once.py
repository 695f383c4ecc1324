"""Several texts at once: each is what it would be alone, whoever comes, leaves or fails meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.training import tiny
from tests.training.test_serving_engine import adapter, engine_of, written

pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("ignore::FutureWarning")]
PROMPTS = ["1+1=", "a", "what is it that is said here?", "22+30=", "b" * 90]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.llama(str(tmp_path_factory.mktemp("models") / "llama"))


def begun(engine: Any, prompt: str, name: str | None = None, **options: Any) -> Any:
    return engine.begin(engine.encode({"prompt": prompt}), name, {"temperature": 0, "max_tokens": 20, **options})


def finished(engine: Any, *rows: Any) -> list[Any]:
    """The text of each, or what went wrong with it."""
    texts: dict[Any, Any] = dict.fromkeys(rows, "")
    for _ in range(2000):
        if not engine.writing:
            return [texts[row] for row in rows]
        for row, piece in engine.step():
            texts[row] = piece if isinstance(piece, Exception) else texts.get(row, "") + piece.text
    raise AssertionError("it goes on and on")


def alone(base: str, *prompts: str, **options: Any) -> list[str]:
    return [written(engine_of(base), prompt, max_tokens=20, **options)[0] for prompt in prompts]


def test_each_is_what_it_would_be_alone(base: str) -> None:
    engine = engine_of(base)
    assert finished(engine, *(begun(engine, prompt) for prompt in PROMPTS)) == alone(base, *PROMPTS)


def test_who_comes_and_who_leaves_changes_nothing_for_the_others(base: str) -> None:
    """The longest one leaves in the middle, and with it the padding that the others had for it."""
    engine = engine_of(base)
    first, gone = begun(engine, PROMPTS[0]), begun(engine, PROMPTS[4])
    texts = {first: "", gone: ""}
    for _ in range(6):
        for row, piece in engine.step():
            texts[row] += piece.text
    engine.drop(gone)
    later = begun(engine, PROMPTS[2])
    rest = finished(engine, first, later)
    assert [texts[first] + rest[0], rest[1]] == alone(base, PROMPTS[0], PROMPTS[2])
    assert engine.tokens == 0


def test_adapters_are_mixed_in_one_batch(base: str, tmp_path: Path) -> None:
    """Those that cannot be, are written beside it."""
    engine, expected = engine_of(base), {None: written(engine_of(base), "2+2=", max_tokens=20)[0]}
    for seed in (1, 2):
        single = engine_of(base)
        single.load("only", adapter(base, tmp_path / str(seed), seed))
        expected[f"a{seed}"] = written(single, "2+2=", "only", max_tokens=20)[0]
        engine.load(f"a{seed}", tmp_path / str(seed))
    names = [None, "a1", "a2", "a1", None]
    assert finished(engine, *(begun(engine, "2+2=", name) for name in names)) == [expected[name] for name in names]
    engine._apart.add("a1")
    assert finished(engine, *(begun(engine, "2+2=", name) for name in names)) == [expected[name] for name in names]


def test_a_seed_gives_the_same_text_beside_others(base: str) -> None:
    engine = engine_of(base)
    chance = {"temperature": 1.5, "seed": 7}
    texts = finished(engine, begun(engine, "a", **chance), begun(engine, "22+30="), begun(engine, "a", **chance))
    assert texts[0] == texts[2] == alone(base, "a", **chance)[0]


def test_a_long_prompt_is_read_in_parts(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.serving.lanes.PREFILL_TOKENS", 16)
    engine = engine_of(base)
    short, long = begun(engine, "a"), begun(engine, PROMPTS[4])
    seen = [{row for row, _ in engine.step()} for _ in range(4)]
    assert seen[1:] == [{short}] * 3
    rest = finished(engine, short, long)
    assert rest[1] == alone(base, PROMPTS[4])[0]


def test_memory_is_bounded_and_what_is_put_back_goes_on_where_it_was(base: str) -> None:
    """The one that has written least begins again later, and nobody can tell."""
    engine = engine_of(base)
    engine.most_tokens = 100
    rows = [begun(engine, prompt, max_tokens=40) for prompt in PROMPTS[:4]]
    most = 0
    texts = dict.fromkeys(rows, "")
    while engine.writing:
        for row, piece in engine.step():
            texts[row] += piece.text
        most = max(most, engine.tokens)
    assert list(texts.values()) == [written(engine_of(base), one, max_tokens=40)[0] for one in PROMPTS[:4]]
    assert most <= 100
    assert engine.takes(10**6), "one alone may always be written"
    begun(engine, "a")
    assert not engine.takes(10**6)


def test_a_text_that_fails_is_the_only_one(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(base)
    rows = [begun(engine, prompt) for prompt in PROMPTS[:3]]
    for _ in range(5):
        engine.step()
    forward = engine._forward

    def breaks(of: Any, **given: Any) -> Any:
        if rows[1] in of:
            raise RuntimeError("a kernel that nobody has built")
        return forward(of, **given)

    monkeypatch.setattr(engine, "_forward", breaks)
    before = [len(row.ids) for row in rows]
    texts = finished(engine, *rows)
    assert isinstance(texts[1], RuntimeError)
    assert [len(row.ids) - row.prompt_tokens for row in (rows[0], rows[2])] == [20, 20]
    assert before


def test_where_memory_runs_out_fewer_are_written_at_once(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    engine = engine_of(base)
    rows = [begun(engine, prompt) for prompt in PROMPTS[:4]]
    forward = engine._forward

    def small(of: Any, **given: Any) -> Any:
        if len(of) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(of, **given)

    monkeypatch.setattr(engine, "_forward", small)
    assert finished(engine, *rows) == alone(base, *PROMPTS[:4])
    assert engine.most_tokens < 65_536


class PlayedService:
    """The service, as a server sees it: gives these requests, and keeps what it is told."""

    def __init__(self, *bodies: dict[str, Any]) -> None:
        self.waiting = [{"id": f"r{number}", "adapter": None, "body": body} for number, body in enumerate(bodies)]
        self.told: dict[str, list[dict[str, Any]]] = {}
        self.left: set[str] = set()
        self.most_held = 0
        self.lock = threading.Lock()

    def take(self, wait_s: float, holding: list[str]) -> dict[str, Any] | None:
        with self.lock:
            self.most_held = max(self.most_held, len(holding))
            return self.waiting.pop(0) if self.waiting else None

    def tell(self, request_id: str, **told: Any) -> bool:
        with self.lock:
            self.told.setdefault(request_id, []).append(told)
            return request_id not in self.left

    def text(self, request_id: str) -> str:
        pieces = [one for one in self.told[request_id] if one.get("text")]
        assert [one["position"] for one in pieces] == list(range(len(pieces))), "in their order, none twice"
        return "".join(one["text"] for one in pieces)


def test_the_program_answers_all_and_ends_when_nobody_asks(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many at once as it may; one that is wrong, one that nobody waits for any more and one without an adapter harm
    none of the others."""
    from workers.serving import serve

    bodies: list[dict[str, Any]] = [{"prompt": one, "temperature": 0, "max_tokens": 20} for one in PROMPTS]
    service = PlayedService(*bodies, {"prompt": "x" * 400}, {"prompt": "gone", "temperature": 0}, {"prompt": "y"})
    service.waiting[7]["adapter"] = "ftjob-gone"
    service.left.add("r6")
    serve.serve(service, engine_of(base), 0, 0.3, at_once=3)
    assert [service.text(f"r{number}") for number in range(5)] == alone(base, *PROMPTS)
    assert [service.told[f"r{number}"][-1]["finish_reason"] for number in range(5)] == ["length"] * 5
    assert service.told["r5"][-1]["is_request_wrong"]
    assert "finish_reason" not in service.told["r6"][-1]
    assert "error" in service.told["r7"][-1]
    assert service.most_held <= 3

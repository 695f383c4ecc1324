"""Text that a server writes: the same as the model's own, with adapters kept apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training import tiny

pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("ignore::FutureWarning")]

TEMPLATE = (
    "{% for one in messages %}<{{ one['role'] }}>{{ one['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.llama(str(tmp_path_factory.mktemp("models") / "llama"))


def engine_of(base: str) -> Any:
    from workers.serving.engine import Engine

    return Engine(base)


def adapter(base: str, folder: Path, seed: int) -> Path:
    """One that changes what the model says."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "o_proj"], init_lora_weights=False, lora_alpha=64)
    model: Any = AutoModelForCausalLM.from_pretrained(base)
    get_peft_model(model, config).save_pretrained(str(folder))
    return folder


def written(engine: Any, prompt: str, name: str | None = None, **options: Any) -> tuple[str, int, str | None]:
    pieces = list(engine.write(engine.encode({"prompt": prompt}), name, {"temperature": 0, **options}))
    return "".join(one.text for one in pieces), pieces[-1].tokens, pieces[-1].reason


def test_the_likeliest_text_is_that_of_the_model_itself(base: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    engine = engine_of(base)
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    model: Any = AutoModelForCausalLM.from_pretrained(base)
    ids = torch.tensor([engine.encode({"prompt": "1+1="})])
    theirs = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
    expected = tokenizer.decode(theirs[0, ids.shape[1] :], skip_special_tokens=True)
    text, tokens, reason = written(engine, "1+1=", max_tokens=20)
    assert text == expected
    assert (tokens, reason) == (20, "length")


def test_adapters_of_one_base_are_kept_apart(base: str, tmp_path: Path) -> None:
    engine = engine_of(base)
    plain = written(engine, "2+2=", max_tokens=12)
    alone = {}
    for seed in (1, 2):
        single = engine_of(base)
        single.load("only", adapter(base, tmp_path / str(seed), seed))
        alone[seed] = written(single, "2+2=", "only", max_tokens=12)
        engine.load(f"a{seed}", tmp_path / str(seed))
    assert len({plain, alone[1], alone[2]}) == 3
    for _ in range(2):
        assert written(engine, "2+2=", "a1", max_tokens=12) == alone[1]
        assert written(engine, "2+2=", max_tokens=12) == plain
        assert written(engine, "2+2=", "a2", max_tokens=12) == alone[2]


def test_of_too_many_adapters_the_one_that_was_used_least_recently_goes(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.serving.engine._MOST_ADAPTERS", 2)
    engine = engine_of(base)
    folder = adapter(base, tmp_path / "a", 1)
    engine.load("one", folder)
    engine.load("two", folder)
    written(engine, "x", "one", max_tokens=1)
    engine.load("three", folder)
    assert [name for name in ("one", "two", "three") if engine.has(name)] == ["one", "three"]


def test_the_same_seed_gives_the_same_text(base: str) -> None:
    engine = engine_of(base)
    once = written(engine, "a", temperature=1.5, seed=7, max_tokens=30)
    assert once == written(engine, "a", temperature=1.5, seed=7, max_tokens=30)
    assert once != written(engine, "a", temperature=1.5, seed=8, max_tokens=30)
    assert written(engine, "a", temperature=1.0, top_p=1e-9, max_tokens=9) == written(engine, "a", max_tokens=9)


def test_a_stop_sequence_ends_the_text_and_is_not_told(base: str) -> None:
    engine = engine_of(base)
    whole, _, _ = written(engine, "b", max_tokens=30)
    stop = whole[10:13]
    text, tokens, reason = written(engine, "b", max_tokens=30, stop=[stop])
    assert text == whole[: whole.find(stop)]
    assert reason == "stop"
    assert tokens < 30


def test_a_prompt_that_leaves_no_room_is_refused(base: str) -> None:
    engine = engine_of(base)
    with pytest.raises(ValueError, match="the prompt has"):
        written(engine, "x" * 300)
    text, tokens, reason = written(engine, "x" * 250, max_tokens=100)
    assert (tokens <= 6, reason) == (True, "length"), text


def test_messages_are_written_by_the_models_own_template(base: str) -> None:
    engine = engine_of(base)
    with pytest.raises(ValueError, match="no chat template"):
        engine.encode({"messages": [{"role": "user", "content": "hi"}]})
    engine.tokenizer.chat_template = TEMPLATE
    ids = engine.encode({"messages": [{"role": "user", "content": "hi"}]})
    assert engine.tokenizer.decode(ids) == "<user>hi<assistant>"


class Letters:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return bytes(ids).decode(errors="replace")


@pytest.mark.parametrize("text", ["naïve café", "日本語", "a🙂b", "plain"])
@pytest.mark.parametrize("stops", [(), ("zz",), ("fé", "x")])
def test_pieces_make_up_the_text_and_no_half_of_a_character_is_told(text: str, stops: tuple[str, ...]) -> None:
    from workers.serving.engine import Decoded

    decoded, told = Decoded(Letters(), stops), []
    for token in text.encode():
        piece, is_over = decoded.add(token)
        told.append(piece)
        if is_over:
            break
    else:
        told.append(decoded.rest())
    ends = [text.find(stop) for stop in stops if stop in text]
    assert "".join(told) == (text[: min(ends)] if ends else text)
    assert not any("\ufffd" in piece for piece in told)

"""Rows are read as the model will read them before anything is sent, where its tokenizer can be had."""

from __future__ import annotations

import importlib.util
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import allpass
from allpass.cli import main as cli
from allpass.cli import screen
from allpass.client import Client
from allpass.errors import InvalidData
from allpass.recipe import looking, packing
from allpass.recipe.looking import find_tokenizer
from allpass.recipe.packing import Packed, pack
from allpass.recipe.shapes import find_config
from tests.sdk.fake_service import FakeService

pytestmark = pytest.mark.training
LONG = {"prompt": "x" * 100, "completion": "y"}
ROWS = [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(8)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.training import tiny

    return tiny.llama(tmp_path_factory.mktemp("llama"))


def packed(model: str, rows: Any, **options: Any) -> Packed:
    config = find_config(model)
    held_out, is_sent = options.pop("held_out", 0), options.pop("is_sent", True)
    tokenizer, _ = find_tokenizer(model, config)
    return pack(
        {"model": model, **options}, rows, held_out=held_out, config=config, tokenizer=tokenizer, is_sent=is_sent
    )


def test_tokens_are_counted_and_what_is_too_long_is_told(llama: str) -> None:
    """A byte is a token of this model, which begins and ends each row with a mark of its own."""
    found = packed(llama, ROWS[:3], sequence_length=20).looked
    assert found is not None
    assert (found.tokens, found.told(), found.remarks()) == (21, "21 tokens", [])
    assert packed(llama, ROWS[:3]).template.training.row_tokens == found.row_tokens == 7
    assert packed(llama, ROWS[:3], packing=False).template.training.row_tokens is None
    long = {"prompt": "1+1=", "completion": "2" * 50}
    found = packed(llama, [*ROWS, long], sequence_length=20).looked
    assert found is not None
    assert found.told() == "76 tokens, 1 too long"
    assert found.remarks() == ["1 of 9 training rows are longer than 20 tokens and were cut"]


def test_steps_are_those_of_the_rows_that_have_anything_to_learn(llama: str) -> None:
    """As the machine counts them; the rows that are sent stay the same, whatever is read of them."""
    one, other = (packed(llama, [*ROWS, LONG], batch_size=1, epochs=1, sequence_length=most) for most in (20, 200))
    assert (one.train_rows, one.total_steps, one.template.training.steps) == (8, 8, 8)
    assert (other.train_rows, other.total_steps) == (9, 9)
    assert _rows_of(one) == _rows_of(other)
    assert one.bundle.sha256 != other.bundle.sha256, "encoded they are cut"


def _rows_of(found: Packed) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(found.bundle.content)) as archive:
        file = archive.extractfile("train.jsonl")
        assert file is not None
        return file.read()


def test_rows_with_nothing_to_learn_are_refused_by_their_place_in_the_file(llama: str, tmp_path: Path) -> None:
    """Before anything is sent, where they are more than a few."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n\n" for row in [LONG, *ROWS, LONG]))
    with pytest.raises(InvalidData) as refused:
        packed(llama, file, sequence_length=20)
    assert refused.value.message == (
        "rows.jsonl: 2 of 10 training rows have no answer within the first 20 tokens (rows 1, 10 (line 19)): "
        "choose a larger sequence_length, or leave them out"
    )


def test_a_row_that_the_models_template_refuses_is_named_before_it_is_sent(
    llama: str, tmp_path: Path, service: FakeService, client: Client
) -> None:
    """One of many; nothing has left."""
    from tests.training import tiny

    base = tiny.llama(tmp_path / "llama")
    strict = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must "
        "alternate') }}{% endif %}[{{ m.role }}] {{ m.content }}|{% endfor %}"
    )
    (Path(base) / "chat_template.jinja").write_text(strict)
    ask, answer = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}
    rows = [{"messages": [{**ask, "content": f"Hi {number}"}, answer]} for number in range(20)]
    assert packed(base, rows).looked is not None
    rows[13] = {"messages": [ask, ask, answer]}
    with pytest.raises(InvalidData, match=r"dataset: row 14 cannot be encoded: TemplateError: Roles must alternate"):
        allpass.finetune(base, rows, held_out=0, client=client)
    assert service.paths() == []


def test_of_very_many_rows_some_are_read(llama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evenly, where nothing is sent; what they come to is an estimate, and every row is trained on."""
    monkeypatch.setattr(packing, "MOST_LOOKED_AT", 4)
    found = packed(llama, ROWS, batch_size=1, epochs=1, is_sent=False)
    assert found.looked is not None
    assert found.looked.told() == "about 56 tokens"
    assert found.total_steps == 8


def test_without_a_tokenizer_rows_are_sent_as_they_are(llama: str, tmp_path: Path, monkeypatch: Any) -> None:
    """And why is told: nobody knows the model here, it has no tokenizer, or nothing is installed to read it with."""
    assert find_tokenizer("org/model", None) == (None, "nothing of org/model can be read here")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    tokenizer, why = find_tokenizer(str(tmp_path), {"model_type": "llama"})
    assert tokenizer is None
    assert str(why).startswith(f"the tokenizer of {tmp_path} cannot be read here (")
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else real(name))
    assert find_tokenizer(llama, {}) == (None, "transformers is not installed here (pip install transformers)")
    assert packed(llama, ROWS).looked is None


def call(*words: str) -> Any:
    return CliRunner().invoke(cli.app, ["finetune", *words])


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(screen, "is_interactive", lambda stream=None: True)
    monkeypatch.setenv("NO_COLOR", "1")
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*ROWS, {**LONG, "prompt": "\x1b[2J"}]))


@pytest.mark.usefixtures("files")
def test_rows_are_shown_as_the_model_reads_them(llama: str) -> None:
    """Three of them, what is learned in brackets, and nothing is sent: no service is there. Control characters stay
    where they are."""
    done = call(llama, "sums.jsonl", "--preview", "--held-out", "0")
    assert done.exit_code == 0, done.output
    assert done.stdout == "".join(
        f"row {number}: 7 tokens, 2 learned\n<s>{number - 1}+1=⟦{number}</s>⟧\n\n" for number in (1, 2, 3)
    )
    assert "Tokens    63 tokens" in done.stderr
    Path("sums.jsonl").write_text(json.dumps({**LONG, "prompt": "\x1b[2J"}) + "\n")
    assert "\x1b" not in call(llama, "sums.jsonl", "--preview", "--held-out", "0").stdout


@pytest.mark.usefixtures("files")
def test_what_cannot_be_shown_is_said() -> None:
    """A folder that only machines have."""
    done = call("org/model", "sums.jsonl", "--preview")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--preview: nothing of org/model can be read here" in done.stderr


def test_a_classifiers_rows_are_shown_with_their_labels(tmp_path: Path) -> None:
    """And the middle of a long one is left out."""
    from tests.training import tiny

    base = tiny.bert(tmp_path / "bert")
    rows = [{"text": "aye " * 60, "label": "for"}, {"text": "no", "label": "against"}]
    found = packed(base, rows).looked
    assert found is not None
    first, second = found.examples(3)
    assert first.startswith("row 1: 241 tokens, label 'for'\n<s>aye aye")
    assert second == "row 2: 3 tokens, label 'against'\n<s>no"


@pytest.mark.parametrize(("kind", "most"), [("bert", 512), ("llama", None), ("opt", 512), ("no-such-model", 512)])
def test_the_limit_is_what_the_machine_will_find(kind: str, most: int | None) -> None:
    """A short config.json does not say what goes without saying of such a model."""
    from allpass.recipe.lengths import most_positions

    assert most_positions(looking._filled({"model_type": kind, "max_position_embeddings": 512})) == most

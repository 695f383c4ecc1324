"""Rows that were encoded where they were submitted: trained on as if they had been encoded on the machine, and encoded
there again where anything about them is not as it should be."""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allpass.recipe.encoded import Encoded, Limit, encode
from allpass.recipe.encoding import IGNORED, Encoder, Example
from allpass.recipe.packing import Packed, pack
from allpass.recipe.travelling import ENCODED_NAME, Bound, Unusable, fingerprint, read, written
from tests.training.recipes import Course
from tests.training.scripts import files_of
from workers.trainer import as_read as reading

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
SUMS = [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(24)]
LABELLED = [{"text": f"{number} of them", "label": "odd" if number % 2 else "even"} for number in range(24)]
PAIRS = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": "no" if n else "1"} for n in range(24)]
QUICK: dict[str, Any] = {"steps": 3, "batch_size": 8, "learning_rate": 5e-3, "precision": "fp32"}
AGAIN = "the rows that came encoded are encoded again: "


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("models")
    return {"llama": tiny.llama(folder / "llama"), "bert": tiny.bert(folder / "bert")}


def packed_for(model: str, rows: list[dict[str, str]], **settings: Any) -> Packed:
    from transformers import AutoTokenizer

    config = json.loads((Path(model) / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(model)
    return pack({"model": model, **QUICK, **settings}, rows, config=config, tokenizer=tokenizer)


def unpacked(packed: Packed, folder: Path, change: Callable[[bytes], bytes | None] = lambda content: content) -> Path:
    """The bundle as a machine has it, with its encoded rows changed, or without."""
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(packed.bundle.content)) as archive:
        archive.extractall(folder, filter="data")
    content = change((folder / ENCODED_NAME).read_bytes())
    (folder / ENCODED_NAME).unlink()
    if content is not None:
        (folder / ENCODED_NAME).write_bytes(content)
    return folder


@pytest.mark.parametrize(("kind", "rows"), [("llama", SUMS), ("bert", LABELLED), ("llama", PAIRS)])
def test_they_are_trained_on_without_being_encoded_again(
    models: dict[str, str], kind: str, rows: list[dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit as if they had been; of many rows a few are compared."""
    packed = packed_for(models[kind], rows, **({} if kind == "llama" else {"method": "full"}))
    bare = unpacked(packed, tmp_path / "bare", lambda content: None)
    right = Course(tmp_path / "right", bare, packed.parameters).run()
    monkeypatch.setattr(reading, "encode", lambda *told: pytest.fail("it encodes them all"))
    monkeypatch.setattr(reading, "_COMPARED", 3)
    encoded: list[str] = []
    as_usual = Encoder.encode

    def encode_one(self: Encoder, row: Any, name: str) -> tuple[Example, ...]:
        encoded.append(name)
        return as_usual(self, row, name)

    monkeypatch.setattr(Encoder, "encode", encode_one)
    full = unpacked(packed, tmp_path / "full")
    found = Course(tmp_path / "found", full, packed.parameters).run([2])
    assert found.points() == right.points()
    assert files_of(found.output) == files_of(right.output)
    assert 0 < len(encoded) <= 2 * 2 * 3  # of either kind of rows, on two machines


def of_head(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def changed(content: bytes) -> bytes:
        line, _, rest = content.partition(b"\n")
        return json.dumps(change(json.loads(line))).encode() + b"\n" + rest

    return changed


def of_training(**changes: Any) -> Callable[[bytes], bytes]:
    return of_head(lambda head: {**head, "training": {**head["training"], **changes}})


def first_number(value: int, at: int = 0) -> Callable[[bytes], bytes]:
    """Another one of the numbers behind the head."""

    def changed(content: bytes) -> bytes:
        line, _, rest = content.partition(b"\n")
        return line + b"\n" + rest[: 4 * at] + array("I", [value]).tobytes() + rest[4 * (at + 1) :]

    return changed


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "another tokenizer": (of_head(lambda head: {**head, "tokenizer": "0" * 64}), "by another tokenizer than"),
    "no tokenizer": (of_head(lambda head: {**head, "tokenizer": None}), "by another tokenizer than"),
    "another version": (of_head(lambda head: {**head, "way": 2}), "by another version of Allpass"),
    "another length": (of_head(lambda head: {**head, "most_tokens": 7}), "to another length than the"),
    "not an object": (of_head(lambda head: [head]), "their file is damaged"),
    "nested without end": (lambda content: b"[" * 100_000 + b"\n", "their file is damaged"),
    "nothing": (lambda content: b"", "their file is damaged"),
    "cut short": (lambda content: content[:-1], "their file ends too early"),
    "longer": (lambda content: content + b"\0", "their file has more than it tells of"),
    "more than there is": (of_training(tokens=2**39), "their file ends too early"),
    "fewer tokens": (of_training(tokens=-1), "tokens: -1 is no number"),
    "no number": (of_training(sequences="x" * 500), "sequences: " + "x" * 50 + " is no number"),
    "no lost": (of_training(lost=None), "which rows have nothing to learn is not told"),
    "too many lost": (of_training(lost=["row 1"]), "their lengths disagree"),
    "no part": (of_head(lambda head: {**head, "training": 3}), "sequences: None is no number"),
    "sequences of a row": (first_number(2), "their lengths disagree"),
    "left out": (of_training(left_out={"name": "often"}), "what the chat template left out is not told"),
    "wide as narrow": (of_training(narrow=False), "their file ends too early"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_not_as_it_should_be_is_encoded_again(
    models: dict[str, str], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And said; it trains as if nothing had come."""
    change, why = BROKEN[name]
    packed = packed_for(models["llama"], SUMS, steps=1)
    Course(tmp_path / "job", unpacked(packed, tmp_path / "code", change), packed.parameters).run()
    assert f"{AGAIN}" in (told := capsys.readouterr().out)
    assert why in told


def small(*rows: tuple[Example, ...]) -> Encoded:
    every = [one for row in rows for one in row]
    return Encoded(rows, (), 0, sum(len(one.ids) for one in every), sum(one.counted for one in every), {})


LEARNS = Example((1, 70_000, 3), (IGNORED, 70_000, 3))
NONE = small()


@pytest.mark.parametrize(
    ("found", "bound", "why"),
    [
        (small((LEARNS,)), {"pairs": True}, "a row is not two answers"),
        (small((LEARNS,)), {"tokens": 70_000}, "token 70000 is none of the 70,000 that the model knows"),
        (small((LEARNS,)), {"most_tokens": 2}, "to another length"),
        (small((Example((1, 2), (IGNORED, IGNORED)),)), {}, "some have nothing to learn"),
        (small((Example((1, 2), (1, IGNORED)),)), {}, "some have nothing to learn"),
        (small((Example((1, 2), (5,)),)), {"labels": 2}, "a label is none of those that there are"),
    ],
)
def test_what_would_end_a_gpus_process_is_refused(found: Encoded, bound: dict[str, Any], why: str) -> None:
    """Tokens that the model does not have, labels that there are not, rows that count nothing."""
    told = Bound("digest", 3, bound.get("labels", 0), (1, 0))
    content = written(told, found, NONE)
    with pytest.raises(Unusable, match=why):
        read(content, replace(told, **bound))


def test_what_is_written_is_read() -> None:
    """Rows of several sequences, rows without any, tokens of two bytes and of four, in all their order."""
    narrow = Example((5, 6), (5, 6))
    rows = small((narrow, narrow), (LEARNS,), (narrow,))
    rows = replace(rows, lost=("row 1 (line 2)", "row 4"), lost_at=(0, 3), cut=2, left_out={"the name": 3})
    bound = Bound("digest", 3, 0, (5, 1))
    content = written(bound, rows, small((narrow,)))
    assert read(content, bound) == (rows, small((narrow,)))
    assert written(bound, rows, small((narrow,))) == content


def test_another_tokenizer_has_another_fingerprint(models: dict[str, str]) -> None:
    """Whatever of it is changed; how it was used, and what fills rows up, is no part of it."""
    from transformers import AutoTokenizer

    def fresh() -> Any:
        return AutoTokenizer.from_pretrained(models["llama"])

    plain = fingerprint(fresh())
    assert plain is not None
    used = fresh()
    used("some text", truncation=True, max_length=3, padding="max_length")
    used.pad_token = used.eos_token
    assert fingerprint(used) == plain
    used.add_tokens(["another"])
    assert fingerprint(used) != plain
    templated = fresh()
    templated.chat_template = "{{ messages }}"
    assert fingerprint(templated) not in (plain, None)
    assert fingerprint(object()) is None


def test_libraries_that_read_a_row_otherwise_are_noticed(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where tokenizer and template are the same, and what they make of rows is not."""
    packed = packed_for(models["llama"], SUMS, steps=1)
    as_usual = Encoder._end
    monkeypatch.setattr(Encoder, "_end", lambda self: [*as_usual(self), 7])
    Course(tmp_path / "job", unpacked(packed, tmp_path / "code"), packed.parameters).run()
    assert f"{AGAIN}row 1 is read otherwise by this machine's libraries" in capsys.readouterr().out


def test_rows_that_leave_no_room_travel_as_text_alone(models: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As do those of which only a part was looked at, and those of a tokenizer without a fingerprint."""
    from allpass.recipe import looking, packing

    whole = packed_for(models["llama"], SUMS)
    assert ENCODED_NAME in whole.bundle.paths
    assert packed_for(models["llama"], SUMS).bundle.sha256 == whole.bundle.sha256
    with monkeypatch.context() as patch:
        patch.setattr(packing, "MAX_BUNDLE_BYTES", len(whole.bundle.content) - 1)
        assert ENCODED_NAME not in packed_for(models["llama"], SUMS).bundle.paths
    with monkeypatch.context() as patch:
        patch.setattr(packing, "MOST_ENCODED", 5)
        patch.setattr(packing, "MOST_LOOKED_AT", 5)
        assert ENCODED_NAME not in packed_for(models["llama"], SUMS).bundle.paths
    with monkeypatch.context() as patch:
        patch.setattr(looking, "fingerprint", lambda tokenizer: None)
        assert ENCODED_NAME not in packed_for(models["llama"], SUMS).bundle.paths


def test_many_rows_are_read_in_no_time() -> None:
    """20,000 rows of 100 tokens take an encoder most of ten seconds: here a small part of that."""
    row = Example(tuple(range(100)), (*[IGNORED] * 50, *range(50, 100)))
    rows = small(*([(row,)] * 20_000))
    bound = Bound("digest", 100, 0, (20_000, 0))
    content = written(bound, rows, NONE)
    begun = time.process_time()
    assert read(content, bound)[0] == rows
    assert time.process_time() - begun < 3
    assert len(content) < 20_000 * 100 * 2.25


def test_encoding_is_what_a_machine_would_do(models: dict[str, str]) -> None:
    """The rows of the file are those of the encoder, with what has nothing to learn left out by its place."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models["llama"])
    rows = [*SUMS[:3], {"prompt": "x" * 50, "completion": "never read"}, *SUMS[3:6]]
    limit = Limit.of(20, None)
    found = encode(Encoder(tokenizer, "prompt", (), limit.tokens), rows, "training", limit)
    assert (found.lost, found.lost_at) == (("row 4",), (3,))
    bound = Bound(fingerprint(tokenizer), 20, 0, (len(rows), 0), tokens=len(tokenizer))
    back, _ = read(written(bound, found, NONE), bound)
    assert [(one.ids, one.targets) for row in back.rows for one in row] == [
        (one.ids, one.targets) for row in found.rows for one in row
    ]

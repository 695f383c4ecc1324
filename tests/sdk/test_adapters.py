"""An adapter that a fine-tuning goes on from is read and checked before anything is sent."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from allpass.errors import InvalidInput
from allpass.recipe import adapters
from allpass.recipe.packing import pack

ROWS = [{"prompt": f"question {number}", "completion": f"answer {number}"} for number in range(20)]
CONFIG = {"peft_type": "LORA", "r": 8, "lora_alpha": 32, "lora_dropout": 0.0, "target_modules": ["v_proj", "q_proj"]}


def folder(tmp_path: Path, **changes: Any) -> Path:
    (tmp_path / adapters.CONFIG_NAME).write_text(json.dumps({**CONFIG, **changes}))
    (tmp_path / adapters.WEIGHTS_NAME).write_bytes(b"weights")
    return tmp_path


def test_its_own_settings_are_the_jobs(tmp_path: Path) -> None:
    """The plan and the summary speak of what is really trained; the files travel with the rows."""
    place = folder(tmp_path, use_rslora=True)
    (place / "optimizer.pt").write_bytes(b"not for us")
    packed = pack({"model": "m", "adapter": str(place)}, ROWS)
    recipe = packed.recipe
    assert (recipe.lora_rank, recipe.lora_alpha, recipe.lora_targets) == (8, 32, ("v_proj", "q_proj"))
    assert (recipe.use_rslora, recipe.use_dora, recipe.lora_dropout) == (True, False, 0.0)
    assert packed.template.training.lora_rank == 8
    with tarfile.open(fileobj=io.BytesIO(packed.bundle.content)) as archive:
        assert [name for name in archive.getnames() if name.startswith("adapter/")] == [
            "adapter/adapter_config.json",
            "adapter/adapter_model.safetensors",
        ]


def test_the_same_adapter_gives_the_same_bytes(tmp_path: Path) -> None:
    settings = {"model": "m", "adapter": str(folder(tmp_path))}
    assert pack(settings, ROWS).bundle.sha256 == pack(settings, ROWS).bundle.sha256
    assert pack(settings, ROWS).bundle.sha256 != pack({"model": "m"}, ROWS).bundle.sha256


@pytest.mark.parametrize("pattern", ["all-linear", ".*proj", None, [], 5])
def test_matrices_that_are_no_list_are_left_to_the_adapter(tmp_path: Path, pattern: Any) -> None:
    packed = pack({"model": "m", "adapter": str(folder(tmp_path, target_modules=pattern))}, ROWS)
    assert packed.recipe.lora_targets == "all-linear"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "IA3"}, "is of the kind 'IA3'"),
        ({"peft_type": None}, "is of the kind None"),
        ({"r": 0}, "says r: 0, which is no rank"),
        ({"r": 10**9}, "says r: 1000000000, which is no rank"),
        ({"r": True}, "says r: True, which is no rank"),
        ({"r": "8"}, "says r: '8', which is no rank"),
    ],
)
def test_what_is_no_adapter_of_ours_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match="adapter: ") as refused:
        pack({"model": "m", "adapter": str(folder(tmp_path, **changes))}, ROWS)
    assert words in refused.value.message


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, "null"])
def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path, content: str) -> None:
    folder(tmp_path)
    (tmp_path / adapters.CONFIG_NAME).write_text(content)
    with pytest.raises(InvalidInput, match=r"has no adapter_config\.json that can be read"):
        pack({"model": "m", "adapter": str(tmp_path)}, ROWS)


def test_a_name_that_is_neither_here_nor_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InvalidInput, match="'team/none' is neither a folder nor known at the hub"):
        pack({"model": "m", "adapter": "team/none"}, ROWS)


def test_weights_that_are_missing_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones have their place at the hub."""
    place = folder(tmp_path)
    monkeypatch.setattr(adapters, "LARGEST_BYTES", 3)
    with pytest.raises(InvalidInput, match="can be sent along") as refused:
        pack({"model": "m", "adapter": str(place)}, ROWS)
    assert "hub" in str(refused.value.hint)
    (place / adapters.WEIGHTS_NAME).unlink()
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        pack({"model": "m", "adapter": str(place)}, ROWS)


@pytest.mark.parametrize("field", ["lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "use_rslora", "use_dora"])
def test_what_the_adapter_says_is_not_said_twice(tmp_path: Path, field: str) -> None:
    values = {"lora_targets": ["q_proj"], "lora_dropout": 0.1, "use_rslora": True, "use_dora": True}
    with pytest.raises(InvalidInput, match=f"{field}: .* is given, but the adapter"):
        pack({"model": "m", "adapter": str(folder(tmp_path)), field: values.get(field, 4)}, ROWS)


@pytest.mark.parametrize(
    "settings", [{"adapter": "x/y"}, {"export": "merged"}, {"use_dora": True}, {"use_rslora": True}]
)
def test_a_full_fine_tuning_has_no_adapter(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="is for adapters, and method is 'full'"):
        pack({"model": "m", "method": "full", **settings}, ROWS)

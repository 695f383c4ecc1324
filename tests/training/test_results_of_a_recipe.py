"""What a training of the built-in recipe may begin with and leave: adapters, whole models, repositories of the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allpass.recipe.packing import pack
from allpass.wire.template import Template
from tests.training.recipes import Course

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
SUMS = [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(16)]
VOTES = [{"text": f"{word} {number}", "label": label} for label, word in (("for", "aye"), ("against", "no"))
         for number in range(8)]  # fmt: skip
QUICK: dict[str, Any] = {"epochs": 4, "batch_size": 8, "learning_rate": 5e-3, "precision": "fp32"}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.training import tiny

    return tiny.llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.training import tiny

    return tiny.write_rows(tmp_path_factory.mktemp("sums"), "prompt", SUMS[:12], SUMS[12:])


def said(model: Any, text: str = "1+1=") -> Any:
    """What a causal model makes of a text."""
    import torch

    from tests.training import tiny

    with torch.no_grad():
        return model.eval()(**tiny.byte_tokenizer()(text, return_tensors="pt")).logits


def with_adapter(base: str, folder: Path) -> Any:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)


@pytest.mark.parametrize("switches", [{}, {"use_rslora": True}, {"use_dora": True}])
def test_the_merged_model_says_what_the_adapter_says(
    llama: str, sums: Path, tmp_path: Path, switches: dict[str, bool]
) -> None:
    """It loads without PEFT, stands alone with its tokenizer, and answers like base weights and adapter together."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    course = Course(tmp_path, sums, {"model": llama, "export": "both", **QUICK, **switches}).run()
    adapted = with_adapter(llama, course.output)
    (config,) = adapted.peft_config.values()
    assert (config.use_rslora, config.use_dora) == (
        switches.get("use_rslora", False),
        switches.get("use_dora", False),
    )
    merged = AutoModelForCausalLM.from_pretrained(course.output / "merged")
    assert torch.allclose(said(merged), said(adapted), atol=1e-4)
    base = AutoModelForCausalLM.from_pretrained(llama)
    assert not torch.allclose(said(merged), said(base), atol=1e-2), "nothing was learned that could be merged"
    assert AutoTokenizer.from_pretrained(course.output / "merged").eos_token


def test_a_merged_model_alone_is_a_model_and_no_adapter(llama: str, sums: Path, tmp_path: Path) -> None:
    """What `download` gives is one folder that any server of models takes."""
    course = Course(tmp_path, sums, {"model": llama, "export": "merged", **QUICK}).run()
    names = {path.name for path in course.output.iterdir()}
    assert {"config.json", "model.safetensors", "training.json"} <= names
    assert not [name for name in names if name.startswith("adapter") or name in ("merged", "README.md")]


def test_a_classifier_is_merged_with_its_head_and_the_names_of_its_labels(tmp_path: Path) -> None:
    import torch
    from peft import AutoPeftModelForSequenceClassification
    from transformers import AutoModelForSequenceClassification

    from tests.training import tiny

    data = tiny.write_rows(tmp_path / "rows", "labelled", VOTES[:12], VOTES[12:], ["against", "for"])
    bert = tiny.bert(tmp_path / "bert")
    parameters = {"model": bert, "task": "classification", "export": "both", **QUICK}
    course = Course(tmp_path / "course", data, parameters).run()
    merged = AutoModelForSequenceClassification.from_pretrained(course.output / "merged")
    assert merged.config.id2label == {0: "against", 1: "for"}
    adapted = AutoPeftModelForSequenceClassification.from_pretrained(course.output, num_labels=2)
    assert torch.allclose(said(merged, "aye 3"), said(adapted, "aye 3"), atol=1e-4)


def test_a_result_is_the_same_wherever_its_training_stopped_on_the_way(llama: str, sums: Path, tmp_path: Path) -> None:
    """Moved in the middle, a merged model has the bytes of one that was left alone."""
    parameters = {"model": llama, "export": "merged", **QUICK}
    whole = Course(tmp_path / "whole", sums, parameters).run()
    moved = Course(tmp_path / "moved", sums, parameters).run(stops=(3, 5))
    for path in whole.output.iterdir():
        assert (moved.output / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_training_goes_on_from_the_adapter_that_was_sent_along(llama: str, sums: Path, tmp_path: Path) -> None:
    """With its own rank and matrices, from its own weights; moved in the middle, it ends with the same bytes."""
    from safetensors.torch import load_file

    first = Course(tmp_path / "first", sums, {"model": llama, "lora_rank": 4, **QUICK}).run()
    settings = {"model": llama, "adapter": str(first.output), **QUICK, "epochs": 1, "learning_rate": 1e-9}
    packed = pack(settings, SUMS[:12], held_out=SUMS[12:])
    assert packed.recipe.lora_rank == 4
    assert packed.template.sharing is False
    folder = unpacked(packed.bundle.content, tmp_path / "bundle")
    second = Course(tmp_path / "second", folder, packed.parameters).run(stops=(1,))
    began_with, left = (load_file(course.output / "adapter_model.safetensors") for course in (first, second))
    assert began_with.keys() == left.keys()
    assert all((began_with[name] - left[name]).abs().max() < 1e-6 for name in left)
    assert any(value.abs().max() > 1e-3 for name, value in left.items() if "lora_B" in name), "nothing was learned"
    config = json.loads((second.output / "adapter_config.json").read_text())
    assert config["r"] == 4
    whole = Course(tmp_path / "whole", folder, packed.parameters).run()
    for path in whole.output.iterdir():
        assert (second.output / path.name).read_bytes() == path.read_bytes(), path.name


def unpacked(content: bytes, folder: Path) -> Path:
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_an_adapter_of_another_model_ends_with_one_line(llama: str, sums: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    first = Course(tmp_path / "first", sums, {"model": llama, **QUICK, "steps": 1}).run()
    weights = first.output / "adapter_model.safetensors"
    save_file({name: value[:, :-1].contiguous() for name, value in load_file(weights).items()}, weights)
    packed = pack({"model": llama, "adapter": str(first.output), **QUICK}, SUMS)
    folder = unpacked(packed.bundle.content, tmp_path / "bundle")
    with pytest.raises(SystemExit, match=r"adapter: .* does not fit the model"):
        Course(tmp_path / "second", folder, packed.parameters).run(by_hand=False)


def test_what_is_not_asked_for_is_not_said() -> None:
    """An older release, to which a service was rolled back, knows none of these settings."""
    packed = pack({"model": "m"}, SUMS, template=Template())
    assert not {"adapter", "use_rslora", "use_dora", "export", "push_to"} & packed.parameters.keys()
    assert packed.template.sharing is True

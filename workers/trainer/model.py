"""The model that is trained: base weights in the recipe's precision, adapters on top of them, and the tokenizer."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from allpass.recipe.mixtures import refuse_config
from allpass.recipe.settings import Recipe
from workers.trainer.adapters import with_adapters
from workers.trainer.base import causal_model, is_as_stored, keep, placed, weights_dtype
from workers.trainer.optimizers import check_optimizer
from workers.trainer.preference import leave_dropout_out
from workers.trainer.splitting_all import SplitModel

T = TypeVar("T")


@dataclass(frozen=True)
class Prepared:
    """`model` is a PEFT model, or the whole one for `full`. `autocast`: what it is computed in, where that differs
    from its weights. `split`: where this process has a share of each weight; then it is called through `ask` alone, by
    all processes at the same time."""

    model: Any
    tokenizer: Any
    device: Any
    autocast: Any
    padding_id: int
    split: SplitModel | None = None

    def ask(self, ask: Callable[[], T]) -> T:
        """What calls the model."""
        return ask() if self.split is None else self.split.ask(ask)

    def computing(self) -> Any:
        """The context in which the model is called."""
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)


Place = Callable[[Any, Any], Any]  # puts a model, which lies in the host's memory, on a device


def prepare(
    recipe: Recipe, labels: tuple[str, ...], adapter: Path | None = None, *, place: Place | None = None
) -> Prepared:
    """The same recipe gives the same model in every process: what is drawn at random comes from its seed.

    `adapter`: the folder of the recipe's own, where that was sent along; else its name is one of the hub. `place`: for
    one that no GPU is to hold all of. Its files are mapped then: several processes of a host share that memory.
    Raises ValueError for what this machine, or this model, cannot do.
    """
    from transformers import AutoConfig

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(recipe.threads)  # sums are taken in another order by another number of them
        torch.use_deterministic_algorithms(True)
    random.seed(recipe.seed)
    torch.manual_seed(recipe.seed)
    check_optimizer(recipe, device)
    refuse_config(recipe.model, AutoConfig.from_pretrained(recipe.model).to_dict())  # before weights are fetched
    tokenizer = _tokenizer(recipe.model)
    model = _base(recipe, labels, device if place is None else torch.device("cpu"))
    torch.manual_seed(recipe.seed)  # once more: the weights may have been read by a process that stood by
    padding_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    model.config.pad_token_id = padding_id
    if recipe.checkpointing:
        recompute(model)
    if recipe.method != "full":
        model = with_adapters(recipe, model, adapter)
    if recipe.learns_pairs:
        leave_dropout_out(model)
    model = model.to(device) if place is None else place(model, device)
    return Prepared(model.train(), tokenizer, device, _autocast(recipe), padding_id)


def recompute(model: Any) -> None:
    """From now on activations are computed again in the backward pass."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()


@contextlib.contextmanager
def lent(recipe: Recipe, labels: tuple[str, ...], owner: Recipe) -> Iterator[Prepared]:
    """A model with adapters, for a while. Base weights that the `owner` trains with are then kept, as they were read.

    Raises what `prepare` raises.
    """
    prepared = prepare(recipe, labels)
    before = [one.clone() for one in prepared.model.buffers()]
    try:
        yield prepared
    finally:
        if is_as_stored(owner) and owner.numbers == recipe.numbers:
            after = list(prepared.model.buffers())
            weights = prepared.model.unload()
            if len(before) == len(after) and all(map(torch.equal, before, after)):  # some adapt to lengths they see
                keep(recipe, weights.requires_grad_(True))


def free_memory() -> None:
    """What is not referred to any more is the GPU's again, and does not count as this process' peak."""
    gc.collect()  # modules refer to each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name)
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _base(recipe: Recipe, labels: tuple[str, ...], device: Any) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    if is_as_stored(recipe):
        return causal_model(recipe, device)
    options: dict[str, Any] = {"dtype": weights_dtype(recipe), **placed(device)}
    if recipe.method == "qlora":
        options["quantization_config"] = _four_bits(recipe, device)
    if recipe.is_causal:
        return AutoModelForCausalLM.from_pretrained(recipe.model, **options)
    names = dict(enumerate(labels))
    options["ignore_mismatched_sizes"] = True  # a head that was trained for other labels gives way to a new one
    options |= {"id2label": names, "label2id": {label: number for number, label in names.items()}}
    return AutoModelForSequenceClassification.from_pretrained(recipe.model, **options)


def _four_bits(recipe: Recipe, device: Any) -> Any:
    if device.type != "cuda" or importlib.util.find_spec("bitsandbytes") is None:
        missing = "GPU that CUDA knows" if device.type != "cuda" else "bitsandbytes installed"
        raise ValueError(f"method: 'qlora' keeps weights in 4 bits, and this machine has no {missing}; take 'lora'")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=weights_dtype(recipe) if recipe.has_narrow_adapters else torch.bfloat16,
    )


def _autocast(recipe: Recipe) -> Any:
    """Half-precision weights are computed with as they are, except where a float32 head follows, or fp16 needs it."""
    if recipe.numbers == "fp16":
        return torch.float16
    has_float_head = recipe.task == "classification" and recipe.method != "full"
    if recipe.numbers == "autocast" or (recipe.numbers == "bf16" and has_float_head):
        return torch.bfloat16
    return torch.bfloat16 if recipe.method == "qlora" else None

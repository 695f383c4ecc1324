"""The real module of a case, with its adapters and its optimizer, on fake tensors."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto import modeling_auto

from allpass.symbolic.case import Case
from allpass.symbolic.quantised import AdamW8bit, quantise

_KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_ATTENTION_NAMES = ("q_proj", "v_proj", "query", "value", "q_lin", "v_lin", "c_attn", "qkv_proj", "query_key_value")
_NOT_ADAPTED = ("lm_head", "embed_out", "score", "classifier", "pre_classifier", "pooler", "router")


def build(case: Case) -> "tuple[Any, str]":
    """The module in training mode, and what it reads: `causal`, `text` (a label per sequence) or `image`.

    Raises ValueError where transformers cannot train such a model.
    """
    given = dict(case.config)
    model_type = given.pop("model_type")
    try:
        config = transformers.AutoConfig.for_model(model_type, **given)
    except ValueError as error:
        raise ValueError(f"model_type is {model_type!r}: transformers {transformers.__version__} has none") from error
    config.use_cache = False
    reads = _reads(model_type)
    auto = {"causal": "CausalLM", "text": "SequenceClassification", "image": "ImageClassification"}[reads]
    model = _from_config(getattr(transformers, f"AutoModelFor{auto}"), config, case)
    _prepare(model, case)
    if case.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if case.method != "full":
            model.enable_input_require_grads()
    model.train()
    return model, reads


def optimizer_of(case: Case, parameters: Any) -> Any:
    name = case.optimizer
    if name in {"adamw_8bit", "paged_adamw_8bit"}:
        return AdamW8bit(parameters, paged=name.startswith("paged"))
    if name in {"sgd", "sgd_momentum"}:
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9 if name == "sgd_momentum" else 0.0, foreach=False)
    fused = name == "adamw_fused"
    return torch.optim.AdamW(parameters, fused=fused, foreach=not fused)


def _reads(model_type: str) -> str:
    """Encoders get a head for labels, as the tables have them."""
    if model_type in modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        return "image"
    labelled = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    if model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES and model_type in labelled:
        return "text"
    if model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return "causal"
    raise ValueError(f"model_type is {model_type!r}: it is trained neither on text nor on labelled images here")


def _from_config(auto: Any, config: Any, case: Case) -> Any:
    kind = _KINDS.get(case.precision, torch.float32)
    attention = "eager" if case.attention == "eager" else "sdpa"
    word = "dtype" if _is_since("4.56") else "torch_dtype"
    return auto.from_config(config, attn_implementation=attention, **{word: kind})


def _is_since(version: str) -> bool:
    have, wanted = (tuple(int(part) for part in text.split(".")[:2]) for text in (transformers.__version__, version))
    return have >= wanted


def _prepare(model: Any, case: Case) -> None:
    if case.method == "qlora":
        quantise(model, double=case.quantisation != "nf4", compute_dtype=_KINDS.get(case.precision, torch.float32))
    if case.method in {"lora", "qlora"}:
        _adapt(model, case)
    elif case.method == "norm-tuning":
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for module in model.modules():
            if type(module).__name__.endswith("Norm"):
                for parameter in module.parameters(recurse=False):
                    parameter.requires_grad_(True)


def _adapt(model: Any, case: Case) -> None:
    """In place, as peft puts adapters into a model."""
    import peft

    nn.Module._apply = _apply_by_replacement  # type: ignore[method-assign, unused-ignore]  # see there
    settings = peft.LoraConfig(
        r=case.rank,
        lora_alpha=2 * case.rank,
        lora_dropout=case.adapter_dropout,
        target_modules=_targets(model, case),
        fan_in_fan_out=case.config["model_type"] in {"gpt2", "gpt_bigcode"},
    )
    peft.inject_adapter_in_model(settings, model)
    for name, parameter in model.named_parameters():
        if "lora_" in name and parameter.dtype in _KINDS.values():
            parameter.data = parameter.data.float()  # as get_peft_model does


def _targets(model: Any, case: Case) -> "list[str]":
    """Full names of the matrices of the layers that get an adapter."""
    linear = {
        name: name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    }
    inside = {name: last for name, last in linear.items() if any(part.isdigit() for part in name.split("."))}
    found: "set[str]" = set()
    for target in case.targets:
        if target == "all":
            found |= {name for name, last in inside.items() if last not in _NOT_ADAPTED}
        elif target == "attention":
            found |= {name for name, last in inside.items() if last in _ATTENTION_NAMES}
        else:
            found |= {name for name, last in linear.items() if last == target}
    if not found:
        raise ValueError(f"targets is {list(case.targets)!r}: the model has no such matrix")
    return sorted(found)


def _apply_by_replacement(self: Any, function: Any, recurse: bool = True) -> Any:
    """`Module._apply` with new parameters: those of fake tensors cannot be given other contents."""
    for module in self.modules() if recurse else [self]:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                new = function(parameter.data)
                if new is not parameter.data:
                    module._parameters[name] = nn.Parameter(new, parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = function(buffer)
    return self

"""The shape of a model: what decides its parameters and its activations, read from a Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.core.memory.families import FAMILIES, Family
from app.errors import InvalidInput

_MOST = 1 << 40


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of a transformer. `family` is the `model_type` of its configuration.

    `labels` matters for models with a classification head only, `experts` and `experts_per_token` for mixtures only.
    """

    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    positions: int = 0
    types: int = 2
    experts: int = 1
    experts_per_token: int = 1
    labels: int = 2
    image: int = 224
    patch: int = 16
    channels: int = 3
    dropout: float = 0.0
    attention_dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            known = ", ".join(sorted(FAMILIES))
            raise InvalidInput(f"model type {self.family!r} is not known; known are {known}", param="model_type")
        for name in ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "experts"):
            value = getattr(self, name)
            if not 0 < value < _MOST:
                raise InvalidInput(f"{name} is {value!r}: it must be a positive number", param=name)
        for name in ("vocab", "positions", "types", "labels", "image", "channels"):
            value = getattr(self, name)
            if not 0 <= value < _MOST:
                raise InvalidInput(f"{name} is {value!r}: it must be from 0 to below 2**40", param=name)
        if not 0 < self.patch <= self.image and self.form.head == "image":
            raise InvalidInput(f"patch is {self.patch}: it must be from 1 to image, {self.image}", param="patch")
        if self.heads % self.kv_heads:
            raise InvalidInput(
                f"kv_heads is {self.kv_heads}: it must divide heads, which is {self.heads}", param="kv_heads"
            )
        if not 0 < self.experts_per_token <= self.experts:
            raise InvalidInput(
                f"experts_per_token is {self.experts_per_token}: it must be from 1 to experts, which is {self.experts}",
                param="experts_per_token",
            )
        if self.vocab <= 0 and self.form.head != "image":
            raise InvalidInput(f"vocab is {self.vocab!r}: it must be a positive number", param="vocab")

    @property
    def form(self) -> Family:
        """What all models of this family have in common."""
        return FAMILIES[self.family]

    @property
    def pixels_bytes(self) -> int:
        """Of one image, in float32; 0 for models of text."""
        return 4 * self.channels * self.image**2 if self.form.head == "image" else 0

    def tokens(self, sequence: int) -> int:
        """In each example: of text `sequence`; of an image its patches and the token of its class."""
        return (self.image // self.patch) ** 2 + 1 if self.form.head == "image" else sequence

    def with_layers(self, layers: int) -> Architecture:
        """The same model, deeper or shallower."""
        return replace(self, layers=layers)

    def sizes(self) -> dict[str, int]:
        """The dimensions that tensors of this model are products of, by their short names."""
        q, k = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "h": self.hidden,
            "i": self.intermediate,
            "q": q,
            "k": k,
            "f": q + 2 * k,
            "a": self.heads,
            "kv": self.kv_heads,
            "d": self.head_dim,
            "V": max(self.vocab, 1),
            "e": self.experts,
            "m": self.experts_per_token,
            "n": self.labels,
            "P": max(self.positions, 1),
            "x": self.channels * self.patch**2,
            "y": self.channels * self.image**2,
        }


_KEYS: Mapping[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "dim", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "intermediate": ("ffn_hidden_size", "intermediate_size", "n_inner", "hidden_dim", "ffn_dim"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "vocab": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions"),
    "types": ("type_vocab_size",),
    "experts": ("num_local_experts", "num_experts"),
    "experts_per_token": ("num_experts_per_tok",),
    "image": ("image_size",),
    "patch": ("patch_size",),
    "channels": ("num_channels",),
}


def config_key(name: str) -> str:
    """What the `config.json` calls a field of the architecture; a name that is no field stays as it is."""
    return _KEYS[name][0] if name in _KEYS else name


_OWN_KEYS: Mapping[str, Mapping[str, str]] = {
    "gpt2": {
        "hidden": "n_embd",
        "layers": "n_layer",
        "heads": "n_head",
        "intermediate": "n_inner",
        "positions": "n_positions",
    },
    "distilbert": {"hidden": "dim", "layers": "n_layers", "heads": "n_heads", "intermediate": "hidden_dim"},
    "falcon": {"intermediate": "ffn_hidden_size", "kv_heads": "num_kv_heads"},
}
_OWN_KEYS = {**_OWN_KEYS, "gpt_bigcode": _OWN_KEYS["gpt2"]}
"""Fields that a family's configuration has under a name of its own."""


_SHARE_KEYS = {"falcon", "gpt_bigcode"}
"""Families whose query heads share one head of keys and values unless `multi_query` says otherwise."""


def is_known(config: Mapping[str, Any]) -> bool:
    """Whether the tables have the family of this `config.json`."""
    return config.get("model_type") in FAMILIES


def config_of(model: Architecture) -> dict[str, Any]:
    """A `config.json` of this shape: `architecture_of` reads the same from it, and transformers builds it."""
    own = _OWN_KEYS.get(model.family, {})
    names = ["hidden", "layers", "heads", "intermediate"]
    if model.form.head == "image":
        names += ["image", "patch", "channels"]
    else:
        names.append("vocab")
    if model.form.style in {"rotary", "parallel"}:
        names.append("kv_heads")
    if model.form.style == "rotary":
        names.append("head_dim")
    if model.positions:
        names.append("positions")
    if model.form.head in {"bert", "roberta"}:
        names.append("types")
    if model.form.mixture:
        names += ["experts", "experts_per_token"]
    found = {
        own.get(name, _KEYS[name][0] if name != "intermediate" else "intermediate_size"): getattr(model, name)
        for name in names
    }
    return {"model_type": model.family, **found, "tie_word_embeddings": model.tied}


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """From the mapping in a `config.json`. What it leaves out has the value that transformers would give it.

    Raises InvalidInput that names the field of the configuration.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise InvalidInput(f"model_type is {family!r}; known are {known}", param="model_type")
    form = FAMILIES[family]
    found = {name: _whole(config, keys) for name, keys in _KEYS.items()}
    hidden, heads = _needed(found, "hidden"), _needed(found, "heads")
    values: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    values.setdefault("intermediate", 4 * hidden)
    values.setdefault("vocab", 0)
    for name, usual in form.usual.items():
        if not any(key in config for key in _KEYS[name]):
            values[name] = usual
    if "head_dim" not in values:
        if hidden % heads:
            raise InvalidInput(f"hidden_size {hidden} is not a multiple of {heads} heads", param="num_attention_heads")
        values["head_dim"] = hidden // heads
    _needed(found, "layers")
    values.setdefault("kv_heads", 1 if config.get("multi_query", family in _SHARE_KEYS) else heads)
    values.setdefault("positions", 0)
    values["tied"] = bool(config.get("tie_word_embeddings", form.tied))
    values["labels"] = _labels(config)
    values["dropout"] = _rate(config, form.dropout, "resid_pdrop", "hidden_dropout_prob", "hidden_dropout", "dropout")
    values["attention_dropout"] = _rate(
        config, form.dropout, "attn_pdrop", "attention_probs_dropout_prob", "attention_dropout"
    )
    return Architecture(family=family, **values)


def _whole(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidInput(f"{key} is {value!r}: it must be a whole number", param=key)
        return value
    return None


def _needed(found: Mapping[str, int | None], name: str) -> int:
    value = found[name]
    if not value:
        key = _KEYS[name][0]
        raise InvalidInput(f"{key} is missing from the configuration, or zero", param=key)
    return value


def _rate(config: Mapping[str, Any], default: float, *keys: str) -> float:
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise InvalidInput(f"{key} is {value!r}: it must be from 0 up to 1", param=key)
        return float(value)
    return default


def _labels(config: Mapping[str, Any]) -> int:
    names = config.get("id2label")
    if isinstance(names, Mapping) and names:
        return len(names)
    return _whole(config, ("num_labels",)) or 2

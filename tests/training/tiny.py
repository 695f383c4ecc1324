"""Models and tokenizers that are made on the spot: real ones in kind, random, and so small that a step takes
milliseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from workers.trainer import rows

_MARKS = ["<pad>", "<s>", "</s>"]


def byte_tokenizer() -> Any:
    """One token per byte, three marks, and texts that begin with the first of them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*_MARKS, *letters])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def llama(folder: Path, *, hidden: int = 32, layers: int = 1, dropout: float = 0.0) -> str:
    """A causal model in `folder`, and its name: the path."""
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=len(byte_tokenizer()), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, attention_dropout=dropout,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return _saved(LlamaForCausalLM(config), folder)


def bert(folder: Path, *, hidden: int = 32) -> str:
    """An encoder in `folder`, and its name: the path."""
    torch.manual_seed(12)
    config = BertConfig(
        vocab_size=len(byte_tokenizer()), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=1,
        num_attention_heads=4, max_position_embeddings=128, pad_token_id=0,
    )  # fmt: skip
    return _saved(BertForSequenceClassification(config), folder)


def _saved(model: Any, folder: Path) -> str:
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def write_rows(
    folder: Path,
    shape: str,
    train: Sequence[Mapping[str, Any]],
    held_out: Sequence[Mapping[str, Any]] = (),
    labels: Sequence[str] = (),
) -> Path:
    """Rows as a bundle has them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / rows.FACTS_NAME).write_text(json.dumps({"shape": shape, "labels": list(labels)}))
    for name, some in ((rows.TRAIN_NAME, train), (rows.HELD_OUT_NAME, held_out)):
        (folder / name).write_text("".join(json.dumps(dict(row)) + "\n" for row in some))
    return folder

"""Which 16 bits a training computes in on a type of GPU, where it leaves that to the GPU. Pure.

Cards from before Ampere have no units for bf16: they compute it by way of float32, several times slower than fp16.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from app.core.memory.training import PRECISIONS, Precision, Training
from app.core.roofline import gpu_named

_FP16_OF: dict[Precision, Precision] = {"bf16": "fp16", "amp_bf16": "amp_fp16"}
_MAKERS = re.compile(r"^(?:nvidia|tesla|geforce|quadro|q(?=rtx))*")
_OLDER = re.compile(
    r"gtx\d|rtx20[5-8]0|titan|rtx[34568]000$|(?:t(?:4|10|400|600|1000|1200)|[kmp](?:4|6|10|40|60|80|100))(?!\d)|g?v100|gp100"
)
"""Kepler to Turing, as providers write them. Ampere's small cards and "RTX 6000 Ada" go on after these names."""


def has_bf16(gpu_type: str) -> bool:
    """Whether this type has units for bf16. Of a type that nobody knows it is believed: it is likely a newer one."""
    known = gpu_named(gpu_type)
    if known is not None:
        return known.bf16
    plain = "".join(letter for letter in gpu_type.casefold() if letter.isalnum())
    return _OLDER.match(_MAKERS.sub("", plain)) is None


def on_gpu(training: Training, gpu_type: str, begun: Precision | None = None) -> Training:
    """The training as it is computed there. Nothing is left open in it.

    `begun`: what the job has computed in so far; it goes on so wherever it comes to, as its sums would be others.
    """
    if not training.precision_by_gpu:
        return training
    is_fp16 = not has_bf16(gpu_type) if begun is None else "fp16" in begun
    return in_fp16(training) if is_fp16 else replace(training, precision_by_gpu=False)


def in_fp16(training: Training) -> Training:
    """As it is computed where there is no bf16: under autocast, as sums of fp16 would overflow."""
    precision = _FP16_OF[training.precision]
    return replace(
        training,
        precision=precision,
        autocast=training.autocast or precision == "fp16",
        precision_by_gpu=False,
    )


def told_precision(layout: object) -> Precision | None:
    """What a run computed in, by the layout that was kept of it; None where that does not say."""
    told = layout.get("precision") if isinstance(layout, Mapping) else None
    return next((each for each in PRECISIONS if each == told), None)

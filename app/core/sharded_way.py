"""Where a training of the built-in recipe fits with its weights split over GPUs, if no copy of it does. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from app.core.memory.need import Stated, least_need
from app.core.model.offer import Offer

_COUNTS = (2, 4, 8)


def sharded_way(stated: Stated, offers: Iterable[Offer], machines: int = 1) -> str | None:
    """In words, with the options of the command; None where it is split already, cannot be, or would not fit either.
    `stated`: with the GPUs of all its machines."""
    asked = stated.training
    if asked.sharded or asked.method not in {"lora", "full"} or (asked.method == "full" and asked.optimizer != "adamw"):
        return None
    known = tuple(offers)
    training = replace(stated.training, sharded=True).over(machines)
    for gpus in _COUNTS:  # of each machine
        total = gpus * machines
        if not stated.gpus <= total <= stated.batch or not any(offer.gpu_count >= gpus for offer in known):
            continue
        need = least_need(replace(stated, training=training, gpus=total)).capacity_bytes
        enough = [one for one in known if one.gpu_count >= gpus and one.gpu_memory_bytes >= need]
        if enough:
            found = min(enough, key=lambda one: (one.price_per_hour, one.key))
            return (
                f"split over {gpus} {found.gpu_type} it fits, with {need / 1e9:.1f} GB on each (finetune --gpu "
                f"{found.gpu_type}:{gpus} --sharded)"
            )
    return None

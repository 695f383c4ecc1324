"""Whether the GPUs that a job asks for exist: a name that nobody has heard of would be waited for in vain."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from allpass.wire.template import GpuRequest
from app.core.model.offer import Offer
from app.core.roofline import GPUS, gpu_named
from app.errors import InvalidInput

_TYPE, _COUNT = "template.gpu.type", "template.gpu.count"
_MOST_TOLD = 12
_USUAL_MOST = 8  # GPUs in one machine; there may be such a machine although none is on offer


def check_gpu(gpu: GpuRequest, offers: Collection[Offer]) -> None:
    """Raises InvalidInput for a type that is neither offered nor known, and for more GPUs than a machine has. A known
    type that nobody offers now is let through: one may come. So is everything where no offer is known."""
    if not offers:
        return
    check_count(gpu.count, offers, _COUNT)
    if gpu.type is None or gpu_named(gpu.type) is not None:
        return
    types = {_plain(offer.gpu_type): offer.gpu_type for offer in offers}
    if _plain(gpu.type) not in types:
        raise InvalidInput(f"{_TYPE}: {_unknown(gpu.type, types)}", param=_TYPE)


def check_count(count: int, offers: Collection[Offer], param: str) -> None:
    """Raises InvalidInput for more GPUs than a machine has; where no offer is known, any number is let through."""
    most = max((_USUAL_MOST, *(offer.gpu_count for offer in offers)))
    if offers and count > most:
        raise InvalidInput(
            f"{param}: {count} GPUs are more than any machine on offer has; the most is {most}", param=param
        )


def _unknown(asked: str, offered: dict[str, str]) -> str:
    near = difflib.get_close_matches(_plain(asked), [*offered, *GPUS], n=1, cutoff=0.5)
    names = sorted(set(offered.values()))
    more = f" and {len(names) - _MOST_TOLD} more" if len(names) > _MOST_TOLD else ""
    on_offer = f"on offer are {', '.join(names[:_MOST_TOLD])}{more}"
    meant = f"; did you mean {offered.get(near[0], near[0].upper())}?" if near else ""
    return f"no provider offers a GPU called {asked!r}{meant} ({on_offer})"


def _plain(gpu_type: str) -> str:
    return "".join(letter for letter in gpu_type.casefold() if letter.isalnum())

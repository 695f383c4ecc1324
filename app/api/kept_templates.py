"""Templates as they were accepted once, by this release or another one."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from allpass.wire.template import Template


def kept_template(stored: Any) -> Template:
    """What this release can say of a stored template. What a newer one has added, or a stricter limit would refuse
    today, is left out of the answer; it stays in the row."""
    told = stored
    while True:
        try:
            return Template.model_validate(told)
        except ValidationError as error:
            told = copy.deepcopy(stored) if told is stored else told
            place = error.errors(include_url=False, include_context=False, include_input=False)[-1]["loc"]
            if not _leave_out(told, place):
                return Template()


@lru_cache(maxsize=256)
def as_read(stored: str) -> str:
    """A template that was just stored, as it will be read: with what is stored only where it is not the default."""
    if "resize_by" in json.loads(stored):
        return stored
    return f'{stored[:-1]},"resize_by":"{Template.model_fields["resize_by"].default}"}}'


def _leave_out(told: Any, place: Sequence[int | str]) -> bool:
    """Take away the part of that name; where it is missing, what it is missing from. False where that is the whole."""
    holder, key, inside = None, None, told
    for name in place:
        known = name in inside if isinstance(inside, dict) else isinstance(inside, list) and isinstance(name, int)
        if not known:
            break
        holder, key, inside = inside, name, inside[name]
    if holder is not None:
        del holder[key]
    return holder is not None

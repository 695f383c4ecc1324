"""The run of Weights & Biases that a fine-tuning is told to, checked. Python 3.9 with the standard library alone, as
machines read it too."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping

from allpass.recipe.checks import check_text, wrong

WANDB = "wandb>=0.19"  # which of its settings are read from variables
WANDB_KEY = "WANDB_API_KEY"
LONGEST_NAME = 128
LONGEST_TAG = 64
MOST_TAGS = 16
_NAMES = ("project", "name", "entity", "run")
_HINT = 'wandb={"project": "my-project"}'
_RESERVED = re.compile(r"[/\\#?%:\x00-\x1f\x7f]")  # what W&B lets stand in no address of a run


def checked_wandb(told: Any) -> "Dict[str, Any]":
    """`project`, and where they were given `name`, `entity`, `tags` and `run`, the id that it has on every machine of
    its job. Raises InvalidInput."""
    if not isinstance(told, Mapping):
        raise wrong("wandb", told, "is no object with a project", _HINT)
    for name in told:
        if name not in (*_NAMES, "tags"):
            raise wrong("wandb", name, f"is none of {', '.join(_NAMES)}, tags", _HINT)
    if "project" not in told:
        raise wrong("wandb", dict(told), "names no project", _HINT)
    found: "Dict[str, Any]" = {}
    for name in _NAMES:
        if told.get(name) is not None:
            found[name] = _checked_name(f"wandb.{name}", told[name], is_free=name == "name")
    if told.get("tags"):
        found["tags"] = _checked_tags(told["tags"])
    return found


def _checked_name(field: str, value: Any, *, is_free: bool) -> str:
    check_text(field, value)
    text = str(value)
    if len(text) > LONGEST_NAME:
        raise wrong(field, text[:40], f"has {len(text)} characters, and {LONGEST_NAME} is the most", _HINT)
    if not is_free and _RESERVED.search(text):
        raise wrong(field, text, "has one of the characters / \\ # ? % : that W&B keeps for itself", _HINT)
    return text


def _checked_tags(told: Any) -> "List[str]":
    if not isinstance(told, (list, tuple)) or len(told) > MOST_TAGS:
        raise wrong("wandb.tags", told, f"is no list of at most {MOST_TAGS} tags", 'wandb={..., "tags": ["first"]}')
    for tag in told:
        if not isinstance(tag, str) or not 0 < len(tag) <= LONGEST_TAG:
            raise wrong("wandb.tags", tag, f"is no text of 1 to {LONGEST_TAG} characters", '"first"')
    return list(told)

"""What the library says of its arguments, in the words of the command line."""

from __future__ import annotations

import re

_FIELDS = {
    "soft_deadline": "--deadline",
    "app_name": "--name",
    "parameters": "--params",
    "from_checkpoint": "--from-checkpoint",
    "max_cost_usd": "--max-cost",
    "max_duration": "--max-duration",
    "max_hourly_usd": "--max-hourly",
    "max_wait": "--max-wait",
    "retries": "--retries",
    "secrets": "--secret",
    "group_by": "--by",
    "pip": "--pip",
    "requirements": "--requirements",
    "status": "--status",
    "label": "--label",
    "goal": "--goal",
    "entrypoint": "--entrypoint",
}
_OF_A_TEMPLATE = {
    "cpus": "--cpus",
    "memory_gb": "--memory",
    "gpu": "--gpu",
    "env": "--env",
    "labels": "--label",
    "image": "--image",
    "command": "the command",
    "outputs": "--keep",
    "caps.max_duration_s": "--max-duration",
    "caps.max_wait_s": "--max-wait",
    "retries": "--retries",
}
_START = re.compile(rf"({'|'.join(_FIELDS)}): ")
_FROM_OPTIONS = re.compile(r"options, (caps\.\w+|\w+)[\w.]*: ")
_ARGUMENT = re.compile(rf"\b({'|'.join((*_FIELDS, 'code'))})=(?:\"([^\"]*)\"|'([^']*)')")
_LIST = re.compile(r"\bsecrets=\[[\"'](\w+)[\"']\]")


def message_of(text: str) -> str:
    """The error, naming the option instead of the argument."""
    found = _START.match(text)
    if found is not None:
        return f"{_FIELDS[found[1]]}: {text[found.end() :]}"
    option = _FROM_OPTIONS.match(text)
    if option is not None and option[1] in _OF_A_TEMPLATE:
        return f"{_OF_A_TEMPLATE[option[1]]}: {text[option.end() :]}"
    return text


def hint_of(text: str) -> str:
    """The advice, as it would be typed."""
    return _ARGUMENT.sub(_typed, _LIST.sub(r"--secret \1", text)).replace("--deadline 6hr", "--deadline 6h")


def _typed(found: re.Match[str]) -> str:
    name, value = found[1], found[2] or found[3] or ""
    return f"allpass run {value}" if name == "code" else f"{_FIELDS[name]} {value}"

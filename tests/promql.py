"""Which series and labels a PromQL expression names. No parser: enough for what is in deploy/monitoring."""

from __future__ import annotations

import re
from collections.abc import Iterator

_STRING = re.compile(r'"[^"]*"')
_SELECTOR = re.compile(r"\b([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_NAME = re.compile(r"(?<![\w$.])([a-zA-Z_:][\w:]*)\b(?!\s*\()")
_WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "offset", "bool", "group_left", "group_right"}


def series_of(expression: str) -> set[str]:
    """Names of series; functions, labels and key words are none."""
    left = _STRING.sub('""', expression)
    found = {name for name, _ in _SELECTOR.findall(left)}
    left = _GROUPING.sub(" ", _RANGE.sub("", _SELECTOR.sub(" ", left)))
    return found | {name for name in _NAME.findall(left) if name not in _WORDS}


def labels_of(expression: str) -> Iterator[tuple[str, str]]:
    """Each label that a selector asks for, with its series."""
    for name, matchers in _SELECTOR.findall(_STRING.sub('""', expression)):
        yield from ((name, label) for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))


def grouped_by(expression: str) -> set[str]:
    """Labels that results are told apart by."""
    return {label.strip() for group in _GROUPING.findall(expression) for label in group.split(",") if label.strip()}

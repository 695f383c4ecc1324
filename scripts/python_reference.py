"""The Python reference from signatures and docstrings; `scripts/reference.py` writes it as docs/reference/python.md."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

_WIDEST = 120
MODULES = (
    ("allpass", "Submit and follow jobs"),
    ("allpass.training", "In a training script"),
    ("allpass.training.torch_checkpoints", "In a PyTorch script"),
    ("allpass.training.elastic", "In a PyTorch script whose GPUs may change"),
)
HEAD = """\
# Python

Made by `scripts/reference.py` from the package's own docstrings; `help(allpass.Job)` says the same. What is not here is
no part of the interface. Models of what the service answers are in [the REST reference](api.md), under their names.
"""


def render_python() -> str:
    parts = [HEAD]
    for name, title in MODULES:
        module = importlib.import_module(name)
        parts.append(f"## {title}: `{name}`\n")
        parts += [*_prose(module), ""] if name != "allpass" else []
        for public in _public(module):
            parts += _entry(name, public, getattr(module, public))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


def _public(module: Any) -> list[str]:
    """Names as the module declares them; its own functions and classes where it declares none."""
    declared = getattr(module, "__all__", None)
    if declared is None:
        found = (name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__)
        declared = [name for name in found if not name.startswith("_")]
    return sorted(name for name in declared if callable(getattr(module, name)))


def _entry(module: str, name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield from _function(f"{module}.{name}", value, "###")
        return
    yield f"### `{module}.{name}`\n"
    yield from (*_prose(value), "")
    ours = [base for base in value.__mro__ if base.__module__.startswith("allpass")]
    members = {name: member for base in reversed(ours) for name, member in vars(base).items()}
    for method, function in sorted(members.items()):
        if method.startswith("_"):
            continue
        if isinstance(function, property):
            typed = inspect.signature(function.fget).return_annotation if function.fget else ""
            yield f"#### `.{method}: {typed}`\n"
            yield from (*_prose(function), "")
        elif inspect.isfunction(inspect.unwrap(getattr(value, method))):
            yield from _function(f".{method}", getattr(value, method), "####")


def _function(name: str, function: Any, level: str) -> Iterator[str]:
    parameters = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    returned = inspect.signature(function).return_annotation
    arrow = "" if returned is inspect.Signature.empty else f" -> {returned}"
    yield f"{level} `{name}`\n"
    yield f"```python\n{_signature(name.rpartition('.')[2], list(_words_of(parameters)), arrow)}\n```\n"
    yield from (*_prose(function), "")


def _signature(name: str, words: list[str], arrow: str) -> str:
    """On one line where it fits."""
    line = f"def {name}({', '.join(words)}){arrow}: ..."
    split = "".join(f"    {word},\n" for word in words)
    return line if len(line) <= _WIDEST else f"def {name}(\n{split}){arrow}: ..."


def _words_of(parameters: list[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not starred:
            yield "*"
        starred = starred or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        typed = "" if one.annotation is one.empty else f": {one.annotation}"
        yield f"{stars}{one.name}{typed}" + ("" if one.default is one.empty else f" = {one.default!r}")


def _prose(value: Any) -> list[str]:
    """The docstring: arguments as a list, examples as code, all else as it is."""
    shown: list[str] = []
    in_code = False
    for line in (inspect.getdoc(value) or "").splitlines():
        argument = re.match(r"(\w+) {2,}(\S.*)", line)
        goes_on = bool(shown) and shown[-1].startswith(("- ", "  ")) and not in_code
        if argument:
            shown.append(f"- `{argument.group(1)}`: {argument.group(2)}")
        elif line.startswith("    ") and goes_on:
            shown.append(f"  {line.strip()}")
        elif line.startswith("    "):
            shown += [] if in_code else ["```python"]
            in_code = True
            shown.append(line.removeprefix("    "))
        else:
            if line and in_code:
                shown.insert(len(shown) - (not shown[-1]), "```")
                in_code = False
            shown.append(line)
    return [*shown, "```"] if in_code else shown

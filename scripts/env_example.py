"""Prints .env.example from the settings themselves: `.venv/bin/python scripts/env_example.py > .env.example`."""

from __future__ import annotations

import json
import sys

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from app.plugins import found_providers
from app.settings import Settings

_HEAD = """\
# Every setting of the Allpass server, with its default. Copy to .env and change what you need.
# `./allpass up` sets the required ones by itself; a deployment of several hosts sets them here.
"""


def line(variable: str, field: FieldInfo) -> str:
    """`# what it is` and `NAME=default`, commented out unless it must be given."""
    note = f"# {field.description}\n" if field.description else ""
    if field.default is PydanticUndefined:
        return f"{note}{variable}="
    default = "" if field.default is None else field.default
    default = json.dumps(default) if isinstance(default, bool | list) else default
    return f"{note}#{variable}={default}"


def render() -> str:
    """The core's settings, then those of the providers that ship with Allpass."""
    lines = [line(f"ALLPASS_{name.upper()}", field) for name, field in Settings.model_fields.items()]
    for found in found_providers():
        if found.is_own and found.plugin is not None:
            fields = found.plugin.settings.model_fields
            lines += [line(f"{found.prefix}{name.upper()}", field) for name, field in fields.items()]
    return _HEAD + "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())

"""What a job is to run: the app's script, or a command of its own, and never both or neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allpass.recipe.packing import SCRIPT_NAME
from allpass.wire.template import Template
from app.db.apps.versions import AppVersion
from app.errors import InvalidInput

_COMMAND = "template.command"


def check_command(
    template: Template, app: AppVersion, parameter_sets: Sequence[Mapping[str, Any] | Sequence[str]]
) -> None:
    """Raises InvalidInput where nothing, or two things at once, would run."""
    entrypoint = app.content.entrypoint
    if template.command is None:
        if not entrypoint:
            raise InvalidInput(
                f'{_COMMAND}: app {app.name!r} has no script of its own; say what to run, e.g. ["python", "train.py"]',
                param=_COMMAND,
            )
        return
    if entrypoint == SCRIPT_NAME:
        raise InvalidInput(
            f"{_COMMAND}: app {app.name!r} is a fine-tuning by the built-in recipe, which runs nothing else",
            param=_COMMAND,
        )
    if any(isinstance(one, list) and one for one in parameter_sets):
        raise InvalidInput(
            f"{_COMMAND}: words in parameters are arguments of the app's script, and a command has its own; write them "
            "behind it",
            param=_COMMAND,
        )

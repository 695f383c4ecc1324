"""What a job runs and with which variables, beside its code: the fields `command` and `env` of a template."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from allpass.wire.access import LONGEST_SECRET_NAME, variable_is_taken

MOST_WORDS = 10_000
MOST_VARIABLES = 100
LONGEST_VALUE = 32_000  # what every system can hand to a process, in any alphabet
MOST_ENVIRONMENT_BYTES = 64 * 1024
_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
_NO_NUL = r"^[^\x00]*$"
_SECRET = re.compile(
    r"(?:^|_)(?:TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|SECRET|(?:API|ACCESS|SECRET|PRIVATE)_?KEY)$",
    re.IGNORECASE,
)
# Ours, and yet for the job to set: its PYTHONPATH follows ours, and it may want no hooks.
_FOR_BOTH = frozenset({"PYTHONPATH", "ALLPASS_HOOKS"})


def _known_start(words: list[str]) -> list[str]:
    if words and (not words[0].strip() or words[0].startswith("-")):
        raise ValueError(f'{words[0]!r} is not a program to start; begin with one, e.g. ["python", "train.py"]')
    return words


def _settable(variables: dict[str, str]) -> dict[str, str]:
    for name, value in variables.items():
        problem = variable_problem(name, value)
        if problem is not None:
            raise ValueError(problem)
    total = sum(len(name.encode()) + len(value.encode("utf-8", "surrogatepass")) for name, value in variables.items())
    if total > MOST_ENVIRONMENT_BYTES:
        raise ValueError(f"its variables take {total} bytes, and {MOST_ENVIRONMENT_BYTES} is the most; write a file")
    return variables


def variable_problem(name: str, value: str) -> str | None:
    """Why this variable cannot be given to a job as it is; None for a good one."""
    if name not in _FOR_BOTH and variable_is_taken(name):
        return (
            f"{name!r} is a variable that Allpass or the system sets for your code; what the script itself needs can "
            f"be set in its command: env {name}=... python train.py"
        )
    if looks_secret(name, value):
        return (
            f"{name!r} looks like a secret, and what is in a template is stored and shown as it is; "
            f"keep it with: allpass secret set {name}, and name it in secrets"
        )
    return None


def looks_secret(name: str, value: str) -> bool:
    """Whether a key or password would be told in the open. A token in angle brackets is one of a tokenizer."""
    return _SECRET.search(name) is not None and bool(value) and not value.startswith("<")


Word = Annotated[str, StringConstraints(max_length=LONGEST_VALUE, pattern=_NO_NUL)]
Command = Annotated[list[Word], Field(min_length=1, max_length=MOST_WORDS), AfterValidator(_known_start)]
Variable = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_SECRET_NAME, pattern=_NAME)]
Environment = Annotated[dict[Variable, Word], Field(max_length=MOST_VARIABLES), AfterValidator(_settable)]

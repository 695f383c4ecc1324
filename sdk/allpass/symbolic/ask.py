"""Symbolic runs from a process that has no torch, and need not survive one: another Python runs them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

from allpass.symbolic.case import Case
from allpass.symbolic.kept import Kept

LIBRARIES = ("torch", "transformers", "peft")
LIMIT_S = 900.0
_QUESTION_S = 60.0
_TOLD_CHARS = 2000
# What lies in the folder that a Python was started in is no library of it (its own option for that is too new).
_ASK_VERSIONS = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import importlib.metadata, json
found = {"python": "%d.%d" % sys.version_info[:2]}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


class CannotRunError(Exception):
    """Symbolic runs are not possible with this Python, or not of this case. `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def versions_of(python: str = sys.executable) -> "dict[str, str]":
    """The versions of the libraries that a Python has, and its own; nothing is imported there. Raises
    CannotRunError where there is no such Python, or where what a run needs is missing."""
    try:
        told = subprocess.run(  # noqa: S603 - the user's own Python, given by the user
            [python, "-c", _ASK_VERSIONS, *LIBRARIES], capture_output=True, timeout=_QUESTION_S, check=True
        )
        found: "dict[str, str]" = json.loads(told.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise CannotRunError(f"{python} is no Python that answers: {error}") from error
    missing = [name for name in LIBRARIES[:2] if name not in found]
    if missing:
        raise CannotRunError(
            f"{python} has no {' and no '.join(missing)}, which a symbolic run needs",
            hint="name the Python of your training script: --python ~/my-env/bin/python",
        )
    return found


def run_cases(
    cases: "Sequence[Case]",
    *,
    python: str = sys.executable,
    kept: "Kept | None" = None,
    limit_s: float = LIMIT_S,
    on_start: "Callable[[int], None]" = lambda count: None,
) -> "list[dict[str, Any]]":
    """What `step.measure` finds for each case, in their order, each with the `versions` that it was found with.

    Results that are `kept` are not computed again; `on_start` hears how many are to be. All run in one process.
    Raises CannotRunError, naming the first case that could not be run.
    """
    versions = versions_of(python)
    wanted = {case.key(versions): case for case in cases}
    found = {key: known for key in wanted if kept is not None and (known := kept.find(key)) is not None}
    open_cases = {key: case for key, case in wanted.items() if key not in found}
    if open_cases:
        on_start(len(open_cases))
        with _process(python, limit_s) as ask:
            for key, case in open_cases.items():
                found[key] = {**ask(case), "versions": versions}
                if kept is not None:
                    kept.keep(key, found[key])
    return [found[case.key(versions)] for case in cases]


@contextlib.contextmanager
def _process(python: str, limit_s: float) -> "Iterator[Callable[[Case], Mapping[str, Any]]]":
    """A process that runs one case after the other; killed when it takes longer than `limit_s` in all."""
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(  # noqa: S603 - the user's own Python, given by the user
            [python, str(Path(__file__).with_name("__main__.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=told,
        )
        too_long = threading.Timer(limit_s, process.kill)
        too_long.start()

        def ask(case: Case) -> "Mapping[str, Any]":
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(case.as_json()).encode() + b"\n")
                process.stdin.flush()
            except BrokenPipeError:  # told below, with its last words
                pass
            line = process.stdout.readline()
            if not line:
                code = process.wait()
                told.seek(0)
                words = told.read().decode(errors="replace").strip()[-_TOLD_CHARS:]
                raise CannotRunError(f"the symbolic run ended with code {code}" + (f": {words}" if words else ""))
            answer = json.loads(line)
            if "error" in answer:
                raise CannotRunError(_why(answer, case))
            peaks: "Mapping[str, Any]" = answer["peaks"]
            return peaks

        try:
            yield ask
        finally:
            too_long.cancel()
            process.kill()
            with process:  # waits for it
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError):  # what it was not told any more
                    process.stdin.close()


def _why(answer: "Mapping[str, Any]", case: Case) -> str:
    if answer["fault"] == "case":
        return str(answer["error"])
    return f"torch cannot run {case.config['model_type']} without its numbers: {answer['error']}"

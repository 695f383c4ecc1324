"""What a run executes: the app's script, or the command that its job brought."""

from __future__ import annotations

import os
import shutil
from typing import Any, List, Mapping, NamedTuple

from workers.agent.errors import EnvironmentFailed
from workers.agent.workspace import Workspace, search_path

_PYTHONS = ("python", "python3")


class Script(NamedTuple):
    """The user's program and the Python that runs it, without what it begins with. `loads_ahead`: it is a Python script
    of the code, whose libraries can be loaded before it may run."""

    argv: List[str]
    python: str
    loads_ahead: bool = True


def script_of(workspace: Workspace, spec: Mapping[str, Any], python: str) -> Script:
    """Raises EnvironmentFailed when there is nothing of that name to run."""
    command = spec["template"].get("command")
    if command:
        return _command(workspace, [str(word) for word in command], python)
    script = workspace.code / spec["entrypoint"]
    if ".." in script.parts or workspace.code not in script.parents or not script.is_file():
        raise EnvironmentFailed(f"the entrypoint {spec['entrypoint']!r} is not a file of the app's code")
    parameters = spec["parameters"]
    words = [str(word) for word in parameters] if isinstance(parameters, list) else []
    if script.suffix == ".sh":
        return Script([_shell(), spec["entrypoint"], *words], python, loads_ahead=False)
    return Script([python, spec["entrypoint"], *words], python)


def _command(workspace: Workspace, words: List[str], python: str) -> Script:
    name, *rest = words
    if name in _PYTHONS:
        own = bool(rest) and rest[0].endswith(".py") and (workspace.code / rest[0]).is_file()
        return Script([python, *rest], python, loads_ahead=own)
    if "/" in name:
        return Script([*_of_the_code(workspace, name, python), *rest], python, loads_ahead=False)
    found = shutil.which(name, path=search_path(python, os.environ.get("PATH", os.defpath)))
    if found is None:
        at_hand = (workspace.code / name).is_file()
        advice = (
            f"write ./{name}" if at_hand else f"is its package among the job's? (--pip {name}, or requirements.txt)"
        )
        raise EnvironmentFailed(f"the command {name!r} is no program of this machine or of a package; {advice}")
    return Script([found, *rest], python, loads_ahead=False)


def _of_the_code(workspace: Workspace, name: str, python: str) -> List[str]:
    """A file by its path. One that cannot be executed as it is gets the program that its name tells."""
    path = workspace.code / name
    if not path.is_file():
        raise EnvironmentFailed(f"the command {name!r} is not a file, neither of the job's code nor of this machine")
    runner = {".py": python, ".sh": _shell()}.get(path.suffix)
    if os.access(path, os.X_OK) and not name.endswith(".py"):
        return [str(path)]
    if runner is None:
        raise EnvironmentFailed(f'the command {name!r} cannot be executed: its first line has no "#!"')
    return [runner, name]


def _shell() -> str:
    return shutil.which("bash") or "/bin/sh"

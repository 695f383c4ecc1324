"""From what the server wants to a command line: code, environment, checkpoint. Nothing of the user's runs yet, except
installers, and those as the run's user."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence

from workers.agent import bundle
from workers.agent.api import Writer
from workers.agent.environment import Builder, Need
from workers.agent.errors import Corrupt, EnvironmentFailed, Fenced, Refused, Unsafe
from workers.agent.files import Piece
from workers.agent.logs import Log
from workers.agent.machine import Machine
from workers.agent.process import Ended
from workers.agent.transfer import download
from workers.agent.workspace import Workspace, argv, user_environ

Execute = Callable[[Sequence[str], Dict[str, str], Callable[[bytes], None]], Ended]


@dataclass(frozen=True)
class Command:
    argv: List[str]
    environ: Dict[str, str]


def prepare(
    spec: Dict[str, Any],
    writer: Writer,
    machine: Machine,
    workspace: Workspace,
    log: Log,
    gone: threading.Event,
    execute: Execute,
) -> Command:
    """The user's command, ready to start. `execute` runs a program as the run's user.

    Raises EnvironmentFailed with words for the user, Fenced, Aborted.
    """
    try:
        workspace.create(spec)
        _fetch_code(spec, writer, machine, workspace, gone)
        workspace.hand_over()
        builder = Builder(
            python=machine.config.python,
            check=machine.check,
            cache=machine.config.cache,
            uid=workspace.uid,
            run=execute,
            log=log.feed,
            say=log.say,
            gone=gone,
        )
        python = builder.python_for(Need(spec["pip"], spec["environment_sha256"]))
        command = Command(argv(workspace, spec, python), user_environ(workspace, spec, writer.job_id, python))
        if spec.get("resume"):
            _restore(spec["resume"], writer, machine, workspace, gone)
            log.say(f"resuming from the checkpoint of step {spec['resume']['step']}")
        workspace.hand_over()
    except OSError as error:
        raise EnvironmentFailed(f"this machine failed while the run was prepared: {error}") from error
    return command


def _fetch_code(
    spec: Mapping[str, Any], writer: Writer, machine: Machine, workspace: Workspace, gone: threading.Event
) -> None:
    piece = Piece("bundle", spec["bundle_sha256"], spec["bundle_size_bytes"])
    try:
        download(machine.api, machine.transport, writer, [piece], workspace.spool, gone)
        bundle.extract(workspace.spool / piece.path, workspace.code)
    except Fenced:
        raise
    except (Corrupt, Refused, Unsafe) as error:
        raise EnvironmentFailed(f"the app's code cannot be used: {error}") from error
    (workspace.spool / piece.path).unlink()


def _restore(
    resume: Mapping[str, Any], writer: Writer, machine: Machine, workspace: Workspace, gone: threading.Event
) -> None:
    folder: Path = workspace.resume(int(resume["step"]))
    folder.mkdir()
    pieces = [Piece(file["path"], file["sha256"], file["size_bytes"]) for file in resume["files"]]
    try:
        download(machine.api, machine.transport, writer, pieces, folder, gone)
    except Fenced:
        raise
    except (Corrupt, Refused) as error:
        raise EnvironmentFailed(f"the checkpoint of step {resume['step']} is corrupt: {error}") from error

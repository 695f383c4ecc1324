"""From what the server wants to a command line: code, environment, checkpoint. Nothing of the user's runs yet, except
installers, and those as the run's user."""

from __future__ import annotations

import contextlib
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

from workers.agent import bundle
from workers.agent.api import Writer
from workers.agent.command import Script, script_of
from workers.agent.environment import Builder, EnvironmentNeed
from workers.agent.errors import Corrupt, EnvironmentFailed, Fenced, MachineFailed, Refused, Unsafe
from workers.agent.fetching import Fetcher, LocalPieces, Staged, fetch_checkpoint
from workers.agent.files import Piece
from workers.agent.laying import lay_back
from workers.agent.logs import Log
from workers.agent.machine import Machine
from workers.agent.models import model_of
from workers.agent.own_folders import Pattern
from workers.agent.pieces import Manifest
from workers.agent.process import Ended
from workers.agent.restoring import restore
from workers.agent.transfer import download
from workers.agent.workspace import MARK, Workspace, user_environ

Execute = Callable[[Sequence[str], Dict[str, str], Callable[[bytes], None]], Ended]


@dataclass(frozen=True)
class Command:
    argv: List[str]
    environ: Dict[str, str]


@dataclass(frozen=True)
class Ahead:
    """What was fetched before it was known which checkpoint the run begins with: the one of that id, in `folder`."""

    checkpoint_id: Optional[str]
    folder: Optional[Path]
    shelf: LocalPieces


def prepare(
    spec: Dict[str, Any],
    writer: Writer,
    machine: Machine,
    workspace: Workspace,
    log: Log,
    gone: threading.Event,
    execute: Execute,
) -> Script:
    """Code and environment. `execute` runs a program as the run's user.

    Raises EnvironmentFailed with words for the user, Fenced, Aborted.
    """
    with _told_as_failure():
        workspace.create(spec)
        _fetch_code(spec, writer, machine, workspace, gone)
        if (workspace.code / MARK).is_file():
            workspace.watched.mkdir()
        elif spec.get("purpose") == "profile":
            raise EnvironmentFailed("only a job of the built-in recipe can be profiled")
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
            shipped=machine.shipped,
        )
        python = builder.python_for(EnvironmentNeed.of(spec))
        return script_of(workspace, spec, python)


def fetch_ahead(resume: Optional[Mapping[str, Any]], link: Fetcher, workspace: Workspace, log: Log) -> Ahead:
    """The newest checkpoint there is, while the job still trains elsewhere: what is in it need not travel later.

    One that cannot be fetched costs nothing but that. Raises EnvironmentFailed when it does not fit on this disk;
    Fenced, Aborted.
    """
    shelf = LocalPieces()
    if resume is None:
        return Ahead(None, None, shelf)
    manifest = Manifest.from_wire(resume)
    folder = workspace.resume(manifest.step)
    with _told_as_failure():
        folder.mkdir(parents=True)
        try:
            fetch_checkpoint(link, manifest, folder, shelf)
        except Fenced:
            raise
        except (Corrupt, Refused) as error:
            log.say(f"the checkpoint of step {manifest.step} was not fetched ahead: {error}")
            shutil.rmtree(folder, ignore_errors=True)
            return Ahead(None, None, shelf)
    return Ahead(manifest.checkpoint_id, folder, shelf)


def complete(
    spec: Dict[str, Any],
    script: Script,
    link: Fetcher,
    workspace: Workspace,
    log: Log,
    ahead: Optional[Ahead],
    staged: Optional[Staged] = None,
) -> Command:
    """The user's command, ready to start. `spec["resume"]` then says what it really begins with. `staged`: what of that
    was fetched before it was complete.

    Raises EnvironmentFailed with words for the user, Fenced, Aborted.
    """
    with _told_as_failure():
        resume = spec.get("resume")
        is_here = ahead is not None and resume is not None and ahead.checkpoint_id == resume["checkpoint_id"]
        if not is_here:
            restore(spec, link, workspace, log, None if ahead is None else ahead.shelf, staged)
            _remove_ahead(spec, workspace, ahead)
        if spec.get("resume"):
            learned = spec["resume"].get("learned")
            begun = "what another job has learned" if learned else f"the checkpoint of step {spec['resume']['step']}"
            log.say(f"{'beginning with' if learned else 'resuming from'} {begun}")
        _lay_back(spec, workspace, log)
        workspace.hand_over()
        return Command(script.argv, user_environ(workspace, spec, link.writer.job_id, script.python))


def _lay_back(spec: Mapping[str, Any], workspace: Workspace, log: Log) -> None:
    """Where the script itself looks for what it has saved."""
    pattern = Pattern.of(spec["template"])
    if not spec.get("resume") or spec["resume"].get("learned"):
        return
    try:
        is_back = lay_back(workspace, workspace.resume(int(spec["resume"]["step"])), pattern)
    except Unsafe as error:
        raise EnvironmentFailed(f"what the script had saved cannot be put back: {error}") from error
    if is_back:
        log.say(f"what the script had saved{f' as {pattern}' if pattern else ''} is back in its place")


def lend_models(
    spec: Mapping[str, Any], machine: Machine, workspaces: Sequence[Workspace], log: Log, gone: threading.Event
) -> None:
    """Let the run find the hub models that this machine has; one that it needs and that is on its way is waited for.

    Raises Aborted.
    """
    models, project_id, model = machine.models, spec["project_id"], model_of(spec)
    if model is not None and models.is_coming(project_id, model):
        log.say(f"{model} is being fetched already: waiting for that")
        with models.turn(project_id, model, gone):
            pass
    for workspace in workspaces:
        models.lend(project_id, workspace)


def _remove_ahead(spec: Mapping[str, Any], workspace: Workspace, ahead: Optional[Ahead]) -> None:
    """The run's folder for checkpoints holds the one that it begins with, and no other."""
    if ahead is None or ahead.folder is None:
        return
    if not spec.get("resume") or ahead.folder != workspace.resume(int(spec["resume"]["step"])):
        ahead.shelf.remove(ahead.folder)
        aside = workspace.spool / "ahead"
        ahead.folder.rename(aside)
        # A large one takes a while, for which nobody's training waits.
        threading.Thread(target=shutil.rmtree, args=(aside,), kwargs={"ignore_errors": True}, daemon=True).start()


@contextlib.contextmanager
def _told_as_failure() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineFailed(f"this machine failed while the run was prepared: {error}") from error


def _fetch_code(
    spec: Mapping[str, Any], writer: Writer, machine: Machine, workspace: Workspace, gone: threading.Event
) -> None:
    try:
        fetch_bundle(spec["project_id"], spec, writer, machine, workspace.spool, workspace.code, gone)
    except Fenced:
        raise
    except (Corrupt, Refused, Unsafe) as error:
        raise EnvironmentFailed(f"the app's code cannot be used: {error}") from error


def fetch_bundle(
    project_id: str,
    told: Mapping[str, Any],
    writer: Writer,
    machine: Machine,
    spool: Path,
    target: Path,
    gone: threading.Event,
) -> None:
    """Unpack the bundle that `told` names into `target`, on its way through `spool`.

    Raises Corrupt, Refused, Unsafe for one that cannot be used, Fenced, Aborted; OSError.
    """
    piece = Piece(f"bundle-{told['bundle_sha256'][:16]}", told["bundle_sha256"], told["bundle_size_bytes"])
    file = spool / piece.path
    with machine.contents.turn(project_id, piece.sha256, gone):
        if not machine.contents.take(project_id, piece.sha256, file):
            download(machine.api, machine.transport, writer, [piece], spool, gone)
        bundle.extract(file, target)
        machine.contents.keep(project_id, piece.sha256, file)

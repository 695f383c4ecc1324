"""The checkpoint that a run begins with, on this disk. One that is damaged in the store is told, and the one before it
is taken."""

from __future__ import annotations

import shutil
from typing import Any, Dict, Optional

from workers.agent.errors import Corrupt, EnvironmentFailed, Fenced, Refused
from workers.agent.fetching import Fetcher, LocalPieces, Staged, fetch_checkpoint
from workers.agent.logs import Log
from workers.agent.patience import patiently
from workers.agent.pieces import Manifest
from workers.agent.workspace import Workspace


def restore(
    spec: Dict[str, Any],
    link: Fetcher,
    workspace: Workspace,
    log: Log,
    shelf: Optional[LocalPieces] = None,
    staged: Optional[Staged] = None,
) -> None:
    """Put the files of `spec["resume"]` into their folder. Should that have to be another checkpoint than was wanted,
    or none, `spec["resume"]` says so afterwards.

    Raises EnvironmentFailed with words for the user, Fenced, Aborted; OSError.
    """
    while spec.get("resume"):
        manifest = Manifest.from_wire(spec["resume"])
        folder = workspace.resume(manifest.step)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            fetch_checkpoint(link, manifest, folder, shelf, staged)
        except Fenced:
            raise
        except Refused as error:
            raise EnvironmentFailed(f"the checkpoint of step {manifest.step} cannot be fetched: {error}") from error
        except Corrupt as error:
            shutil.rmtree(folder, ignore_errors=True)
            log.say(f"the checkpoint of step {manifest.step} is damaged: {error}")
            spec["resume"] = _replacement(link, manifest, error)
        else:
            return


def _replacement(link: Fetcher, manifest: Manifest, damage: Corrupt) -> Optional[Dict[str, Any]]:
    """What the server wants instead. It looks at the piece itself: a machine or network that spoils what it fetches
    takes no checkpoint away from anybody."""
    sha256 = damage.sha256
    if sha256 is None:
        raise EnvironmentFailed(f"the checkpoint of step {manifest.step} cannot be used: {damage}") from damage
    try:
        answer = patiently(lambda: link.api.damaged(link.writer, manifest.checkpoint_id, sha256), link.gone)
    except Fenced:
        raise
    except Refused as error:
        raise EnvironmentFailed(
            f"the checkpoint of step {manifest.step} is corrupt on this machine: {damage}; the server says: {error}"
        ) from error
    found: Optional[Dict[str, Any]] = answer.get("resume")
    return found

"""A checkpoint of a run is laid where its next process finds it: the same files, through no link of the run's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from workers.agent.errors import Unsafe
from workers.agent.laying import OWN, clear_after, lay_here
from workers.agent.own_folders import Pattern
from workers.agent.uploading import Candidate
from workers.agent.workspace import Workspace

USER = 61500


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace(tmp_path, "run_1", None)
    for folder in (made.code, made.checkpoints, made.spool):
        folder.mkdir(parents=True)
    return made


def put(path: Path, text: str = "weights") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_and_a_file_lie_there_as_they_would_elsewhere(workspace: Workspace) -> None:
    """No byte is copied."""
    saved = put(workspace.checkpoints / "step-40" / "deep" / "model")
    put(workspace.checkpoints / "step-40" / "state", "40")
    found = lay_here(workspace, Candidate(workspace.checkpoints / "step-40", 40), None)
    assert (found, content(found)) == (workspace.resume(40), {"deep/model": "weights", "state": "40"})
    assert (found / "deep" / "model").stat().st_ino == saved.stat().st_ino
    alone = lay_here(workspace, Candidate(put(workspace.checkpoints / "all.pt"), 50), None)
    assert content(alone) == {"all.pt": "weights"}


def test_what_lay_in_its_place_gives_way(workspace: Workspace) -> None:
    put(workspace.resume(40) / "of-another-time")
    put(workspace.checkpoints / "step-40" / "state", "40")
    saved = Candidate(workspace.checkpoints / "step-40", 40)
    for _ in range(2):
        assert content(lay_here(workspace, saved, None)) == {"state": "40"}
    assert list(workspace.spool.iterdir()) == []


def test_of_a_shared_folder_only_its_files(workspace: Workspace) -> None:
    """Of a script that names no checkpoint, all that it has written is one."""
    put(workspace.checkpoints / "state", "40")
    put(workspace.resume(20) / "state", "20")
    found = lay_here(workspace, Candidate(workspace.checkpoints, 40, names=["state"]), None)
    assert content(found) == {"state": "40"}


def test_a_link_in_a_checkpoint_is_a_file_of_it(workspace: Workspace) -> None:
    """As it is stored: what it leads to may be elsewhere by then. One that leads out of the run is none."""
    put(workspace.checkpoints / "blobs" / "x", "weights")
    folder = workspace.checkpoints / "step-40"
    folder.mkdir()
    (folder / "model").symlink_to("../blobs/x")
    found = lay_here(workspace, Candidate(folder, 40), None)
    assert content(found) == {"model": "weights"} and not (found / "model").is_symlink()
    (folder / "secret").symlink_to("/etc/hostname")
    with pytest.raises((OSError, Unsafe)):
        lay_here(workspace, Candidate(folder, 40), None)


def test_a_link_in_its_place_leads_nowhere(workspace: Workspace, tmp_path: Path) -> None:
    put(workspace.checkpoints / "step-40" / "state", "40")
    away = tmp_path / "away"
    put(away / "kept")
    workspace.resume(40).symlink_to(away)
    assert content(lay_here(workspace, Candidate(workspace.checkpoints / "step-40", 40), None)) == {"state": "40"}
    assert content(away) == {"kept": "weights"}


def test_nothing_is_no_checkpoint(workspace: Workspace) -> None:
    (workspace.checkpoints / "step-40").mkdir()
    with pytest.raises(Unsafe):
        lay_here(workspace, Candidate(workspace.checkpoints / "step-40", 40), None)
    with pytest.raises(OSError):
        lay_here(workspace, Candidate(workspace.checkpoints / "step-50" / "gone", 50), None)


def test_what_a_script_had_begun_to_save_is_not_the_newest(workspace: Workspace, tmp_path: Path) -> None:
    """Its own folders are where they were, and what came after the checkpoint is gone; a link is, not what it is to."""
    put(workspace.code / "out" / "checkpoint-20" / "model", "twenty")
    put(workspace.code / "out" / "checkpoint-40" / "model", "forty")
    put(workspace.code / "out" / "checkpoint-60" / "model", "half")
    put(workspace.code / "out" / "notes-60", "kept")
    pattern = Pattern("out", "checkpoint-", "")
    saved = Candidate(workspace.code, 40, names=["out/checkpoint-40/model"])
    found = lay_here(workspace, saved, pattern)
    assert content(found) == {"out/checkpoint-40/model": "forty"}
    assert content(workspace.code / "out") == {
        "checkpoint-20/model": "twenty",
        "checkpoint-40/model": "forty",
        "notes-60": "kept",
    }
    assert os.listdir(workspace.spool) == []  # noqa: PTH208 - names alone


def test_what_processes_before_needed_is_gone_and_nothing_else(workspace: Workspace) -> None:
    """Their notes would be taken for those of the next ones, and what they began from fills the disk."""
    for name in (".accelerate/saved-0-2-1", ".trainer/checkpoint-9/rng", ".rank-1-step-40/model", "resume-20/state"):
        put(workspace.checkpoints / name)
    theirs = ("step-40/state", ".cache/x", "resume-best/state", "resume-60/deep/state")
    for name in (*theirs, "resume-40/state"):
        put(workspace.checkpoints / name)
    clear_after(workspace, [workspace.resume(40), workspace.resume(60) / "deep"])
    assert set(content(workspace.checkpoints)) == {*theirs, "resume-40/state"}
    assert list(workspace.spool.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_folders_that_are_laid_back_are_the_runs_own(workspace: Workspace) -> None:
    """Else its code could not read what it finds there, nor save beside it."""
    own = replace(workspace, uid=USER)
    put(own.checkpoints / "step-40" / OWN / "out" / "state-40" / "model")
    own.hand_over()
    lay_here(own, Candidate(own.checkpoints / "step-40", 40), None)
    made = [own.code / "out", own.code / "out" / "state-40", own.code / "out" / "state-40" / "model"]
    assert [path.stat().st_uid for path in made] == [USER] * 3

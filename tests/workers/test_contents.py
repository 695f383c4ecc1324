"""What a machine keeps of what its runs fetched: found by runs of the same project, right, bounded, never needed."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.agents import AgentProcess, desired, tar_gz
from tests.workers.plane import Plane
from tests.workers.test_isolation import SYSTEM_PYTHON, needs_users
from workers.agent import config
from workers.agent.contents import ContentCache

Start = Callable[..., AgentProcess]
A, B = b"a" * 30, b"b" * 40


def named(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def opened(folder: Path, most_bytes: int = 100) -> ContentCache:
    contents = ContentCache(folder / "contents", most_bytes)
    contents.open()
    return contents


def keep(contents: ContentCache, folder: Path, data: bytes, project_id: str = "prj_1") -> None:
    file = folder / f"fetched-{threading.get_ident()}"
    file.write_bytes(data)
    contents.keep(project_id, named(data), file)
    assert not file.exists()


def taken(contents: ContentCache, folder: Path, data: bytes, project_id: str = "prj_1") -> bool:
    """Whether it is found; what is found is right, and nothing is left where it is not."""
    target = folder / f"taken-{threading.get_ident()}"
    found = contents.take(project_id, named(data), target)
    assert found == target.exists()
    if found:
        assert target.read_bytes() == data
        target.unlink()
    return found


def on_disk(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "contents").rglob("*") if not path.is_dir())


def test_a_content_is_found_by_its_own_project_alone(tmp_path: Path) -> None:
    """The same bytes under another project are not there; what is kept is read-only, in a folder of the agent's own."""
    contents = opened(tmp_path)
    keep(contents, tmp_path, A)
    assert taken(contents, tmp_path, A)
    assert not taken(contents, tmp_path, A, "prj_2")
    (file,) = on_disk(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o400
    assert (tmp_path / "contents").stat().st_mode & 0o777 == 0o700
    keep(contents, tmp_path, A, "prj_2")
    assert taken(contents, tmp_path, A, "prj_2")
    assert len(on_disk(tmp_path)) == 2


@given(
    st.integers(0, 60),
    st.lists(st.tuples(st.sampled_from(["keep", "take", "restart"]), st.integers(0, 20), st.sampled_from("pq"))),
)
def test_the_least_recently_used_goes_first_and_the_bound_holds(
    most_bytes: int, steps: list[tuple[str, int, str]]
) -> None:
    """What is found after any sequence of uses and restarts is what a cache of that many bytes would have."""
    model: OrderedDict[tuple[str, int], None] = OrderedDict()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        contents = opened(folder, most_bytes)
        for action, size, project_id in steps:
            key = project_id, size
            if action == "restart":
                contents = opened(folder, most_bytes)
            elif action == "take":
                assert taken(contents, folder, b"x" * size, project_id) == (key in model)
            else:
                keep(contents, folder, b"x" * size, project_id)
                if 0 < size <= most_bytes:
                    model.setdefault(key)
            if action != "restart" and key in model:
                model.move_to_end(key)
            while sum(size for _, size in model) > most_bytes:
                model.popitem(last=False)
            assert sorted(path.stat().st_size for path in on_disk(folder)) == sorted(size for _, size in model)


@pytest.mark.parametrize("damage", [b"c" * 30, b"a" * 29, b""], ids=["other bytes", "a byte less", "empty"])
def test_a_damaged_file_is_found_out_and_gives_way(tmp_path: Path, damage: bytes) -> None:
    """It is not handed out but removed, and the content is kept again when it was fetched anew."""
    contents = opened(tmp_path)
    keep(contents, tmp_path, A)
    (file,) = on_disk(tmp_path)
    file.chmod(0o600)
    file.write_bytes(damage)
    assert not taken(contents, tmp_path, A)
    assert on_disk(tmp_path) == []
    keep(contents, tmp_path, A)
    assert taken(contents, tmp_path, A)


def test_what_an_agent_left_is_taken_over_or_removed(tmp_path: Path) -> None:
    """Names that are none of ours go, also links and folders; a lower bound holds from the start, and 0 is nothing."""
    contents = opened(tmp_path)
    keep(contents, tmp_path, A)
    keep(contents, tmp_path, B)
    (project,) = (tmp_path / "contents").iterdir()
    (project / ("0" * 64)).symlink_to(tmp_path)
    (project / ("1" * 64)).mkdir()
    (project / "half.part").write_bytes(b"half")
    (tmp_path / "contents" / "stray").write_bytes(b"stray")
    (tmp_path / "contents" / "folder" / "deep").mkdir(parents=True)
    contents = opened(tmp_path, 50)
    assert on_disk(tmp_path) == [project / named(B)]
    assert list((tmp_path / "contents").iterdir()) == [project]
    assert taken(contents, tmp_path, B)
    contents = opened(tmp_path, 0)
    assert on_disk(tmp_path) == []
    keep(contents, tmp_path, A)
    assert on_disk(tmp_path) == []


def test_a_disk_that_is_nearly_full_belongs_to_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept then, and what was kept makes room."""
    contents = opened(tmp_path)
    keep(contents, tmp_path, A)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    keep(contents, tmp_path, B)
    assert on_disk(tmp_path) == []
    monkeypatch.undo()
    keep(contents, tmp_path, B)
    assert taken(contents, tmp_path, B)


def test_a_folder_that_cannot_be_used_is_no_cache_and_no_failure(tmp_path: Path) -> None:
    """Whether it is missing from the start or is lost later."""
    (tmp_path / "contents").write_text("in the way")
    contents = opened(tmp_path)
    keep(contents, tmp_path, A)
    assert not taken(contents, tmp_path, A)
    (tmp_path / "contents").unlink()
    contents = opened(tmp_path)
    keep(contents, tmp_path, A)
    shutil.rmtree(tmp_path / "contents")
    assert not taken(contents, tmp_path, A)
    keep(contents, tmp_path, A)
    assert not taken(contents, tmp_path, A)


def test_runs_at_once_get_what_is_right(tmp_path: Path) -> None:
    """Threads that keep, take and push each other's contents out see whole contents or none, within the bound."""
    contents = opened(tmp_path)
    problems: list[BaseException] = []
    found = [0] * 6
    begin = threading.Barrier(len(found))

    def use(number: int) -> None:
        try:
            begin.wait()
            for turn in range(60):
                data = bytes([(turn // 3 + number) % 5]) * 30
                if taken(contents, tmp_path, data):
                    found[number] += 1
                else:
                    keep(contents, tmp_path, data)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sum(found) > 0
    assert sum(path.stat().st_size for path in on_disk(tmp_path)) <= 100
    assert [path for path in tmp_path.iterdir() if path.name != "contents"] == []


def test_the_next_run_of_a_project_does_not_fetch_its_code_again(plane: Plane, start_agent: Start) -> None:
    """Not after a restart of the agent either. Another project fetches it, and so does whoever finds it damaged."""

    code = tar_gz({"train.py": "print('mine')"})

    def fetched(**spec: str) -> int:
        run = desired(plane, code, **spec)
        before = len(plane.read)
        plane.want(run)
        ended = plane.wait_exit(run.run_id)
        assert (ended.exit_code, ended.last_lines) == (0, "mine")
        plane.unlist(run.run_id)
        return plane.read[before:].count(run.spec.bundle_sha256)

    agent = start_agent()
    assert [fetched(), fetched()] == [1, 0]
    assert [fetched(project_id="prj_2"), fetched(project_id="prj_2")] == [1, 0]
    agent.kill()
    agent = start_agent(agent.root)
    assert fetched() == 0
    files = on_disk(agent.root)
    assert len(files) == 2
    for file in files:
        file.chmod(0o600)
        file.write_bytes(b"forged")
    assert [fetched(), fetched()] == [1, 0]
    agent.kill()
    agent = start_agent(agent.root, ALLPASS_AGENT_CONTENTS_BYTES="0")
    assert [fetched(), fetched()] == [1, 1]
    assert on_disk(agent.root) == []


@needs_users
def test_user_code_cannot_see_what_is_kept(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """Neither what there is of its own project nor of another; nor whether there is anything."""
    other = desired(plane, "print('other')", project_id="prj_2")
    plane.want(other)
    agent = start_agent(open_folder / "machine", ALLPASS_AGENT_PYTHON=SYSTEM_PYTHON)
    assert plane.wait_exit(other.run_id).exit_code == 0
    (kept,) = on_disk(agent.root)
    script = f"""
import os
for path in ({str(kept)!r}, {str(kept.parent)!r}, {str(kept.parent.parent / ("0" * 64))!r}):
    for use in (os.stat, os.listdir, os.unlink):
        try:
            use(path)
            print("REACHED", path)
        except PermissionError:
            print("denied")
"""
    run = desired(plane, script)
    plane.want(run)
    assert plane.wait_exit(run.run_id).last_lines.split() == ["denied"] * 9


@pytest.mark.parametrize("value", ["-1", "1G", "²"])
def test_a_bound_that_is_no_number_of_bytes_is_refused(value: str) -> None:
    """The sentence names the variable, the value and the fix."""
    with pytest.raises(ValueError, match=f"ALLPASS_AGENT_CONTENTS_BYTES is '{value}'; .*number of bytes"):
        config.load({"ALLPASS_URL": "http://x", "ALLPASS_AGENT_CONTENTS_BYTES": value})

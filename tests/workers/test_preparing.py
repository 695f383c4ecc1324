"""Code, environment and checkpoint: made ready, or refused in words that the user can act on."""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from allpass.wire.agent import DamageAnswer, ResumeFrom, SavedFile
from tests.living import paths_below
from tests.workers.agents import AgentProcess, desired, tar_gz
from tests.workers.plane import Fault, Plane
from workers.agent.environment import installer_environ

Start = Callable[..., AgentProcess]


def tar_of(info: tarfile.TarInfo, data: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    info.size = len(data)
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def link(name: str, target: str, kind: bytes) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return tar_of(info)


def device() -> bytes:
    info = tarfile.TarInfo("null")
    info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, 1, 3
    return tar_of(info)


def test_bundles_that_would_leave_their_folder_are_refused(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """Absolute names, `..`, links, devices and broken archives end the run with a reason, and write nothing."""
    evil = {
        "would leave its folder": tar_gz({"../../escaped": "x"}),
        "'/": tar_gz({f"{tmp_path}/escaped": "x"}),
        "'link'": link("link", str(tmp_path), tarfile.SYMTYPE),
        "'hard'": link("hard", "/etc/passwd", tarfile.LNKTYPE),
        "'null'": device(),
        "not a whole tar": tar_gz({"train.py": "x" * 100_000})[:-60],
        "the entrypoint 'train.py' is not a file": tar_gz({"other.py": "print()"}),
    }
    runs = {reason: desired(plane, bundle, job_id=f"job_{n}") for n, (reason, bundle) in enumerate(evil.items())}
    for run in runs.values():
        plane.want(run)
    agent = start_agent()
    for reason, run in runs.items():
        ended = plane.wait_exit(run.run_id)
        assert ended.environment_error is not None, reason
        assert reason in ended.environment_error
        plane.wait_log(run.run_id, ended.environment_error)
    assert [path for path in (*paths_below(tmp_path), *paths_below(agent.root)) if path.name == "escaped"] == []


def test_code_with_other_bytes_than_promised_is_never_unpacked(plane: Plane, start_agent: Start) -> None:
    """The bundle's hash is verified; three wrong answers end the run."""
    run = desired(plane, "print('x')")
    plane.objects[run.spec.bundle_sha256] = tar_gz({"train.py": "print('forged')"})
    plane.want(run)
    start_agent()
    error = plane.wait_exit(run.run_id).environment_error or ""
    assert "the app's code cannot be used" in error
    assert plane.log(run.run_id).count("forged") == 0


def resume(plane: Plane, **files: bytes) -> ResumeFrom:
    listed = [
        SavedFile(path=f"deep/{name}", sha256=plane.put(data), size_bytes=len(data))
        for name, data in sorted(files.items())
    ]
    return ResumeFrom(checkpoint_id="ckp_9", step=40, files=listed)


def test_a_checkpoint_is_restored_whatever_the_store_does_at_first(plane: Plane, start_agent: Start) -> None:
    """Files arrive under resume-<step>, verified; a store that fails now and then only delays."""
    script = """
import os, pathlib
folder = pathlib.Path(os.environ["ALLPASS_RESUME_DIR"])
print(folder.name, folder.parent == pathlib.Path(os.environ["ALLPASS_CHECKPOINT_DIR"]))
print(sorted((p.name, p.stat().st_size) for p in folder.rglob("*") if p.is_file()))
"""
    start = resume(plane, a=b"a" * 3_000_000, b=b"", c=b"c", d=b"d" * 10)
    run = desired(plane, script, resume=start)
    plane.faults += [Fault("GET ", 503, times=2), Fault("GET ", 0, times=2), Fault("GET ", 403, times=1)]
    plane.want(run)
    start_agent()
    ended = plane.wait_exit(run.run_id)
    assert ended.last_lines == "resume-40 True\n[('a', 3000000), ('b', 0), ('c', 1), ('d', 10)]"
    assert plane.told(run.run_id).step == 40


def test_a_corrupt_checkpoint_is_never_resumed_from(plane: Plane, start_agent: Start) -> None:
    """Wrong bytes are fetched three times; when the server finds the stored ones right, the run ends naming the step
    and the file."""
    start = resume(plane, good=b"good", bad=b"bad")
    plane.objects[next(file.sha256 for file in start.files if file.path == "deep/bad")] = b"BAD"
    run = desired(plane, "print('ran')", resume=start)
    plane.want(run)
    start_agent()
    ended = plane.wait_exit(run.run_id)
    assert "checkpoint of step 40 is corrupt on this machine: bad" in (ended.environment_error or "")
    assert [checkpoint_id for checkpoint_id, _ in plane.damage] == ["ckp_9"]
    assert ended.last_lines == ""


def test_a_damaged_checkpoint_gives_way_to_the_one_before(plane: Plane, start_agent: Start) -> None:
    """Told of the damage, the server names another checkpoint, and the run begins with that one, in the same run."""
    start = resume(plane, good=b"good", bad=b"bad")
    broken = next(file.sha256 for file in start.files if file.path == "deep/bad") or ""
    plane.objects[broken] = b"BAD"
    older = [SavedFile(path="state", sha256=plane.put(b"older"), size_bytes=5)]
    plane.instead = DamageAnswer(resume=ResumeFrom(checkpoint_id="ckp_8", step=30, files=older))
    script = """
import os, pathlib
folder = pathlib.Path(os.environ["ALLPASS_RESUME_DIR"])
print(os.environ["ALLPASS_RESUME_STEP"], folder.name, (folder / "state").read_text())
print(sorted(path.name for path in folder.parent.iterdir()))
"""
    run = desired(plane, script, resume=start)
    plane.want(run)
    start_agent()
    ended = plane.wait_exit(run.run_id)
    assert ended.last_lines == "30 resume-30 older\n['resume-30']"
    assert plane.damage == [("ckp_9", broken)]
    assert plane.told(run.run_id).step == 30


def wheel(folder: Path, name: str, version: str, code: str) -> None:
    """A wheel made by hand: no build tool, no network."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    records = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        records.append(f"{path},sha256={digest},{len(text.encode())}")
    files[f"{info}/RECORD"] = "\n".join([*records, f"{info}/RECORD,,", ""])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


def test_an_environment_is_built_once_on_top_of_the_machine_s_own(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """What the machine lacks is installed, what it has stays visible, and the next run with that set starts at once."""
    wheel(open_folder, "allpass_test_extra", "2.5", "VALUE = 'from the wheel'")
    script = "import allpass_test_extra, pydantic, sys\nprint(allpass_test_extra.VALUE, sys.prefix != sys.base_prefix)"
    runs = [
        desired(plane, script, pip=["allpass-test-extra>=2"], environment_sha256="1" * 64, job_id=f"job_{number}")
        for number in range(2)
    ]
    cache = open_folder / "cache"
    start_agent(
        ALLPASS_AGENT_PYTHON=sys.executable,
        ALLPASS_AGENT_CACHE=str(cache),
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(open_folder),
        PIP_CONFIG_FILE="/dev/null",
    )
    plane.want(runs[0])
    first = plane.wait_exit(runs[0].run_id)
    assert first.exit_code == 0, first
    assert first.last_lines.endswith("from the wheel True")
    plane.wait_log(runs[0].run_id, "installing allpass-test-extra>=2")
    plane.want(runs[1])
    assert plane.wait_exit(runs[1].run_id).last_lines.endswith("from the wheel True")
    plane.wait_log(runs[1].run_id, "using the one built earlier")
    assert len(list(cache.glob("*/complete"))) == 1


def test_an_environment_that_cannot_be_built_is_the_reason(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """The installer's last lines are in the report and in the log; a later run tries again."""
    pip = ["no-such-package-anywhere==1.0"]
    run = desired(plane, "print('ran')", pip=pip, environment_sha256="2" * 64)
    plane.want(run)
    cache = tmp_path / "cache"
    start_agent(ALLPASS_AGENT_CACHE=str(cache), PIP_NO_INDEX="1", PIP_CONFIG_FILE="/dev/null")
    ended = plane.wait_exit(run.run_id)
    assert ended.environment_error is not None
    assert ended.environment_error.startswith("the environment cannot be built:")
    assert "no-such-package-anywhere" in ended.environment_error
    plane.wait_log(run.run_id, "no-such-package-anywhere")
    assert not list(cache.glob("*/complete"))


def test_requirements_that_hold_already_need_no_environment(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """A set that the machine's Python satisfies (versions, extras, markers) is used as it is."""
    pip = ["pydantic>=2,<3", "sqlalchemy[asyncio]", "nothing-at-all; python_version < '3'"]
    run = desired(plane, "import sys; print(sys.executable)", pip=pip, environment_sha256="3" * 64)
    plane.want(run)
    start_agent(ALLPASS_AGENT_PYTHON=sys.executable, ALLPASS_AGENT_CACHE=str(tmp_path / "cache"))
    assert plane.wait_exit(run.run_id).last_lines == sys.executable
    assert not list((tmp_path / "cache").glob("*/complete"))


def test_installers_hear_pip_settings_in_their_own_words() -> None:
    """PIP_* of the machine is honoured by both installers; nothing else of the environment is passed on."""
    environ = {
        "PIP_INDEX_URL": "https://index.example/simple",
        "PIP_FIND_LINKS": "/a /b",
        "UV_CACHE_DIR": "/c",
        "SECRET": "s",
        "HTTPS_PROXY": "http://proxy.example",
    }
    assert installer_environ(environ) == {
        "PIP_INDEX_URL": "https://index.example/simple",
        "UV_DEFAULT_INDEX": "https://index.example/simple",
        "PIP_FIND_LINKS": "/a /b",
        "UV_FIND_LINKS": "/a,/b",
        "UV_CACHE_DIR": "/c",
        "UV_LINK_MODE": "copy",
        "HTTPS_PROXY": "http://proxy.example",
    }


@pytest.mark.parametrize("kind", ["checkpoint", "kill"])
def test_a_stop_ends_an_installation(plane: Plane, start_agent: Start, open_folder: Path, kind: str) -> None:
    """A run that is not wanted any more does not wait for its environment: the installer is killed."""
    hung = open_folder / "python"
    hung.write_text(f'#!/bin/sh\nif [ "$3" = venv ]; then echo hanging; sleep 600; fi\nexec {sys.executable} "$@"\n')
    hung.chmod(0o755)
    run = desired(plane, "print('ran')", pip=["no-such-package-anywhere"], environment_sha256="4" * 64)
    plane.want(run)
    start_agent(ALLPASS_AGENT_PYTHON=str(hung))
    plane.wait(lambda: "hanging" in plane.log(run.run_id), "the installer")
    plane.ask(run.run_id, kind)
    assert plane.wait_exit(run.run_id).signal == {"checkpoint": 15, "kill": 9}[kind]

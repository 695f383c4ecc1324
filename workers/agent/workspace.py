"""Where a run lives on the machine, as whom, and what its process finds in its environment.

root/lib/                  what user code may import (`from allpass import training`)
root/programs/             programs of the agent's own that run as processes
root/runs/<run id>/        the run's: code, checkpoints, output, metrics; its home
root/spool/<run id>/       the agent's: what waits to be sent
root/runs/prefetch-...     of installers for what may come next (prefetch.py)
root/contents/             the agent's: what runs fetched that does not change (contents.py)
root/models/               the agent's: what runs downloaded from the hub (models.py)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from workers.agent.files import Fence, give_to
from workers.agent.pieces import PIECE_BYTES

MARK = "recipe.json"  # in the code of a job of the built-in recipe
STARTUP = Path("allpass", "hooks", "startup")  # in our library: what Python runs when it starts
_LONGEST_TMP = 60  # characters of 107 that a socket's path may have: libraries put folders with long names below
_SHORT_TMP = re.compile(r"allpass-[0-9a-f]{16}")
_PASSED_ON = re.compile(
    r"(LD_LIBRARY_PATH|TZ|CUDA_HOME|CUDA_PATH|NVIDIA_\w+|SSL_CERT_\w+|(HTTPS?|NO|ALL)_PROXY|HF_ENDPOINT|ALLPASS_HOOKS)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Workspace:
    """The folders of one run. `uid` is the user that its code runs as; None: the agent's own."""

    root: Path
    run_id: str
    uid: Optional[int]

    @property
    def home(self) -> Path:
        return self.root / "runs" / self.run_id

    @property
    def spool(self) -> Path:
        return self.root / "spool" / self.run_id

    @property
    def code(self) -> Path:
        return self.home / "code"

    @property
    def checkpoints(self) -> Path:
        return self.home / "checkpoints"

    @property
    def output(self) -> Path:
        return self.home / "output"

    @property
    def tmp(self) -> Path:
        """For temporary files, by a name that is short enough for sockets there: data loaders with processes of their
        own make some, and hang where they cannot."""
        folder, short = self.home / "tmp", self._short_tmp
        try:
            is_ours = short.lstat().st_uid == os.geteuid() and os.fspath(short.readlink()) == os.fspath(folder)
        except OSError:  # none was needed, or there is something else
            return folder
        return short if is_ours else folder

    @property
    def _short_tmp(self) -> Path:
        digest = hashlib.sha256(os.fspath(self.home).encode()).hexdigest()[:16]
        return Path("/tmp", f"allpass-{digest}")  # noqa: S108 - judged by whose it is

    @property
    def metrics(self) -> Path:
        return self.home / "metrics.jsonl"

    @property
    def watched(self) -> Path:
        """Of a run of the built-in recipe: where the rows of a job are put that waits for its weights."""
        return self.home / "watched"

    @property
    def gpus(self) -> Path:
        """Of a run of the built-in recipe: where it is said which of its GPUs it is to use."""
        return self.home / "gpus"

    @property
    def plan(self) -> Path:
        """Exists where the server has worked out how the run is to be laid out."""
        return self.home / "plan.json"

    @property
    def started(self) -> Path:
        """Exists once user code was started: a second agent must not start it again."""
        return self.spool / "started"

    def resume(self, step: int) -> Path:
        return self.checkpoints / f"resume-{step}"

    def fence(self) -> Fence:
        return Fence(self.home, self.uid)

    def create(self, spec: Dict[str, Any]) -> None:
        """Make the folders and files of the contract; nothing of an earlier try remains."""
        shutil.rmtree(self.home, ignore_errors=True)
        for folder in (self.spool, self.code, self.checkpoints, self.output, self.home / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        if len(os.fspath(self.home / "tmp")) > _LONGEST_TMP:
            _remove_dangling(self._short_tmp.parent)
            with contextlib.suppress(OSError):
                self._short_tmp.symlink_to(self.home / "tmp")
        for name in ("parameters", "template"):
            text = json.dumps(spec[name], ensure_ascii=False, indent=2)
            (self.home / f"{name}.json").write_text(text, encoding="utf-8")
        if spec.get("layout"):
            self.plan.write_text(json.dumps(spec["layout"], indent=2), encoding="utf-8")
        self.metrics.touch()
        self.spool.chmod(0o700)
        self.home.chmod(0o700)

    def hand_over(self) -> None:
        """From now on the run's folders belong to its user."""
        give_to(self.uid, self.home)

    def remove(self) -> None:
        if self.tmp == self._short_tmp:
            with contextlib.suppress(OSError):
                self._short_tmp.unlink()
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.rmtree(self.spool, ignore_errors=True)


def bare_environ(workspace: Workspace) -> Dict[str, str]:
    """What every process of a run gets: programs, its home, and how this machine reaches GPUs and the network."""
    kept = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
    return {
        **kept,
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(workspace.home),
        "TMPDIR": str(workspace.tmp),
        "LANG": "C.UTF-8",
    }


def search_path(python: str, path: str) -> str:
    """Where a run's programs are looked for: beside its Python first."""
    return f"{Path(python).parent}{os.pathsep}{path}"


def user_environ(workspace: Workspace, spec: Dict[str, Any], job_id: str, python: str) -> Dict[str, str]:
    """The contract with user code, and the job's own variables, none of which takes the place of one of ours. Nothing
    else of the agent's environment gets through."""
    bare = bare_environ(workspace)
    variables = {name: str(value) for name, value in (spec["template"].get("env") or {}).items()}
    modules = [*_our_modules(workspace), *filter(None, [variables.pop("PYTHONPATH", "")])]
    environ = {**bare, **variables}
    environ.update(
        HOME=bare["HOME"],
        TMPDIR=bare["TMPDIR"],
        PATH=search_path(python, bare["PATH"]),
        PYTHONUNBUFFERED="1",
        PYTHONPATH=os.pathsep.join(modules),
        CUDA_DEVICE_ORDER="PCI_BUS_ID",  # as nvidia-smi counts
        CUDA_VISIBLE_DEVICES=",".join(str(index) for index in spec["gpu_indices"]),
        ALLPASS_JOB_ID=job_id,
        ALLPASS_PARAMETERS_FILE=str(workspace.home / "parameters.json"),
        ALLPASS_TEMPLATE_FILE=str(workspace.home / "template.json"),
        ALLPASS_CODE_DIR=str(workspace.code),
        ALLPASS_CHECKPOINT_DIR=str(workspace.checkpoints),
        ALLPASS_OUTPUT_DIR=str(workspace.output),
        ALLPASS_METRICS_FILE=str(workspace.metrics),
        ALLPASS_CHECKPOINT_INTERVAL_S=str(spec["checkpoint_interval_s"]),
        ALLPASS_PIECE_BYTES=str(PIECE_BYTES),
    )
    if spec.get("mean_life_s"):
        environ["ALLPASS_MEAN_LIFE_S"] = str(spec["mean_life_s"])
    if spec.get("layout"):
        environ["ALLPASS_PLAN_FILE"] = str(workspace.plan)
    if (workspace.code / MARK).is_file():
        environ["ALLPASS_WATCH_DIR"] = str(workspace.watched)
    if spec.get("purpose", "train") != "train":
        environ["ALLPASS_PURPOSE"] = spec["purpose"]
    if profiles_first(spec):
        environ["ALLPASS_PROFILES"] = "1"
    if spec.get("resume"):
        folder = workspace.resume(int(spec["resume"]["step"]))
        environ.update(ALLPASS_RESUME_DIR=str(folder), ALLPASS_RESUME_STEP=str(first_step(spec)))
        if spec["resume"].get("learned"):
            environ["ALLPASS_RESUME_LEARNED"] = "1"
    return environ


def _our_modules(workspace: Workspace) -> List[str]:
    """Where Python finds our library and, but for our own trainer, what makes unchanged scripts movable."""
    library = workspace.root / "lib"
    is_ours = (workspace.code / MARK).is_file()
    return [str(library)] if is_ours else [str(library / STARTUP), str(library)]


def first_step(spec: Mapping[str, Any]) -> int:
    """The steps that the run's job has finished when it begins: none, where it begins with another job's weights."""
    resume = spec.get("resume") or {}
    return 0 if resume.get("learned") else int(resume.get("step", 0))


def profiles_first(spec: Mapping[str, Any]) -> bool:
    """Whether the run looks at its task before it trains. One that goes on from a checkpoint does not."""
    return bool(spec.get("profiles")) and not spec.get("resume")


def _remove_dangling(folder: Path) -> None:
    """Short names whose run's folders are gone, as machines leave them that were killed: ours alone."""
    for link in folder.glob("allpass-*"):
        with contextlib.suppress(OSError):
            dangles = link.is_symlink() and not link.exists()
            if dangles and _SHORT_TMP.fullmatch(link.name) and link.lstat().st_uid == os.geteuid():
                link.unlink()

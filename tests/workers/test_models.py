"""Hub models are downloaded once for a project on a machine: kept right, bounded, and fetched ahead of their run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allpass.wire.agent import DesiredRun
from tests.workers.agents import AgentProcess, desired
from tests.workers.hub import Hub, blob_name, serving
from tests.workers.plane import Plane
from tests.workers.test_isolation import SYSTEM_PYTHON, needs_users
from tests.workers.test_prefetch import busy, is_idle
from workers.agent.hub_ahead import wanted
from workers.agent.models import Models
from workers.agent.workspace import Workspace

Start = Callable[..., AgentProcess]
GOING_ON = threading.Event()
SMALL, LARGE = b"{}", b"w" * 5000
TINY = {
    "config.json": SMALL,
    "model.safetensors": LARGE,
    "pytorch_model.bin": LARGE * 2,
    "onnx/model.onnx": b"o" * 2000,
}
SCRIPT = """
from huggingface_hub import hf_hub_download
for name in ("config.json", "model.safetensors"):
    with open(hf_hub_download("org/tiny", name), "rb") as file:
        print(name, len(file.read()))
"""
READ = "config.json 2\nmodel.safetensors 5000"


def opened(folder: Path, most_bytes: int = 100_000) -> Models:
    models = Models(folder / "models", most_bytes)
    models.open()
    return models


def workspace(folder: Path, run_id: str) -> Workspace:
    made = Workspace(folder, run_id, None)
    made.create({"parameters": {}, "template": {}})
    return made


def cache(run: Workspace, model: str) -> Path:
    return run.home / ".cache" / "huggingface" / "hub" / model / "blobs"


def download(run: Workspace, model: str, *contents: bytes) -> None:
    """As the hub's library leaves it behind."""
    blobs = cache(run, model)
    blobs.mkdir(parents=True)
    (blobs.parent / "snapshots").mkdir()
    for data in contents:
        (blobs / blob_name(data)).write_bytes(data)


def lent(models: Models, folder: Path, run_id: str, project_id: str = "prj_1") -> dict[str, set[bytes]]:
    """What a new run finds, by model."""
    run = workspace(folder, run_id)
    models.lend(project_id, run)
    hub = run.home / ".cache" / "huggingface" / "hub"
    return {path.name: {blob.read_bytes() for blob in path.glob("blobs/*")} for path in hub.glob("*")}


def test_what_a_run_downloaded_is_found_by_the_next_of_its_project(tmp_path: Path) -> None:
    """Nothing is copied, nobody can write to it, and another project does not see it; also after a restart."""
    models = opened(tmp_path)
    first = workspace(tmp_path, "run_a")
    download(first, "models--org--tiny", SMALL, LARGE)
    inode = (cache(first, "models--org--tiny") / blob_name(LARGE)).stat().st_ino
    models.gather("prj_1", first, GOING_ON)
    first.remove()
    for again, found in enumerate([models, opened(tmp_path)]):
        assert lent(found, tmp_path, f"run_b{again}") == {"models--org--tiny": {SMALL, LARGE}}
        facts = (cache(Workspace(tmp_path, f"run_b{again}", None), "models--org--tiny") / blob_name(LARGE)).stat()
        assert (facts.st_ino, facts.st_mode & 0o777) == (inode, 0o444)
        assert lent(found, tmp_path, f"run_c{again}", "prj_2") == {}


def test_only_what_is_what_it_is_named_for_is_kept(tmp_path: Path) -> None:
    """Forged and half files, names of another kind, links that lead elsewhere, and what was lent."""
    models = opened(tmp_path)
    run = workspace(tmp_path, "run_a")
    download(run, "models--org--tiny", SMALL)
    blobs = cache(run, "models--org--tiny")
    (blobs / blob_name(LARGE)).write_bytes(LARGE[:-1])
    (blobs / ("1" * 40)).write_bytes(b"forged")
    (blobs / (blob_name(b"half") + ".incomplete")).write_bytes(b"half")
    (tmp_path / "secret").write_bytes(b"secret")
    (blobs / blob_name(b"secret")).symlink_to(tmp_path / "secret")
    (blobs / ("0" * 40)).symlink_to(run.home / "absent")
    (run.home / "shared").write_bytes(b"shared")
    (blobs / blob_name(b"shared")).symlink_to(run.home / "shared")  # as the library's own store for all models does
    models.gather("prj_1", run, GOING_ON)
    assert lent(models, tmp_path, "run_b") == {"models--org--tiny": {SMALL, b"shared"}}
    assert (tmp_path / "secret").exists()


def test_a_home_cannot_lead_the_agent_astray(tmp_path: Path) -> None:
    """Where a run's installers have put a link in the way, nothing is lent and nothing is written behind it."""
    models = opened(tmp_path)
    first = workspace(tmp_path, "run_a")
    download(first, "models--org--tiny", LARGE)
    models.gather("prj_1", first, GOING_ON)
    (tmp_path / "elsewhere").mkdir()
    for place in (".cache", ".cache/huggingface/hub/models--org--tiny"):
        run = workspace(tmp_path, "run_b")
        (run.home / place).parent.mkdir(parents=True, exist_ok=True)
        (run.home / place).symlink_to(tmp_path / "elsewhere")
        models.lend("prj_1", run)
        assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_least_recently_used_model_goes_first(tmp_path: Path) -> None:
    """As a whole, once the bound is passed; what was lent of it stays with the run, and lending is no use of it."""
    models = opened(tmp_path, 100)
    for number, model in enumerate(["models--a", "models--b", "models--c"]):
        run = workspace(tmp_path, f"run_{number}")
        models.lend("prj_1", run)
        if model == "models--c":
            (cache(run, "models--a").parent / "snapshots").mkdir()  # it used this one, too
        download(run, model, bytes([number]) * 20, bytes([number]) * 15)
        models.gather("prj_1", run, GOING_ON)
    assert lent(models, tmp_path, "run_x").keys() == {"models--a", "models--c"}
    b = cache(Workspace(tmp_path, "run_2", None), "models--b")
    assert sorted(blob.stat().st_size for blob in b.iterdir()) == [15, 20]
    too_large = workspace(tmp_path, "run_3")
    download(too_large, "models--d", b"4" * 60, b"5" * 60)
    models.gather("prj_1", too_large, GOING_ON)
    assert lent(models, tmp_path, "run_w").keys() == {"models--a", "models--c"}
    assert lent(opened(tmp_path, 40), tmp_path, "run_y").keys() == {"models--c"}
    nothing = opened(tmp_path, 0)
    run = workspace(tmp_path, "run_z")
    download(run, "models--d", SMALL)
    nothing.gather("prj_1", run, GOING_ON)
    assert lent(nothing, tmp_path, "run_n") == {}


@needs_users
def test_users_of_runs_read_what_is_kept_and_cannot_change_it(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """Neither the one who downloaded it, nor the next."""
    script = f"""
import os, pathlib
blob = pathlib.Path.home() / ".cache/huggingface/hub/models--org--tiny/blobs/{blob_name(LARGE)}"
if blob.exists():
    print(blob.read_bytes() == b"w" * 5000, blob.stat().st_uid != os.getuid())
    for change in (lambda: blob.open("r+b"), lambda: blob.chmod(0o644)):
        try:
            change()
            print("CHANGED")
        except PermissionError:
            print("denied")
else:
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"w" * 5000)
"""
    start_agent(open_folder / "machine", ALLPASS_AGENT_PYTHON=SYSTEM_PYTHON)
    for job_id, said in (("job_a", ""), ("job_b", "True True\ndenied\ndenied")):
        run = desired(plane, script, job_id=job_id)
        plane.want(run)
        assert plane.wait_exit(run.run_id).last_lines == said
        plane.unlist(run.run_id)
        folder = open_folder / "machine" / "runs" / run.run_id
        plane.wait(lambda folder=folder: not folder.exists(), "its removal")  # type: ignore[misc]  # bound here


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (["config.json", "model.safetensors", "pytorch_model.bin"], {"config.json", "model.safetensors"}),
        (["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "consolidated.safetensors"], None),
        (
            ["pytorch_model.bin", "tf_model.h5", "README.md", "tokenizer.model"],
            {"pytorch_model.bin", "tokenizer.model"},
        ),
        (["onnx/model.safetensors", "vocab.txt"], {"vocab.txt"}),
    ],
    ids=["one file", "shards", "old weights", "other formats"],
)
def test_what_is_fetched_ahead_is_what_is_loaded(names: list[str], taken: set[str] | None) -> None:
    """Weights in one format, what stands beside them, and nothing else."""
    assert set(wanted(dict.fromkeys(names, 1))) == (set(names[:2]) if taken is None else taken)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving({"org/tiny": dict(TINY)}) as hub:
        yield hub


def tiny(plane: Plane, name: str) -> DesiredRun:
    return desired(plane, SCRIPT + f"# {name}", job_id=f"job_{name}", parameters={"model": "org/tiny"})


def ended_well(plane: Plane, run: DesiredRun) -> None:
    ended = plane.wait_exit(run.run_id)
    assert (ended.exit_code, ended.last_lines) == (0, READ), plane.log(run.run_id)


def test_the_next_run_downloads_nothing_again(plane: Plane, start_agent: Start, hub: Hub) -> None:
    """Another project does; the one after asks the hub what the model is, and reads a changed file."""
    agent = start_agent(HF_ENDPOINT=hub.url)

    def downloaded(name: str, project_id: str) -> list[str]:
        before = len(hub.got)
        run = tiny(plane, name)
        run.spec.project_id = project_id
        plane.want(run)
        ended_well(plane, run)
        plane.unlist(run.run_id)
        plane.wait(lambda: not (agent.root / "runs" / run.run_id).exists(), "its removal")
        return sorted(hub.got[before:])

    both = ["org/tiny/config.json", "org/tiny/model.safetensors"]
    assert [downloaded("a", "prj_1"), downloaded("b", "prj_1")] == [both, []]
    assert downloaded("c", "prj_2") == both
    hub.models["org/tiny"]["config.json"] = b"[]"
    assert downloaded("d", "prj_1") == both[:1]


def test_the_model_of_the_next_job_is_there_before_it(plane: Plane, start_agent: Start, hub: Hub) -> None:
    """What it will load, and nothing else, without proof of anybody; its run downloads nothing."""
    agent = start_agent(HF_ENDPOINT=hub.url, HF_TOKEN="of the machine")
    busy(plane)
    coming = tiny(plane, "next")
    plane.advise(coming)
    plane.wait(lambda: len(hub.got) == 2 and is_idle(agent), "the model")
    assert sorted(hub.got) == ["org/tiny/config.json", "org/tiny/model.safetensors"]
    plane.want(coming)
    ended_well(plane, coming)
    assert len(hub.got) == 2
    assert hub.tokens == []
    assert len(list(agent.root.glob("models/*/models--org--tiny/*"))) == 2


def test_a_run_waits_for_its_model_that_is_on_its_way(plane: Plane, start_agent: Start, hub: Hub) -> None:
    """It says so, and nothing is downloaded twice."""
    start_agent(HF_ENDPOINT=hub.url)
    busy(plane)
    coming = tiny(plane, "next")
    hub.held.add("model.safetensors")
    plane.advise(coming)
    plane.wait(lambda: "org/tiny/model.safetensors" in hub.got, "the download")
    plane.next = []
    plane.want(coming)
    plane.wait(lambda: "org/tiny is being fetched already" in plane.log(coming.run_id), "a word")
    hub.release.set()
    ended_well(plane, coming)
    assert hub.got.count("org/tiny/model.safetensors") == 1

"""`allpass run`: any command, and what it is to have, from the command line to the request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allpass import build
from allpass.client import Client
from allpass.errors import InvalidInput
from tests.sdk.fake_service import FakeService
from tests.sdk.test_cli import call, finished, live

__all__ = ["live"]  # a fixture


def submitted(live: FakeService, *words: str) -> dict[str, Any]:
    before = set(live.jobs)
    finished("run", *words)
    (new,) = live.jobs.keys() - before
    return live.jobs[new]


@pytest.mark.parametrize(
    ("words", "command", "parameters"),
    [
        ([".", "--", "axolotl", "train", "cfg.yml"], ["axolotl", "train", "cfg.yml"], {}),
        (["--gpu", "H100", "--", "bash", "train.sh"], ["bash", "train.sh"], {}),
        (["."], None, {}),
        ([".", "--", "--lr", "0.1"], None, ["--lr", "0.1"]),
        ([".", "--entrypoint", "train.py", "--", "sft", "--x"], None, ["sft", "--x"]),
        (["train.py", "--", "sft", "--", "--x"], None, ["sft", "--", "--x"]),
        (["train.py", "sft"], None, ["sft"]),
        ([".", "-p", "lr=1", "--", "python", "train.py"], ["python", "train.py"], {"lr": 1}),
    ],
)
def test_words_after_dashes_are_a_command_or_arguments(
    live: FakeService, words: list[str], command: list[str] | None, parameters: Any
) -> None:
    """A folder's are the command, unless they begin with a dash or a script is named; a script's are its arguments."""
    Path("train.sh").write_text("echo hello")
    job = submitted(live, *words)
    assert (job["template"].get("command"), job["parameters"]) == (command, parameters)


def test_a_folder_without_a_script_is_registered_for_commands(live: FakeService) -> None:
    """It needs none then; without a command it is asked which script should run."""
    Path("code").mkdir()
    Path("code/cfg.yml").write_text("a: 1")
    submitted(live, "code", "--", "axolotl", "train", "cfg.yml")
    (app,) = live.apps.values()
    assert app["entrypoint"] == ""
    assert call("run", "code").exit_code == 2


def test_options_are_fields_of_the_template(live: FakeService) -> None:
    """An option comes before what the file says, and leaves what is beside it."""
    Path("t.json").write_text(
        json.dumps({"gpu": {"type": "A10", "memory_gb": 20}, "env": {"A": "1", "B": "1"}, "caps": {"max_cost_usd": 3}})
    )
    options = [
        "--gpu",
        "H100:2",
        "--cpus",
        "16",
        "--memory",
        "64GB",
        "-e",
        "A=x=y",
        "-e",
        "C=",
        "--max-duration",
        "90m",
    ]
    template = submitted(live, "train.py", "-t", "t.json", *options, "--name", "mine")["template"]
    assert {**template["gpu"], "max_count": None} == {"type": "H100", "count": 2, "memory_gb": 20, "max_count": None}
    assert (template["cpus"], template["memory_gb"]) == (16, 64)
    assert template["env"] == {"A": "x=y", "B": "1", "C": ""}
    assert {name: value for name, value in template["caps"].items() if value is not None} == {
        "max_cost_usd": 3,
        "max_duration_s": 5400,
    }


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        ("H100", {"type": "H100", "count": 1}),
        ("h100:8", {"type": "h100", "count": 8}),
        ("2xA100", {"type": "A100", "count": 2}),
        ("4", {"count": 4}),
        ("A100:1-8", {"type": "A100", "count": 1, "max_count": 8}),
        ("2-4xA100-80GB", {"type": "A100", "count": 2, "max_count": 4, "memory_gb": 80}),
        ("2-4", {"count": 2, "max_count": 4}),
        ("any:2-2", {"count": 2, "max_count": 2}),
        ("any:2", {"count": 2}),
        ("A100-80GB:2", {"type": "A100", "count": 2, "memory_gb": 80}),
        ("A100-SXM4-40GB", {"type": "A100", "count": 1, "memory_gb": 40}),
        ("H100!", {"type": "H100", "count": 1}),
        ("RTX 4090", {"type": "RTX 4090", "count": 1}),
    ],
)
def test_gpus_are_written_as_people_know_them(live: FakeService, text: str, gpu: dict[str, Any]) -> None:
    """A type with a count, either alone, and the names of other companies' price lists."""
    told = submitted(live, "train.py", "--gpu", text)["template"]["gpu"]
    assert {name: value for name, value in told.items() if value is not None} == gpu


def test_an_image_and_packages_are_the_apps(live: FakeService) -> None:
    """--image is --base-image; the folder's requirements are installed with what is named."""
    Path("requirements.txt").write_text("peft\ntrl\n")
    submitted(live, ".", "--image", "nvcr.io/x", "--pip", "peft==0.21.2")
    (app,) = live.apps.values()
    assert app["runtime"] == {"base_image": "nvcr.io/x", "pip": ["peft==0.21.2", "trl"]}


def test_the_sdk_runs_commands_too(client: Client, service: FakeService, tmp_path: Path) -> None:
    """`build(command=)` for all runs of the app, `run(command=)` for one; text is refused with the list it means."""
    (tmp_path / "cfg.yml").write_text("a: 1")
    app = build("a", "ada", code=tmp_path, command=["axolotl", "train"], client=client)
    app.run()
    app.run(command=["bash", "-c", "true"])
    app.run(template={"command": ["tune"], "env": {"A": "1"}})
    commands = [job["template"]["command"] for job in service.jobs.values()]
    assert commands == [["axolotl", "train"], ["bash", "-c", "true"], ["tune"]]
    with pytest.raises(InvalidInput) as raised:
        app.run(command="torchrun train.py")
    assert raised.value.hint == "command=['torchrun', 'train.py']"
    for wrong in ([], ["--lr"], ["a\0b"]):
        with pytest.raises(InvalidInput, match="command"):
            app.run(command=wrong)
    with pytest.raises(InvalidInput, match="too"):
        app.run(template={"env": {"TOKENS": "1"}, "secrets": ["TOKENS"]})


def test_how_its_gpus_change_is_said(live: FakeService) -> None:
    """And shown with what it means. A way that there is not is refused before anything is sent."""
    template = submitted(live, "train.py", "--gpu", "A100:2", "--elastic", "--resize-by", "restart")["template"]
    assert (template["elastic"], template["resize_by"]) == (True, "restart")
    (job_id,) = live.jobs
    assert "by restarts: not exact" in finished("show", job_id)
    plain = submitted(live, "train.py", "--gpu", "A100:2")
    assert plain["template"]["resize_by"] == "code"
    assert "not exact" not in finished("show", plain["id"])
    wrong = call("run", "train.py", "--resize-by", "magic")
    assert wrong.exit_code == 2 and "resize_by" in wrong.output and len(live.jobs) == 2

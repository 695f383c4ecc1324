"""`allpass finetune`: what is asked, what is sent, and what is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.wire.plan import OwnLayout
from tests.sdk.fake_service import KEY, FakeService, served
from tests.sdk.test_plan import FOUND


@pytest.fixture
def live(service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    """A served service that the environment points to, and a file of rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    rows = [{"prompt": f"question {number}", "completion": "answer", "id": number} for number in range(40)]
    Path("support.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    service.plan = deepcopy(FOUND)
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["finetune", *words])


def test_options_become_settings_and_the_rest_is_as_with_run(live: FakeService) -> None:
    """Piped, the job's id is all that is printed."""
    Path("t.json").write_text('{"gpu": {"type": "L40S"}}')
    options = ["--method", "full", "--target", "eval_loss=1.2", "--epochs", "2", "--batch", "8", "--lr", "1e-5"]
    options += ["--set", "patience=3", "--set", "schedule=cosine", "--seq", "256", "--seed", "4", "--precision", "fp32"]
    done = call("org/tiny", "support.jsonl", *options, "-t", "t.json", "-d", "6h", "--max-cost", "3", "--name", "mine")
    assert (done.exit_code, done.stderr) == (0, "")
    (job,) = live.jobs.values()
    assert done.stdout == f"{job['id']}\n"
    told = {"method": "full", "target": {"eval_loss": 1.2}, "epochs": 2.0, "batch_size": 8, "learning_rate": 1e-5}
    told |= {"patience": 3, "schedule": "cosine", "sequence_length": 256, "seed": 4, "precision": "fp32"}
    assert {name: job["parameters"][name] for name in told} == told
    assert job["template"]["gpu"]["type"] == "L40S"
    assert job["template"]["caps"]["max_cost_usd"] == 3
    assert job["template"]["training"]["steps"] == 10  # 36 rows in steps of 8, twice
    (app,) = live.apps.values()
    assert app["name"] == "tiny-support"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["org/m", "none.jsonl"], 2, "none.jsonl: there is no such file"),
        (["org/m", "support.jsonl", "--target", "eval_loss"], 2, "--target: 'eval_loss' is not key=value"),
        (["org/m", "support.jsonl", "--target", "accuracy=1"], 2, "target: 'accuracy' is not measured"),
        (["org/m", "support.jsonl", "--set", "epochs=2", "--epochs", "3"], 2, "--set epochs: has an option of its own"),
        (["org/m", "support.jsonl", "--set", "epoch=2"], 2, "epoch: the recipe has no such setting\n  try: epochs"),
        (["org/m", "support.jsonl", "--held-out", "2"], 2, "held_out: 2.0 is no share"),
        (["org/m", "support.jsonl", "--held-out", "more.jsonl"], 2, "more.jsonl: there is no such file"),
        (["org/m", "support.jsonl", "--deadline", "soon"], 2, "--deadline: "),
        (["org/m", "support.jsonl", "--method", "dora"], 2, "method: 'dora' is not one of lora, qlora, full"),
        (["org/m", "support.jsonl", "--nodes", "20"], 2, "nodes: 20 GPUs of 20 machines have no work with 16 rows"),
        (["org/m", "support.jsonl", "--nodes", "2", "--elastic"], 2, "elastic: a training on several machines keeps"),
        (
            ["org/m", "support.jsonl", "--sharded", "--method", "qlora"],
            2,
            "sharded: True splits weights that are in 16",
        ),
        (["org/m", "support.jsonl", "--sharded", "--method", "full"], 2, "and 1 has nobody to share them"),
    ],
    ids=[
        "no file",
        "no pair",
        "metric",
        "twice",
        "setting",
        "share",
        "no rows",
        "deadline",
        "method",
        "too many",
        "elastic",
        "sharded",
        "nobody to share with",
    ],
)
def test_a_mistake_is_told_and_nothing_is_sent(live: FakeService, words: list[str], code: int, told: str) -> None:
    """Settings, rows and template are checked first."""
    done = call(*words)
    assert (done.exit_code, done.stdout) == (code, "")
    assert told in done.stderr
    assert live.paths() == []


def test_it_is_sent_for_several_machines(live: FakeService) -> None:
    """It is trained by itself there."""
    done = call("org/tiny", "support.jsonl", "--nodes", "2", "--gpu", "A100:4")
    assert (done.exit_code, done.stderr) == (0, "")
    (job,) = live.jobs.values()
    template = job["template"]
    assert (template["nodes"], template["gpu"]["count"], template["sharing"]) == (2, 4, False)


def test_a_spot_job_is_planned_as_one(live: FakeService) -> None:
    for words, asked in (([], None), (["--spot"], True), (["--guaranteed"], None)):
        done = call("org/llama-3-8b", "support.jsonl", "--plan", *words)
        assert (done.exit_code, live.planned[-1].spot) == (0, asked), done.stderr


@pytest.mark.parametrize("method", ["lora", "full"])
def test_its_weights_can_be_split(live: FakeService, method: str) -> None:
    done = call("org/tiny", "support.jsonl", "--gpu", "A100:4", "--sharded", "--method", method)
    assert (done.exit_code, done.stderr) == (0, "")
    (job,) = live.jobs.values()
    assert (job["parameters"]["sharded"], job["template"]["training"]["sharded"]) == (True, True)


def test_it_can_be_planned_first(live: FakeService) -> None:
    """`--plan` asks what the recipe's training needs, by the model's name or its own config, and sends no row."""
    done = call("org/llama-3-8b", "support.jsonl", "--plan", "--rank", "8", "-d", "6h")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "would take" in done.stdout
    (asked,) = live.planned
    assert (asked.model, asked.method, asked.batch, asked.sequence) == ("org/llama-3-8b", "lora", 16, 1024)
    assert (asked.rank, asked.steps, asked.soft_deadline) == (8, 9, "6h")
    assert asked.layout == OwnLayout()
    assert asked.gpu_type is None


def test_it_is_planned_for_the_gpu_that_is_named(live: FakeService) -> None:
    """The plan is of the very job that would be sent."""
    done = call("org/llama-3-8b", "support.jsonl", "--plan", "--gpu", "L40S:2")
    assert (done.exit_code, done.stderr) == (0, "")
    (asked,) = live.planned
    assert (asked.gpu_type, asked.layout, asked.nodes) == ("L40S", OwnLayout(gpus=2), None)
    Path("base").mkdir()
    Path("base/config.json").write_text('{"model_type": "llama", "hidden_size": 64}')
    assert call("base", "support.jsonl", "--plan", "--method", "full", "--json").exit_code == 0
    asked = live.planned[-1]
    assert (asked.model, asked.config, asked.precision) == (
        None,
        {"model_type": "llama", "hidden_size": 64, "_name_or_path": "base"},
        "amp_bf16",
    )
    assert live.jobs == {}

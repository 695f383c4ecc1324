"""`allpass plan` and `client.plan`: what is asked, and what is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.client import Client
from allpass.wire.plan import Plan, PlanRequest
from tests.sdk.fake_service import KEY, FakeService, served

LAYOUT = {
    "gpus": 1, "replicas": 1, "tensor_parallel": 1, "sharding": "none", "micro_batch": 2, "accumulation": 8,
    "checkpointing": True,
}  # fmt: skip


def bytes_of(gb: float) -> dict[str, int]:
    return {"low": int(gb * 0.9e9), "expected": int(gb * 1e9), "high": int(gb * 1.2e9)}


def option(gpu_type: str, there_gb: int, needed_gb: float, verdict: str, *offers: dict[str, Any]) -> dict[str, Any]:
    return {
        "gpu_type": gpu_type,
        "gpu_count": 1,
        "gpu_memory_bytes": there_gb * 1_000_000_000,
        "verdict": verdict,
        "layout": LAYOUT,
        "peak_in": "backward",
        "calibrated_by": 0,
        "allocated": bytes_of(needed_gb - 2),
        "reserved": bytes_of(needed_gb - 1),
        "process": bytes_of(needed_gb),
        "step_ms": 1240.0,
        "step_source": "estimate",
        "offers": list(offers),
    }


def seller(provider: str, tier: str, micros: int, **more: Any) -> dict[str, Any]:
    known = {"duration_ms": 4_500_000, "cost": micros * 5 // 4, "in_time": True, "steps_in_time": 5000}
    offer = {"tier": tier, "provider": provider, "offer_id": "o", "price_per_hour": micros, "startup_ms": 36_000}
    return offer | known | more


VAST = seller("vast", "marketplace", 740_000)
FOUND: dict[str, Any] = {
    "model": "llama-3-8b",
    "parameters": 8_030_261_248,
    "batch": 16,
    "sequence": 2048,
    "method": "qlora",
    "profile": "transformers-5",
    "steps": 3600,
    "one_gpu_bytes": 16_400_000_000,
    "chosen": 0,
    "reason": "the least for 3600 steps of 3 offers where it fits and that end by the deadline",
    "options": [
        option("A100", 80, 60.0, "fits", VAST, seller("modal", "serverless", 2_100_000)),
        option("T4", 16, 20.0, "no", seller("vast", "marketplace", 140_000, duration_ms=None, cost=None, in_time=None)),
    ],
    "remedies": [],
}


@pytest.fixture
def live(service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    service.plan = deepcopy(FOUND)
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["plan", *words])


def test_the_client_asks_and_reads(client: Client, service: FakeService) -> None:
    """The request goes out as it was made, the answer comes back typed."""
    service.plan = FOUND
    request = PlanRequest(model="llama-3-8b", method="qlora", batch=16, sequence=2048, steps=3600)
    assert client.plan(request) == Plan.model_validate(FOUND)
    assert service.planned == [request]


def test_a_table_with_bars_prices_and_the_choice(live: FakeService) -> None:
    """One line for each kind of GPU, a column for each provider, and what would be taken and why."""
    result = call(
        "--model", "llama-3-8b", "--method", "qlora", "--batch", "16", "--seq", "2048", "--steps", "3600", "-d", "6h"
    )
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    (asked,) = live.planned
    assert (asked.model, asked.method, asked.batch, asked.sequence) == ("llama-3-8b", "qlora", 16, 2048)
    assert (asked.steps, asked.soft_deadline) == (3600, "6h")
    heading, first, second, *facts = result.stdout.splitlines()
    assert heading.split() == ["GPU", "MEMORY", "FIT", "PLAN", "STEP", "TIME", "MODAL", "VAST"]
    assert first.split() == [
        "A100",
        "█████░",
        "60.0/80.0",
        "fits",
        "2x8",
        "ckpt",
        "~1.2s",
        "1h",
        "15m",
        "$2.63",
        "$0.93",
    ]
    assert second.split() == ["T4", "██████", "20.0/16.0", "no", "2x8", "ckpt", "~1.2s", "-", "-", "$0.14/h"]
    assert [fact.strip() for fact in facts] == [
        "would take: A100, vast marketplace, $0.74/h",
        f"because it is {FOUND['reason']}",
        "3600 steps: 1h 15m with start-up, $0.93",
    ]


def test_what_a_spot_job_pays_there_is_told_beside_what_would_be_taken(live: FakeService) -> None:
    """Where the pool has a share for spot; an older service says nothing of it."""
    best = live.plan["options"][0]["offers"][0]
    best |= {"spot_price_per_hour": 185_000, "spot_cost": 232_500}
    assert "as a spot job: $0.19/h, $0.23 in all" in call("--model", "llama-3-8b", "--steps", "3600").stdout
    best |= {"spot_cost": None}
    assert "as a spot job: $0.19/h\n" in call("--model", "llama-3-8b").stdout


def test_a_plan_for_a_spot_job_asks_for_it_and_says_what_is_a_bid(live: FakeService) -> None:
    """Whoever does not ask for it sends what older services know."""
    best = live.plan["options"][0]["offers"][0]
    call("--model", "llama-3-8b")
    assert "spot" not in live.planned[-1].model_fields_set
    best |= {"interruptible": True}
    told = call("--model", "llama-3-8b", "--spot").stdout
    assert live.planned[-1].spot
    assert "by a bid: it is lost, without a word, when somebody pays more" in told
    assert "likely" not in told
    best |= {"likely_cost": 1_310_000}
    told = call("--model", "llama-3-8b", "--steps", "3600", "--spot").stdout
    assert "likely $1.31: such machines fail, and work is done twice then" in told


def test_one_provider_is_told_by_its_tiers(live: FakeService) -> None:
    """Where all offers are one provider's, the columns name what differs."""
    for one in live.plan["options"]:
        for offer in one["offers"]:
            offer["provider"] = "local"
    assert call("--model", "llama-3-8b").stdout.splitlines()[0].split()[-2:] == ["SERVERLESS", "MARKET"]


def test_no_choice_says_why_and_what_helps(live: FakeService) -> None:
    """The reason and the remedies, on stdout: a pipe reads them too."""
    remedy = {"changes": ["method=lora"], "message": "train adapters alone (method lora)", "gpu_type": "T4"}
    live.plan |= {"chosen": None, "reason": "nothing that is offered now is sure to fit; one GPU alone is enough"}
    live.plan["options"] = live.plan["options"][1:]
    live.plan["remedies"] = [remedy | {"gpu_count": 2, "price_per_hour": 280_000}]
    lines = call("--model", "llama-3-8b", "--method", "full").stdout.splitlines()
    assert lines[2].strip() == live.plan["reason"]
    assert lines[3].strip() == "it would fit on 2x T4 at $0.28/h: train adapters alone (method lora)"
    live.plan |= {"options": [], "remedies": [], "reason": "no provider offers a GPU now; one GPU alone is enough"}
    assert call("--model", "llama-3-8b").stdout.strip() == live.plan["reason"]


def test_a_deadline_without_steps_counts_steps(live: FakeService) -> None:
    """Nobody said how long the job is: what is told is how far it comes."""
    live.plan["options"][0]["offers"][0]["in_time"] = None
    assert "until the deadline: 5000 steps" in call("--model", "llama-3-8b", "--deadline", "2h").stdout


def test_json_is_the_answer_of_the_api(live: FakeService) -> None:
    """For programs: the object, nothing else."""
    assert json.loads(call("--model", "llama-3-8b", "--json").stdout) == Plan.model_validate(FOUND).model_dump(
        mode="json"
    )


def test_a_config_file_is_sent_whole(live: FakeService) -> None:
    """The model's own configuration, as Hugging Face writes it."""
    Path("config.json").write_text('{"model_type": "llama", "hidden_size": 64}')
    assert call("--config", "config.json").exit_code == 0
    (asked,) = live.planned
    assert (asked.model, asked.config) == (None, {"model_type": "llama", "hidden_size": 64})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "--model and --config are both missing"),
        (("--model", "a", "--config", "config.json"), "--model and --config go together"),
        (("--config", "missing.json"), "--config: missing.json: No such file"),
        (("--config", "broken.json"), "--config: broken.json is no JSON"),
        (("--config", "list.json"), "--config: list.json holds no object"),
        (("--model", "a", "--method", "magic"), "--method: 'magic'"),
        (("--model", "a", "--seq", "0"), "--seq: 0"),
        (("--model", "a", "--steps", "0"), "--steps: 0"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_asked(live: FakeService, words: tuple[str, ...], told: str) -> None:
    """Exit code 2, the option by its name, and an example that works."""
    Path("config.json").write_text("{}")
    Path("broken.json").write_text("{")
    Path("list.json").write_text("[]")
    result = call(*words)
    assert result.exit_code == 2
    assert told in result.stderr
    assert "try: allpass plan --model llama-3-8b" in result.stderr
    assert live.planned == []


def test_precision_by_the_gpu_is_asked_for_and_shown(live: FakeService) -> None:
    """Only where it is asked for: a server from before knows nothing of it. What a machine needs beside its GPU is told
    where the server says it."""
    assert live.plan is not None
    live.plan["options"][1]["layout"] = {**LAYOUT, "precision": "fp16"}
    live.plan["host_bytes"] = 13_060_000_000
    result = call("--model", "llama-3-8b", "--precision", "auto")
    assert result.exit_code == 0, result.output
    (asked,) = live.planned
    assert (asked.precision, asked.precision_by_gpu) == ("bf16", True)
    shown = {line.split()[0]: line for line in result.stdout.splitlines() if line.startswith(("A100", "T4"))}
    assert "ckpt fp16" in shown["T4"]
    assert "fp16" not in shown["A100"]
    assert "its machine needs 13.1 GB of memory beside the GPU" in result.stdout
    assert call("--model", "llama-3-8b").exit_code == 0
    assert not {"precision_by_gpu", "export"} & live.planned[1].model_fields_set


@pytest.mark.parametrize("as_json", [False, True])
def test_prices_of_a_list_are_told_with_their_day(live: FakeService, *, as_json: bool) -> None:
    """A price that decides and is half a year old is warned of, also where no person reads it; programs get the day."""
    live.plan = deepcopy(FOUND)
    live.plan["options"][0]["offers"][1] |= {"price_as_of": "2026-05-07", "price_is_old": True}
    result = call("--model", "llama-3-8b", "--batch", "16", *(["--json"] if as_json else []))
    assert result.exit_code == 0, result.output
    if as_json:
        assert '"price_as_of": "2026-05-07"' in result.stdout
        assert result.stderr == ""
        return
    assert "warning: modal: some prices are of 2026-05-07, more than 180 days ago" in result.stderr
    assert "try: allpass providers prices modal NAME=DOLLARS" in result.stderr
    assert "vast: " not in result.stderr

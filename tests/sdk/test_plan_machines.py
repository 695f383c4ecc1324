"""`allpass plan --nodes` and `allpass finetune --nodes --plan`: what is asked, and shown of several machines."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.client import Client
from allpass.wire.plan import OwnLayout, Plan, PlanRequest
from tests.sdk.fake_service import KEY, FakeService, served
from tests.sdk.test_plan import FOUND, LAYOUT, bytes_of

NETWORK = {
    "bits_per_s": 9_400_000_000, "source": "measured", "meetings": 3, "bytes_per_step": 1_342_177_280,
    "exchange_ms": 1142.3, "is_slow": False,
}  # fmt: skip
MACHINES: dict[str, Any] = {
    "nodes": 2, "gpu_type": "A100", "gpu_count": 4, "gpu_memory_bytes": 80_000_000_000, "provider": "joined",
    "tier": "own", "site": "lab", "verdict": "fits", "runs_as": "recipe", "peak_in": "backward",
    "layout": LAYOUT | {"gpus": 8, "replicas": 8, "sharding": "ddp"}, "allocated": bytes_of(58),
    "reserved": bytes_of(59), "process": bytes_of(60), "computing_ms": 4000.0, "step_ms": 5142.3,
    "step_source": "estimate", "network": NETWORK, "machines": 3, "price_per_hour": 12_000_000, "startup_ms": 1000,
    "duration_ms": 18_513_000, "cost": 61_710_000,
}  # fmt: skip
BUSY = MACHINES | {
    "provider": "lambda", "tier": "conventional", "site": "us-east-1", "machines": 1, "price_per_hour": None,
    "duration_ms": None, "cost": None, "why_not": "1 such machine is free now, of 2",
}  # fmt: skip
OVER: dict[str, Any] = FOUND | {
    "options": [], "chosen": None, "nodes": 2, "machines": [MACHINES, BUSY], "chosen_machines": 0, "host_bytes": None,
    "reason": "it fits there, and all 2 machines are to be had",
    "machines_reason": "it fits there, and all 2 machines are to be had",
}  # fmt: skip


@pytest.fixture
def live(service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    service.plan = deepcopy(OVER)
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["plan", "--model", "llama-3-8b", *words])


def test_the_client_asks_and_reads(client: Client, service: FakeService) -> None:
    service.plan = OVER
    request = PlanRequest(model="llama-3-8b", batch=16, sequence=2048, nodes=2, gpu_type="A100", network_gbits=25.0)
    assert client.plan(request) == Plan.model_validate(OVER)
    assert service.planned == [request]


def test_a_line_for_each_site_and_what_a_step_waits_for(live: FakeService) -> None:
    """All machines together; what is not to be had now has no price."""
    done = call("--nodes", "2", "--gpu", "A100:4", "--network", "9.4")
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    (asked,) = live.planned
    assert (asked.nodes, asked.gpu_type, asked.gpu_count, asked.network_gbits) == (2, "A100", 4, 9.4)
    heading, first, second, *facts = done.stdout.splitlines()
    assert heading.split() == ["MACHINES", "MEMORY", "FIT", "PLAN", "STEP", "NETWORK", "TIME", "PRICE", "COST", "WHERE"]
    assert first.split()[:10] == ["2", "x", "4x", "A100", "60.0/80.0", "fits", "2x8", "ddp", "ckpt", "~5.1s"]
    assert first.split()[10:] == ["1.1s", "5h", "08m", "$12.00/h", "$61.71", "pool", "lab"]
    assert second.split()[-6:] == ["-", "-", "lambda", "us-east-1,", "not", "now"]
    assert [fact.strip() for fact in facts] == [
        "would take: 2 x 4x A100, pool lab, $12.00/h for all",
        "because it fits there, and all 2 machines are to be had",
        "3600 steps: 5h 08m with start-up, $61.71",
        "each step passes 1.3 GB to each machine: 1.1s at 9.4 Gbit/s (measured there before 3 earlier jobs)",
    ]


def test_under_which_switches_they_would_be_is_told_where_somebody_says_it(live: FakeService) -> None:
    switches = [{"rack": "r1", "switch": "leaf-1", "machines": 3}, {"rack": "", "switch": "", "machines": 1}]
    live.plan["machines"][0] |= {"switches": switches, "entropy": 0.5623}
    done = call("--nodes", "4", "--most-per-switch", "3", "--most-per-rack", "3")
    (asked,) = live.planned
    assert (asked.most_per_switch, asked.most_per_rack) == (3, 3)
    assert "switches: 3 under leaf-1 in r1, 1 under one that nobody says (entropy 0.56)" in done.stdout
    many = [{"rack": "", "switch": f"leaf-{number}", "machines": 1} for number in range(12)]
    live.plan["machines"][0] |= {"switches": many}
    assert "1 under leaf-7, 4 under 4 others (entropy" in " ".join(call("--nodes", "12").stdout.split())


@pytest.mark.parametrize(
    ("source", "meetings", "told"),
    [
        ("measured", 1, "(measured there before 1 earlier job)"),
        ("stated", 0, "(as --network says)"),
        ("assumed", 0, "(assumed: nobody has measured it there; --network says another)"),
    ],
)
def test_where_the_speed_of_the_network_comes_from(live: FakeService, source: str, meetings: int, told: str) -> None:
    live.plan["machines"][0]["network"] |= {"source": source, "meetings": meetings}
    assert told in " ".join(call("--nodes", "2").stdout.split())


def test_a_network_that_is_too_slow_is_told_before_anything_is_rented(live: FakeService) -> None:
    live.plan["machines"][0]["network"] |= {"exchange_ms": 9000.0, "is_slow": True}
    said = " ".join(call("--nodes", "2").stdout.split())
    assert "the network is too slow for this: a step waits 9s for it and computes for 4s; fewer machines are" in said


def test_what_is_not_to_be_had_says_why_and_shows_what_would_be_run(live: FakeService) -> None:
    live.plan |= {
        "chosen_machines": None,
        "machines": [BUSY],
        "machines_reason": "it fits on 2 machines, which are not",
    }
    said = call("--nodes", "2").stdout
    assert "would take" not in said and "  it fits on 2 machines, which are not\n" in said
    live.plan |= {"machines": [], "machines_reason": "no site has 2 machines: none is to be had now"}
    assert call("--nodes", "2").stdout == "  no site has 2 machines: none is to be had now\n"


def test_a_further_choice_stands_below_one_machine_and_says_who_can_run_it(live: FakeService) -> None:
    """Where nothing fits on one: by code of one's own, with the command for it."""
    spread = MACHINES | {
        "nodes": 4,
        "gpu_count": 2,
        "runs_as": "script",
        "layout": LAYOUT | {"gpus": 8, "sharding": "fsdp"},
    }
    told = "nothing that is offered now is sure to fit; one GPU alone is enough from 90.0 GB"
    live.plan = deepcopy(FOUND) | {"chosen": None, "reason": told, "options": FOUND["options"][1:]}
    live.plan |= {
        "machines": [spread],
        "chosen_machines": 0,
        "machines_reason": "it fits there, and all 4 are to be had",
    }
    said = call().stdout
    assert said.index(told) < said.index("over several machines:") < said.index("would fit: 4 x 2x A100, pool lab")
    assert "fsdp over machines is for code of your own: allpass run . --nodes 4 --gpu A100:2 -- torchrun train.py" in (
        " ".join(said.split())
    )
    assert "nodes" not in live.planned[0].model_fields_set


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--nodes", "0"], "--nodes"),
        (["--nodes", "1000000"], "--nodes"),
        (["--nodes", "two"], "--nodes"),
        (["--gpu", "A100:1-4"], "--gpu: 'A100:1-4' is a range"),
        (["--gpu", "A100,H100"], "--gpu: 'A100,H100' names several"),
        (["--network", "0"], "--network: 0.0: input should be greater than 0"),
        (["--network", "nan"], "--network"),
        (["--nodes", "2", "--exact"], "--exact: layouts over several machines do not run symbolically"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_asked(live: FakeService, words: list[str], told: str) -> None:
    done = call(*words)
    assert done.exit_code == 2 and told in done.stderr
    assert live.planned == []


@pytest.mark.parametrize(
    ("text", "asked"),
    [("H100", ("H100", None)), ("H100:1", ("H100", 1)), ("2xH100", ("H100", 2)), ("4", (None, 4))],
)
def test_a_type_alone_is_any_number_of_it(live: FakeService, text: str, asked: tuple[str | None, int | None]) -> None:
    assert call("--gpu", text).exit_code == 0
    assert (live.planned[0].gpu_type, live.planned[0].gpu_count) == asked


def test_a_fine_tuning_over_machines_is_planned_as_it_would_run(live: FakeService) -> None:
    """The recipe's layout, so many GPUs of each machine, and the type that it asks for."""
    rows = (f'{{"prompt": "a{number}", "completion": "b"}}\n' for number in range(40))
    Path("rows.jsonl").write_text("".join(rows))
    words = ["finetune", "org/llama-3-8b", "rows.jsonl", "--plan", "--nodes", "2", "--gpu", "A100:4"]
    words += ["--most-per-rack", "1"]
    done = CliRunner().invoke(cli.app, words)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    (asked,) = live.planned
    assert (asked.nodes, asked.layout, asked.gpu_type) == (2, OwnLayout(gpus=4), "A100")
    assert (asked.most_per_rack, asked.most_per_switch) == (1, None)
    assert "would take: 2 x 4x A100, pool lab, $12.00/h for all" in done.stdout
    assert live.jobs == {}


@pytest.mark.parametrize("is_answered", [True, False])
def test_before_a_training_over_machines_is_sent_a_person_is_told_what_awaits_it(
    live: FakeService, monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    """A network that is too slow, or why it would wait; where no plan is to be had it is sent all the same."""
    monkeypatch.setattr("allpass.cli.screen.is_interactive", lambda _stream=None: True)
    live.plan["machines"][0]["network"] |= {"exchange_ms": 9000.0, "is_slow": True}
    if not is_answered:
        live.plan = {"error": {"code": "forbidden", "message": "this key may not read"}}
    rows = (f'{{"prompt": "a{number}", "completion": "b"}}\n' for number in range(40))
    Path("rows.jsonl").write_text("".join(rows))
    words = ["finetune", "org/tiny", "rows.jsonl", "--nodes", "2", "--gpu", "A100:4"]
    done = CliRunner().invoke(cli.app, words)
    said = " ".join(done.stderr.split())
    assert done.exit_code == 0 and len(live.jobs) == 1, done.output
    if is_answered:
        assert "Machines would take: 2 x 4x A100, pool lab, $12.00/h for all" in said
        assert "the network is too slow for this: a step waits 9s for it and computes for 4s" in said
    else:
        assert "Machines no plan was to be had" in said

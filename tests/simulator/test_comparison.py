"""Simulations from a program: policies of one's own, options by name, and what comes of them."""

from __future__ import annotations

import math
import sys
import types
from dataclasses import replace
from typing import Any

import pytest

from allpass import errors as client_errors
from allpass import simulate
from app.core.model.money import Money
from app.errors import InvalidInput
from app.simulator import process_pool, running
from app.simulator.packages import PackageFailed
from tests.simulator.small import small_trace

JOBS = small_trace()


class Waiting(simulate.Policy):
    """The simplest broker, written down once more."""

    name = "mine"
    uses = frozenset({simulate.ActionKind.ASSIGN, simulate.ActionKind.PROVISION, simulate.ActionKind.RELEASE})
    moves_by_budget = False

    def decide(
        self, board: simulate.Board, state: simulate.PolicyState, config: simulate.PolicyConfig
    ) -> tuple[simulate.Plan, simulate.PolicyState]:
        plan = simulate.PlanBuilder(board, config)
        for job in board.placeable():
            plan.place_serverful(job)
        plan.release_idle_after(0)
        return plan.plan(self.name), state


def test_a_policy_of_ones_own_stands_beside_the_others() -> None:
    """The simplest broker written again costs what ours of that kind costs."""
    found = simulate.run(JOBS, [Waiting(), "cheapest-first"], seeds=2)
    assert list(found.policies) == ["mine", "cheapest-first"]
    assert found.policies["mine"]["cost_usd"] == found.policies["cheapest-first"]["cost_usd"]
    assert found.against["cheapest-first"]["cost_usd"]["mean"] == 0
    assert set(found.spread) == set(found.policies)


def test_the_figures_are_those_of_the_command_line() -> None:
    options = running.Options().having("serverful-limit", "2").having("knowledge", "none")
    theirs = running.simulate(JOBS, ["allpass"], options, range(2))
    ours = simulate.run(JOBS, ["allpass"], seeds=2, serverful_limit=2, knowledge="none")
    assert ours.policies == theirs["policies"]


def test_settings_with_dots() -> None:
    dear = simulate.run(JOBS, ["cheapest-first"], settings={"market.prices.marketplace": 1.48}).policies
    usual = simulate.run(JOBS, ["cheapest-first"]).policies
    assert dear["cheapest-first"]["cost_usd"] > 1.5 * usual["cheapest-first"]["cost_usd"]


def test_what_became_of_each_job() -> None:
    lines = simulate.run(JOBS, ["modal-only"], seeds=[3, 4]).jobs("modal-only")
    assert [line["job_id"] for line in lines] == [job.job_id for job in JOBS.jobs]
    assert {type(line["cost_usd"]) for line in lines} == {float}
    assert {tuple(line["tiers"]) for line in lines} == {("serverless",)}
    assert all(line["missed"] in (True, False) for line in lines)


def test_it_is_a_table_in_print_and_in_notebooks() -> None:
    """Names are anybody's: a notebook shows them as they are, and runs nothing."""
    named = Waiting()
    named.name = "<script>alert(1)</script>"
    found = simulate.run(JOBS, [named, "modal-only"])
    head, first, second = str(found).splitlines()
    assert head.split()[:2] == ["POLICY", "COST"]
    assert first.startswith("<script>")
    assert second.startswith("modal-only")
    assert "<script>" not in found._repr_html_()
    assert found._repr_html_().count("<tr>") == 3


def test_frames_are_made_by_pandas_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulate.run(JOBS, ["modal-only"])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(client_errors.ConfigurationError, match="pandas is not installed"):
        found.frame()
    given: list[Any] = []
    made = types.ModuleType("pandas")
    made.DataFrame = given.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", made)
    found.frame()
    found.frame("modal-only")
    assert given[0][0]["policy"] == "modal-only"
    assert given[1] == found.jobs("modal-only")


class Impossible(Waiting):
    """Rents what nobody offers."""

    name = "impossible"

    def decide(self, board: Any, state: Any, config: Any) -> Any:
        plan, state = super().decide(board, state, config)
        actions = tuple(
            replace(one, offer=replace(one.offer, price_per_hour=Money(1))) if hasattr(one, "offer") else one
            for one in plan.actions
        )
        return replace(plan, actions=actions), state


def test_a_plan_that_cannot_be_is_refused() -> None:
    """Else it would show as figures that cannot be."""
    with pytest.raises(PackageFailed, match=r"policy impossible: what it decides at 0 s cannot be: "):
        simulate.run(JOBS, [Impossible()])


def test_what_a_policy_of_ones_own_raises_is_ones_own() -> None:
    """With its own traceback: who writes it needs that."""

    class Failing(Waiting):
        def decide(self, board: Any, state: Any, config: Any) -> Any:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        simulate.run(JOBS, [Failing()])


def test_what_is_written_in_a_notebook_is_played_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process could not load it, however many jobs there are."""
    monkeypatch.setattr(running, "WORTH_A_PROCESS", 0)
    monkeypatch.setattr(process_pool, "usual_processes", lambda: 2)
    written = type("Written", (Waiting,), {"__module__": "__main__"})()

    class Local(Waiting):
        name = "local"

    holding = Waiting()
    holding.table = lambda: None  # type: ignore[attr-defined]  # as a program may hold anything
    with monkeypatch.context() as alone:
        alone.setattr(process_pool, "_ProcessPool", None)
        for own in (written, Local(), holding):
            simulate.run(JOBS, [own], seeds=2)
    simulate.run(JOBS, [Waiting()], seeds=2)  # of a module: side by side


def job(**changes: Any) -> simulate.TraceJob:
    return simulate.TraceJob(**({"job_id": "a", "submit_s": 0.0, "duration_s": 60.0, "gpus": 1} | changes))


@pytest.mark.parametrize(
    ("jobs", "told"),
    [
        ([], "holds no job"),
        ([job(), job()], "there is another job of this id"),
        ([job(job_id="")], "job_id: is no text"),
        ([job(duration_s=0)], "duration_s: 0 is no time"),
        ([job(duration_s=-1.0)], "duration_s: -1.0 is no time"),
        ([job(duration_s=math.nan)], "duration_s: nan is no time"),
        ([job(duration_s=math.inf)], "duration_s: inf is no time"),
        ([job(duration_s="60")], "duration_s: '60' is no time"),
        ([job(submit_s=-1)], "submit_s: -1 is no time"),
        ([job(deadline_s=0)], "deadline_s: 0 is no time"),
        ([job(gpus=0)], "gpus: 0 is no number of GPUs"),
        ([job(gpus=True)], "gpus: True is no number of GPUs"),
        ([job(gpus=10**9)], "gpus: 1000000000 is no number of GPUs"),
        ([job(kind="nightly")], "kind: 'nightly' is none of batch, interactive"),
    ],
)
def test_jobs_that_cannot_be_are_refused(jobs: list[simulate.TraceJob], told: str) -> None:
    """Before anything is simulated, with the job, the field and its value."""
    with pytest.raises(InvalidInput) as refused:
        simulate.run(simulate.Trace.of("mine", jobs), ["modal-only"])
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("policies", "words", "told"),
    [
        ([], {}, "policies: give at least one"),
        (["allpass", "allpass"], {}, "each a name of its own"),
        ([object()], {}, "policies: object is no policy, it lacks name, uses, moves_by_budget, decide"),
        (["alpass"], {}, "the nearest is allpass"),
        (["allpass"], {"seeds": 0}, "seeds: give at least one"),
        (["allpass"], {"serverful_limit": -1}, "--serverful-limit: '-1' is no number of nodes"),
        (["allpass"], {"colour": 1}, "colour"),
        (["allpass"], {"settings": {"market.colour": 1}}, "market.colour"),
    ],
)
def test_what_is_wrong_is_named(policies: list[Any], words: dict[str, Any], told: str) -> None:
    with pytest.raises((InvalidInput, PackageFailed)) as refused:
        simulate.run(JOBS, policies, **words)
    assert told in str(refused.value)


def test_a_policy_that_was_not_played() -> None:
    with pytest.raises(InvalidInput, match="'hpa' was not played; there are modal-only"):
        simulate.run(JOBS, ["modal-only"]).jobs("hpa")

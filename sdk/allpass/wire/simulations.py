"""Policies played on a workload, without renting anything: what `allpass simulate` does, bounded."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from allpass.wire.base import LARGEST, Name, Positive, Real, Request, Response, Sha256, Unguessed

MOST_POLICIES = 8
MOST_SEEDS = 20
MOST_POOLS = 16
Seed = Annotated[int, Field(ge=0, lt=2**31), Unguessed]
Words = Annotated[str, StringConstraints(min_length=1, max_length=100)]
SettingName = Annotated[str, StringConstraints(min_length=1, max_length=100)]
SettingValue = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False), Unguessed]
TraceFormat = Literal["csv", "philly", "helios", "acme", "alibaba"]


class TraceReport(Response):
    """What a file of jobs was found to hold, kept for an hour under `sha256`."""

    sha256: str
    name: str
    jobs: int
    left_out: int = Field(description="rows that are no jobs to simulate: without a GPU, a start or an end")
    span_s: float = Field(description="from the first submission to the last")
    gpu_hours: float = Field(description="of work, on as many GPUs as jobs ask for")


class SentTrace(Request):
    """A trace that was sent before, within the hour."""

    sha256: Sha256
    name: Name
    start_s: Annotated[Real, Field(ge=0, le=1e10)] = 0.0
    most_jobs: Positive | None = Field(None, description="the first ones only; default: all")


class GeneratedTrace(Request):
    """Jobs drawn from what is published of a cluster."""

    like: Literal["seren", "kalos", "philly"] = "seren"
    jobs: Annotated[int, Field(ge=1, le=100_000), Unguessed] = 200
    seed: Seed = 0


class SimulateRequest(Request):
    """What `allpass simulate` is asked for. Give `trace` or `generated`; neither: 200 jobs like Seren's. What is left
    out is as there: without a trace, run times are known after a minute of training and a move takes 5 s."""

    trace: SentTrace | None = None
    generated: GeneratedTrace | None = None
    policies: list[Words] = Field(
        default_factory=lambda: ["allpass", "allpass-drain", "modal-only"], min_length=1, max_length=MOST_POLICIES
    )
    world: Literal["friendly", "measured", "harsh"] = "friendly"
    gpus: Literal["one", "trace"] = Field("one", description="one each, or as many as the trace says")
    market: Literal["flat", "calm"] = "flat"
    startup: Literal["random", "mean"] = "random"
    knowledge: Words | None = Field(None, description="of run times: submit:0.2, after:60:0.2, none")
    deadlines: Words | None = Field(None, description="1-10: drawn, times the run time; 6h; trace")
    move_seconds: Annotated[Real, Field(ge=0, le=1_000_000)] | None = Field(None, description="what a move takes")
    serverful_limit: Annotated[int, Field(ge=0, le=1_000_000), Unguessed] | None = Field(
        None, description="rented nodes at once, serverless apart; default: none"
    )
    pools: list[Words] = Field(
        default_factory=list,
        max_length=MOST_POOLS,
        description="machines of one's own, filled first: 8xA100, lab:2x8xH100@0.40; default: none",
    )
    seed: Seed = 0
    seeds: Annotated[int, Field(ge=1, le=MOST_SEEDS), Unguessed] = Field(1, description="so many; figures are means")
    settings: dict[SettingName, SettingValue] = Field(
        default_factory=dict,
        max_length=50,
        description="numbers of policies and market by name: move_gain, tick_ms ...",
    )


class SimulatedCourse(Response):
    """Over time, of the first seed: samples at rising times."""

    times_s: list[float]
    queue: list[int] = Field(description="jobs without a place")
    own: list[int] = Field(default_factory=list, description="machines of one's own in use at once")
    serverless: list[int] = Field(description="machines rented at once")
    marketplace: list[int]
    conventional: list[int]
    budget_s: list[float | None] = Field(description="F: how long jobs may stay on serverless")


class SimulatedPolicy(Response):
    """`figures` by name, in dollars and seconds: cost_usd, mean_jct_s, mean_wait_s, deadline_misses, moves ..."""

    name: str
    figures: dict[str, float]
    cost_by_provider_usd: dict[str, float]
    gpu_hours_by_provider: dict[str, float]
    completion: list[tuple[float, float]] = Field(
        description="seconds from submission, and the share of jobs that have ended by then; of the first seed"
    )
    stayed: int = Field(description="jobs that never left serverless, of the first seed")
    moved: int = Field(description="began there and moved")
    rented: int = Field(description="began on a rented node")
    course: SimulatedCourse | None = Field(description="null of a bound, which is computed and not played")


class Simulation(Response):
    trace: str
    jobs: int
    span_s: float
    gpu_hours: float = Field(description="of work")
    seeds: int
    options: dict[str, str] = Field(description="as the command line takes them")
    policies: list[SimulatedPolicy]

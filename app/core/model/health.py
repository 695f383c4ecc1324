"""The parts of the control loop that fail and work again apart from each other, and what their failing means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Chore(StrEnum):
    """What the leader does again and again. `CHORE_FAILS` says what is amiss when one fails."""

    DECIDE = "decide"
    TELL = "tell"
    LEND = "lend"
    EVICT = "evict"
    GANGS = "gangs"
    STANDBY = "standby"
    RESERVE = "reserve"
    PRICES = "prices"
    HEARTBEATS = "heartbeats"
    MOVES = "moves"
    DEFRAG = "defrag"
    LIFETIMES = "lifetimes"
    SWEEP = "sweep"
    HOUSEKEEPING = "housekeeping"
    LEARN = "learn"
    METER = "meter"
    CAPS = "caps"
    LIMITS = "limits"
    BUDGETS = "budgets"
    GARBAGE = "garbage"
    STRAYS = "strays"
    PROVIDERS = "providers"
    IMAGES = "images"
    DOORS = "doors"
    OPERATIONS = "operations"


CHORE_FAILS: dict[Chore, str] = {
    Chore.DECIDE: "decisions fail: nothing is started, moved or released until one succeeds",
    Chore.TELL: "what failed of single jobs or nodes cannot be written down",
    Chore.LEND: "GPUs of some elastic jobs are not lent to jobs that wait, or not given back",
    Chore.EVICT: "some spot jobs do not leave for guaranteed jobs, or what they left is not kept for these",
    Chore.GANGS: "some jobs on several machines are not placed",
    Chore.STANDBY: "some jobs that stand by are not called back in time, or their machines are not ended",
    Chore.RESERVE: "some GPUs that were reserved are not kept, or spot jobs do not leave them in time",
    Chore.PRICES: "what some providers offer is not refreshed",
    Chore.HEARTBEATS: "some machines and runs on their way are not looked after",
    Chore.MOVES: "some planned moves that take too long are not given up",
    Chore.DEFRAG: "some nodes are not vacated by moves as it was planned",
    Chore.LIFETIMES: "some machines that end by themselves are not left in time",
    Chore.SWEEP: "some machines are not compared with their provider's listing",
    Chore.HOUSEKEEPING: "some old records are not deleted, or not summed up",
    Chore.LEARN: "nothing is learned from some runs that have ended",
    Chore.METER: "what some machines cost is not booked",
    Chore.CAPS: "some jobs are not held to their limits",
    Chore.LIMITS: "some jobs and machines are not held to the installation's limits",
    Chore.BUDGETS: "some jobs and machines are not held to their budgets, or do not go on when they may again",
    Chore.GARBAGE: "stored content that nothing refers to is not deleted for some projects",
    Chore.STRAYS: "stored content that was never told of is not looked for in some projects",
    Chore.PROVIDERS: "credentials of some providers are not checked",
    Chore.IMAGES: "some images are not built at their provider, and jobs wait for them",
    Chore.DOORS: "some fine-tunings of OpenAI's clients are not made jobs, or some of their files are not deleted",
    Chore.OPERATIONS: "some calls to providers cannot be carried out, and are tried again",
}


# A chore that has not finished for so many of its turns hangs.
UNFINISHED_TURNS = 5


class PartKind(StrEnum):
    """Of what a part's failures are counted."""

    CHORE = "chore"  # named as in `Chore`
    DECISION = "decision"  # which needs no name
    ACTION = "action"  # by `ActionKind`
    ROW = "row"  # that cannot be read, by table
    INVARIANT = "invariant"  # that a plan would have broken, by `app.core.invariants`


@dataclass(frozen=True, slots=True)
class PartHealth:
    """`failures`: ever. `failing_since_ms`: None while it works. `due_ms`: if it has not finished by then, it hangs."""

    kind: PartKind
    name: str
    failures: int
    in_a_row: int
    failing_since_ms: int | None
    due_ms: int | None

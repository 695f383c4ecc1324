"""One thing that goes wrong in each chore of the control loop: in what it reads, in what it writes, at the company it
asks. A chore without a poison here fails a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from app.core.model.health import Chore
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.policy import Policy
from app.errors import AuthFailed
from benchmarks.poison_cases import Act, Case, Mallory, nothing
from benchmarks.poison_rows import allow_writes, refuse_writes
from tests.control.fake_provider import make_offer

_NUL = "\0"
_LONG = "n" * 10_000
_ROUNDS = 5  # as long as a machine takes to be missed, and lost


def chore_cases() -> list[Case]:
    """Every poison of every chore."""
    return [
        Case("chore", f"{chore}: {subject}", inject, cure, rounds=rounds)
        for chore, poisons in POISONS.items()
        for subject, inject, cure, rounds in poisons
    ]


# The loop itself


class Trips:
    """A policy that cannot decide while one job is there: a defect that only its data brings out."""

    def __init__(self, policy: Policy, job_ids: frozenset[str]) -> None:
        self._policy = policy
        self._job_ids = job_ids
        self.name, self.uses, self.moves_by_budget = policy.name, policy.uses, policy.moves_by_budget

    def decide(self, board: Any, state: Any, config: Any) -> Any:
        tripped = self._job_ids & board.jobs.keys()
        if tripped:
            raise OverflowError(f"int too large to convert: {len(tripped)} jobs")
        return self._policy.decide(board, state, config)


async def _trip(wanted: str, mallory: Mallory) -> None:
    loop = mallory.place.control.loop
    job_id = await mallory.job(wanted) if wanted else await _fresh_job(mallory)
    mallory.notes["policy"] = loop._policy
    loop._policy = Trips(loop._policy, frozenset({job_id}))


async def _untrip(mallory: Mallory) -> None:
    mallory.place.control.loop._policy = mallory.notes.pop("policy")


async def _fresh_job(mallory: Mallory) -> str:
    return await mallory.submit("fresh", {"training": {"steps": 30}})


# Companies


def _garbled_offers() -> list[Offer]:
    offer = make_offer("odd", "odd-1", Tier.MARKETPLACE, "90", startup_ms=1_000)
    return [
        replace(offer, offer_id=f"a{_NUL}b"),
        replace(offer, offer_id=_LONG),
        replace(offer, offer_id="negative", price_per_hour=Money(-1)),
        replace(offer, offer_id="endless", price_per_hour=Money(2**70)),
        replace(offer, offer_id="no-gpu", gpu_count=0),
        replace(offer, offer_id="no-memory", gpu_memory_bytes=-1),
        replace(offer, offer_id="huge", memory_bytes=2**70),
        replace(offer, offer_id="late", startup_ms=2**62),
        replace(offer, offer_id=""),
        *(replace(offer, offer_id=f"many-{number}") for number in range(20_000)),
    ]


async def _raise_in(call: str, error: Exception, mallory: Mallory) -> None:
    def enter(name: str) -> None:
        if name == call:
            raise error

    mallory.place.odd.before_call = enter


async def _calm(mallory: Mallory) -> None:
    odd = mallory.place.odd
    odd.before_call = lambda _name: None
    odd.on_offer = []
    odd.rented.clear()
    await mallory.place.execute("DELETE FROM offers WHERE provider = 'odd'")


async def _offer_garbage(mallory: Mallory) -> None:
    mallory.place.odd.on_offer = _garbled_offers()


async def _plant(mallory: Mallory) -> None:
    """Machines of nobody, with labels that are no ids, and with the id of another tenant's machine."""
    others = await mallory.place.execute("SELECT id FROM nodes WHERE project_id <> :mine LIMIT 1",
                                         mine=mallory.place.mallory.project_id)  # fmt: skip
    labels = [f"a{_NUL}b", _LONG, "", None, "node_unknown", *(row.id for row in others)]
    for label in labels:
        mallory.place.odd.plant(label, created_ms=mallory.place.clock.now_ms() - 3_600_000)
    for ref, rented in list(mallory.place.odd.rented.items())[:2]:
        rented.machine = replace(rented.machine, created_ms=-(2**62), billed_from_ms=2**62, detail=f"{_NUL}{ref}")


async def _take_leave(mallory: Mallory) -> None:
    """Her machines fall silent, and nothing can be written of them."""
    node_ids = await mallory.node_ids()
    for node_id in node_ids:
        if node_id in mallory.place.agents:
            mallory.place.agents[node_id].asleep = True
    await refuse_writes(mallory, "nodes", [await mallory.node(), *node_ids])


async def _wake(mallory: Mallory) -> None:
    await allow_writes(mallory, "nodes")
    for agent in mallory.place.agents.values():
        agent.asleep = False


async def _vanish(mallory: Mallory) -> None:
    """The company does not know her machine any more, and nothing can be written of it."""
    node_id = await mallory.node()
    for rented in mallory.place.cloud.of_label(node_id):
        rented.vanished = True
    await refuse_writes(mallory, "nodes", [node_id])


# Rows


async def _refuse(table: str, mallory: Mallory) -> None:
    await mallory.job()
    await refuse_writes(mallory, table, await mallory.owned_ids())


async def _allow(table: str, mallory: Mallory) -> None:
    await allow_writes(mallory, table)


async def _over_cap(mallory: Mallory) -> None:
    """A job at its limit that cannot be stopped."""
    job_id = await mallory.job("running")
    await mallory.place.execute("UPDATE jobs SET max_cost_micros = 1, spent_micros = 2 WHERE id = :id", id=job_id)
    await refuse_writes(mallory, "jobs", [job_id])


async def _over_day(mallory: Mallory) -> None:
    """A job that the limit of a day held, and that cannot be let go on when it allows it again."""
    job_id = await mallory.job("running")
    await mallory.place.execute("UPDATE jobs SET pause_reason = 'day_limit' WHERE id = :id", id=job_id)
    await refuse_writes(mallory, "jobs", [job_id])


async def _over_budget(mallory: Mallory) -> None:
    """A job that a budget held, and that cannot be let go on when there is none any more."""
    job_id = await mallory.job("running")
    await mallory.place.execute("UPDATE jobs SET pause_reason = 'budget' WHERE id = :id", id=job_id)
    await refuse_writes(mallory, "jobs", [job_id])


async def _set_budget(period: str, mallory: Mallory) -> None:
    """Of a key that her jobs alone have: one that holds all of them, or one whose period nobody knows."""
    await mallory.place.execute("UPDATE jobs SET key_id = 'key_hers' WHERE id = ANY(:ids)", ids=mallory.job_ids)
    await mallory.place.execute(
        "INSERT INTO budgets (id, project_id, key_id, provider, period, amount_micros, set_by, set_ms)"
        " VALUES (:id, :project_id, 'key_hers', '', :period, 0, '', 0)",
        id=f"bud_{period}",
        project_id=mallory.place.mallory.project_id,
        period=period,
    )


async def _remove_budgets(mallory: Mallory) -> None:
    project_id = mallory.place.mallory.project_id
    mine = "DELETE FROM budgets WHERE project_id = :project_id AND provider = ''"
    await mallory.place.execute(mine, project_id=project_id)


async def _end_soon(mallory: Mallory) -> None:
    """A machine that ends at once, with a run on it that cannot be asked to leave."""
    node_id = (await mallory.agent()).node_id
    now_ms = mallory.place.clock.now_ms()
    await mallory.place.execute("UPDATE nodes SET ends_ms = :at WHERE id = :id", at=now_ms + 1_000, id=node_id)
    await refuse_writes(mallory, "runs", await mallory.owned_ids())


async def _leave_garbage(mallory: Mallory) -> None:
    """Content that nothing refers to, and whose condemnation cannot be written."""
    sha256 = await mallory.place.store(mallory.place.mallory.project_id, b"litter")
    await mallory.place.execute(
        "INSERT INTO objects VALUES (:project_id, :sha256, 6, 0) ON CONFLICT DO NOTHING",
        project_id=mallory.place.mallory.project_id, sha256=sha256)  # fmt: skip
    await refuse_writes(mallory, "condemned_objects", [mallory.place.mallory.project_id])


async def _leave_file(mallory: Mallory) -> None:
    """A file that is deleted, and whose row cannot be."""
    await mallory.place.execute(
        "INSERT INTO door_files (id, project_id, filename, purpose, sha256, size_bytes, state, created_ms) "
        "VALUES (:file_id, :project_id, 'a', 'batch', :sha256, 1, 'deleted', 0) ON CONFLICT DO NOTHING",
        file_id=f"file-of-{mallory.place.mallory.project_id}", project_id=mallory.place.mallory.project_id,
        sha256="a" * 64)  # fmt: skip
    await refuse_writes(mallory, "door_files", [mallory.place.mallory.project_id])


async def _stray_files(mallory: Mallory) -> None:
    """Files in the object store that no release of ours has put there."""
    folder = mallory.place.objects_folder / "projects" / mallory.place.mallory.project_id / "sha256"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("not-a-hash", "0" * 64, "F" * 64, "a b", "\u202e", "x" * 200):
        (folder / name).write_bytes(b"?")


async def _build_nothing(mallory: Mallory) -> None:
    """A company that has images built before it runs them; that hers is begun cannot be written."""
    odd = mallory.place.odd
    odd.image_builds = {}
    await mallory.place.execute(
        "INSERT INTO image_builds (provider, image, state, since_ms) VALUES (:name, 'hers:1', 'wanted', 0)",
        name=odd.name,
    )
    await refuse_writes(mallory, "image_builds", ["hers:1"])


async def _build_again(mallory: Mallory) -> None:
    await allow_writes(mallory, "image_builds")
    await mallory.place.execute("DELETE FROM image_builds WHERE provider = :name", name=mallory.place.odd.name)
    mallory.place.odd.image_builds = None


async def _ask_defrag(mallory: Mallory) -> None:
    """One is asked for, and nothing can be written of it."""
    await mallory.place.execute(
        "INSERT INTO defragmentations (id, goal, begun_by, most_moves, state, asked_ms) "
        "VALUES ('dfrg_hers', 'pools', 'owner', 20, 'asked', 0)"
    )
    await refuse_writes(mallory, "defragmentations", ["dfrg_hers"])


async def _forget_defrag(mallory: Mallory) -> None:
    await allow_writes(mallory, "defragmentations")
    await mallory.place.execute("DELETE FROM defragmentations WHERE id = 'dfrg_hers'")


async def _refuse_credentials(mallory: Mallory) -> None:
    await _raise_in("offers", AuthFailed("the key was revoked"), mallory)


_Poison = tuple[str, Act, Act, int]
_STRANGE: Mapping[str, Exception] = {"KeyError": KeyError("gpu_name"), "RecursionError": RecursionError("too deep")}


def _strange_answers(call: str, rounds: int = 1) -> tuple[_Poison, ...]:
    return tuple((f"a company's {call} ends in a {name}", partial(_raise_in, call, error), _calm, rounds)
                 for name, error in _STRANGE.items())  # fmt: skip


def _refused(table: str, rounds: int = 2) -> _Poison:
    return (f"{table} of hers cannot be written", partial(_refuse, table), partial(_allow, table), rounds)


POISONS: Mapping[Chore, tuple[_Poison, ...]] = {
    Chore.DECIDE: (
        ("a decision fails over a waiting job", partial(_trip, ""), _untrip, 4),
        ("a decision fails over a running job", partial(_trip, "running"), _untrip, 4),
    ),
    Chore.TELL: (_refused("ticks"), _refused("job_events")),
    Chore.LEND: (_refused("allocations"),),
    Chore.EVICT: (_refused("runs"),),
    Chore.GANGS: (_refused("jobs"),),
    Chore.STANDBY: (_refused("standbys"),),
    Chore.RESERVE: (_refused("reservations"),),
    Chore.PRICES: (*_strange_answers("offers"), ("garbled offers", _offer_garbage, _calm, 2)),
    Chore.HEARTBEATS: (
        ("silent machines that cannot be marked", _take_leave, _wake, _ROUNDS),
        _refused("node_events", 3),
    ),
    Chore.MOVES: (_refused("moves", 3),),
    Chore.DEFRAG: (("a defragmentation that cannot be planned", _ask_defrag, _forget_defrag, 3),),
    Chore.LIFETIMES: (("a machine that ends and cannot be left", _end_soon, partial(_allow, "runs"), 3),),
    Chore.SWEEP: (
        *_strange_answers("list_owned", 2),
        ("machines with garbled labels", _plant, _calm, 3),
        ("a vanished machine that cannot be lost", _vanish, partial(_allow, "nodes"), _ROUNDS),
    ),
    Chore.HOUSEKEEPING: (_refused("idempotency_keys"), _refused("item_failures")),
    Chore.LEARN: (_refused("step_times", 3), _refused("runs")),
    Chore.METER: (_refused("ledger", 3),),
    Chore.CAPS: (("a job over its cap that cannot be stopped", _over_cap, partial(_allow, "jobs"), 3),),
    Chore.LIMITS: (("a job that is held and cannot be let go on", _over_day, partial(_allow, "jobs"), 3),),
    Chore.BUDGETS: (
        ("a job that is held and cannot be let go on", _over_budget, partial(_allow, "jobs"), 3),
        ("a budget of nothing", partial(_set_budget, "day"), _remove_budgets, 3),
        ("a budget of a period that nobody knows", partial(_set_budget, "fortnight"), _remove_budgets, 3),
    ),
    Chore.GARBAGE: (("litter that cannot be condemned", _leave_garbage, partial(_allow, "condemned_objects"), 2),),
    Chore.STRAYS: (("files that are no objects", _stray_files, nothing, 2),),
    Chore.DOORS: (("a deleted file that cannot be forgotten", _leave_file, partial(_allow, "door_files"), 2),),
    Chore.PROVIDERS: (
        ("refused credentials", _refuse_credentials, _calm, 2),
        *_strange_answers("list_owned", 2),
    ),
    Chore.IMAGES: (("an image whose build cannot be begun", _build_nothing, _build_again, 3),),
    Chore.OPERATIONS: (_refused("provider_operations", 3),),
}

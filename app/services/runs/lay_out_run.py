"""How the runs of a plan will be laid out on the GPUs that it gives them, worked out before anything is written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import ValidationError

from allpass.wire.template import Template
from app.core.layout import GpuSet, Layout, Learned, StepCut, lay_out, lay_out_alone
from app.core.memory.calibration import Calibrations
from app.core.memory.need import Stated
from app.core.memory.training import Precision
from app.core.model.offer import Offer
from app.core.model.plan import Assign, AssignGang, Enactable, Migrate, MoveOut, Start
from app.core.model.snapshot import NodeView, Snapshot
from app.core.throughput import Throughput
from app.db.engine import Database
from app.db.learning.calibrations import calibrations_by_project, steps_by_project
from app.db.runs.layouts import ToLayOut, jobs_to_lay_out
from app.errors import InvalidInput
from app.ports.clock import Clock
from app.services.jobs.state_training import stated_training

log = logging.getLogger(__name__)

_MOST_KEPT = 1024
_ASKED_AT_ONCE = 1000  # a statement has a limit of time
_KEEP_MS = 60_000


class _Asked(NamedTuple):
    """All that a layout follows from, beside what the project's runs have taught."""

    stated: Stated
    place: GpuSet
    by_recipe: bool
    begun: StepCut | None
    precision: Precision | None = None


@dataclass(slots=True)
class _Project:
    """What the runs of a project have taught, and the layouts that followed from it."""

    read_ms: int
    calibrations: Calibrations
    throughput: Throughput
    layouts: dict[_Asked, Layout | None] = field(default_factory=dict)

    def is_fresh(self, now_ms: int) -> bool:
        return 0 <= now_ms - self.read_ms < _KEEP_MS and len(self.layouts) < _MOST_KEPT

    def learned(self, stated: Stated, gpu_type: str) -> Learned:
        return Learned(self.calibrations.of(stated.model, stated.training, gpu_type), self.throughput)


class RunLayouts:
    """One per control loop. The first layout of a kind of training takes some tenths of a second to work out: that
    happens in a thread, outside of any transaction, once. They follow from the same as `allpass plan`: the tables, and
    what the project's own runs have taught, which is read at most once a minute."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._projects: dict[str, _Project] = {}

    async def of(self, snapshot: Snapshot, actions: Sequence[Enactable]) -> Mapping[str, Layout]:
        """By job, for the jobs that these actions give GPUs and that state their training. Never raises for what a
        template says: a job that cannot be laid out starts without a layout."""
        places = _places(snapshot, actions)
        if not places:
            return {}
        jobs: dict[str, ToLayOut] = {}
        placed = sorted(places)
        for first in range(0, len(placed), _ASKED_AT_ONCE):
            async with self._database.statement() as connection:
                jobs |= await jobs_to_lay_out(connection, placed[first : first + _ASKED_AT_ONCE])
        several = {action.job_id: len(action.places) for action in actions if isinstance(action, AssignGang)}
        asked = {
            job_id: (
                job.project_id,
                _Asked(stated, places[job_id], job.by_recipe, _kept(job, stated), _precision(job, stated)),
            )
            for job_id, job in jobs.items()
            if (stated := _stated(job.template, several.get(job_id, 1))) is not None
            and (job.by_recipe or job_id not in several)  # how other code shares a step over machines nobody knows
        }
        projects = await self._taught({project_id for project_id, _ in asked.values()})
        unknown = [
            (projects[project_id], one)
            for project_id, one in dict.fromkeys(asked.values())
            if one not in projects[project_id].layouts
        ]
        if unknown:
            await asyncio.to_thread(_lay_out_all, unknown)
        found = {job_id: projects[project_id].layouts[one] for job_id, (project_id, one) in asked.items()}
        return {job_id: layout for job_id, layout in found.items() if layout is not None}

    async def _taught(self, project_ids: AbstractSet[str]) -> Mapping[str, _Project]:
        now_ms = self._clock.now_ms()
        known = {project_id: self._projects[project_id] for project_id in project_ids & self._projects.keys()}
        known = {project_id: one for project_id, one in known.items() if one.is_fresh(now_ms)}
        stale = sorted(set(project_ids) - known.keys())
        if not stale:
            return known
        async with self._database.transaction() as connection:
            rows = await calibrations_by_project(connection, stale)
            steps = await steps_by_project(connection, stale)
        read = {
            one: _Project(now_ms, Calibrations(rows.get(one, ())), Throughput.of(steps.get(one, ()))) for one in stale
        }
        if len(self._projects) + len(read) > _MOST_KEPT:
            self._projects.clear()
        self._projects.update(read)
        return known | read


def _kept(job: ToLayOut, stated: Stated) -> StepCut | None:
    """What was chosen by the user is no question."""
    is_chosen = stated.micro_batch is not None and stated.checkpointing is not None
    return None if is_chosen else job.begun


def _precision(job: ToLayOut, stated: Stated) -> Precision | None:
    """What the job has computed in so far, where that was a question."""
    return job.precision if stated.training.precision_by_gpu else None


def _places(snapshot: Snapshot, actions: Sequence[Enactable]) -> dict[str, GpuSet]:
    """The GPUs that each job gets, on all its machines; of nodes that the snapshot does not have, nothing is known."""
    nodes = {node.node_id: node for node in snapshot.nodes}
    found: dict[str, GpuSet] = {}
    for action in actions:
        if isinstance(action, Start):
            found[action.job_id] = _offered(action.offer, action.offer.gpu_count)
        elif isinstance(action, MoveOut):
            found[action.job_id] = _offered(action.offer, len(action.gpu_indices))
        elif isinstance(action, Assign | Migrate) and action.node_id in nodes:
            node = nodes[action.node_id]
            found[action.job_id] = GpuSet(node.gpu_type, node.gpu_memory_bytes, len(action.gpu_indices))
        elif isinstance(action, AssignGang):
            found |= _together(action, [nodes[one.node_id] for one in action.places if one.node_id in nodes])
    return {job_id: place for job_id, place in found.items() if place.gpus and place.memory_bytes}


def _together(action: AssignGang, nodes: Sequence[NodeView]) -> dict[str, GpuSet]:
    """Of machines that are alike; what the smallest has, each has."""
    if len(nodes) < len(action.places):
        return {}
    least = min(nodes, key=lambda node: node.gpu_memory_bytes)
    gpus = sum(len(place.gpu_indices) for place in action.places)
    return {action.job_id: GpuSet(least.gpu_type, least.gpu_memory_bytes, gpus)}


def _offered(offer: Offer, gpus: int) -> GpuSet:
    return GpuSet(offer.gpu_type, offer.gpu_memory_bytes, gpus)


def _stated(template: Mapping[str, Any], machines: int) -> Stated | None:
    """With the GPUs of all its machines."""
    try:
        found = stated_training(Template.model_validate(template))
        return found if found is None else found.over(machines)
    except (InvalidInput, ValidationError):  # accepted by an older version
        return None
    except Exception:
        log.exception("a template that nobody can make a layout of")
        return None


def _lay_out_all(asked: Sequence[tuple[_Project, _Asked]]) -> None:
    for project, one in asked:
        project.layouts[one] = _lay_out(one, project.learned(one.stated, one.place.gpu_type))


def _lay_out(asked: _Asked, learned: Learned) -> Layout | None:
    try:
        if asked.by_recipe:
            return lay_out_alone(asked.stated, asked.place, learned, asked.begun, asked.precision)
        return lay_out(asked.stated, asked.place, learned)
    except InvalidInput:  # told at its submission, and overruled there
        return None
    except Exception:
        log.exception("a training that cannot be laid out")
        return None

"""How the runs of a plan will be laid out on the GPUs that it gives them, worked out before anything is written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from allpass.wire.template import Template
from app.core.layout import Layout, Place, lay_out
from app.core.memory.need import Stated
from app.core.model.offer import Offer
from app.core.model.plan import Action, Assign, Migrate, MoveOut, Start
from app.core.model.snapshot import Snapshot
from app.db.engine import Database
from app.db.run_layouts import templates_of
from app.errors import InvalidInput
from app.services.state_training import stated_training

log = logging.getLogger(__name__)

_MOST_KEPT = 1024


class RunLayouts:
    """One per control loop. The first layout of a kind of training takes some tenths of a second to work out: that
    happens in a thread, outside of any transaction, once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[tuple[Stated, Place], Layout | None] = {}

    async def of(self, snapshot: Snapshot, actions: Sequence[Action | MoveOut]) -> Mapping[str, Layout]:
        """By job, for the jobs that these actions give GPUs and that state their training. Never raises for what a
        template says: a job that cannot be laid out starts without a layout."""
        places = _places(snapshot, actions)
        if not places:
            return {}
        async with self._database.statement() as connection:
            templates = await templates_of(connection, sorted(places))
        asked = {job_id: (stated, places[job_id]) for job_id, text in templates.items() if (stated := _stated(text))}
        unknown = [each for each in dict.fromkeys(asked.values()) if each not in self._known]
        if unknown:
            found = await asyncio.to_thread(_lay_out_all, unknown)
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known.update(found)
        layouts = {job_id: self._known.get(each) for job_id, each in asked.items()}
        return {job_id: layout for job_id, layout in layouts.items() if layout is not None}


def _places(snapshot: Snapshot, actions: Sequence[Action | MoveOut]) -> dict[str, Place]:
    """The GPUs that each job gets; of nodes that the snapshot does not have, nothing is known."""
    nodes = {node.node_id: node for node in snapshot.nodes}
    found: dict[str, Place] = {}
    for action in actions:
        if isinstance(action, Start):
            found[action.job_id] = _offered(action.offer, action.offer.gpu_count)
        elif isinstance(action, MoveOut):
            found[action.job_id] = _offered(action.offer, len(action.gpu_indices))
        elif isinstance(action, Assign | Migrate) and action.node_id in nodes:
            node = nodes[action.node_id]
            found[action.job_id] = Place(node.gpu_type, node.gpu_memory_bytes, len(action.gpu_indices))
    return {job_id: place for job_id, place in found.items() if place.gpus and place.memory_bytes}


def _offered(offer: Offer, gpus: int) -> Place:
    return Place(offer.gpu_type, offer.gpu_memory_bytes, gpus)


def _stated(template: Mapping[str, Any]) -> Stated | None:
    try:
        return stated_training(Template.model_validate(template))
    except (InvalidInput, ValidationError):  # accepted by an older version
        return None
    except Exception:
        log.exception("a template that nobody can make a layout of")
        return None


def _lay_out_all(asked: Sequence[tuple[Stated, Place]]) -> dict[tuple[Stated, Place], Layout | None]:
    return {each: _lay_out(*each) for each in asked}


def _lay_out(stated: Stated, place: Place) -> Layout | None:
    try:
        return lay_out(stated, place)
    except InvalidInput:  # told at its submission, and overruled there
        return None
    except Exception:
        log.exception("a training that cannot be laid out")
        return None

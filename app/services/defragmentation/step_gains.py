"""What a step of a job on several machines takes less under one switch, as far as that is known: what the built-in
recipe passes between its machines, over the network as it was measured before this very training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from allpass.wire.template import Template
from app.core.exchange import bytes_between, saved_under_one_switch
from app.core.gang_offers import GangNode
from app.core.gang_sites import domain_of
from app.core.topology import Domain
from app.db.connection import Connection
from app.db.defragmentation.fleet import ways_of_gangs
from app.db.runs.layouts import jobs_to_lay_out
from app.errors import InvalidInput
from app.services.jobs.state_training import stated_training


async def step_gains(
    connection: Connection, rented: Sequence[GangNode], domains: Mapping[str, Domain]
) -> dict[str, float]:
    """By job, in milliseconds. How other code shares a step over machines nobody knows."""
    at = {one.node_id: domain_of(one.host, domains) for one in rented}
    under: dict[str, set[Domain]] = {}
    for one in rented:
        under.setdefault(one.job_id, set()).add(at[one.node_id])
    leads = {one.leads for one in rented if one.leads and len(under[one.job_id]) > 1}
    if not leads:
        return {}
    ways = [one for one in await ways_of_gangs(connection, leads) if {one.node_id, *one.bits_per_s} <= at.keys()]
    stated = await jobs_to_lay_out(connection, sorted({one.job_id for one in ways}))
    found = {}
    for gang in ways:
        job = stated.get(gang.job_id)
        if job is None or not job.by_recipe:
            continue
        between = _bytes(job.template, gang.layout, len(gang.bits_per_s) + 1)
        near = [speed for node, speed in gang.bits_per_s.items() if at[node] == at[gang.node_id]]
        far = [speed for node, speed in gang.bits_per_s.items() if at[node] != at[gang.node_id]]
        saved = None if between is None else saved_under_one_switch(between, near, far)
        if saved is not None:
            found[gang.job_id] = saved
    return found


def _bytes(template: Mapping[str, Any], layout: Mapping[str, Any], machines: int) -> int | None:
    """That each of so many machines takes in for a step, laid out like this; None where a row does not say it."""
    try:
        stated = stated_training(Template.model_validate(template))
        if stated is None:
            return None
        gpus, rounds = int(layout["gpus"]), int(layout["accumulation"])
        sharding = layout["sharding"]
        training = replace(stated.over(machines).training, gpus=gpus, accumulation=rounds, sharding=sharding)
        return bytes_between(stated.model, training, machines, "recipe")
    except (InvalidInput, ValidationError, KeyError, TypeError, ValueError):  # of another release
        return None

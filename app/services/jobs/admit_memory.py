"""What a submitted job's GPUs need to have, and a refusal where nobody offers that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from allpass.wire.template import GpuRequest, Template
from app.core.gpu_speeds import GpuSpeeds, stated_speeds
from app.core.layout import GpuSet, Learned, lay_out, lay_out_alone
from app.core.market import kind_fits
from app.core.memory.calibration import Calibrations, corrected
from app.core.memory.host import host_bytes
from app.core.memory.need import LeastNeed, Stated, changes_that_help, least_need, least_need_alone, smallest_known
from app.core.model.job import Resources
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.precision import has_bf16, in_fp16, on_gpu
from app.core.roofline import GPUS
from app.core.sharded_way import sharded_way
from app.core.throughput import StepTime, Throughput, plain_gpu
from app.db.engine import Database
from app.db.jobs.memory_retries import pool_of
from app.db.learning.calibrations import newest_calibrations, step_rows
from app.db.offers.listed import closed_pools, recent_offers
from app.errors import InvalidInput
from app.ports.clock import Clock
from app.services.jobs.check_gpu import check_gpu
from app.services.jobs.compose_job import NOTHING_STATED, Predicted
from app.services.jobs.plan_machines import whole
from app.services.jobs.state_training import in_template_words, stated_alone, stated_training
from app.settings import Settings

_KEEP_MS = 5_000
_KEEP_STEPS_MS = 60_000
_USUAL_GPU = "A100"
_UNSTATED_GB = Template.model_fields["memory_gb"].default
_MOST_KEPT = 1024
_MOST_HAD = 64  # projects, each with as many offers as there are
_GB = 1_000_000_000
_PARAM = "template.training"


class _Asked(NamedTuple):
    """What an answer depends on, beside the offers."""

    project_id: str
    stated: Stated
    gpu_type: str | None
    overruled: bool
    by_recipe: bool
    host_bytes: int
    machines: int = 1  # over which the GPUs of `stated` are


_ByType = tuple[tuple[str, int], ...]


class _Needed(NamedTuple):
    """A training's need: the model's own, and what runs made of it by type of GPU."""

    least: LeastNeed
    by_type: _ByType


class MemoryAdmission:
    """One per process: needs are remembered, answers for as long as the offers that they were judged by, which are read
    at most every few seconds."""

    def __init__(self, database: Database, settings: Settings, clock: Clock) -> None:
        self._database, self._settings, self._clock = database, settings, clock
        self._needs: dict[Stated, LeastNeed] = {}
        self._answers: dict[_Asked, Predicted] = {}
        self._offers: tuple[Offer, ...] = ()
        self._closed: dict[tuple[str, str], frozenset[str]] = {}  # pools that are not for all projects
        self._had: dict[str, tuple[Offer, ...]] = {}  # by project: those that it may have
        self._read_ms: int | None = None
        self._measured: dict[str, tuple[int, Throughput]] = {}
        self._learned: dict[str, Calibrations] = {}  # for as long as the answers
        self._computing = asyncio.Semaphore(1)  # it computes alone: more at once would only wait

    async def predict(
        self, project_id: str, template: Template, *, by_recipe: bool = False, merges: bool = False
    ) -> Predicted:
        """The memory that each GPU of the job needs, and the time of a step; nothing where the template states too
        little. Where it says itself how much memory (`gpu.memory_gb`), only the time is predicted.

        Raises InvalidInput where offers are known and neither they nor the project's nodes would do; it names the
        smallest GPU that would, and changes that would help. Where no offer is known, every job is let through: one
        may come. `by_recipe`: the built-in one, of which it is known that its model fills the GPU: a model of unknown
        size is refused, where nothing else says which GPU it takes; and what its machine has to have beside the GPU is
        predicted, where the template does not say that. `merges`: it puts its adapter into the base weights.
        """
        await self._check_gpu(project_id, template.gpu)
        stated = stated_training(template)
        if stated is None:
            return await self._predict_alone(project_id, template, by_recipe=by_recipe)
        stated = replace(stated, whole=by_recipe)
        offers = await self._known_offers(project_id)
        says_memory = template.memory_gb != _UNSTATED_GB or not by_recipe
        host = 0
        if not says_memory:
            host = host_bytes(stated.model, stated.training, merges=merges, processes=stated.gpus)
        stated = stated.over(template.nodes)  # a script may spread it over all of them
        overruled = template.gpu.memory_gb is not None
        asked = _Asked(project_id, stated, template.gpu.type, overruled, by_recipe, host, template.nodes)
        known = self._answers.get(asked)
        if known is None:
            known = await self._answer(asked, offers)
            if len(self._answers) >= _MOST_KEPT:
                self._answers.clear()
            self._answers[asked] = known
        if template.nodes > 1:  # between machines there is a network, of whose speed nothing is known
            return known._replace(step_ms=None, speeds=None)
        return known

    async def _check_gpu(self, project_id: str, gpu: GpuRequest) -> None:
        if gpu.type is None and gpu.count == 1:
            return  # the usual case, of which there are many a second
        try:
            check_gpu(gpu, await self._known_offers(project_id))
        except InvalidInput:
            if not await self._is_rented(project_id, Resources(gpu.count, gpu_type=gpu.type)):
                raise

    async def _predict_alone(self, project_id: str, template: Template, *, by_recipe: bool) -> Predicted:
        """For a model that the tables do not know, by the symbolic runs that the template tells, if any."""
        stated = stated_alone(template)
        need = None if stated is None else least_need_alone(stated)
        if stated is None or need is None:
            if by_recipe:
                _refuse_unknown(template)
            return NOTHING_STATED
        overruled = template.gpu.memory_gb is not None
        least_bytes = 0 if overruled else need.capacity_bytes
        wanted = Resources(1, gpu_type=template.gpu.type, gpu_memory_bytes_min=least_bytes)
        offers = await self._known_offers(project_id)
        fits = any(_holds(wanted, offer) for offer in offers)
        if offers and not fits and not overruled and not await self._is_rented(project_id, wanted):
            raise InvalidInput(
                f"{_PARAM}: {stated.name} needs {need.capacity_bytes / _GB:.1f} GB by its symbolic runs, and no "
                f"{template.gpu.type or 'GPU'} on offer has that; gpu.memory_gb overrules it",
                param=_PARAM,
            )
        return Predicted(least_bytes, None, _plan(stated.name, _Needed(need, ())))

    async def _answer(self, asked: _Asked, offers: Sequence[Offer]) -> Predicted:
        need = await self._need(asked.stated)
        by_runs = () if asked.overruled else await self._by_runs(asked, need)
        by_type = () if asked.overruled else await self._by_type(asked, need, by_runs, offers)
        least_bytes = 0 if asked.overruled else need.capacity_bytes
        wanted = Resources(
            asked.stated.gpus // asked.machines,
            gpu_type=asked.gpu_type,
            gpu_memory_bytes_min=least_bytes,
            gpu_memory_bytes_by_type=by_type,
            memory_bytes_min=asked.host_bytes,
        )
        fitting = [offer for offer in offers if _holds(wanted, offer)]
        roomy = [offer for offer in fitting if offer.memory_bytes >= asked.host_bytes]
        if fitting and not roomy and not await self._is_rented(asked.project_id, wanted):
            raise _too_little(asked, fitting)
        if offers and not fitting and not asked.overruled and not await self._is_rented(asked.project_id, wanted):
            async with self._computing:
                raise await asyncio.to_thread(_refusal, asked, _Needed(need, by_runs), wanted, offers)
        table = await self._throughput(asked.project_id)
        place = _likely_place(wanted, roomy, need)
        async with self._computing:
            step, speeds = await asyncio.to_thread(_step, asked, place, table)
        plan = _plan(asked.stated.name, _Needed(need, by_runs))
        return Predicted(least_bytes, None if step is None else step.ms, plan, by_type, asked.host_bytes, speeds)

    async def _by_type(self, asked: _Asked, need: LeastNeed, by_runs: _ByType, offers: Sequence[Offer]) -> _ByType:
        """What is needed there instead: by runs, and by what is computed in where that is the GPU's to decide."""
        if need.decided is not None or not asked.stated.training.precision_by_gpu:
            return by_runs
        older = await self._need(_in_fp16(asked.stated))
        if older.capacity_bytes == need.capacity_bytes:
            return by_runs
        named = [gpu_type for gpu_type in (*GPUS, *(offer.gpu_type for offer in offers)) if not has_bf16(gpu_type)]
        found = {plain_gpu(gpu_type): older.capacity_bytes for gpu_type in named}
        return tuple(sorted((found | dict(by_runs)).items()))

    async def _by_runs(self, asked: _Asked, need: LeastNeed) -> _ByType:
        """What the project's own runs of this kind made of the need, where they changed it. They were compared with the
        tables: what a symbolic run decided is not corrected by them."""
        if need.decided is not None:
            return ()
        if asked.project_id not in self._learned:
            async with self._database.transaction() as connection:
                rows = await newest_calibrations(connection, asked.project_id)
            self._learned[asked.project_id] = Calibrations(rows)
        known = self._learned[asked.project_id].corrections(asked.stated.model, need.training)
        older = await self._need(_in_fp16(asked.stated)) if asked.stated.training.precision_by_gpu and known else need
        needed = (
            (gpu_type, corrected((need if has_bf16(gpu_type) else older).estimated, each).needed)
            for gpu_type, each in sorted(known.items())
        )
        return tuple(each for each in needed if each[1] != need.capacity_bytes)

    def forget(self, project_id: str) -> None:
        """The project's calibrations were changed by hand: the next submission goes by what they are now."""
        self._learned.pop(project_id, None)
        self._answers = {asked: told for asked, told in self._answers.items() if asked.project_id != project_id}

    async def _is_rented(self, project_id: str, wanted: Resources) -> bool:
        """Whether the project has a node already that would do."""
        async with self._database.transaction() as connection:
            pool = await pool_of(connection, project_id)
        return any(
            count >= wanted.gpus_min
            and kind_fits(wanted, gpu_type, memory_bytes)
            and main_memory_bytes >= wanted.memory_bytes_min
            for gpu_type, count, memory_bytes, main_memory_bytes in pool
        )

    async def _need(self, stated: Stated) -> LeastNeed:
        known = self._needs.get(stated)
        if known is None:
            async with self._computing:
                try:
                    known = await asyncio.to_thread(least_need, stated)
                except InvalidInput as error:
                    raise in_template_words(error) from None
            if len(self._needs) >= _MOST_KEPT:
                self._needs.clear()
            self._needs[stated] = known
        return known

    async def _throughput(self, project_id: str) -> Throughput:
        now_ms = self._clock.now_ms()
        read_ms, table = self._measured.get(project_id, (None, None))
        if read_ms is None or table is None or not 0 <= now_ms - read_ms < _KEEP_STEPS_MS:
            async with self._database.transaction() as connection:
                table = Throughput.of(await step_rows(connection, project_id))
            if len(self._measured) >= _MOST_KEPT:
                self._measured.clear()
            self._measured[project_id] = now_ms, table
        return table

    async def _known_offers(self, project_id: str) -> tuple[Offer, ...]:
        """Those that the project may have: it neither waits for what is others' alone, nor hears of it."""
        now_ms = self._clock.now_ms()
        if self._read_ms is None or not 0 <= now_ms - self._read_ms < _KEEP_MS:
            async with self._database.transaction() as connection:
                max_age_ms = self._settings.offers_gone_after_ms
                self._offers = await recent_offers(connection, now_ms=now_ms, max_age_ms=max_age_ms)
                self._closed = await closed_pools(connection)
            self._had.clear()
            self._read_ms = now_ms
            self._answers.clear()
            self._learned.clear()
        if len(self._had) >= _MOST_HAD and project_id not in self._had:
            self._had.clear()
        if project_id not in self._had:
            self._had[project_id] = tuple(one for one in self._offers if self._may_have(project_id, one))
        return self._had[project_id]

    def _may_have(self, project_id: str, offer: Offer) -> bool:
        pool = self._closed.get((offer.provider, offer.region)) if offer.tier is Tier.OWN else None
        return project_id in (offer.projects or (project_id,)) and (pool is None or project_id in pool)


def _in_fp16(stated: Stated) -> Stated:
    return replace(stated, training=in_fp16(stated.training))


def _refuse_unknown(template: Template) -> None:
    """Else it would be put on the smallest GPU there is."""
    if template.model is None or template.gpu.memory_gb is not None or template.gpu.type is not None:
        return
    name = template.model.name
    raise InvalidInput(
        f"template.model.name: nobody can say how large {name!r} is, and so which GPU it needs: it is not in the "
        "table, and its config.json was not to be had, or is of a kind that is not known. Say which GPU it takes "
        "(gpu.type, finetune --gpu A100), or how much memory (gpu.memory_gb)",
        param="template.model.name",
    )


def _likely_place(asked: Resources, fitting: Sequence[Offer], need: LeastNeed) -> GpuSet:
    """The cheapest that fits, else the type that the job asks for, or one that everybody knows, just large enough."""
    cheapest = min(fitting, key=lambda offer: (offer.price_per_hour, offer.key), default=None)
    if cheapest is None:
        return GpuSet(asked.gpu_type or _USUAL_GPU, need.capacity_bytes, asked.gpus_min)
    return GpuSet(cheapest.gpu_type, cheapest.gpu_memory_bytes, asked.gpus_min)


def _step(asked: _Asked, place: GpuSet, table: Throughput) -> tuple[StepTime | None, GpuSpeeds | None]:
    """As the run will be laid out there; and how long the same takes on other types of GPU, where any will do."""
    lay = lay_out_alone if asked.by_recipe else lay_out
    found = lay(asked.stated, place, Learned(throughput=table))
    step = found.step or table.step(asked.stated.model, found.training, place.gpu_type, name=asked.stated.name)
    if step is None or asked.gpu_type is not None:
        return step, None
    stated, times = asked.stated.training, {place.gpu_type: step.ms}
    laid_out = replace(found.training, precision=stated.precision, precision_by_gpu=stated.precision_by_gpu)
    for gpu_type in GPUS:
        there = table.step(asked.stated.model, on_gpu(laid_out, gpu_type), gpu_type, name=asked.stated.name)
        if there is not None and gpu_type != plain_gpu(place.gpu_type):
            times[gpu_type] = there.ms
    return step, stated_speeds(place.gpu_type, times, linked=found.training.gpus > 1)


def _holds(asked: Resources, offer: Offer) -> bool:
    return offer.gpu_count >= asked.gpus_min and kind_fits(asked, offer.gpu_type, offer.gpu_memory_bytes)


def _refusal(told: _Asked, needed: _Needed, asked: Resources, offers: Sequence[Offer]) -> InvalidInput:
    need, stated = needed.least, told.stated
    usable = [offer for offer in offers if offer.gpu_count >= asked.gpus_min]
    of_type, of_size = Resources(gpu_type=asked.gpu_type), replace(asked, gpu_type=None)
    of_kind = [offer for offer in offers if kind_fits(of_type, offer.gpu_type, offer.gpu_memory_bytes)]
    same = [offer for offer in of_kind if offer.gpu_count >= asked.gpus_min]
    of = "" if told.machines == 1 else f" of {told.machines} machines"
    size = f"{need.capacity_bytes / _GB:.1f} GB on each of its GPUs ({stated.gpus}{of})"
    parts = [f"{_what(stated)} needs {size}{_by_runs(needed)}"]
    if same:
        largest = max(same, key=lambda offer: (offer.gpu_memory_bytes, offer.gpu_type))
        which = f"{asked.gpu_type} " if asked.gpu_type is not None else ""
        parts.append(f"the largest {which}offered is {_size(largest)}")
        helping = changes_that_help(stated, need, largest.gpu_memory_bytes)
        if helping:
            parts.append(f"there it fits with {', or with '.join(helping)}")
    else:
        parts.append(f"no offer has {asked.gpus_min} x {asked.gpu_type or 'GPU'}")
    enough = [offer for offer in usable if kind_fits(of_size, offer.gpu_type, offer.gpu_memory_bytes)]
    if enough:
        smallest = min(enough, key=lambda offer: (offer.gpu_memory_bytes, offer.gpu_count, offer.gpu_type))
        parts.append(f"the smallest GPU that would do is {_size(smallest)}")
    else:
        known = smallest_known(need.capacity_bytes)
        parts.append(f"the smallest GPU that would do is {known}" if known else "no single GPU is that large")
    if told.by_recipe and (way := sharded_way(stated, of_kind, told.machines)) is not None:
        parts.append(way)
    if told.machines > 1 and told.by_recipe:
        parts.append(whole(stated.training))
    parts.append("gpu.memory_gb overrules the prediction")
    return InvalidInput(f"{_PARAM}: " + "; ".join(parts), param=_PARAM)


def _too_little(asked: _Asked, fitting: Sequence[Offer]) -> InvalidInput:
    largest = max(offer.memory_bytes for offer in fitting) / _GB
    return InvalidInput(
        f"template.memory_gb: {_what(asked.stated)} needs {asked.host_bytes / _GB:.1f} GB of a machine's memory beside "
        f"the GPU, to load, save and export, and of the offers whose GPU would do the largest has {largest:.1f} GB; "
        "memory_gb overrules the prediction",
        param="template.memory_gb",
    )


def _by_runs(needed: _Needed) -> str:
    told = (f"{bytes_ / _GB:.1f} GB on {gpu_type}" for gpu_type, bytes_ in needed.by_type)
    return f" (by this project's runs {', '.join(told)})" if needed.by_type else ""


def _plan(name: str, needed: _Needed) -> str:
    need, layout = needed.least, needed.least.training
    parts = [f"{layout.batch} x {layout.accumulation} sequences on a GPU"]
    if layout.sharding != "none":
        parts.append(layout.sharding)
    if layout.checkpointing:
        parts.append("activations recomputed")
    if need.decided is not None:
        told = "the symbolic run says less than the tables expect at least, which is taken"
        parts.append(told if need.decided.raised else "by a symbolic run")
    size = f"{need.capacity_bytes / _GB:.1f} GB on each of its GPUs"
    return f"{name} by {layout.method} needs at least {size} ({', '.join(parts)}){_by_runs(needed)}"


def _what(stated: Stated) -> str:
    training = stated.training
    return f"{stated.name} ({training.method}, {training.sequence} tokens, {training.precision})"


def _size(offer: Offer) -> str:
    return f"{offer.gpu_type} with {offer.gpu_memory_bytes / _GB:.1f} GB"

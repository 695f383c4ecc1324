"""On which GPUs that can be rented now a job fits, how it would be laid out there, and what that takes and costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any, cast

from allpass.wire.plan import STEPS_TOLD, ExactMemory, PlanRequest
from app.core.machine_options import Sites
from app.core.memory import Architecture, Training, architecture_of, model_named
from app.core.memory.architecture import config_key, config_of, is_known
from app.core.memory.calibration import Calibrations
from app.core.memory.catalogue import known_name
from app.core.memory.exact import Exact, ExactPeak, layouts_alone
from app.core.memory.host import MERGING, host_bytes
from app.core.memory.need import least_need
from app.core.memory.parameters import parameters_of
from app.core.memory.plans import Device, least_memory, remedies
from app.core.memory.semantics import DEFAULT
from app.core.memory.training import Method
from app.core.model.job import MostUnderOne
from app.core.model.offer import Offer
from app.core.options import AskedJob, Option, OwnLayout, options_alone, options_for, stated_alone
from app.core.policies.reasons import duration
from app.core.sharded_way import sharded_way
from app.core.throughput import Throughput
from app.errors import InvalidInput
from app.services.jobs.compose_job import deadline_ms
from app.services.jobs.plan_machines import MachinesPlan, MachinesQuestion, check_machines, narrowed, plan_machines

PROFILE = DEFAULT.name
_CHANGEABLE = ("method", "precision", "optimizer", "sequence")  # the rest follows from them, or is the plan's to choose
_NAMES = {"batch": "micro_batch"}
_GB = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Mend:
    """Changes that make the job fit, and the cheapest option on which they do."""

    changes: tuple[str, ...]
    message: str
    option: Option


@dataclass(frozen=True, slots=True)
class JobPlan:
    """`options` are in the order of `options_for`; `chosen` is the index of what would be rented, `reason` why that,
    or why nothing; `mends` where none fits."""

    model: str
    parameters: int
    steps: int
    one_gpu_bytes: int
    chosen: int | None
    reason: str
    options: tuple[Option, ...]
    mends: tuple[Mend, ...]
    config: Mapping[str, Any]
    host_bytes: int | None = None
    machines: MachinesPlan | None = None


def plan_job(
    asked: PlanRequest,
    offers: Iterable[Offer],
    throughput: Throughput | None = None,
    calibrations: Calibrations | None = None,
    *,
    sites: Sites | None = None,
    now_ms: int,
) -> JobPlan:
    """Predicts every type and count of GPUs that is offered; over several machines, where they are asked for, or where
    one is not enough and `sites` says which reach each other (ADR 0112). `machines` of the plan says it then, and with
    `nodes` there are no `options`. Raises InvalidInput that names a field of the request.

    The first question about a model takes up to a second of computing, the next ones milliseconds: call it in a thread.
    """
    check_machines(asked)
    offers = narrowed(asked, offers)
    exact = None if asked.exact is None else exact_of(asked.exact)
    if exact is not None and asked.config is not None and not is_known(asked.config):
        return _plan_alone(asked, asked.config, exact, offers)
    name, model, training = asked_training(asked)
    left_ms = None if asked.soft_deadline is None else deadline_ms(asked.soft_deadline, now_ms) - now_ms
    steps = asked.steps or STEPS_TOLD
    own = (
        None
        if asked.layout is None
        else OwnLayout(asked.layout.gpus, asked.layout.micro_batch, asked.layout.checkpointing)
    )
    nodes = asked.nodes or 1
    training = training.over(nodes)
    wish = AskedJob(name, model, training, asked.batch, steps, asked.steps is not None, left_ms, exact, own)
    whole = None if own is None else stated_alone(wish, replace(own, gpus=own.gpus * nodes))
    if whole is None:
        alone = least_memory(model, training, 1, global_batch=asked.batch)[1].needed
    else:
        alone = least_need(whole).capacity_bytes
    host = None if own is None else host_bytes(model, training, merges=asked.export in MERGING, processes=own.gpus)
    gpus = 1 if own is None else own.gpus
    taught = throughput or Throughput(), calibrations or Calibrations()
    known = tuple(offer for offer in offers if offer.gpu_count >= gpus)
    roomy = known if host is None else tuple(each for each in known if each.memory_bytes >= host)
    kinds = roomy if asked.gpu_count is None else tuple(one for one in roomy if one.gpu_count == asked.gpu_count)
    options = options_for(wish, kinds, *taught) if nodes == 1 else ()
    fits = bool(options) and options[0].verdict == "fits"
    machines = None
    if sites is not None:
        there = roomy or tuple(each for each in offers if each.memory_bytes >= (host or 0))
        most = MostUnderOne(asked.most_per_rack, asked.most_per_switch)
        question = MachinesQuestion(wish, there, sites, *taught, asked.gpu_type, asked.gpu_count, most)
        machines = plan_machines(asked, question, options)
    reason = _why(wish, options) if fits else _why_none(options, alone, gpus) + _left_out(len(known) - len(roomy), host)
    if not fits and nodes == 1 and whole is not None and (way := sharded_way(whole, offers)) is not None:
        reason += f"; {way}"
    if nodes > 1:
        reason = "machines are not looked for here" if machines is None else machines.reason
    return JobPlan(
        model=name,
        parameters=parameters_of(model).total,
        steps=steps,
        one_gpu_bytes=alone,
        chosen=0 if fits else None,
        reason=reason,
        options=options,
        mends=() if fits or nodes > 1 else _mends(model, options, (*_CHANGEABLE, *_chosen(own))),
        config=config_of(model) if asked.config is None else asked.config,
        host_bytes=host,
        machines=machines,
    )


def _chosen(own: OwnLayout | None) -> tuple[str, ...]:
    """What a script has chosen of its layout, and might choose otherwise."""
    if own is None:
        return ()
    told = {"batch": own.micro_batch, "checkpointing": own.checkpointing}
    return tuple(name for name, value in told.items() if value is not None)


def _plan_alone(asked: PlanRequest, config: Mapping[str, Any], exact: Exact, offers: Iterable[Offer]) -> JobPlan:
    """Of a model that the tables do not know: by its symbolic runs alone."""
    training = plain_training(asked)
    found = sorted(decided.estimated.needed for _, decided in layouts_alone(exact, training, asked.batch))
    if not found:
        raise InvalidInput(
            f"exact.peaks has no run that a step of {asked.batch} sequences could be made of: micro_batch has to "
            "divide batch, and accumulates has to be true where it is less",
            param="exact.peaks",
        )
    options = options_alone(exact, training, asked.batch, offers)
    fits = bool(options) and options[0].verdict == "fits"
    why = "the cheapest per hour where it fits; the tables do not know this model, nor how long a step takes"
    return JobPlan(
        model=_name_in(config, str(config.get("model_type"))),
        parameters=exact.parameters,
        steps=asked.steps or STEPS_TOLD,
        one_gpu_bytes=found[0],
        chosen=0 if fits else None,
        reason=why if fits else _why_none(options, found[0]),
        options=options,
        mends=(),
        config=config,
    )


def exact_of(told: ExactMemory) -> Exact:
    """Symbolic runs in the words of the core."""
    peaks = (
        ExactPeak(
            peak.micro_batch,
            peak.checkpointing,
            peak.accumulates,
            peak.forward_bytes,
            peak.backward_bytes,
            peak.optimizer_bytes,
        )
        for peak in told.peaks
    )
    return Exact(told.parameters, tuple(peaks))


def asked_training(asked: PlanRequest) -> tuple[str, Architecture, Training]:
    """The model with its name, and the training without a layout. Raises InvalidInput that names a field."""
    name, model = _model(asked)
    training = plain_training(asked)
    training.names_of(model)
    return name, model, training


def _model(asked: PlanRequest) -> tuple[str, Architecture]:
    if asked.model is not None and asked.config is not None:
        raise InvalidInput("model and config are both given: leave one out", param="config")
    if asked.model is not None:
        return known_name(asked.model) or asked.model, model_named(asked.model)
    if asked.config is None:
        raise InvalidInput("model is missing: name one of the table, or give the config of your own", param="model")
    try:
        model = architecture_of(asked.config)
    except InvalidInput as error:
        if not is_known(asked.config):
            raise InvalidInput(
                f"config: {error.message}; others are run symbolically: allpass plan --exact", param="config.model_type"
            ) from None
        name = error.param or ""
        key = config_key(name)
        told = error.message.replace(f"{name} is", f"{key} is", 1)
        raise InvalidInput(f"config: {told}", param=f"config.{key}") from None
    return _name_in(asked.config, model.family), model


def _name_in(config: Mapping[str, Any], otherwise: str) -> str:
    return str(config.get("_name_or_path") or otherwise)[:200]


def plain_training(asked: PlanRequest) -> Training:
    """The training without a layout. Raises InvalidInput that names a field."""
    adapts = asked.method in {"lora", "qlora"}
    for name in ("rank", "targets", "adapter_dropout", "narrow_adapters", "reference_pass"):
        if not adapts and getattr(asked, name) is not None:
            raise InvalidInput(
                f"{name} is {getattr(asked, name)!r}, and method {asked.method!r} has no adapters: leave it out, or "
                "take lora or qlora",
                param=name,
            )
    quantised = asked.method == "qlora"
    return Training(
        method=cast(Method, asked.method.replace("-", "_")),
        batch=1,
        sequence=asked.sequence,
        precision=asked.precision,
        autocast=_autocast(asked),
        optimizer=asked.optimizer,
        checkpointing=asked.checkpointing,
        attention=asked.attention,
        loss=asked.loss,
        rank=asked.rank or 16,
        targets=frozenset(asked.targets or ("all",)),
        adapter_dropout=asked.adapter_dropout or 0.0,
        narrow_adapters=asked.narrow_adapters or False,
        reference_pass=asked.reference_pass or False,
        quantisation=asked.quantisation or ("nf4_dq" if quantised else "none"),
        saves=frozenset(asked.saves),
        row_tokens=asked.row_tokens or 0,
        precision_by_gpu=asked.precision_by_gpu or False,
        sharded=asked.sharded or False,
    )


def _autocast(asked: PlanRequest) -> bool:
    if asked.autocast is not None:
        return asked.autocast
    return asked.method == "qlora" and asked.precision in {"bf16", "fp16"}


def _why(wish: AskedJob, options: Iterable[Option]) -> str:
    fitting = [option for option in options if option.verdict == "fits"]
    best = fitting[0].best
    quotes = [quote for option in fitting for quote in option.quotes]
    if best.duration_ms is None:
        return f"the cheapest per hour of {_offers(len(quotes))} where it fits; the time of a step is not known there"
    if wish.time_left_ms is not None and best.in_time is False:
        late = duration(best.duration_ms - wish.time_left_ms)
        return f"no offer where it fits ends by the deadline: this one ends soonest, {late} late"
    in_time = [quote for quote in quotes if quote.in_time is not False]
    which = " and that end by the deadline" if best.in_time else ""
    return f"the least for {wish.steps} steps of {_offers(len(in_time))} where it fits{which}"


def _offers(count: int) -> str:
    return "1 offer" if count == 1 else f"{count} offers"


def _why_none(options: Iterable[Option], alone: int, gpus: int = 1) -> str:
    which = "one GPU alone is" if gpus == 1 else f"{gpus} GPUs are"
    enough = f"{which} enough from {alone / _GB:.1f} GB on{'' if gpus == 1 else ' each'}"
    if not any(True for _ in options):
        what = "a GPU" if gpus == 1 else f"a machine with {gpus} GPUs"
        return f"no provider offers {what} now; {enough}"
    return f"nothing that is offered now is sure to fit; {enough}"


def _left_out(offers: int, host: int | None) -> str:
    if not offers or host is None:
        return ""
    have = "1 offer has" if offers == 1 else f"{offers} offers have"
    return f"; {have} less than the {host / _GB:.1f} GB of memory that it needs beside the GPU"


def _mends(model: Architecture, options: Iterable[Option], changeable: Iterable[str]) -> tuple[Mend, ...]:
    """Every set of changes that helps anywhere, with the cheapest option where it does."""
    found: dict[tuple[str, ...], Mend] = {}
    for option in sorted(options, key=lambda each: (each.best.offer.price_per_hour, each.gpu_count, each.gpu_type)):
        device = Device(option.gpu_type, option.gpu_memory_bytes, option.gpu_count, option.calibration)
        for remedy in remedies(model, option.training, device):
            changed = {
                name: str(getattr(remedy.training, name))
                for name in changeable
                if getattr(remedy.training, name) != getattr(option.training, name)
            }
            changes = tuple(f"{_NAMES.get(name, name)}={value}" for name, value in changed.items())
            found.setdefault(changes, Mend(changes, "; ".join(starmap(_word, changed.items())), option))
    return tuple(sorted(found.values(), key=lambda mend: len(mend.changes)))


def _word(name: str, value: str) -> str:
    if name == "method":
        what = "adapters alone" if value == "lora" else "adapters beside weights quantised to 4 bits"
        return f"train {what} (method {value})"
    if name == "batch":
        return "take one sequence at a time (micro_batch 1)"
    if name == "checkpointing":
        return "recompute activations (checkpointing)"
    if name == "sequence":
        return f"cut sequences to {value} tokens"
    return f"take {name} {value}"

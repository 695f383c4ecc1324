"""The command that tells what a job would need, before anything is rented."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpass.cli import screen, template_options, words
from allpass.cli.dated_prices import tell_dates
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.planned_machines import print_machines
from allpass.cli.screen import Cell, Column
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.wire.plan import Plan, PlanLayout, PlanOffer, PlanOption, PlanRequest, Tier

    _Seller = tuple[str, Tier]

_TIERS: dict[Tier, str] = {
    "serverless": "SERVERLESS",
    "own": "OWN",
    "marketplace": "MARKET",
    "conventional": "CONVENT.",
}
_COLOURS = {"fits": "green", "tight": "yellow", "no": "red"}
_BAR = 6
_GB = 1_000_000_000
_OPTIONS = {
    "sequence": "seq",
    "soft_deadline": "deadline",
    "network_gbits": "network",
    "gpu_type": "gpu",
    "gpu_count": "gpu",
    "most_per_switch": "most-per-switch",
    "most_per_rack": "most-per-rack",
}
_LARGEST_CONFIG = 1_000_000
_EXAMPLE = "allpass plan --model llama-3-8b --method qlora --batch 16 --seq 2048"
_LEGEND = (
    "memory: process on one GPU of what it has, in GB; plan: micro-batch x accumulation, tp = matrices split over GPUs,"
    "\nckpt = activations recomputed; ~ = estimated from the GPU's rates, within 2 x; last: dollars until it is done"
)


def plan(  # each option is one field of the request
    model: Annotated[str | None, typer.Option(help="A model of the table, e.g. llama-3-8b.")] = None,
    config: Annotated[Path | None, typer.Option(help="The config.json of a model of your own.")] = None,
    method: Annotated[str, typer.Option(help="full, lora, qlora or norm-tuning.")] = "lora",
    batch: Annotated[int, typer.Option(help="Sequences in a step of the optimizer, over all GPUs.")] = 16,
    seq: Annotated[int, typer.Option("--seq", "--sequence", help="Tokens in each sequence.")] = 2048,
    precision: Annotated[
        str, typer.Option(help="bf16, fp16, fp32, amp_bf16, amp_fp16, or auto: bf16, and fp16 on a T4 or V100.")
    ] = "bf16",
    autocast: Annotated[bool | None, typer.Option(help="For half-precision weights; default: qlora alone.")] = None,
    optimizer: Annotated[str, typer.Option(help="adamw, paged_adamw_8bit, adafactor, sgd, ...")] = "adamw",
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Recompute activations in any case.")] = False,
    attention: Annotated[str, typer.Option(help="flash, efficient or eager.")] = "flash",
    loss: Annotated[str, typer.Option(help="full, chunked, fused or recomputed.")] = "full",
    rank: Annotated[int | None, typer.Option(help="Of the adapters; default: 16.")] = None,
    targets: Annotated[str | None, typer.Option(help="q_proj,v_proj, or attention, or all (the default).")] = None,
    quantisation: Annotated[str | None, typer.Option(help="nf4, nf4_dq, nf4_ao or gptq_int4.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps in all; default: time and cost are for 1000.")] = None,
    deadline: Annotated[str | None, typer.Option("--deadline", "-d", help="6h, 90m, or an instant.")] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, max=64, help="On so many machines at once, as of allpass run.")
    ] = None,
    most_per_switch: template_options.MostPerSwitch = None,
    most_per_rack: template_options.MostPerRack = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="TYPE[:N]", help="Only on this type, and N of each machine.")
    ] = None,
    spot: Annotated[
        bool,
        typer.Option("--spot", help="As a spot job: at its prices, with bids and what is lent or kept for others."),
    ] = False,
    network: Annotated[
        float | None, typer.Option("--network", help="Gbit/s between machines; default: as measured, else 10.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Run the layouts that matter symbolically, here: needs torch, no GPU.")
    ] = False,
    python: Annotated[
        str | None, typer.Option(help="The Python of your script, whose libraries count for --exact; default: ours.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The object of POST /v1/jobs/plan.")] = False,
) -> None:
    """Example: allpass plan --model llama-3-8b --method qlora --batch 16 --seq 2048

    Predict on which GPUs that can be rented now a job fits, how long it takes there and what that costs. Nothing is
    rented. Where nothing fits on one machine, those on several are shown on which it does.
    """
    if exact and (nodes or 1) > 1:
        raise _wrong("--exact: layouts over several machines do not run symbolically; leave out --nodes")
    fields: dict[str, Any] = {
        "model": model,
        "config": None if config is None else _config(config),
        "method": method,
        "batch": batch,
        "sequence": seq,
        "precision": "bf16" if precision == "auto" else precision,
        "precision_by_gpu": True if precision == "auto" else None,
        "autocast": autocast,
        "optimizer": optimizer,
        "checkpointing": checkpointing,
        "attention": attention,
        "loss": loss,
        "rank": rank,
        "targets": None if targets is None else [one.strip() for one in targets.split(",")],
        "quantisation": quantisation,
        "steps": steps,
        "soft_deadline": deadline,
        "nodes": nodes,
        "most_per_switch": most_per_switch,
        "most_per_rack": most_per_rack,
        "spot": spot or None,
        "network_gbits": network,
        **({} if gpu is None else _gpu(gpu)),
    }
    given = {name: value for name, value in fields.items() if value is not None}
    ask(given, as_json=as_json, exact=exact, python=python)


def ask(fields: dict[str, Any], *, as_json: bool, exact: bool = False, python: str | None = None) -> None:
    """Ask the server for a plan, and print it. `exact`: after symbolic runs with the libraries of `python`."""
    request = _request(fields)
    with connect() as client:
        if exact:
            from allpass.cli.exact import ExactRuns

            found = ExactRuns(request, python).plan(client.plan)
        else:
            found = client.plan(request)
    if as_json:
        screen.print_json(found)
        return
    if (found.nodes or 1) == 1:
        _print_plan(found)
    print_machines(found)
    offers = [offer for option in found.options for offer in option.offers]
    dated = [(one.provider, one.price_as_of, one.price_is_old) for one in offers]
    tell_dates([*dated, *((one.provider, one.price_as_of, one.price_is_old) for one in found.machines)])


def _gpu(text: str) -> dict[str, Any]:
    """H100: any number of them; H100:8, or 8 for any eight."""
    fields = template_options.gpu_fields(text)
    if fields["max_count"] is not None:
        raise _wrong(f"--gpu: {text!r} is a range; a plan tells of each number, or of one: --gpu H100:8")
    named = {} if "type" not in fields else {"gpu_type": fields["type"]}
    return named if fields.get("type") == text.strip() else {**named, "gpu_count": fields["count"]}


def _config(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_CONFIG)
        value = json.loads(content)
    except OSError as error:
        raise _wrong(f"--config: {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise _wrong(f"--config: {path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise _wrong(f"--config: {path} holds no object; it should be a model's config.json")
    return value


def _request(fields: dict[str, Any]) -> PlanRequest:
    from pydantic import ValidationError

    from allpass.wire.plan import PlanRequest

    if ("model" in fields) == ("config" in fields):
        both = "go together" if "model" in fields else "are both missing"
        raise _wrong(f"--model and --config {both}: give one of them")
    try:
        return PlanRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        option = f"--{_OPTIONS.get(name, name)}"
        raise _wrong(f"{option}: {first['input']!r}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None


def _wrong(message: str) -> CommandFailed:
    return CommandFailed(message, hint=_EXAMPLE, code=WRONG_USAGE)


def _print_plan(found: Plan) -> None:
    sellers = _sellers(found)
    columns = [Column("GPU", flexible=True, least=8), Column("MEMORY"), Column("FIT")]
    columns += [Column("PLAN", flexible=True, rank=2, fold=True), Column("STEP", right=True, rank=3)]
    columns.append(Column("TIME", right=True, rank=1))
    columns += [Column(heading, right=True) for heading in sellers.values()]
    rows = [_row(option, sellers) for option in found.options]
    if rows:
        screen.print_table(columns, rows, empty="")
        for part in _LEGEND.split("\n"):
            for line in screen.prose(part, rest=""):
                screen.say(line)
    for fact in _facts(found):
        for line in screen.prose(screen.printable(fact), first="  ", rest="    "):
            typer.echo(line)


def _sellers(found: Plan) -> dict[_Seller, str]:
    """Who offers anything, with the heading of its column: the tier, the provider, or both where one is not enough."""
    told = {(offer.provider, offer.tier) for option in found.options for offer in option.offers}
    ordered = sorted(told, key=lambda seller: (list(_TIERS).index(seller[1]), seller[0]))
    providers = [provider for provider, _ in ordered]
    headings: dict[_Seller, str] = {}
    for seller in ordered:
        provider, tier = seller
        if len(set(providers)) == 1:
            headings[seller] = _TIERS[tier]
        elif providers.count(provider) == 1:
            headings[seller] = screen.printable(provider).upper()
        else:
            headings[seller] = f"{screen.printable(provider).upper()} {_TIERS[tier]}"
    return headings


def _row(option: PlanOption, sellers: Mapping[_Seller, str]) -> list[Cell | str]:
    offers = {(offer.provider, offer.tier): offer for offer in option.offers}
    colour = _COLOURS[option.verdict]
    best = option.offers[0]
    return [
        words.gpus(option.gpu_type, option.gpu_count),
        Cell(_memory(option), colour),
        Cell(option.verdict, colour),
        _layout(option.layout, option.gpu_count),
        _step(option),
        "-" if best.duration_ms is None else words.duration(best.duration_ms / 1000),
        *(_cost(offers.get(seller)) for seller in sellers),
    ]


def _cost(offer: PlanOffer | None) -> Cell | str:
    """What the job costs there; the price per hour where its time is not known. Yellow: it would be late."""
    if offer is None:
        return "-"
    told = words.price(offer.price_per_hour) if offer.cost is None else words.money(offer.cost)
    return Cell(told, "yellow" if offer.in_time is False else None)


def _step(option: PlanOption) -> str:
    if option.step_ms is None:
        return "-"
    seconds = option.step_ms / 1000
    told = f"{seconds:.0f}s" if seconds >= 100 else f"{seconds:.2g}s" if seconds < 10 else f"{seconds:.1f}s"
    return told if option.step_source == "measured" else f"~{told}"


def _memory(option: PlanOption) -> str:
    """A bar of what is there, and the figures."""
    needed, there = option.process.expected, option.gpu_memory_bytes
    full = min(_BAR, -(-_BAR * needed // there))
    return f"{'█' * full}{'░' * (_BAR - full)} {_gb(needed)}/{_gb(there)}"


def _gb(size_bytes: int) -> str:
    value = size_bytes / _GB
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def _layout(layout: PlanLayout, gpu_count: int) -> str:
    parts = [f"{layout.micro_batch}x{layout.accumulation}"]
    if layout.gpus < gpu_count:
        parts.append(f"on {layout.gpus}")
    if layout.tensor_parallel > 1:
        parts.append(f"tp{layout.tensor_parallel}")
    if layout.sharding != "none":
        parts.append(layout.sharding)
    if layout.checkpointing:
        parts.append("ckpt")
    if layout.precision in {"fp16", "amp_fp16"}:
        parts.append("fp16")
    return " ".join(parts)


def _facts(found: Plan) -> list[str]:
    if found.chosen is None:
        facts = [found.reason]
    else:
        option = found.options[found.chosen]
        offer = option.offers[0]
        where = f"{words.gpus(option.gpu_type, option.gpu_count)}, {offer.provider} {offer.tier}"
        facts = [f"would take: {where}, {words.price(offer.price_per_hour)}", f"because it is {found.reason}"]
        if offer.in_time is False:
            facts[1] = found.reason
        if offer.interruptible:
            facts.append("by a bid: it is lost, without a word, when somebody pays more")
        if offer.spot_price_per_hour is not None:
            of_it = "" if offer.spot_cost is None else f", {words.money(offer.spot_cost)} in all"
            facts.append(f"as a spot job: {words.price(offer.spot_price_per_hour)}{of_it}")
        if offer.cost is not None and offer.duration_ms is not None:
            span = words.duration(offer.duration_ms / 1000)
            facts.append(f"{found.steps} steps: {span} with start-up, {words.money(offer.cost)}")
            if offer.likely_cost is not None:
                facts.append(
                    f"likely {words.money(offer.likely_cost)}: such machines fail, and work is done twice then"
                )
        if offer.steps_in_time is not None and offer.in_time is None:
            facts.append(f"until the deadline: {offer.steps_in_time} steps")
    if found.host_bytes is not None:
        facts.append(f"its machine needs {_gb(found.host_bytes)} GB of memory beside the GPU")
    facts += _doubts(found)
    for remedy in found.remedies:
        where = f"{words.gpus(remedy.gpu_type, remedy.gpu_count)} at {words.price(remedy.price_per_hour)}"
        facts.append(f"it would fit on {where}: {remedy.message}")
    return facts


def _doubts(found: Plan) -> list[str]:
    """What symbolic runs decided, beside what the tables say, and what they could decide."""
    facts = []
    for option in found.options:
        if option.exact:
            facts.append(_decided(option))
    if found.exact is not None and found.exact.versions:
        versions = ", ".join(f"{name} {version}" for name, version in found.exact.versions.items())
        facts.append(f"symbolic runs with {versions}")
    near = [words.gpus(option.gpu_type, option.gpu_count) for option in found.options if option.near]
    if near and found.exact is None:
        facts.append(f"so near to its memory that a symbolic run would decide (--exact): {', '.join(near)}")
    return facts


def _decided(option: PlanOption) -> str:
    where = f"{words.gpus(option.gpu_type, option.gpu_count)} {_layout(option.layout, option.gpu_count)}"
    if option.tables is None:
        return f"{where}: {_gb(option.allocated.expected)} GB allocated by symbolic runs; the tables do not know it"
    if option.raised:
        return (
            f"{where}: the symbolic run says less than the tables expect at least, "
            f"{_gb(option.tables.low)} GB allocated, which was taken"
        )
    said = f"{_gb(option.allocated.expected)} GB allocated by a symbolic run"
    return f"{where}: {said}, {_gb(option.tables.expected)} GB by the tables"

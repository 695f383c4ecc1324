"""What `allpass plan` says of several machines: a line for each kind of GPU at each site, and what they wait for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from allpass.cli import screen, words
from allpass.cli.screen import Cell, Column

if TYPE_CHECKING:
    from allpass.client import Client
    from allpass.wire.plan import Plan, PlanMachines

_COLOURS = {"fits": "green", "tight": "yellow", "no": "red"}
_GIGA = 1_000_000_000
_MOST_SHOWN = 20
_MOST_SWITCHES = 8


def print_machines(found: Plan) -> None:
    """Nothing where one machine is enough and no more were asked for."""
    if found.machines_reason is None:
        return
    if found.machines:
        if found.nodes is None:
            typer.echo("over several machines:")
        columns = [Column("MACHINES", flexible=True, least=12), Column("MEMORY"), Column("FIT")]
        columns += [Column("PLAN", flexible=True, rank=2, fold=True), Column("STEP", right=True)]
        columns += [Column("NETWORK", right=True, rank=3), Column("TIME", right=True, rank=1)]
        columns += [Column("PRICE", right=True), Column("COST", right=True), Column("WHERE", flexible=True, least=8)]
        screen.print_table(columns, [_row(one) for one in found.machines[:_MOST_SHOWN]], empty="")
    for fact in _facts(found):
        for line in screen.prose(screen.printable(fact), first="  ", rest="    "):
            typer.echo(line)


def tell_machines(client: Client, fields: dict[str, Any]) -> None:
    """Before a training over machines is submitted: where it would be, and what its steps wait for, or why it would
    wait. For the person at the terminal; whatever comes of it, the job is submitted."""
    from pydantic import ValidationError

    from allpass.errors import AllpassError
    from allpass.wire.plan import PlanRequest

    if not screen.is_interactive(sys.stderr):
        return
    try:
        facts = list(_facts(client.plan(PlanRequest.model_validate(fields))))
    except (AllpassError, ValidationError) as error:
        facts = [f"no plan was to be had: {error}"]
    for place, fact in enumerate(facts):
        for line in screen.prose(screen.printable(fact), first="          " if place else "Machines  ", rest=" " * 12):
            screen.say(line)


def _row(one: PlanMachines) -> list[Cell | str]:
    colour = _COLOURS[one.verdict]
    cost = "-" if one.cost is None else words.money(one.cost)
    return [
        machines(one),
        Cell(f"{_giga(one.process.expected)}/{_giga(one.gpu_memory_bytes)}", colour),
        Cell(one.verdict, colour),
        _layout(one),
        "-" if one.step_ms is None else f"{'' if one.step_source == 'measured' else '~'}{_seconds(one.step_ms)}",
        Cell(_seconds(one.network.exchange_ms), "yellow" if one.network.is_slow else None),
        "-" if one.duration_ms is None else words.duration(one.duration_ms / 1000),
        "-" if one.price_per_hour is None else words.price(one.price_per_hour),
        Cell(cost, "yellow" if one.in_time is False else None),
        place(one) if one.why_not is None else Cell(f"{place(one)}, not now", "yellow"),
    ]


def machines(one: PlanMachines) -> str:
    """As `2 x 8x H100`: machines, and the GPUs of each."""
    return f"{one.nodes} x {words.gpus(one.gpu_type, one.gpu_count)}"


def place(one: PlanMachines) -> str:
    return f"pool {one.site}" if one.tier == "own" and one.site else f"{one.provider} {one.site}".strip()


def _layout(one: PlanMachines) -> str:
    layout = one.layout
    parts = [f"{layout.micro_batch}x{layout.accumulation}", layout.sharding]
    if layout.gpus < one.nodes * one.gpu_count:
        parts.insert(1, f"on {layout.gpus}")
    if layout.checkpointing:
        parts.append("ckpt")
    if layout.precision in {"fp16", "amp_fp16"}:
        parts.append("fp16")
    return " ".join(parts)


def _seconds(milliseconds: float) -> str:
    seconds = milliseconds / 1000
    return f"{seconds:.0f}s" if seconds >= 100 else f"{seconds:.2g}s" if seconds < 10 else f"{seconds:.1f}s"


def _giga(value: int) -> str:
    shown = value / _GIGA
    return f"{shown:.1f}" if shown < 99.95 else f"{shown:.0f}"


def _facts(found: Plan) -> Iterator[str]:
    """Of the first line, whether or not it would be taken: that is what would be run."""
    reason = found.machines_reason or found.reason
    if found.chosen_machines is None:
        yield reason
        best = found.machines[0] if found.machines else None
    else:
        best = found.machines[found.chosen_machines]
        price = "" if best.price_per_hour is None else f", {words.price(best.price_per_hour)} for all"
        taken = "would take" if found.nodes is not None else "would fit"
        yield f"{taken}: {machines(best)}, {place(best)}{price}"
        yield reason if best.in_time is False else f"because {_because(reason)}"
        if best.cost is not None and best.duration_ms is not None:
            span = words.duration(best.duration_ms / 1000)
            yield f"{found.steps} steps: {span} with start-up, {words.money(best.cost)}"
        if best.steps_in_time is not None and best.in_time is None:
            yield f"until the deadline: {best.steps_in_time} steps"
    if best is not None:
        yield from _switches(best)
        yield _network(best)
        yield from _warnings(best, is_asked=found.nodes is not None)
    if found.nodes is not None and found.host_bytes is not None:
        yield f"each machine needs {_giga(found.host_bytes)} GB of memory beside its GPUs"
    if len(found.machines) > _MOST_SHOWN:
        yield f"{len(found.machines) - _MOST_SHOWN} more kinds of machines: --json"


def _because(reason: str) -> str:
    return f"it is {reason}" if reason.startswith("the ") else reason


def _switches(one: PlanMachines) -> Iterator[str]:
    """Nothing where nobody says which they are under."""
    named = [
        f"{each.machines} under {each.switch or 'one that nobody says'}{f' in {each.rack}' if each.rack else ''}"
        for each in one.switches[:_MOST_SWITCHES]
    ]
    if len(one.switches) > _MOST_SWITCHES:
        rest = one.switches[_MOST_SWITCHES:]
        named.append(f"{sum(each.machines for each in rest)} under {len(rest)} others")
    if named:
        yield f"switches: {', '.join(named)} (entropy {one.entropy:.2f})"


def _network(one: PlanMachines) -> str:
    network = one.network
    speed = f"{network.bits_per_s / _GIGA:.3g} Gbit/s"
    jobs = "1 earlier job" if network.meetings == 1 else f"{network.meetings} earlier jobs"
    how = {
        "measured": f"measured there before {jobs}",
        "stated": "as --network says",
        "assumed": "assumed: nobody has measured it there; --network says another",
    }[network.source]
    told = f"each step passes {words.size(network.bytes_per_step)} to each machine"
    return f"{told}: {_seconds(network.exchange_ms)} at {speed} ({how})"


def _warnings(one: PlanMachines, *, is_asked: bool) -> Iterator[str]:
    if one.network.is_slow and one.computing_ms is not None:
        instead = "fewer machines are likely to be quicker" if is_asked else "on fewer machines it is not sure to fit"
        yield (
            f"the network is too slow for this: a step waits {_seconds(one.network.exchange_ms)} for it and computes "
            f"for {_seconds(one.computing_ms)}; {instead}"
        )
    if one.runs_as == "script":
        gpus = one.gpu_type if one.gpu_count == 1 else f"{one.gpu_type}:{one.gpu_count}"
        yield (
            f"{one.layout.sharding} over machines is for code of your own: allpass run . --nodes {one.nodes} --gpu "
            f"{gpus} -- torchrun train.py; allpass finetune has a whole copy on each GPU (its own --plan says of that)"
        )

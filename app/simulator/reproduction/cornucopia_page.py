"""The evaluation of the Cornucopia paper as a page, as tables, and as an object for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.simulator.elastic.comparing import ONE_LITERAL, POLICIES
from app.simulator.elastic.workload import MixedOptions
from app.simulator.reproduction.cornucopia_claims import claims_of, figures_of
from app.simulator.reproduction.cornucopia_plays import (
    COSTS,
    LITERAL,
    MENDED,
    RESIZED,
    SHARDS_PER_GPU,
    ElasticPlay,
    PlayedCornucopia,
    changed,
)

Table = tuple[str, Sequence[str], list[list[str]]]  # title, headings, rows
_POINTS = {
    "point 1 literal": "1: a gain in units of the job's own second GPU",
    "point 2 literal": "2: victims by the gain of their next GPU",
    "point 3 literal": "3: first come, first served in a queue",
    "point 4 literal": "4: seconds with any GPU count; a promoted job falls again",
    "point 8 literal": "8: a job grows whatever it costs",
}


def as_object(found: PlayedCornucopia) -> dict[str, Any]:
    """All of it, with stable names."""
    return {
        "trace": found.trace.name,
        "jobs": len(found.trace.jobs),
        "left_out": found.trace.left_out,
        "gpus": list(found.gpus),
        "seed": found.seed,
        "parts": list(found.parts),
        "drawn": dict(found.drawn),
        "claims": [
            {
                "about": one.about,
                "paper": one.paper,
                "unit": one.unit,
                "ours": {
                    policy: {str(gpus): one.measure(found, gpus, policy) for gpus in found.gpus}
                    for policy in (LITERAL, MENDED)
                },
            }
            for one in claims_of(found)
        ],
        "plays": [_play_as_words(one, figures) for one, figures in found.figures.items()],
    }


def _play_as_words(one: ElasticPlay, figures: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "gpus": one.gpus,
        "policy": one.policy,
        "costs": one.costs,
        "interactive_alone": one.alone,
        "mislabelled": one.options.mislabelled,
        "inelastic": one.options.inelastic,
        "shards_per_gpu": one.options.shards_per_gpu,
        **figures,
    }


def page(found: PlayedCornucopia, command: str) -> str:
    """The part of a page that one trace has: what was played, by which command, and all tables."""
    drawn, trace = found.drawn, found.trace
    hours = sum(one.gpu_seconds for one in trace.jobs) / 3600
    load = f", which is the work of {hours / trace.span_s * 3600:,.0f} GPUs" if trace.span_s else ""
    told = (
        f"{len(trace.jobs):,} jobs submitted within {time_of(trace.span_s)} ({trace.left_out:,} rows of the source are "
        f"no jobs), {hours * 60:,.0f} GPU-minutes{load} for as long; {int(drawn['on_several_gpus']):,} jobs ask "
        f"for more than one. Drawn with seed {found.seed}: {int(drawn['interactive']):,} interactive jobs, "
        f"{drawn['share_of_jobs']:.1%} of the jobs with {drawn['share_of_gpu_time']:.2%} of the GPU time; half of them "
        f"run for less than {time_of(drawn['median_interactive_s'])}, {int(drawn['longer_than_the_median_job']):,} "
        f"longer than half of all jobs do, the longest for {time_of(drawn['longest_interactive_s'])}."
    )
    parts = [f"### {trace.name}\n", told + "\n", f"```sh\n{command}\n```\n"]
    for title, headings, rows in tables(found):
        parts.append(f"{title}:\n\n{_markdown(headings, rows)}")
    return "\n".join(parts)


def tables(found: PlayedCornucopia) -> Iterator[Table]:
    """All that the parts that were played can tell."""
    yield _claims(found)
    if "policies" in found.parts:
        for gpus in found.gpus:
            yield _policies(found, gpus)
    if "costs" in found.parts:
        yield _costs(found)
    for part in ("labels", "sizes"):
        if part in found.parts:
            yield _changed(found, part)
    if "points" in found.parts:
        yield _points(found)


def _claims(found: PlayedCornucopia) -> Table:
    headings = ["claim", "paper"]
    headings += [f"{name}, {gpus}" for gpus in found.gpus for name in ("literal", "mended")]
    rows = []
    for one in claims_of(found):
        ours = [one.measure(found, gpus, policy) for gpus in found.gpus for policy in (LITERAL, MENDED)]
        rows.append([one.about, one.paper or "-", *(_form(value, one.unit) for value in ours)])
    return "The paper's claims, by rules and number of GPUs", headings, rows


def _form(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return time_of(value) if unit == "s" else f"{value:.1f} %" if unit == "%" else f"{value:.2f} x"


def _policies(found: PlayedCornucopia, gpus: int) -> Table:
    headings = ["policy", "mean completion", "of batch", "of interactive", "completion over duration", "of interactive"]
    headings += ["interactive: first GPU", "its P99", "full size", "its P95", "resizes", "all is done after"]
    rows = [_policy_row(name, figures_of(found, gpus, name)) for name in POLICIES]
    alone = found.figures[ElasticPlay(gpus, "fifo", MixedOptions(found.seed), alone=True)]
    rows += [_policy_row("interactive jobs alone, fifo", alone)] if alone else []
    return f"{gpus} GPUs, resizes for free", headings, rows


def _policy_row(name: str, one: Mapping[str, Any]) -> list[str]:
    short, batch = one["interactive"], one["batch"]
    times = (one["mean_jct_s"], batch["mean_jct_s"] if batch["jobs"] else None, short["mean_jct_s"])
    waits = (short[key] for key in ("mean_first_gpu_s", "p99_first_gpu_s", "mean_full_size_s", "p95_full_size_s"))
    return [
        name,
        *("-" if value is None else time_of(value) for value in times),
        f"{one['mean_slowdown']:.2f} x",
        f"{short['mean_slowdown']:.2f} x",
        *(time_of(value) for value in waits),
        f"{one['resizes']:,}",
        time_of(one["makespan_s"]),
    ]


def _costs(found: PlayedCornucopia) -> Table:
    headings = ["GPUs", "policy", *(f"mean completion, {name}" for name in COSTS)]
    headings += ["interactive, first GPU", "full size", "pauses, of all GPU time"]
    work_h = sum(one.gpu_seconds for one in found.trace.jobs) / 3600
    rows = []
    for gpus in found.gpus:
        for name in RESIZED:
            each = [found.figures[ElasticPlay(gpus, name, MixedOptions(found.seed), costs)] for costs in COSTS]
            short = each[-1]["interactive"]
            waits = [time_of(short["mean_first_gpu_s"]), time_of(short["mean_full_size_s"])]
            paused = f"{each[-1]['pauses_gpu_h'] / work_h:.1%}"
            rows.append([str(gpus), name, *(time_of(one["mean_jct_s"]) for one in each), *waits, paused])
    return f"What resizes cost; the last three columns with those of {COSTS[-1]}", headings, rows


def _changed(found: PlayedCornucopia, part: str) -> Table:
    what = "batch labelled interactive" if part == "labels" else "each class of sizes not elastic"
    cases = (MixedOptions(found.seed), *changed(part, MixedOptions(found.seed)))
    shares = [f"{max(one.mislabelled, one.inelastic):.0%}" for one in cases]
    headings = ["GPUs", "rules", *(f"mean completion, {share}" for share in shares)]
    headings += [f"interactive, first GPU, {share}" for share in shares]
    rows = []
    for gpus in found.gpus:
        for name in (LITERAL, MENDED):
            each = [found.figures[ElasticPlay(gpus, name, one)] for one in cases]
            waits = [time_of(one["interactive"]["mean_first_gpu_s"]) for one in each]
            rows.append([str(gpus), name, *(time_of(one["mean_jct_s"]) for one in each), *waits])
    return f"With none, 5 and 10 % of {what}", headings, rows


def _points(found: PlayedCornucopia) -> Table:
    usual = MixedOptions(found.seed)
    shards = replace(usual, shards_per_gpu=SHARDS_PER_GPU)
    plays = {"all points literal": (LITERAL, usual)}
    plays |= {_POINTS[name]: (name, usual) for name in ONE_LITERAL}
    plays[f"9: batches of {SHARDS_PER_GPU} shards for each GPU asked for"] = (MENDED, shards)
    headings = ["mended but for", *(f"mean completion, {gpus}" for gpus in found.gpus)]
    headings += [f"resizes, {gpus}" for gpus in found.gpus]
    rows = [["nothing: against which it is told", *("1.00 x" for _ in found.gpus)]]
    rows[0] += [f"{figures_of(found, gpus, MENDED)['resizes']:,}" for gpus in found.gpus]
    for title, (name, options) in plays.items():
        each = [found.figures[ElasticPlay(gpus, name, options)] for gpus in found.gpus]
        ours = [figures_of(found, gpus, MENDED)["mean_jct_s"] for gpus in found.gpus]
        ratios = [f"{one['mean_jct_s'] / mine:.2f} x" for one, mine in zip(each, ours, strict=True)]
        rows.append([title, *ratios, *(f"{one['resizes']:,}" for one in each)])
    return "One point at a time, resizes for free", headings, rows


def time_of(seconds: float) -> str:
    """In the unit that a person would choose."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds == int(seconds) else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 60_000 else f"{seconds / 3600:,.1f} h"


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_part(text: str, name: str, part: str) -> str:
    """A page in which what is told of a trace stands between two marks, so that other traces and the words around them
    stay. Raises ValueError where the text is no such page."""
    begin, end = f"<!-- figures of {name} -->\n", f"<!-- end of {name} -->\n"
    if not text:
        return f"{begin}\n{part}\n{end}"
    if text.count(begin) > 1 or text.count(begin) != text.count(end) or text.find(end) < text.find(begin):
        raise ValueError(f"the marks of {name} do not come once and in order")
    if begin in text:
        before, _, rest = text.partition(begin)
        return f"{before}{begin}\n{part}\n{end}{rest.partition(end)[2]}"
    if "<!-- figures of " not in text:
        raise ValueError("it holds no figures of a trace")
    return f"{text.rstrip()}\n\n{begin}\n{part}\n{end}"

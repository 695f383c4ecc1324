"""`allpass simulate`: policies on a trace, without a server and without renting anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from app.simulator.options import Options
    from app.simulator.traces.job import Trace

GENERATED_JOBS = 200


def simulate(
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="csv or csv.gz of jobs; default: 200 generated ones, like Seren's, in a world in which jobs move: "
            "--knowledge after:60:0.2 --move-seconds 5.",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="May be repeated; default: allpass, allpass-drain, modal-only, clairvoyant."),
    ] = None,
    world: Annotated[
        str | None,
        typer.Option(
            "--world", help="What companies, machines and jobs are like: friendly (default), measured, harsh."
        ),
    ] = None,
    calibrate: Annotated[
        str | None, typer.Option("--calibrate", help="JSON of figures measured by you, in the place of the world's.")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", help="one: each job takes one GPU (default); trace: as many as it asks for.")
    ] = None,
    serverful_limit: Annotated[
        str | None, typer.Option("--serverful-limit", help="Rented nodes at once, serverless apart; default: none.")
    ] = None,
    market: Annotated[
        str | None, typer.Option("--market", help="flat (default), calm, or a csv of prices: FILE[:PROVIDER[:GPU]].")
    ] = None,
    startup: Annotated[
        str | None, typer.Option("--startup", help="How long machines boot: random (default) or always the mean.")
    ] = None,
    knowledge: Annotated[
        str | None,
        typer.Option(
            "--knowledge",
            help="Of run times: submit:0.2 (+-20 %, default with a trace), after:60:0.2 (default without one), none; "
            "ln0.5,bias=2,wrong=0.1,refined.",
        ),
    ] = None,
    deadlines: Annotated[
        str | None, typer.Option("--deadlines", help="1-10: drawn, times the run time (default); 6h; trace.")
    ] = None,
    move_seconds: Annotated[
        str | None,
        typer.Option(
            "--move-seconds",
            help="What a move takes, half of it on each side, or output of benchmarks.migration; default: 84, without "
            "a trace 5.",
        ),
    ] = None,
    merge_able: Annotated[
        str | None, typer.Option("--merge-able", help="Share of jobs that could be trained with others; default: 0.")
    ] = None,
    merging: Annotated[
        str | None, typer.Option("--merging", help="on: jobs of one base model may be trained as one; off (default).")
    ] = None,
    ahead: Annotated[
        str | None, typer.Option("--ahead", help="off: no machine is rented ahead or kept idle for jobs to come; on.")
    ] = None,
    max_wait: Annotated[
        str | None, typer.Option("--max-wait", help="Seconds that each job may be kept waiting; none (default).")
    ] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option(
            "--pool",
            help="Machines of your own, filled first: [NAME:][HOSTSx]GPUSxTYPE[@USD], for instance 8xA100, or "
            "lab:2x8xH100@0.40 for two hosts of eight at $0.40 a GPU-hour (default: 0). May be repeated; none.",
        ),
    ] = None,
    gpu_types: Annotated[
        str | None,
        typer.Option(
            "--gpu-types",
            help="one: all GPUs are A100s (default); several: jobs take any of eight types, and train faster on some; "
            "unseen: the same, and policies are not told.",
        ),
    ] = None,
    bids: Annotated[
        str | None,
        typer.Option(
            "--bids",
            help="Such a share of the jobs are spot jobs, and hosts of the marketplace may be bid for, for these "
            "(0 to 1, default 0).",
        ),
    ] = None,
    elastic: Annotated[
        str | None,
        typer.Option(
            "--elastic",
            help="Such a share of the jobs take a range of GPUs, which they lend, have back and change machines for "
            "(0 to 1, default 0).",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of everything that is drawn.")] = 0,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="So many, from --seed on; figures are means.")] = 1,
    start: Annotated[float, typer.Option("--start", min=0, help="Leave out jobs before this second.")] = 0.0,
    most_jobs: Annotated[int | None, typer.Option("--most-jobs", min=1, help="Take the first ones only.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="JSON or YAML of settings of policies and market, by name.")
    ] = None,
    sweep: Annotated[
        str | None, typer.Option("--sweep", help="KEY=a,b,c: an option or a setting, a row for each value.")
    ] = None,
    per_job: Annotated[Path | None, typer.Option("--per-job", help="Write what became of each job, as csv.")] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write a page with pictures into this folder.")
    ] = None,
    compat: Annotated[
        str | None, typer.Option("--compat", help="tiresias: replay as that simulator does, on --gpus NUMBER.")
    ] = None,
    search_regret: Annotated[
        int | None,
        typer.Option("--search-regret", min=1, help="Draw so many cases; show where a simple policy would be better."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object with all figures.")] = False,
) -> None:
    """Example: allpass simulate --trace jobs.csv --policy allpass --policy modal-only --seeds 5 --report out

    Say what policies would have cost on a trace of jobs, and whom they would have made wait.
    They are the very functions that run in production.

    Without --trace, jobs tell how long they take once they have trained for a minute, as live ones do, and a move takes
    5 s: then about one job in seven starts on serverless and moves. With a trace the defaults are the paper's: jobs
    whose run time is known at submission begin where they end, and at 84 s a move seldom pays.
    """
    from app.cli.simulating import SimulateCall  # help is listed without loading the simulator
    from app.simulator.own.words import joined_words

    given = {
        "world": world,
        "calibrate": calibrate,
        "serverful-limit": serverful_limit,
        "market": market,
        "startup": startup,
        "knowledge": knowledge,
        "deadlines": deadlines,
        "move-seconds": move_seconds,
        "merge-able": merge_able,
        "merging": merging,
        "ahead": ahead,
        "max-wait": max_wait,
        "pool": joined_words(pool) if pool else None,
        "gpu-types": gpu_types,
        "bids": bids,
        "elastic": elastic,
    }
    words = {name: text for name, text in given.items() if text is not None}
    if search_regret is not None:
        from app.cli import searching

        about = given.pop("world", None)
        others = {"trace": trace, "policy": policy, "gpus": gpus, "config": config, "sweep": sweep, "compat": compat}
        beside = given | others | {"per-job": per_job, "report": report, "most-jobs": most_jobs}
        searching.search_regret(search_regret, seed, beside, world=about, as_json=as_json)
        return
    asked = SimulateCall(
        trace=read_or_generate(trace, start, most_jobs),
        is_generated=trace is None,
        policies=tuple(policy or ()),
        gpus=gpus,
        words=words,
        seeds=range(seed, seed + seeds),
        config=config,
        sweep=sweep,
        per_job=per_job,
        report=report,
        as_json=as_json,
    )
    if compat is None:
        asked.simulate()
    else:
        asked.replay(compat)


def read_or_generate(path: Path | None, start_s: float = 0.0, most_jobs: int | None = None) -> Trace:
    """The trace of a file; without one, generated jobs."""
    from app.simulator.traces.generating import generate
    from app.simulator.traces.reading import read_trace

    if path is not None:
        return read_trace(path, start_s=start_s, most_jobs=most_jobs)
    return generate("seren", GENERATED_JOBS, 0).cut(start_s=start_s, most_jobs=most_jobs)


def told_trace(trace: Trace, options: Options, seeds: int, swept: str = "") -> str:
    """What is simulated, in a few lines. The option that takes several values is left out."""
    import textwrap

    from allpass.cli.screen import WIDEST
    from app.cli.figures import time

    gpu_s = sum(job.duration_s * (1 if options.gpus == "one" else job.gpus) for job in trace.jobs)
    each = "on one GPU each" if options.gpus == "one" else "on the GPUs that they ask for"
    said = ", ".join(f"{name} {text}" for name, text in options.told().items() if name not in ("gpus", swept))
    of_seeds = f"; means of {seeds} seeds" if seeds > 1 else ""
    work = f"{trace.name}: {len(trace.jobs):,} jobs {each}, {gpu_s / 3600:,.1f} GPU-hours of work, submitted within "
    lines = (f"{work}{time(trace.span_s)}", f"{said}{of_seeds}")
    return "\n".join(textwrap.fill(one, WIDEST, break_on_hyphens=False) for one in lines)

"""What `allpass simulate` does with its options: plays, prints, writes."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from allpass.cli import screen
from app.cli import figures
from app.cli.progress import progress_line
from app.cli.simulate import told_trace
from app.errors import InvalidInput
from app.simulator import per_job
from app.simulator.asked import WITH_MOVES
from app.simulator.bound import CLAIRVOYANT
from app.simulator.compat.figures import figures_of
from app.simulator.compat.tiresias import SCHEDULES, replay
from app.simulator.options import OPTION_NAMES, Options
from app.simulator.report.page import make_folder, write_report
from app.simulator.running import DEFAULT_POLICIES, Played, SimulationRequest, Variant, play, play_all, summary
from app.simulator.traces.job import Trace
from app.simulator.tuning import KNOWN, read_tuning


@dataclass(frozen=True, slots=True)
class SimulateCall:
    """One call of the command."""

    trace: Trace
    is_generated: bool  # nobody has named a trace
    policies: tuple[str, ...]
    gpus: str | None
    words: Mapping[str, str]
    seeds: range
    config: Path | None
    sweep: str | None
    per_job: Path | None
    report: Path | None
    as_json: bool

    def simulate(self) -> None:
        """Plays all policies and shows their figures."""
        options = self._options()
        if self.sweep is not None:
            self._sweep(options, self.sweep)
            return
        variants = self._variants([options])
        self._check_places()
        with progress_line("simulations") as line:
            played = play(
                self.trace,
                variants,
                options,
                self.seeds,
                line,
                keeps_jobs=self.per_job is not None or self.report is not None,
                keeps_course=self.report is not None,
            )
        found = summary(self.trace, played)
        self._write(played, found, options)
        if self.as_json:
            screen.print_json(found)
        else:
            self._show(found, options)

    def replay(self, compat: str) -> None:
        """The public simulator's schedules, on a cluster of one's own."""
        cluster = self._cluster(compat)
        self._check_places()
        schedules = list(dict.fromkeys(self.policies or tuple(SCHEDULES)))
        outcomes = {name: replay(self.trace, name, cluster) for name in schedules}
        found = {name: figures_of(one) for name, one in outcomes.items()}
        if self.per_job is not None:
            self._say_written(
                per_job.write_all({name: per_job.text_of_replay(one) for name, one in outcomes.items()}, self.per_job)
            )
        if self.as_json:
            screen.print_json({"trace": self.trace.name, "jobs": len(self.trace.jobs), "policies": found})
            return
        jobs = len(self.trace.jobs)
        typer.echo(f"{self.trace.name}: {jobs:,} jobs on {cluster} GPUs of one's own, as the Tiresias simulator does")
        typer.echo()
        columns = figures.heading(figures.REPLAY_COLUMNS)
        screen.print_table(columns, [[name, *figures.replay_cells_of(one)] for name, one in found.items()], empty="")

    # Options

    def _options(self) -> Options:
        """The file first, then the command line: the last word counts."""
        options = WITH_MOVES if self.is_generated else Options()
        if self.config is not None:
            options = replace(options, tuning=read_tuning(self.config))
        words = self.words if self.gpus is None else {"gpus": self.gpus, **self.words}
        for name, text in words.items():
            options = options.having(name, text)
        return options

    def _variants(self, cases: Collection[Options]) -> list[Variant]:
        """The policies that are named; else the usual ones, without the bound where it is none."""
        names = self.policies or DEFAULT_POLICIES
        ranges = self.trace.has_ranges and any(one.gpus == "trace" for one in cases)
        if not self.policies and (ranges or not all(one.has_bound for one in cases)):
            names = tuple(name for name in names if name != CLAIRVOYANT)
        return [Variant.plain(name) for name in dict.fromkeys(names)]

    def _cluster(self, compat: str) -> int:
        if compat != "tiresias":
            raise InvalidInput(f"--compat: {compat!r} is not known; there is tiresias", param="compat")
        given = {"config": self.config, "sweep": self.sweep, "report": self.report}
        beside = [*self.words, *(name for name, value in given.items() if value is not None)]
        if beside:
            raise InvalidInput(
                f"--{beside[0]}: means nothing with --compat tiresias, which knows neither prices nor deadlines; "
                "leave it out",
                param=beside[0],
            )
        if self.gpus is None or not self.gpus.isdecimal():
            raise InvalidInput(
                f"--gpus: with --compat it is how many GPUs the cluster has, not {self.gpus or 'left out'}; "
                "give for instance --gpus 128",
                param="gpus",
            )
        return int(self.gpus)

    def _check_places(self) -> None:
        if self.per_job is not None:
            per_job.check_place(self.per_job)
        if self.report is not None:
            make_folder(self.report)

    # One setting, several values

    def _sweep(self, options: Options, text: str) -> None:
        for name, path in (("per-job", self.per_job), ("report", self.report)):
            if path is not None:
                raise InvalidInput(f"--{name}: cannot go with --sweep; simulate one value with it", param=name)
        key, values = _read_sweep(text)
        cases = {value: options.having(key, value) for value in values}
        variants = self._variants(cases.values())
        questions = [
            SimulationRequest(self.trace, variant, case, seed)
            for case in cases.values()
            for variant in variants
            for seed in self.seeds
        ]
        with progress_line("simulations") as line:
            asked = questions if line is None else [replace(one, tells=True) for one in questions]
            played = play_all(asked, line)
        each = len(variants) * len(self.seeds)
        found = [
            {"value": value, "policies": summary(self.trace, played[place * each : (place + 1) * each])["policies"]}
            for place, value in enumerate(cases)
        ]
        if self.as_json:
            screen.print_json({"trace": self.trace.name, "jobs": len(self.trace.jobs), "sweep": key, "values": found})
        else:
            self._show_sweep(key, found, options)

    def _show_sweep(self, key: str, found: Sequence[Mapping[str, Any]], options: Options) -> None:
        typer.echo(told_trace(self.trace, options, len(self.seeds), key))
        typer.echo()
        several = len(found[0]["policies"]) > 1
        merges = key == "merge-able" or bool(options.merge_able)
        columns = [screen.Column(key.rpartition(".")[2].upper(), flexible=True), *_heading(merges)]
        rows = [
            [one["value"], name, *_cells(values, merges)] for one in found for name, values in one["policies"].items()
        ]
        if not several:
            columns, rows = [columns[0], *columns[2:]], [[row[0], *row[2:]] for row in rows]
        screen.print_table(columns, rows, empty="")
        self._legend(merges)

    # Results

    def _show(self, found: Mapping[str, Any], options: Options) -> None:
        typer.echo(told_trace(self.trace, options, len(self.seeds)))
        typer.echo()
        merges = bool(options.merge_able)
        rows = [[name, *_cells(one, merges)] for name, one in found["policies"].items()]
        screen.print_table(_heading(merges), rows, empty="")
        self._legend(merges)
        if found.get("against"):
            self._show_against(found)
        typer.echo()
        told = figures.sentence(found["policies"], len(self.trace.jobs))
        typer.echo(textwrap.fill(told, screen.WIDEST, break_on_hyphens=False))

    def _show_against(self, found: Mapping[str, Any]) -> None:
        typer.echo()
        columns = [screen.Column("AGAINST", flexible=True), *figures.AGAINST_COLUMNS]
        rows = [[name, *figures.against_cells_of(one)] for name, one in found["against"].items()]
        screen.print_table(columns, rows, empty="")
        typer.echo()
        first = next(iter(found["policies"]))
        typer.echo(figures.AGAINST_LEGEND.format(first=first, seeds=len(self.seeds)))

    def _legend(self, merges: bool) -> None:
        typer.echo()
        typer.echo(figures.LEGEND.format(jobs=f"{len(self.trace.jobs):,}"))
        if merges:
            typer.echo(figures.MERGE_LEGEND)

    def _write(self, played: Sequence[Played], found: Mapping[str, Any], options: Options) -> None:
        first = [one for one in played if one.outcomes]
        if self.per_job is not None:
            texts = {one.name: per_job.text_of(one.outcomes) for one in first}
            self._say_written(per_job.write_all(texts, self.per_job))
        if self.report is not None:
            told = {"trace": self.trace.name, **options.told(), "seeds": _told_seeds(self.seeds)}
            self._say_written([write_report(self.report, found, first, told)])

    def _say_written(self, paths: Sequence[Path]) -> None:
        for path in paths:
            screen.say(f"wrote {path}")


def _heading(merges: bool) -> list[screen.Column]:
    return figures.heading((*figures.COLUMNS, *(figures.MERGE_COLUMNS if merges else ())))


def _cells(values: Mapping[str, Any], merges: bool) -> list[str]:
    return [*figures.cells_of(values), *(figures.merge_cells_of(values) if merges else [])]


def _read_sweep(text: str) -> tuple[str, list[str]]:
    key, sign, rest = text.partition("=")
    values = list(dict.fromkeys(one for one in rest.split(",") if one))
    if not sign or not key or not values:
        raise InvalidInput(
            f"--sweep: {text!r} is not KEY=a,b,c; give for instance move_gain=1,1.5,2 or serverful-limit=10,20,none. "
            f"Options: {', '.join(OPTION_NAMES)}; settings: {', '.join(KNOWN)}",
            param="sweep",
        )
    return key, values


def _told_seeds(seeds: range) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"

"""A rehearsal from its first question to its report."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import allpass
from allpass.config import Connection, find_connection
from allpass.errors import AllpassError as ClientError
from app.core.model.finding import Finding, Verdict, blotted
from app.doctor.command import print_finding
from app.doctor.situation import SetUpKind, Situation, look_around
from app.doctor.visit import visit
from app.errors import AllpassError, InvalidInput
from app.ports.provider import Provider
from app.services.nodes.check_addresses import real_providers
from app.smoke.doubts import settle
from app.smoke.ending import end_everything, in_words, prove
from app.smoke.fence import fenced
from app.smoke.rehearsing import Rehearsal
from app.smoke.report import Report
from app.smoke.spending import Spending, plan_spending
from app.stack.outside import accounts_in
from app.system import SystemClock
from app.wiring import build_providers

WORKED, FAILED, LEFT = 0, 1, 3
_MEANT = {signal.SIGTERM, signal.SIGHUP}


@dataclass(frozen=True, slots=True)
class SmokeOptions:
    provider: str
    most_dollars: float
    most_minutes: int
    yes: bool
    data_dir: Path
    report: Path
    quick: bool


def run(wishes: SmokeOptions, *, say: Callable[[str], None], asks: Callable[[str], bool]) -> int:
    """The exit code. Nothing is rented before everything was looked at and somebody has agreed."""
    begun = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    report = Report(wishes.provider, begun, allpass.__version__, round(wishes.most_dollars * 1e6))
    situation = look_around(wishes.data_dir, os.environ)
    if not isinstance(situation, Situation):
        _show(situation)
        say("refused: the settings cannot be read; nothing was rented. next: allpass doctor")
        return FAILED
    secrets = situation.secrets
    try:
        with _interruptible():
            code = _rehearse(wishes, situation, report, lambda line: say(blotted(line, secrets)), asks)
    except KeyboardInterrupt:
        report.outcome, code = "interrupted before anything was rented", FAILED
        say("interrupted; nothing was rented")
    except (AllpassError, ClientError, OSError) as error:
        report.outcome, code = f"refused: {error}", FAILED
        say(blotted(f"refused: {error}; nothing was rented", secrets))
    say(f"report: {report.write(wishes.report, secrets)}")
    return code


def _rehearse(
    wishes: SmokeOptions, situation: Situation, report: Report, say: Callable[[str], None], asks: Callable[[str], bool]
) -> int:
    connection = _connection(situation)
    say("look at the set-up, as `allpass doctor` does; nothing is rented")
    seen = asyncio.run(visit(situation, quick=wishes.quick))
    report.findings = seen.findings
    _show([one for one in seen.findings if one.verdict is not Verdict.OK])
    broken = [one for one in seen.findings if one.verdict is Verdict.FAIL and _concerns(one, wishes.provider)]
    if broken:
        raise InvalidInput(f"the set-up is not ready ({broken[0].code}). next: {broken[0].fix}; then: allpass doctor")
    with allpass.Client(connection.url, connection.api_key) as admin:
        configured = [one.name for one in admin.providers()]
        if wishes.provider not in configured:
            raise InvalidInput(
                f"this service has no account at {wishes.provider}; it has {', '.join(configured) or 'none'}",
                param="provider",
            )
        offers = list(admin.offers(provider=wishes.provider))
        spending = plan_spending(
            wishes.provider, offers, most_micros=report.most_micros, most_s=60 * wishes.most_minutes
        )
        for line in _plan(spending, wishes):
            say(line)
        if not (wishes.yes or asks("Spend that?")):
            report.outcome = "not agreed to"
            say("not agreed to; nothing was rented (--yes agrees without a question)")
            return FAILED
        others = [name for name in configured if name != wishes.provider]
        limits: dict[str, Any] = {"most_micros": report.most_micros, "most_s": spending.most_s}
        with fenced(admin, connection, wishes.provider, others, **limits) as client:
            rehearsal = Rehearsal(admin, spending, report, say)
            return _play(rehearsal, client, situation, report, say, wishes.provider)


def _concerns(finding: Finding, provider: str) -> bool:
    """What is wrong with the account of another company is nothing to this rehearsal."""
    return not finding.name.startswith("account ") or finding.name == f"account {provider}"


def _plan(spending: Spending, wishes: SmokeOptions) -> Iterator[str]:
    offer = spending.offer
    yield f"this rents 1x {offer.gpu_type} at {offer.provider}, ${offer.price_per_hour / 1e6:.2f}/h, two machines one "
    yield f"  after the other, for at most {wishes.most_minutes} minutes: ${spending.foreseen_micros / 1e6:.2f} if it "
    yield f"  takes all of them; a budget stops it at ${spending.most_micros / 1e6:.2f}"


def _play(
    rehearsal: Rehearsal,
    client: allpass.Client,
    situation: Situation,
    report: Report,
    say: Callable[[str], None],
    provider: str,
) -> int:
    """From here on something may be rented: whatever happens, it is ended."""
    try:
        rehearsal.play(client)
        if provider in real_providers(situation.settings):  # emulated machines show their GPUs to the agent alone
            rehearsal.check_gpus()
        report.outcome = "it worked"
    except KeyboardInterrupt:
        report.outcome = "interrupted"
    except BaseException as error:  # the machines end first; what it was is told in the report
        report.outcome = f"failed: {error or type(error).__name__}"
    with _deaf(say):
        rehearsal.say(f"{report.outcome}; end everything, and show that nothing is left")
        open_nodes = end_everything(rehearsal)
        lines, listed = asyncio.run(_prove(situation, rehearsal, provider))
        report.proof = [*in_words(rehearsal), *lines]
        report.left = sorted({*open_nodes, *listed})
        _read(rehearsal, report, provider)
    for line in report.proof:
        say(f"  {line}")
    say(f"spent ${report.spent_micros / 1e6:.4f} by the ledger, of at most ${report.most_micros / 1e6:.2f}")
    if report.left:
        say(f"END BY HAND at {provider}: {', '.join(report.left)}")
        return LEFT
    say(f"{report.outcome}; no machine is left")
    return WORKED if report.outcome == "it worked" else FAILED


async def _prove(situation: Situation, rehearsal: Rehearsal, provider: str) -> tuple[list[str], list[str]]:
    providers = _own_providers(situation, provider)
    try:
        return await prove(providers, rehearsal, provider)
    finally:
        for one in providers.values():
            await one.close()


def _own_providers(situation: Situation, provider: str) -> Mapping[str, Provider]:
    """To ask the company behind the service's back; none where this shell has no key of it."""
    if situation.kind is SetUpKind.RUNNING and not accounts_in(os.environ, {provider}):
        return {}
    return build_providers(situation.settings, SystemClock(), None)


def _read(rehearsal: Rehearsal, report: Report, provider: str) -> None:
    """What the run showed, for the report."""
    report.looks = rehearsal.looks()
    for node in sorted(rehearsal.nodes.values(), key=lambda one: one.requested_at):
        ready = None if node.ready_at is None else (node.ready_at - node.requested_at).total_seconds()
        gpu = f"{node.gpu_count}x {node.gpu_type}"
        report.machines.append({"node": node.id, "gpu": gpu, "ready_after_s": ready, "cost_micros": node.cost})
    report.spent_micros = sum(one["cost_micros"] for one in report.machines)
    first = report.looks[0] if report.looks else {}
    started = bool(report.looks)
    facts = {**first, "started": started or None, "in_time": started or None, "has_offers": True}
    facts |= {"has_python": started or None, "has_gpu": bool(first["gpu"]) if "gpu" in first else None}
    report.doubts = settle(provider, facts)


def _connection(situation: Situation) -> Connection:
    """Where the service is asked, with a key that may do all."""
    if situation.kind is SetUpKind.PLANNED:
        real = ",".join(sorted(situation.real)) or "NAMES"
        raise InvalidInput(f"no service runs here. next: allpass up --real {real}")
    if situation.kind is SetUpKind.RUNNING:
        known = json.loads(situation.layout.client_file.read_text())
        return Connection(known["url"], known["api_key"], "the running stack")
    return find_connection()


def _show(findings: list[Finding]) -> None:
    for one in findings:
        print_finding(one)


@contextmanager
def _interruptible() -> Iterator[None]:
    """A terminal that goes, or whoever ends this process politely, is a Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {one: signal.signal(one, interrupt) for one in _MEANT}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def _deaf(say: Callable[[str], None]) -> Iterator[None]:
    """Nothing ends the ending but SIGKILL; then the job's own limits do."""

    def answer(*_: object) -> None:
        say("still ending machines; wait")

    before = {one: signal.signal(one, answer) for one in {*_MEANT, signal.SIGINT}}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)

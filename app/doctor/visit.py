"""One visit: everything that is looked at, and what to do next."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from app.core.addresses import judge_addresses
from app.core.model.finding import Finding, Verdict, good
from app.doctor.accounts import look_at_accounts, look_at_clocks
from app.doctor.examination import Check, examine
from app.doctor.host import look_at_database, look_at_disk, look_at_image, look_at_limits
from app.doctor.situation import SetUpKind, Situation
from app.doctor.standin import standing_in
from app.services.nodes.check_addresses import addresses_of, real_providers
from app.services.nodes.reach.asking import machine
from app.services.nodes.reach.look import look_at_api, look_at_store
from app.system import RandomIds, SystemClock
from app.wiring import build_objects

_SHORT_S, _ACCOUNTS_S, _REACH_S = 30.0, 60.0, 200.0


@dataclass(frozen=True, slots=True)
class Visit:
    findings: list[Finding]
    next_command: str

    @property
    def healthy(self) -> bool:
        return all(one.verdict is not Verdict.FAIL for one in self.findings)


async def visit(situation: Situation, *, quick: bool) -> Visit:
    """Look at everything; `quick` leaves out the wait for a proxy's patience."""
    clock, settings = SystemClock(), situation.settings
    companies = real_providers(settings)
    async with (
        machine() as http,
        standing_in(settings, situation.objects_port, clock, RandomIds(clock)) as stood,
    ):

        async def addresses() -> list[Finding]:
            return judge_addresses(addresses_of(settings), companies, private=settings.private_addresses)

        async def store() -> list[Finding]:
            with tempfile.TemporaryDirectory(prefix="allpass-doctor-") as folder:
                own = {"objects_dir": Path(folder)} if "store" in stood else {}
                objects = build_objects(settings.model_copy(update=own), clock)
                try:
                    return await look_at_store(http, settings, objects, clock)
                finally:
                    await objects.close()

        checks = [
            Check("account", lambda: look_at_accounts(situation, clock), _ACCOUNTS_S),
            Check("address", addresses, _SHORT_S),
            Check("public URL", lambda: look_at_api(http, settings, clock, hold=not quick), _REACH_S),
            Check("store", store, _REACH_S),
            Check("clock", lambda: look_at_clocks(situation, http), _SHORT_S),
            Check("image", lambda: look_at_image(settings, companies), _SHORT_S),
            Check("database", lambda: look_at_database(situation), _SHORT_S),
            Check("disk", lambda: look_at_disk(situation), _SHORT_S),
            Check("limits", lambda: look_at_limits(situation), _SHORT_S),
        ]
        findings = [_settings(situation, stood), *await examine(checks, situation.secrets)]
    return Visit(findings, next_command(findings, situation))


def _settings(situation: Situation, stood: list[str]) -> Finding:
    told = {
        SetUpKind.SERVICE: "of this shell",
        SetUpKind.RUNNING: f"of the stack that runs on {situation.layout.root}",
        SetUpKind.PLANNED: "of this shell, for `allpass up`",
    }[situation.kind]
    served = f"; nobody serves yet, so the doctor answered as {' and '.join(stood)}" if stood else ""
    return good("settings", f"readable, {told}{served}")


def next_command(findings: list[Finding], situation: Situation) -> str:
    """What to type now: mend the first thing that is wrong, else go on towards the first job."""
    broken = next((one for one in findings if one.verdict is Verdict.FAIL), None)
    if broken is not None:
        return f"{broken.fix}; then: allpass doctor"
    if situation.kind is SetUpKind.PLANNED:
        return f"allpass up --real {','.join(sorted(situation.real))} --data-dir {situation.layout.root}"
    accounts = [one.name.removeprefix("account ") for one in findings if one.name.startswith("account ")]
    provider = next((one for one in accounts if one in real_providers(situation.settings)), accounts[0])
    return f"allpass smoke {provider} --most-dollars 2"

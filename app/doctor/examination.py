"""Every check by itself: bounded in time, and never the end of another one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from app.core.model.finding import Finding, without_secrets, wrong
from app.errors import AllpassError

Look = Callable[[], Awaitable[list[Finding]]]


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    look: Look
    within_s: float


async def examine(checks: Sequence[Check], secrets: Sequence[str]) -> list[Finding]:
    """What all of them find, in their order; they run beside each other. No finding holds a secret."""
    found = await asyncio.gather(*(_alone(check) for check in checks))
    return [without_secrets(finding, secrets) for findings in found for finding in findings]


async def _alone(check: Check) -> list[Finding]:
    try:
        async with asyncio.timeout(check.within_s):
            return await check.look()
    except TimeoutError:
        fix = "look whether what it asks can be reached from here, and run this again"
        return [wrong(check.name, "check_timed_out", f"not known after {check.within_s:g} s", fix)]
    except AllpassError as error:
        return [wrong(check.name, error.error_code, error.message, "mend what it names, and run this again")]
    except Exception as error:  # one check that fails hides no other
        said = f"the check itself failed: {type(error).__name__}: {error}"
        return [wrong(check.name, "check_failed", said, "run this again; if it stays, report it")]

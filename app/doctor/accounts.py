"""Whether the companies take our credentials, what they say the account has, and what time it is there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from app.core.model.finding import Finding, doubtful, good, wrong
from app.core.model.offer import Offer
from app.doctor.situation import SetUpKind, Situation
from app.errors import AuthFailed, ProviderError, RateLimited
from app.plugins import FoundProvider
from app.ports.clock import Clock
from app.ports.provider import Machine, Provider, TellsCredit
from app.services.nodes.reach.asking import HttpAnswer, ask
from app.stack.outside import rents
from app.wiring import build_providers

_ONE_S = 45.0
_ASK_SERVER_S = 30.0
_WARN_SKEW_S, _MOST_SKEW_S = 30.0, 300.0
_NO_CREDIT_MICROS, _LITTLE_CREDIT_MICROS = 100_000, 2_000_000
_KEYS = (
    "ALLPASS_MODAL_TOKEN_ID and _SECRET, ALLPASS_VAST_API_KEY, ALLPASS_LAMBDA_API_KEY and _SSH_KEY, or "
    "ALLPASS_RUNPOD_API_KEY"
)


async def look_at_accounts(situation: Situation, clock: Clock) -> list[Finding]:
    """Asks each company, rents nothing. A running stack is asked itself: it holds the keys."""
    if situation.kind is SetUpKind.RUNNING:
        return await _ask_server(situation)
    if situation.kind is SetUpKind.PLANNED and not rents(situation.real):
        return [_no_keys()]
    providers = build_providers(situation.settings, clock, None)
    if not providers:
        return [_no_keys()]
    try:
        return list(await asyncio.gather(*(_account(each) for each in providers.values())))
    finally:
        await asyncio.gather(*(each.close() for each in providers.values()), return_exceptions=True)


def _no_keys() -> Finding:
    fix = f"export the key of a company: {_KEYS}"
    return wrong("account", "no_account", "no account of a company is set: nothing could be rented", fix)


async def _account(provider: Provider) -> Finding:
    name = f"account {provider.name}"
    try:
        async with asyncio.timeout(_ONE_S):
            machines, offers = await asyncio.gather(provider.list_owned(), provider.offers())
            credit = await _credit(provider)
    except TimeoutError:
        fix = "look whether this machine reaches it; its status page may say more"
        return wrong(name, "account_no_answer", f"no answer within {_ONE_S:g} s", fix)
    except AuthFailed as error:
        return wrong(name, error.error_code, error.message, f"set the right key of {provider.name} (it rents nothing)")
    except RateLimited as error:
        return doubtful(name, error.error_code, error.message, "wait a minute, and run this again")
    except ProviderError as error:
        return wrong(name, error.error_code, error.message, "mend what it names; its status page may say more")
    except Exception as error:  # of one company; the others are told all the same
        return wrong(name, "check_failed", f"{type(error).__name__}: {error}", "run this again")
    return _judge_account(provider.name, machines, offers, credit)


def _judge_account(company: str, machines: list[Machine], offers: list[Offer], credit: int | None) -> Finding:
    name = f"account {company}"
    if credit is not None and credit < _NO_CREDIT_MICROS:
        fix = f"put credit on the account at {company}"
        told = f"takes the credentials, and the account has ${credit / 1e6:.2f} of credit: nothing starts with that"
        return wrong(name, "account_no_credit", told, fix)
    if not offers:
        fix = "widen what is looked for (GPU types, regions, reliability), or wait"
        return doubtful(name, "account_no_offers", "the credentials are taken, and nothing is to be rented now", fix)
    cheapest = min(offers, key=lambda one: one.price_per_hour)
    told = f"takes the credentials; {len(offers)} offers from {cheapest.price_per_hour}/h ({cheapest.gpu_type})"
    told += f"; {len(machines)} machines listed" if machines else ""
    if credit is None:
        return good(name, f"{told}; it tells no balance")
    if credit < _LITTLE_CREDIT_MICROS:
        return doubtful(name, "account_little_credit", f"{told}; ${credit / 1e6:.2f} of credit", "put more on it")
    return good(name, f"{told}; ${credit / 1e6:.2f} of credit")


async def _credit(provider: Provider) -> int | None:
    """None where nobody tells: that alone is no reason against an account."""
    if not isinstance(provider, TellsCredit):
        return None
    try:
        return await provider.credit_micros()
    except ProviderError:
        return None


async def _ask_server(situation: Situation) -> list[Finding]:
    known = json.loads(situation.layout.client_file.read_text())
    async with httpx.AsyncClient(trust_env=False, timeout=_ASK_SERVER_S) as http:
        headers = {"Authorization": f"Bearer {known['api_key']}"}
        local = f"http://{situation.settings.host}:{situation.settings.port}"
        answer = await http.post(f"{local}/v1/providers/check", headers=headers)
    answer.raise_for_status()
    return [_as_told(one) for one in answer.json()["checks"]] or [_no_keys()]


def _as_told(check: Mapping[str, Any]) -> Finding:
    name, code = f"account {check['name']}", check["code"]
    if code is None:
        return good(name, f"{check['message']}; {check['offers']} offers, {check['machines']} machines listed")
    if code == RateLimited.code:
        return doubtful(name, code, check["message"], "wait a minute, and run this again")
    return wrong(name, code, check["message"], f"mend the account or key of {check['name']}")


async def look_at_clocks(situation: Situation, http: httpx.AsyncClient) -> list[Finding]:
    """Signed addresses have a time in them, and so has every bill: compares our clock with those of others."""
    settings = situation.settings
    urls = {one.name: url for one in settings.providers if one.is_configured and (url := _address_of(one))}
    if settings.objects_store == "s3":
        urls["store"] = settings.s3_endpoint or f"https://s3.{settings.s3_region}.amazonaws.com"
    answers = await asyncio.gather(*(ask(http, "GET", _root(url), within_s=10.0) for url in urls.values()))
    skews = {
        name: skew
        for name, answer in zip(urls, answers, strict=True)
        if isinstance(answer, HttpAnswer) and (skew := answer.skew_s()) is not None
    }
    if not skews:
        fix = "make sure that this machine's clock is kept (timedatectl)"
        return [doubtful("clock", "clock_not_compared", "nobody told a time to compare with", fix)]
    return [_judge_skew(skews)]


def _address_of(found: FoundProvider) -> str | None:
    """Of its API, where it has one of the web."""
    if found.name == "modal":
        return None if getattr(found.section, "server_url", None) else "https://api.modal.com"
    url = getattr(found.section, "url", None)
    return url if isinstance(url, str) else None


def _judge_skew(skews: dict[str, float]) -> Finding:
    """Judged by the one that is nearest: one company's wrong clock is not ours."""
    name, skew = min(skews.items(), key=lambda one: abs(one[1]))
    how = f"this machine's clock is {abs(skew):.0f} s {'behind' if skew > 0 else 'ahead of'} that of {name}"
    fix = "set the clock and keep it set (timedatectl set-ntp true)"
    if abs(skew) > _MOST_SKEW_S:
        return wrong("clock", "clock_off", f"{how}: signed addresses are refused", fix)
    if abs(skew) > _WARN_SKEW_S:
        return doubtful("clock", "clock_off", how, fix)
    return good("clock", f"within {max(1.0, abs(skew)):.0f} s of {name}")


def _root(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/"

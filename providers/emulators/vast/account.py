"""The account at the emulated Vast.ai: its user and credit, charges, SSH keys, and variables for all its containers.

Nobody logs in here: SSH keys are kept and told, and open nothing. Their shape was read off the company's own client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from providers.emulators.faults import Fault
from providers.emulators.rows import MachineRow
from providers.emulators.serving import Grounds
from providers.emulators.vast.contracts import VARIABLES
from providers.emulators.vast.credit import credit_micros, spent_micros
from providers.emulators.vast.errors import RefusedAnswer
from providers.emulators.vast.hosts import MICROS_PER_USD
from providers.emulators.vast.order import check_environment
from providers.emulators.vast.reading import body_of, object_of
from providers.emulators.vast.view import charge

USER_ID = 4_711
_KEYS = "account_ssh_keys"
_ATTACHED = "ssh_keys"

Handler = Callable[[Request, Fault | None], Awaitable[Response]]


class AccountHandlers:
    """Handlers of what belongs to no contract. What a customer sets is remembered over restarts."""

    def __init__(self, grounds: Grounds) -> None:
        self._grounds = grounds
        self._estate = grounds.estate

    def routes(self) -> list[tuple[str, str, str, Handler]]:
        """Path, method and operation of each handler here; those of SSH keys in contracts are the caller's."""
        return [
            ("/api/v0/users/current", "GET", "account", self.user),
            ("/api/v0/users/current/", "GET", "account", self.user),
            ("/api/v0/charges/", "GET", "charges", self.charges),
            ("/api/v1/invoices/", "GET", "charges", self.invoices),
            ("/api/v0/ssh/", "GET", "account", self.keys),
            ("/api/v0/ssh/", "POST", "account", self.add_key),
            ("/api/v0/ssh/{key_id}/", "PUT", "account", self.change_key),
            ("/api/v0/ssh/{key_id}/", "DELETE", "account", self.drop_key),
            ("/api/v0/secrets/", "GET", "account", self.variables),
            ("/api/v0/secrets/", "POST", "account", self.add_variable),
            ("/api/v0/secrets/", "PUT", "account", self.change_variable),
            ("/api/v0/secrets/", "DELETE", "account", self.drop_variable),
        ]

    # -- money

    async def user(self, _: Request, __: Fault | None) -> Response:
        """`credit` is what is left of what was paid in."""
        left = max(0, credit_micros(self._grounds) - spent_micros(self._grounds)) / MICROS_PER_USD
        keys = self._keys()
        return JSONResponse(
            {
                "id": USER_ID,
                "username": "customer",
                "email": "customer@example.invalid",
                "email_verified": True,
                "fullname": None,
                "api_key": self._grounds.key,
                "balance": 0.0,
                "balance_threshold": 0.0,
                "balance_threshold_enabled": False,
                "billed_expected": spent_micros(self._grounds) / MICROS_PER_USD,
                "billing_creditonly": 1,
                "can_pay": left > 0,
                "credit": left,
                "has_billing": True,
                "ssh_key": keys[-1]["public_key"] if keys else None,
            }
        )

    async def charges(self, request: Request, _: Fault | None) -> Response:
        day = object_of(request.query_params.get("select_filters", "{}")).get("day")
        if not isinstance(day, dict) or not {"gte", "lte"} <= set(day):
            raise RefusedAnswer(400, "invalid_args", "Must provide both 'day' gte and lte filters for instance charges")
        rows = [charge(machine, self._grounds) for machine in self._estate.all()]
        rows = [row for row in rows if row["end"] > day["gte"] and row["start"] <= day["lte"]]
        rows.reverse()
        limit = min(500, int(request.query_params.get("limit", 100)))
        return JSONResponse({"success": True, "count": len(rows), "results": rows[:limit], "next_token": None})

    async def invoices(self, _: Request, __: Fault | None) -> Response:
        """Nothing was paid in while anybody looked."""
        return JSONResponse({"success": True, "count": 0, "results": [], "next_token": None})

    # -- SSH keys

    async def keys(self, _: Request, __: Fault | None) -> Response:
        return JSONResponse(self._keys())

    async def add_key(self, request: Request, _: Fault | None) -> Response:
        text = _public_key(await body_of(request))
        keys = self._keys()
        if text in {key["public_key"] for key in keys}:
            raise RefusedAnswer(400, "duplicate_ssh_key", "the key is there already")
        key = {"id": 1 + max((each["id"] for each in keys), default=0), "user_id": USER_ID, "public_key": text}
        self._estate.remember(_KEYS, [*keys, key])
        return JSONResponse({"success": True, "key": key})

    async def change_key(self, request: Request, _: Fault | None) -> Response:
        wanted, text = self._key(request), _public_key(await body_of(request))
        keys = [each | {"public_key": text} if each["id"] == wanted["id"] else each for each in self._keys()]
        self._estate.remember(_KEYS, keys)
        return JSONResponse({"success": True})

    async def drop_key(self, request: Request, _: Fault | None) -> Response:
        gone = self._key(request)
        self._estate.remember(_KEYS, [each for each in self._keys() if each["id"] != gone["id"]])
        return JSONResponse({"success": True})

    async def attach_key(self, request: Request, machine: MachineRow) -> Response:
        """To one contract; not to those that are rented later."""
        text = _public_key(await body_of(request))
        there = machine.facts.get(_ATTACHED, [])
        self._estate.update_facts(machine.ref, **{_ATTACHED: [*there, text]})
        return JSONResponse({"success": True, "msg": "ssh key added to the instance"})

    async def detach_key(self, request: Request, machine: MachineRow) -> Response:
        gone = self._key(request)["public_key"]
        left = [text for text in machine.facts.get(_ATTACHED, []) if text != gone]
        self._estate.update_facts(machine.ref, **{_ATTACHED: left})
        return JSONResponse({"success": True})

    def _keys(self) -> list[dict[str, Any]]:
        return list(self._estate.recall(_KEYS, []))

    def _key(self, request: Request) -> dict[str, Any]:
        wanted = request.path_params["key_id"]
        for key in self._keys():
            if str(key["id"]) == wanted:
                return key
        raise RefusedAnswer(404, "no_such_ssh_key", f"SSH key {wanted} not found.")

    # -- variables that every container gets

    async def variables(self, _: Request, __: Fault | None) -> Response:
        return JSONResponse({"success": True, "secrets": self._variables()})

    async def add_variable(self, request: Request, _: Fault | None) -> Response:
        body = await body_of(request)
        if body.get("key") in self._variables():
            raise RefusedAnswer(400, "duplicate", "the variable exists; change it instead")
        return self._set_variable(body)

    async def change_variable(self, request: Request, _: Fault | None) -> Response:
        body = await body_of(request)
        self._check_known(body)
        return self._set_variable(body)

    async def drop_variable(self, request: Request, _: Fault | None) -> Response:
        body = await body_of(request)
        self._check_known(body)
        left = {name: value for name, value in self._variables().items() if name != body["key"]}
        self._estate.remember(VARIABLES, left)
        return JSONResponse({"success": True})

    def _set_variable(self, body: dict[str, Any]) -> Response:
        name, value = body.get("key"), body.get("value")
        if not isinstance(name, str) or not name or not isinstance(value, str):
            raise RefusedAnswer(400, "invalid_args", "key and value must be texts")
        self._estate.remember(VARIABLES, check_environment({**self._variables(), name: value}))
        return JSONResponse({"success": True})

    def _check_known(self, body: dict[str, Any]) -> None:
        if body.get("key") not in self._variables():
            raise RefusedAnswer(404, "not_found", f"no variable is named {body.get('key')!r}")

    def _variables(self) -> dict[str, str]:
        return dict(self._estate.recall(VARIABLES, {}))


def _public_key(body: dict[str, Any]) -> str:
    text = body.get("ssh_key")
    if not isinstance(text, str) or len(text.split()) < 2:
        raise RefusedAnswer(400, "invalid_ssh_key", "ssh_key must be a public key: its kind, and the key")
    return text.strip()

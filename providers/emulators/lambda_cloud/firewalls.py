"""Firewall rulesets of the emulated Lambda: kept, checked and told. Nothing is let through or kept out by them."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from providers.emulators.estate import Estate
from providers.emulators.lambda_cloud.answers import LambdaError, invalid, missing
from providers.emulators.lambda_cloud.goods import REGIONS, region

GLOBAL = "global"
_KEPT, _KEPT_GLOBAL = "firewall_rulesets", "firewall_global"
_LONGEST_NAME, _LONGEST_DESCRIPTION = 64, 128
_PROTOCOLS = frozenset({"tcp", "udp", "icmp", "all"})
_AT_FIRST = [
    {"protocol": "tcp", "port_range": [22, 22], "source_network": "0.0.0.0/0", "description": "SSH"},
    {"protocol": "icmp", "source_network": "0.0.0.0/0", "description": "ping"},
]


class Firewalls:
    """One set of rules for all, and any number of rulesets, each of one region."""

    def __init__(self, estate: Estate, now_ms: Callable[[], int]) -> None:
        self._estate = estate
        self._now_ms = now_ms

    def all(self) -> list[dict[str, Any]]:
        return [self._told(ruleset) for ruleset in self._kept()]

    def get(self, ref: str) -> dict[str, Any]:
        return self._told(self._required(ref))

    def of_all(self) -> dict[str, Any]:
        """The rules that hold for every instance."""
        rules = self._estate.recall(_KEPT_GLOBAL, _AT_FIRST)
        return {"id": GLOBAL, "name": "Global Firewall Rules", "rules": rules}

    def set_for_all(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if "rules" in body:
            self._estate.remember(_KEPT_GLOBAL, _rules(body["rules"]))
        return self.of_all()

    def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        place = body.get("region")
        if place not in REGIONS:
            raise invalid(f"Unknown region: {place}.")
        made = datetime.fromtimestamp(self._now_ms() / 1000, UTC).isoformat()
        ruleset = {
            "id": secrets.token_hex(16),
            "name": self._name(body.get("name")),
            "region": region(str(place)),
            "rules": _rules(body.get("rules")),
            "created": made,
        }
        self._estate.remember(_KEPT, [*self._kept(), ruleset])
        return self._told(ruleset)

    def change(self, ref: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Name, rules, or both."""
        ruleset = self._required(ref)
        if "name" in body:
            ruleset["name"] = self._name(body["name"], but=ref)
        if "rules" in body:
            ruleset["rules"] = _rules(body["rules"])
        self._estate.remember(_KEPT, [ruleset if each["id"] == ref else each for each in self._kept()])
        return self._told(ruleset)

    def drop(self, ref: str) -> None:
        """Raises LambdaError while an instance has it."""
        if self.get(ref)["instance_ids"]:
            raise LambdaError("firewall-rulesets/firewall-ruleset-in-use")
        self._estate.remember(_KEPT, [each for each in self._kept() if each["id"] != ref])

    def check(self, refs: Iterable[str], place: str) -> None:
        """What a launch names: rulesets that exist, of its region."""
        for ref in refs:
            if self._required(ref)["region"]["name"] != place:
                raise invalid("The firewall ruleset is in another region.")

    def _told(self, ruleset: Mapping[str, Any]) -> dict[str, Any]:
        orders = {machine.ref: machine.facts["order"] for machine in self._estate.live()}
        users = [ref for ref, order in orders.items() if ruleset["id"] in order.get("firewalls", [])]
        return {**ruleset, "instance_ids": users}

    def _kept(self) -> list[dict[str, Any]]:
        return list(self._estate.recall(_KEPT, []))

    def _required(self, ref: str) -> dict[str, Any]:
        for ruleset in self._kept():
            if ruleset["id"] == ref:
                return ruleset
        raise missing("firewall ruleset")

    def _name(self, name: Any, but: str = "") -> str:
        if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME:
            raise invalid(f"name must have 1 to {_LONGEST_NAME} characters.")
        if any(each["name"] == name and each["id"] != but for each in self._kept()):
            raise invalid("A firewall ruleset with this name exists.")
        return name


def named_in(value: Any) -> Collection[str]:
    """The rulesets that a launch names: [{"id"}]."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) and set(each) == {"id"} for each in value):
        raise invalid("firewall_rulesets must be a list of ids.")
    return [str(each["id"]) for each in value]


def _rules(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise invalid("rules must be a list.")
    return [_rule(each) for each in value]


def _rule(rule: Any) -> dict[str, Any]:
    if not isinstance(rule, dict) or rule.get("protocol") not in _PROTOCOLS:
        raise invalid(f"A rule has a protocol: {', '.join(sorted(_PROTOCOLS))}.")
    ports, description = rule.get("port_range"), rule.get("description")
    if not isinstance(description, str) or len(description) > _LONGEST_DESCRIPTION:
        raise invalid(f"A rule has a description of at most {_LONGEST_DESCRIPTION} characters.")
    if (rule["protocol"] == "icmp") != (ports is None):
        raise invalid("port_range is required for all protocols but icmp.")
    if ports is not None and not _is_range(ports):
        raise invalid("port_range is [lowest, highest], each from 1 to 65535.")
    try:
        network = str(ipaddress.IPv4Network(str(rule.get("source_network")), strict=False))
    except ValueError as error:
        raise invalid("source_network must be an IPv4 network.") from error
    told = {"protocol": rule["protocol"], "source_network": network, "description": description}
    return told if ports is None else {**told, "port_range": ports}


def _is_range(ports: Any) -> bool:
    if not isinstance(ports, list) or len(ports) != 2 or any(type(port) is not int for port in ports):
        return False
    low, high = ports
    return bool(1 <= low <= high <= 65_535)

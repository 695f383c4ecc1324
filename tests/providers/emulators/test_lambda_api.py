"""What the emulated Lambda offers and our adapter does not use: restarts, images, firewall rulesets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.providers.cloud_process import eventually, ok
from tests.providers.emulators.process import EmulatorProcess
from tests.providers.lambda_account import LambdaAccount, refused

MISSING = "global/object-does-not-exist"
INVALID = "global/invalid-parameters"
SSH = {"protocol": "tcp", "port_range": [22, 22], "source_network": "0.0.0.0/0", "description": "SSH"}


@pytest.fixture
def ruleset(lambda_account: LambdaAccount) -> Any:
    """One of us-east-1; gone afterwards."""
    body = {"name": "ours", "region": "us-east-1", "rules": [SSH]}
    made = ok(lambda_account.http.post("/firewall-rulesets", json=body))["data"]
    yield made
    for ref in made["instance_ids"] or [each["id"] for each in lambda_account.instances()]:
        lambda_account.terminate(ref)
    eventually(lambda: lambda_account.http.delete(f"/firewall-rulesets/{made['id']}").status_code in (200, 404))


def test_a_restarted_instance_boots_again(shared_lambda: EmulatorProcess, lambda_account: LambdaAccount) -> None:
    """All that ran is over and begins again; address and disk are the same. What has not booted is refused."""
    ref = lambda_account.launched(user_data="#!/bin/sh\necho x >>kept\necho up $(wc -l <kept)\nexec sleep 600\n")
    eventually(lambda: "up 1" in shared_lambda.log_of(ref))
    address = lambda_account.instance(ref)["ip"]

    def restart(*refs: str) -> Any:
        return lambda_account.http.post("/instance-operations/restart", json={"instance_ids": list(refs)})

    (told,) = ok(restart(ref))["data"]["restarted_instances"]
    assert (told["id"], told["status"]) == (ref, "booting")
    eventually(lambda: "up 2" in shared_lambda.log_of(ref))
    again = lambda_account.instance(ref)
    assert (again["status"], again["ip"], again["actions"]["restart"]["available"]) == ("active", address, True)
    refused(restart(ref, "0" * 32), 404, MISSING)
    shared_lambda.fault(op="launch", kind="never_ready")
    refused(restart(lambda_account.launched()), 400, "vm-has-not-launched")
    assert shared_lambda.log_of(ref).count("up") == 2


def test_an_image_must_exist_in_its_region(lambda_account: LambdaAccount) -> None:
    """By id or by family, not both; an id belongs to one region."""
    images = ok(lambda_account.http.get("/images"))["data"]
    east = next(each for each in images if each["region"]["name"] == "us-east-1")
    west = next(each for each in images if each["region"]["name"] == "us-west-1")
    for wanted in ({"id": east["id"]}, {"family": east["family"]}):
        lambda_account.launched(image=wanted)
    for wanted in ({"id": west["id"]}, {"id": "none"}, {"family": "windows"}):
        refused(lambda_account.launch(image=wanted), 404, MISSING)
    for wanted in ({"id": east["id"], "family": east["family"]}, {}, "lambda-stack-24-04"):
        refused(lambda_account.launch(image=wanted), 400, INVALID)


def test_a_ruleset_belongs_to_its_region_and_instances(lambda_account: LambdaAccount, ruleset: dict[str, Any]) -> None:
    """An instance is launched with it in the same region alone, and while it lives the ruleset cannot go."""
    path = f"/firewall-rulesets/{ruleset['id']}"
    named = {"firewall_rulesets": [{"id": ruleset["id"]}]}
    refused(lambda_account.launch(region_name="us-west-1", **named), 400, INVALID)
    refused(lambda_account.launch(firewall_rulesets=[{"id": "none"}]), 404, MISSING)
    ref = lambda_account.launched(**named)
    assert lambda_account.instance(ref)["firewall_rulesets"] == [{"id": ruleset["id"]}]
    assert ok(lambda_account.http.get(path))["data"]["instance_ids"] == [ref]
    refused(lambda_account.http.delete(path), 400, "firewall-rulesets/firewall-ruleset-in-use")


def test_a_ruleset_is_changed_and_dropped(lambda_account: LambdaAccount, ruleset: dict[str, Any]) -> None:
    """Names are taken once; what is changed is told; what is gone is missing."""
    path = f"/firewall-rulesets/{ruleset['id']}"
    twin = {"name": "ours", "region": "us-east-1", "rules": []}
    refused(lambda_account.http.post("/firewall-rulesets", json=twin), 400, INVALID)
    refused(lambda_account.http.post("/firewall-rulesets", json=twin | {"region": "moon-1"}), 400, INVALID)
    changed = ok(lambda_account.http.patch(path, json={"name": "renamed", "rules": []}))["data"]
    assert (changed["name"], changed["rules"]) == ("renamed", [])
    assert [each["name"] for each in ok(lambda_account.http.get("/firewall-rulesets"))["data"]] == ["renamed"]
    ok(lambda_account.http.delete(path))
    refused(lambda_account.http.get(path), 404, MISSING)


@pytest.mark.parametrize(
    "wrong",
    [
        {"protocol": "gre"},
        {"port_range": None},
        {"port_range": [23, 22]},
        {"port_range": [0, 22]},
        {"port_range": [22]},
        {"port_range": ["22", "22"]},
        {"protocol": "icmp"},
        {"source_network": "::/0"},
        {"source_network": "300.0.0.1"},
        {"description": None},
        {"description": "x" * 129},
    ],
)
def test_a_wrong_rule_is_refused_and_nothing_changed(lambda_account: LambdaAccount, wrong: dict[str, Any]) -> None:
    """Also for the rules of all instances, which stay as they were."""
    before = ok(lambda_account.http.get("/firewall-rulesets/global"))["data"]
    refused(lambda_account.http.patch("/firewall-rulesets/global", json={"rules": [SSH | wrong]}), 400, INVALID)
    assert ok(lambda_account.http.get("/firewall-rulesets/global"))["data"] == before


def test_a_network_without_a_mask_is_one_address(lambda_account: LambdaAccount) -> None:
    """As Lambda reads it; an `icmp` rule has no ports."""
    before = ok(lambda_account.http.get("/firewall-rulesets/global"))["data"]["rules"]
    rules = [
        SSH | {"source_network": "1.2.3.4"},
        {"protocol": "icmp", "source_network": "1.2.3.0/24", "description": ""},
    ]
    told = ok(lambda_account.http.patch("/firewall-rulesets/global", json={"rules": rules}))["data"]
    assert [each["source_network"] for each in told["rules"]] == ["1.2.3.4/32", "1.2.3.0/24"]
    ok(lambda_account.http.patch("/firewall-rulesets/global", json={"rules": before}))

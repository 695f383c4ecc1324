"""The company's own SDK, unmodified, works with the emulator.

Its exact pins do not go with ours, so it lives in an environment of its own, which `./allpass test` makes.
VAST_SDK_PYTHON may name the interpreter of another one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.providers.cloud_process import eventually
from tests.providers.vast_emulator import KEY, SCRIPT, EmulatedVast

_OWN = Path(sys.prefix, "vast-sdk", "bin", "python")
PYTHON = os.environ.get("VAST_SDK_PYTHON") or (str(_OWN) if _OWN.exists() else "")

pytestmark = pytest.mark.skipif(
    not PYTHON,
    reason=f"{_OWN} is missing: `./allpass test` makes it, and {_OWN.parents[2]}/vast-sdk.log says why where it cannot",
)

_HEAD = """
import json, sys, warnings
warnings.simplefilter("ignore")
from vastai import VastAI
given = json.loads(sys.argv[1])
sdk = VastAI(api_key=given["key"], server_url=given["url"], retry=given.get("retry", 1))
"""


def drive(vast: EmulatedVast, script: str, **given: Any) -> Any:
    """What the script prints last, as JSON."""
    told = json.dumps({"key": KEY, "url": vast.url, **given})
    done = subprocess.run(
        [PYTHON, "-c", _HEAD + script, told],
        env={"PATH": os.environ.get("PATH", ""), "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_sdk_searches_as_it_does(vast: EmulatedVast) -> None:
    """Its little language, whose numbers go out as texts, finds and orders the emulator's offers."""
    found = drive(
        vast,
        """
query = "gpu_name in [Tesla_T4,RTX_4090] num_gpus=1 gpu_ram>=20 reliability>0.9 inet_down>=300 duration>3"
print(json.dumps(sdk.search_offers(query=query, order="dph_total", limit=7, storage=64)))
""",
    )
    assert len(found) == 7
    assert {offer["gpu_name"] for offer in found} == {"RTX 4090"}
    assert all(offer["inet_down"] >= 300 and offer["verified"] for offer in found)
    assert found == sorted(found, key=lambda offer: offer["dph_total"])


def test_the_sdk_rents_looks_and_destroys(vast: EmulatedVast) -> None:
    """Create, show, label, logs, stop, start, destroy: the calls and answers fit."""
    created = drive(
        vast,
        """
offer = sdk.search_offers(query="gpu_name=Tesla_T4 num_gpus=1 verified=any", order="dph_total", limit=1)[0]
print(json.dumps(sdk.create_instance(
    offer["id"], image="allpass/node:exam", disk=16, label="by-the-sdk", env={"SAID": "hello"},
    runtype="args", args=["sh", "-c", "echo $SAID; " + given["command"]], cancel_unavail=True)))
""",
        command=SCRIPT,
    )
    assert created["success"] is True
    ref = str(created["new_contract"])
    eventually(lambda: "ready" in vast.log_of(ref))
    told = drive(
        vast,
        """
ref = given["ref"]
one, every = sdk.show_instance(id=ref), sdk.show_instances()
sdk.label_instance(id=ref, label="renamed")
log = sdk.logs(ref, tail="50")
sdk.stop_instance(id=ref)
stopped = sdk.show_instance(id=ref)["actual_status"]
sdk.start_instance(id=ref)
label = sdk.show_instance(id=ref)["label"]
gone = sdk.destroy_instance(id=ref)
print(json.dumps([one, every, log, stopped, label, gone, sdk.show_instance(id=ref), sdk.show_instances()]))
""",
        ref=int(ref),
    )
    one, every, log, stopped, label, gone, nothing, none = told
    assert (one["label"], one["actual_status"], one["extra_env"]["SAID"]) == ("by-the-sdk", "running", "hello")
    assert [str(row["id"]) for row in every] == [ref]
    assert {"hello", "ready"} <= set(log.split())
    assert (stopped, label, gone["success"], nothing, none) == ("stopped", "renamed", True, None, [])


def test_the_sdk_itself_creates_three_for_one(vast: EmulatedVast) -> None:
    """It sends a create again when the answer is a 502: three contracts are paid for. That is why we do not use it."""
    vast.switch(double_rent=True)
    vast.fault("create", "error", when="after", count=3, args={"status": 502})
    drive(
        vast,
        """
for offer in sdk.search_offers(query="gpu_name=Tesla_T4 num_gpus=1 verified=any", order="dph_total", limit=1):
    try:
        sdk.create_instance(offer["id"], image="i", disk=16, label="once", runtype="args", args=["sleep", "600"])
    except Exception:
        pass
print("null")
""",
        retry=3,
    )
    assert len([machine for machine in vast.live() if machine["label"] == "once"]) == 3


def test_the_sdk_hears_about_the_quota(vast: EmulatedVast) -> None:
    """A used-up search quota is told as the SDK knows it: it does not try again."""
    vast.fault("search", "search_quota", count=1)
    said = drive(
        vast,
        """
try:
    sdk.search_offers(query="gpu_name=L4", limit=1)
    print(json.dumps("found"))
except Exception as error:
    print(json.dumps(str(error)))
""",
        retry=3,
    )
    assert "429" in said

"""The company's own SDK, unmodified, works with the emulator.

Its exact pins do not go with ours, so it lives in an environment of its own, which `./allpass test` makes.
VAST_SDK_PYTHON may name the interpreter of another one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from providers.emulators.vast.hosts import OFFER_FIELDS
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


def _run(command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    """In a home of its own: it makes its folders there when it is imported, and trips over those of another start."""
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run(
            command,
            env={"PATH": os.environ.get("PATH", ""), "HOME": home, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )


def drive(vast: EmulatedVast, script: str, **given: Any) -> Any:
    """What the script prints last, as JSON."""
    told = json.dumps({"key": KEY, "url": vast.url, **given})
    done = _run([PYTHON, "-c", _HEAD + script, told])
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout.splitlines()[-1])


def cli(vast: EmulatedVast, *words: str) -> str:
    """What the company's command line prints; it fails the test when it crashes or is refused."""
    command = [PYTHON, "-W", "ignore", str(Path(PYTHON).with_name("vastai")), *words]
    done = _run(command, COLUMNS="400", NO_COLOR="1", VAST_URL=vast.url, VAST_API_KEY=KEY)
    assert done.returncode == 0 and "Failed with error" not in done.stdout + done.stderr, done.stderr[-2_000:]
    return done.stdout


def test_the_command_line_searches_and_prints_every_host(vast: EmulatedVast) -> None:
    """It computes with the numbers of every row, and may ask for any field of its language."""
    assert cli(vast, "search", "offers", "num_gpus=1", "--limit", "400").count("RTX_4090") > 100
    query = "compute_cap>=890 geolocation in [SE,US] driver_version>=570.0.0 cpu_arch=amd64 pcie_bw>1 gpu_mem_bw>500"
    rows = json.loads(cli(vast, "search", "offers", query, "-o", "dph", "--raw"))
    assert rows and {row["gpu_name"] for row in rows} <= {
        "RTX 4090",
        "RTX 5080",
        "L40",
        "L40S",
        "H100 SXM",
        "H100 PCIE",
    }
    assert {row["geolocation"].rpartition(",")[2].strip() for row in rows} <= {"SE", "US"}
    assert {row["driver_version"].partition(".")[0] for row in rows} <= {"570", "580"}
    fields = drive(vast, "from vastai.api.query import offers_fields\nprint(json.dumps(sorted(offers_fields)))")
    assert set(fields) <= OFFER_FIELDS


def test_the_command_line_rents_and_lists(vast: EmulatedVast) -> None:
    """Its own way to run any image: a shell as `onstart`. It lists, reboots, labels, stops many, and destroys."""
    offer = json.loads(cli(vast, "search", "offers", "num_gpus=1 gpu_name=RTX_4090", "--limit", "1", "--raw"))[0]
    what = ["--image", "busybox", "--disk", "16", "--onstart-cmd", "sh", "--args", "-c", "echo hello; sleep 600"]
    cli(vast, "create", "instance", str(offer["id"]), *what)
    (machine,) = vast.live()
    ref = machine["ref"]
    eventually(lambda: "hello" in vast.log_of(ref))
    assert "hello" in cli(vast, "logs", ref)
    assert "RTX 4090" in cli(vast, "show", "instances") and ref in cli(vast, "show", "instances", "-v")
    assert cli(vast, "show", "instances", "-q").split() == [ref]
    assert cli(vast, "show", "instances", "-q", "--status", "exited").split() == []
    assert "running" in cli(vast, "show", "instance", ref)
    cli(vast, "reboot", "instance", ref)
    cli(vast, "label", "instance", ref, "mine")
    assert json.loads(cli(vast, "show", "instances", "--raw", "--label", "mine"))[0]["extra_env"] == {}
    cli(vast, "stop", "instances", ref)
    assert vast.machine(ref)["state"] == "stopped"
    assert ref in cli(vast, "show", "invoices-v1", "--charges")
    assert "No results" in cli(vast, "show", "invoices-v1", "--invoices")
    cli(vast, "destroy", "instance", "-y", ref)
    assert vast.live() == []


def test_a_container_with_ssh_tells_its_address(vast: EmulatedVast) -> None:
    """Also at a host with odd data: the client takes the port from the listing."""
    odd = next(row for row in vast.search(limit=1_000) if row["cpu_cores"] is None)
    cli(vast, "create", "instance", str(odd["id"]), "--image", "i", "--disk", "16", "--ssh", "--direct")
    (machine,) = vast.live()
    eventually(lambda: vast.machine(machine["ref"])["state"] == "running")
    assert cli(vast, "ssh-url", machine["ref"]).startswith("ssh://root@203.0.113.")


def test_the_command_line_keeps_the_account(vast: EmulatedVast) -> None:
    """Credit, SSH keys and variables; the key of the account is not printed."""
    shown = cli(vast, "show", "user")
    assert "1000.00" in shown and KEY not in shown
    cli(vast, "create", "ssh-key", "ssh-ed25519 AAAA me")
    (key,) = json.loads(cli(vast, "show", "ssh-keys", "--raw"))
    cli(vast, "update", "ssh-key", str(key["id"]), "ssh-ed25519 BBBB me")
    cli(vast, "delete", "ssh-key", str(key["id"]))
    cli(vast, "create", "env-var", "SAID", "hello")
    cli(vast, "update", "env-var", "SAID", "again")
    assert "again" in cli(vast, "show", "env-vars", "--show-values")
    cli(vast, "delete", "env-var", "SAID")
    assert "No environment variables" in cli(vast, "show", "env-vars")


def test_the_sdk_runs_commands_in_a_container(vast: EmulatedVast) -> None:
    """The command line of the same release cannot: it takes the text that its own SDK returns for an object."""
    ref = vast.rent(args=["sh", "-c", "echo x > made; echo up; sleep 600"]).json()["new_contract"]
    eventually(lambda: "up" in vast.log_of(str(ref)))
    said = drive(vast, 'print(json.dumps(sdk.execute(id=given["ref"], command="ls /")))', ref=ref)
    assert "made" in said


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

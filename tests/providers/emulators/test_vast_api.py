"""The emulated Vast.ai's own interface: paths, filters, limits and refusals as the company documents them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from providers.emulators.vast.errors import RefusedAnswer
from providers.emulators.vast.filters import matching, ordered
from tests.providers.cloud_process import eventually, ok
from tests.providers.vast_emulator import EmulatedVast

ROWS = [
    {"id": 1, "price": 0.5, "name": "A100 SXM4", "good": True, "cores": None},
    {"id": 2, "price": " 0.25 ", "name": "T4", "good": False, "cores": 8},
    {"id": 3, "price": 1.0, "name": "T4", "good": True, "cores": "16"},
]
KNOWN = frozenset({"id", "price", "name", "good", "cores"})


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ({}, [1, 2, 3]),
        ({"id": {"eq": "2"}}, [2]),
        ({"id": {"neq": 2}}, [1, 3]),
        ({"price": {"gte": "0.5", "lt": 1}}, [1]),
        ({"price": {"lte": 0.25}}, [2]),
        ({"name": {"in": ["T4"]}, "good": {"eq": "true"}}, [3]),
        ({"name": {"notin": ["T4", "L4"]}}, [1]),
        ({"cores": {"gt": 4}}, [2, 3]),
        ({"name": {"gt": 4}}, []),
    ],
)
def test_filters_compare_what_values_mean(filters: dict[str, Any], ids: list[int]) -> None:
    """Numbers as texts on either side are numbers; null and text are on no side of a number."""
    assert [row["id"] for row in matching(ROWS, filters, KNOWN)] == ids


@pytest.mark.parametrize("filters", [{"colour": {"eq": 1}}, {"id": {"like": 1}}, {"id": 1}])
def test_a_filter_that_makes_no_sense_is_refused(filters: dict[str, Any]) -> None:
    """Unknown columns and operators are a bad request."""
    with pytest.raises(RefusedAnswer):
        matching(ROWS, filters, KNOWN)


def test_order_takes_both_spellings() -> None:
    """The search and the listing write it differently; what has no value comes last either way."""
    assert [row["id"] for row in ordered(list(ROWS), [["price", "desc"]])] == [3, 1, 2]
    assert [row["id"] for row in ordered(list(ROWS), [{"col": "cores", "dir": "asc"}])] == [2, 3, 1]
    assert [row["id"] for row in ordered(list(ROWS), [["name", "asc"], ["id", "desc"]])] == [1, 3, 2]


def test_three_ways_to_search_find_the_same(vast: EmulatedVast) -> None:
    """POST with filters at the top, GET with `q`, PUT to the newer path."""
    q = {"gpu_name": {"eq": "L4"}, "order": [["dph_total", "asc"]], "limit": 3, "allocated_storage": 64}
    posted = vast.search(**q)
    got = ok(vast.api.get("/api/v0/bundles/", params={"q": json.dumps(q)}))["offers"]
    put = ok(vast.api.put("/api/v0/search/asks/", json={"select_cols": ["*"], "q": q}))["offers"]
    assert [row["id"] for row in posted] == [row["id"] for row in got] == [row["id"] for row in put]
    assert len(posted) == 3
    for row in posted:
        assert float(row["dph_total"]) == pytest.approx(float(row["dph_base"]) + 64 * row["storage_cost"] / 720)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/api/v0/bundles/", 404),
        ("PUT", "/api/v0/asks/1/", 401),
        ("GET", "/api/v1/instances/", 401),
        ("DELETE", "/api/v0/instances/1/", 401),
    ],
)
def test_a_wrong_key_is_refused(vast: EmulatedVast, method: str, path: str, status: int) -> None:
    """401 auth_error, but 404 for a search, as the company has it."""
    refused = httpx.request(method, vast.url + path, headers={"Authorization": "Bearer wrong"}, trust_env=False)
    assert (refused.status_code, refused.json()["msg"]) == (status, "Invalid user key")


@pytest.mark.parametrize(
    "wrong",
    [
        {"image": ""},
        {"image": "i" * 1_025},
        {"label": "l" * 257},
        {"disk": 7},
        {"disk": "big"},
        {"args": "sh"},
        {"args": ["x" * 2_000], "onstart": "y" * 2_097},
        {"env": {"K": "v" * 257}},
        {"env": {f"K{n}": "v" * 256 for n in range(130)}},
    ],
    ids=["no image", "image", "label", "small disk", "no disk", "args", "script", "a value", "all values"],
)
def test_documented_limits_are_kept(vast: EmulatedVast, wrong: dict[str, Any]) -> None:
    """What is too long or too small is invalid_args, and no contract comes of it."""
    refused = vast.rent(1, **wrong)
    assert (refused.status_code, refused.json()["error"], refused.json()["success"]) == (400, "invalid_args", False)


@pytest.mark.parametrize("price", [0.0005, 129, "cheap"])
def test_a_bid_has_bounds(vast: EmulatedVast, price: object) -> None:
    """Below a tenth of a cent and above 128 dollars nothing is bid."""
    assert vast.rent(1, price=price).json()["error"] == "invalid_price"


def test_the_listing_filters_on_what_is_stored(vast: EmulatedVast) -> None:
    """Computed columns are a bad request; labels are compared as a whole."""
    vast.fault("create", "stuck")
    vast.rent(label="one-label")

    def listed(filters: dict[str, Any]) -> httpx.Response:
        return vast.api.get("/api/v1/instances/", params={"select_filters": json.dumps(filters)})

    assert listed({"dph_total": {"gt": 0}}).status_code == 400
    assert listed({"label": {"eq": "one"}}).json()["instances"] == []
    assert len(listed({"label": {"eq": "one-label"}}).json()["instances"]) == 1


def test_a_contract_is_stopped_started_renamed_and_rebooted(vast: EmulatedVast) -> None:
    """`state`, `label` and reboot do what they say; the script runs again at each start of the container."""
    ref = vast.rent(args=["sh", "-c", "echo started; exec sleep 600"]).json()["new_contract"]
    eventually(lambda: vast.log_of(str(ref)).count("started") == 1)
    path = f"/api/v0/instances/{ref}/"
    assert vast.api.put(path, json={"label": "l" * 257}).json()["error"] == "label_too_long"
    ok(vast.api.put(path, json={"label": "mine", "state": "stopped"}))
    row = vast.api.get(path).json()["instances"]
    assert (row["actual_status"], row["cur_state"], row["label"]) == ("stopped", "stopped", "mine")
    ok(vast.api.put(path, json={"state": "running"}))
    eventually(lambda: vast.log_of(str(ref)).count("started") == 2)
    ok(vast.api.put(f"/api/v0/instances/reboot/{ref}/", json={}))
    eventually(lambda: vast.log_of(str(ref)).count("started") == 3)
    ok(vast.api.request("DELETE", "/api/v0/instances/", json={"instance_ids": [ref]}))
    assert vast.api.get(path).json() == {"instances": None}


def test_with_ssh_the_container_outlives_its_script(vast: EmulatedVast) -> None:
    """`onstart` runs beside a server that goes on: the contract stays running, and costs, when it ends."""
    ref = str(vast.rent(args=[], runtype="ssh_direct", onstart="echo done\n").json()["new_contract"])
    eventually(lambda: "done" in vast.log_of(ref) and vast.machine(ref)["exit_code"] == 0)
    assert vast.api.get(f"/api/v0/instances/{ref}/").json()["instances"]["actual_status"] == "running"


def test_without_a_server_onstart_is_the_entry_point(vast: EmulatedVast) -> None:
    """The company's client sends a program as `onstart`, and its arguments as `args`; the container ends with it."""
    ref = str(vast.rent(onstart="sh", args=["-c", "echo from $0", "there"]).json()["new_contract"])
    eventually(lambda: "from there" in vast.log_of(ref))
    eventually(lambda: vast.api.get(f"/api/v0/instances/{ref}/").json()["instances"]["actual_status"] == "exited")
    with_server = str(vast.rent(runtype="ssh_direct", onstart="echo beside", args=["never"]).json()["new_contract"])
    eventually(lambda: "beside" in vast.log_of(with_server))
    row = vast.api.get(f"/api/v0/instances/{with_server}/").json()["instances"]
    assert (row["actual_status"], list(row["ports"])) == ("running", ["22/tcp"])


def test_commands_see_the_disk_of_the_container_alone(vast: EmulatedVast) -> None:
    """`ls`, `du` and `rm`, below the container's own root: nothing else is run, and nothing of the host is reached."""
    ref = vast.rent(args=["sh", "-c", "mkdir kept; echo x > kept/file; ln -s / out; echo made; sleep 600"]).json()[
        "new_contract"
    ]
    eventually(lambda: "made" in vast.log_of(str(ref)))

    def execute(command: str) -> httpx.Response:
        return vast.api.put(f"/api/v0/instances/command/{ref}/", json={"command": command})

    def said(command: str) -> str:
        return httpx.get(ok(execute(command))["result_url"], trust_env=False).text

    assert said("ls -1 /kept").split() == ["file"]
    for refused in (
        "cat /kept/file",
        "ls ../..",
        "ls /out",
        "rm -r out/etc",
        "rm -rf /",
        "rm -r .",
        "du --files0-from=x",
        "",
    ):
        assert execute(refused).status_code == 400, refused
    said("rm /out")  # the link, not what it leads to
    said("rm -r /kept")
    assert "kept" not in said("ls /")
    ok(vast.api.put(f"/api/v0/instances/{ref}/", json={"state": "stopped"}))
    assert "out" not in said("ls")


def test_the_account_tells_its_credit(vast: EmulatedVast) -> None:
    """What was paid in less what is spent; with nothing left, nothing can be rented."""
    assert ok(vast.api.get("/api/v0/users/current"))["credit"] > 100
    vast.switch(credit_micros=50_000_000)
    before = ok(vast.api.get("/api/v0/users/current/"))["credit"]
    assert 0 < before <= 50
    ref = str(vast.rent().json()["new_contract"])
    eventually(lambda: vast.machine(ref)["state"] == "running")
    vast.act(ref, "traffic", down_bytes=10**15)
    user = ok(vast.api.get("/api/v0/users/current"))
    assert (user["credit"], user["can_pay"]) == (0, False)
    assert vast.rent().json()["error"] == "missing_billing"


def test_variables_of_the_account_reach_every_new_container(vast: EmulatedVast) -> None:
    """A container's own variables come first; a changed or dropped one counts for those that are rented then."""
    assert vast.api.post("/api/v0/secrets/", json={"key": "SAID", "value": "x" * 257}).status_code == 400
    ok(vast.api.post("/api/v0/secrets/", json={"key": "SAID", "value": "old"}))
    assert vast.api.post("/api/v0/secrets/", json={"key": "SAID", "value": "new"}).status_code == 400
    ok(vast.api.put("/api/v0/secrets/", json={"key": "SAID", "value": "new"}))
    assert ok(vast.api.get("/api/v0/secrets/"))["secrets"] == {"SAID": "new"}
    script = ["sh", "-c", "echo said=$SAID; sleep 600"]
    refs = [str(vast.rent(args=script, env=env).json()["new_contract"]) for env in ({}, {"SAID": "own"})]
    for ref, said in zip(refs, ("new", "own"), strict=True):
        eventually(lambda ref=ref, said=said: f"said={said}\n" in vast.log_of(ref))
    ok(vast.api.request("DELETE", "/api/v0/secrets/", json={"key": "SAID"}))
    assert vast.api.request("DELETE", "/api/v0/secrets/", json={"key": "SAID"}).status_code == 404


def test_ssh_keys_are_kept(vast: EmulatedVast) -> None:
    """Of the account, and of one contract."""
    key = ok(vast.api.post("/api/v0/ssh/", json={"ssh_key": "ssh-ed25519 AAAA me"}))["key"]
    assert vast.api.post("/api/v0/ssh/", json={"ssh_key": "nonsense"}).status_code == 400
    ref = vast.rent().json()["new_contract"]
    ok(vast.api.post(f"/api/v0/instances/{ref}/ssh/", json={"ssh_key": "ssh-ed25519 AAAA me"}))
    ok(vast.api.request("DELETE", f"/api/v0/instances/{ref}/ssh/{key['id']}/", json={}))
    ok(vast.api.put(f"/api/v0/ssh/{key['id']}/", json={"id": key["id"], "ssh_key": "ssh-ed25519 BBBB me"}))
    assert [each["public_key"] for each in vast.api.get("/api/v0/ssh/").json()] == ["ssh-ed25519 BBBB me"]
    ok(vast.api.request("DELETE", f"/api/v0/ssh/{key['id']}/", json={}))
    assert vast.api.get("/api/v0/ssh/").json() == []
    assert vast.api.request("DELETE", f"/api/v0/ssh/{key['id']}/", json={}).status_code == 404


def test_a_raised_bid_wins_a_host_back(vast: EmulatedVast) -> None:
    """A changed bid counts from then on; nobody bids for what was rented on demand."""
    offer = vast.search(gpu_name={"eq": "Tesla T4"}, type="bid", limit=1)[0]
    ref = str(vast.rent(offer["id"], price=offer["min_bid"]).json()["new_contract"])
    eventually(lambda: vast.machine(ref)["state"] == "running")
    ok(vast.admin.post("/admin/market", json={"price_micros": {"Tesla T4": 1_000_000}}))
    eventually(lambda: vast.machine(ref)["state"] == "stopped")
    bid = f"/api/v0/instances/bid_price/{ref}/"
    assert vast.api.put(bid, json={"client_id": "me", "price": 33}).status_code == 400
    ok(vast.api.put(bid, json={"client_id": "me", "price": 0.6}))
    eventually(lambda: vast.machine(ref)["state"] == "running")
    assert vast.machine(ref)["price_micros_per_hour"] == 600_000


def test_charges_need_their_days(vast: EmulatedVast) -> None:
    """Without a range of days there are no charges; a range in the past has none of today's."""
    assert vast.api.get("/api/v0/charges/").status_code == 400
    past = {"select_filters": json.dumps({"day": {"gte": 0, "lte": 86_400}})}
    assert ok(vast.api.get("/api/v0/charges/", params=past))["results"] == []


def test_a_path_that_is_not_there_is_told_in_json(vast: EmulatedVast) -> None:
    """Unknown paths and methods have no page in HTML."""
    assert vast.api.get("/api/v0/no/such/").json()["success"] is False

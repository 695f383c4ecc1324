"""A job on several machines, as its agents see it: where they meet, and whether they reach each other."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from workers.agent import gang
from workers.agent.companion import kind_of
from workers.agent.config import Config, load
from workers.agent.errors import Aborted, MachineFailed
from workers.agent.gang import GangSeat, interface_of, own_address
from workers.agent.member import MemberRun
from workers.agent.run import Run

HOME = "http://127.0.0.1:1"


def config_of(folder: Path, url: str) -> Config:
    """Of a machine that is played on the server's host."""
    return load({"ALLPASS_URL": url, "ALLPASS_AGENT_ROOT": str(folder), "ALLPASS_AGENT_SHARES_HOST": "1"})


def seat(tmp_path: Path, rank: int, said: list[str] | None = None, **told: Any) -> GangSeat:
    spec = {"gpu_indices": [0, 1], "gang": {"nodes": 2, "rank": rank, "meeting": None, **told}}
    return GangSeat(spec, config_of(tmp_path, HOME), (said if said is not None else []).append)


def wanted() -> None:
    return


def test_further_machines_fetch_from_the_first_one_before_any_code_runs(tmp_path: Path) -> None:
    said: list[str] = []
    first, second = seat(tmp_path, 0), seat(tmp_path, 1, said)
    first.open()
    meeting = first.told()["meeting"]
    assert meeting["address"] == "127.0.0.1", "that is how it calls home"
    second.tell({"gang": {"nodes": 2, "rank": 1, "meeting": meeting}})
    second.reach(wanted)
    assert said[0].startswith(f"machine 1 reaches machine 0 at 127.0.0.1:{meeting['port']}, at ")
    speed = second.told()["network_bits_per_s"]
    assert speed > 0 and said[0].endswith(f"at {speed / 1e9:.1f} Gbit/s")
    assert "network_bits_per_s" not in first.told(), "it is reached, and reaches nobody"
    environ = second.environ()
    assert {name: environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "ALLPASS_NODE_RANK")} == {
        "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "ALLPASS_NODE_RANK": "1",
    }  # fmt: skip
    assert environ["PET_NPROC_PER_NODE"] == "2" and environ["PET_NNODES"] == "2"
    own = first.environ()
    assert (own["MASTER_ADDR"], own["MASTER_PORT"]) == (environ["MASTER_ADDR"], environ["MASTER_PORT"])
    assert own["ALLPASS_NODES_KEY"] == environ["ALLPASS_NODES_KEY"] != first.told()["meeting"]["key"]
    assert len(own["ALLPASS_NODES_KEY"]) == 64
    with socket.socket() as code:  # what the job's own processes do there next
        code.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        code.bind((own["MASTER_ADDR"], int(own["MASTER_PORT"])))


def test_whoever_comes_before_the_code_is_refused_there_and_may_try_again(tmp_path: Path) -> None:
    """It never meets the agent in its place, which would keep it waiting."""
    first = seat(tmp_path, 0)
    first.open()
    meeting = first.told()["meeting"]
    assert meeting["code_port"] != meeting["port"]
    with pytest.raises(ConnectionRefusedError), socket.create_connection((meeting["address"], meeting["code_port"])):
        pass
    assert first.environ()["MASTER_PORT"] == str(meeting["code_port"])


def test_who_does_not_know_the_key_gets_nothing_and_is_told_apart(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(gang, "REACH_S", 0.0)
    first = seat(tmp_path, 0)
    first.open()
    wrong = {**first.told()["meeting"], "key": "0" * 64}
    second = seat(tmp_path, 1, meeting=wrong)
    with pytest.raises(MachineFailed, match="machine 1 of the job cannot reach machine 0 at "):
        second.reach(wanted)
    first.close()


def test_one_that_cannot_be_reached_says_what_is_needed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(gang, "REACH_S", 0.0)
    first = seat(tmp_path, 0)
    first.open()
    meeting = first.told()["meeting"]
    first.close()
    with pytest.raises(MachineFailed, match="need a private network on which every port between them is open"):
        seat(tmp_path, 1, meeting=meeting).reach(wanted)


def test_a_stranger_who_stays_does_not_keep_the_others_out(tmp_path: Path) -> None:
    first = seat(tmp_path, 0)
    first.open()
    meeting = first.told()["meeting"]
    with socket.create_connection((meeting["address"], meeting["port"])) as silent:
        seat(tmp_path, 1, meeting=meeting).reach(wanted)
        silent.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 46)
        assert silent.recv(1) == b"", "as long as a key, and none"
    first.close()


def test_waiting_ends_when_the_run_is_not_wanted_any_more(tmp_path: Path) -> None:
    asked = threading.Event()

    def check() -> None:
        if asked.is_set():
            raise Aborted("no longer wanted")
        asked.set()

    with pytest.raises(Aborted):
        seat(tmp_path, 1).reach(check)


def test_the_address_is_the_one_that_calls_home_and_its_interface_is_found(tmp_path: Path) -> None:
    assert own_address(config_of(tmp_path, HOME)) == "127.0.0.1"
    beside_the_server = config_of(tmp_path, HOME)._replace(of_pool=True)  # others have to reach it from elsewhere
    assert own_address(beside_the_server)
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.9") == ""


@pytest.mark.parametrize(("told", "kind"), [(None, Run), ({"rank": 0}, Run), ({"rank": 1}, MemberRun)])
def test_only_further_machines_keep_nothing(told: Any, kind: Any) -> None:
    wish = {"spec": {"gang": told}, "companion_of": None}
    assert kind_of(wish, comes=False, lead=None) is kind

"""User ids of machines that share this host: no two have one in common, and all processes of theirs end with them."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.providers.cloud_process import CHOSEN_AGENT, CloudProcess, agent_of, eventually, ok
from workers.agent import blocks, sweep
from workers.machines import users

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0 or not sweep.LINUX, reason="only root gives code users of its own"),
    pytest.mark.usefixtures("_nobody_stays"),
]
StartCloud = Callable[..., CloudProcess]

# As user code would: becomes the first user of its machine, leaves its group and session, drops its environment, has no
# parent. `kills` is what it does then.
USER_CODE = """exec {python} -S -c '
import os, signal, time
uid = int(os.environ["ALLPASS_AGENT_USER_UID"]) + 1
open(os.environ["ALLPASS_AGENT_ROOT"] + "/next_user", "w").write(str(uid + 1))  # as an agent does
print("uid", uid, flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
        try: {kills}
        except OSError: pass
        os.execve("/bin/sleep", ["sleep", "600"], {{}})
    os._exit(0)
time.sleep(600)
'"""


_begun: list[int] = []


@pytest.fixture
def _nobody_stays() -> Iterator[None]:
    """Whatever becomes of a test: it ends all users that it began."""
    yield
    while _begun:
        uid = _begun.pop()
        sweep.end_users(uid - 1, range(uid, uid + 1))


@pytest.fixture
def start_other(tmp_path: Path) -> Iterator[Callable[..., CloudProcess]]:
    """Starts the clouds of another installation on this host."""
    clouds: list[CloudProcess] = []

    def start(**options: object) -> CloudProcess:
        clouds.append(CloudProcess.start(tmp_path / "other", agent_command=CHOSEN_AGENT, **options))
        return clouds[-1]

    yield start
    for cloud in clouds:
        cloud.kill()


# Nobody's child, and never the same process for longer than a moment.
FORKS_ON = """exec("while True:\\n try: child = os.fork()\\n except OSError: time.sleep(0.001); continue\\n"
    " if child: os._exit(0)\\n os.setsid()\\n time.sleep(0.003)")"""


def rented(cloud: CloudProcess, kills: str = "None") -> tuple[str, int]:
    """A machine whose user code has begun, and that code's user."""
    script = USER_CODE.format(python=sys.executable, kills=kills)
    machine_id = cloud.rent(env={"AGENT": script})["id"]
    log = eventually(lambda: "uid" in (log := cloud.log_of(machine_id)) and log)
    uid = int(log.split("uid")[1].split()[0])
    _begun.append(uid)
    eventually(lambda: running_as(uid))
    return machine_id, uid


def running_as(uid: int) -> list[int]:
    return sweep.processes_of(range(uid, uid + 1)).get(uid, [])


def test_code_of_one_installation_cannot_end_that_of_another(start_cloud: StartCloud, start_other: StartCloud) -> None:
    """Two stacks on one host: what signals everything it may in one reaches nothing of the other; the end of a machine
    of one ends nobody of the other."""
    mine, other = start_cloud(agent_command=CHOSEN_AGENT), start_other()
    _, uid = rented(other)
    living = running_as(uid)
    machine_id, killer = rented(mine, "os.kill(-1, signal.SIGKILL)")
    assert killer not in range(uid - 1, uid - 1 + blocks.SIZE)
    ok(mine.api.delete(f"/v1/machines/{machine_id}"))
    assert running_as(killer) == []
    assert running_as(uid) == living


@pytest.mark.parametrize("code", ["None", FORKS_ON], ids=["daemon", "fork chain"])
@pytest.mark.parametrize("ending", ["request", "agent killed", "keeper killed", "cloud killed", "cloud stopped"])
def test_no_process_of_its_users_outlives_a_machine(
    start_cloud: StartCloud, tmp_path: Path, ending: str, code: str
) -> None:
    """Whatever ends it: not even one that left group, session, environment and parent, nor one that forks faster than
    it can be named. Its users are free then."""
    cloud = start_cloud(agent_command=CHOSEN_AGENT)
    machine_id, uid = rented(cloud, code)
    if ending == "request":
        ok(cloud.api.delete(f"/v1/machines/{machine_id}"))
        assert running_as(uid) == []
    elif ending == "agent killed":
        os.kill(agent_of(machine_id).pid, signal.SIGKILL)
    elif ending == "keeper killed":
        keeper = Path(f"/proc/{agent_of(machine_id).pid}/stat").read_text().rpartition(")")[2].split()[1]
        os.kill(int(keeper), signal.SIGKILL)
    elif ending == "cloud killed":
        cloud.kill()
    else:
        assert cloud.terminate_process() == 0
    eventually(lambda: not any(running_as(uid) for _ in range(30)))
    first = uid - 1

    def is_free() -> bool:
        block = blocks.reclaim(first)
        if block is not None:
            block.close()
        return block is not None

    eventually(is_free)
    if not ending.startswith("cloud"):
        eventually(lambda: not (tmp_path / "cloud" / "machines" / machine_id / "users").exists())


def test_a_machine_holds_its_users_as_long_as_its_keeper_lives(start_cloud: StartCloud) -> None:
    """A cloud that is started again does not give them to another machine."""
    cloud = start_cloud(agent_command=CHOSEN_AGENT, machines_die_with_cloud=False)
    machine_id, uid = rented(cloud)
    assert cloud.terminate_process() == 0
    assert blocks.reclaim(uid - 1) is None
    again = start_cloud(agent_command=CHOSEN_AGENT)
    assert running_as(uid)
    ok(again.api.delete(f"/v1/machines/{machine_id}"))
    assert running_as(uid) == []


def test_a_host_without_free_users_rents_no_machine(start_cloud: StartCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is refused as one for which there is no room, in words: no machine gets another one's users."""
    monkeypatch.setenv(blocks.USER_IDS, "90112-91135")
    cloud = start_cloud(agent_command=CHOSEN_AGENT)
    uids = [rented(cloud)[1] for _ in range(2)]
    assert sorted(uids) == [90113, 90625]
    body = {"label": "x", "offer_id": "serverless-a100-x1", "max_price_micros_per_hour": 10**9, "image": "i", "env": {}}
    refused = cloud.api.post("/v1/machines", json=body)
    assert refused.status_code == 409
    assert "all 2 blocks of user ids of this host are in use" in refused.text
    assert blocks.USER_IDS in refused.text


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("text", [b"", b"9", b"50176", b"\0\0\0\0\0\0", b"\xff\n"])
def test_a_note_that_was_cut_short_means_that_nothing_ran(tmp_path: Path, text: bytes, held: bool) -> None:
    """The disk was full, or the host went down. Whoever has part of that number is left alone, and the note goes."""
    note = tmp_path / "users"
    note.write_bytes(text)
    assert users.MachineUsers(note, tmp_path / "root").sweep(held=held)
    assert not note.exists()


def test_a_note_that_is_whole_is_followed(tmp_path: Path) -> None:
    """All that is a user of that block ends."""
    note = users.MachineUsers(tmp_path / "users", tmp_path / "root")
    block = blocks.claim([range(50_176, 50_688)])
    note.note(block)
    block.close()
    left = subprocess.Popen(["/bin/sleep", "600"], user=50_228, group=50_228, extra_groups=[], cwd="/")
    assert note.sweep()
    assert left.wait(timeout=10) == -signal.SIGKILL


def test_a_block_is_free_only_when_nobody_is_one_of_its_users(tmp_path: Path) -> None:
    """A free lock is not enough: what a machine of an earlier version left, or anybody else, keeps the block."""
    # Each test has users of its own: two may run at the same time, and a process is seen from everywhere.
    part = [range(51_200, 51_200 + 2 * blocks.SIZE)]
    squatter = subprocess.Popen(["/bin/sleep", "600"], user=51_252, group=51_252, extra_groups=[], cwd="/")
    try:
        block = blocks.claim(part, tmp_path / "locks")
        assert block.first == 51_200 + blocks.SIZE
        with pytest.raises(blocks.NoneFree, match="in use"):
            blocks.claim(part, tmp_path / "locks")
        block.close()
    finally:
        squatter.kill()
        squatter.wait()


@pytest.mark.parametrize("trick", ["link", "writable", "file"])
def test_a_folder_of_claims_that_others_could_play_with_is_refused(tmp_path: Path, trick: str) -> None:
    """A link, a folder that all may write, a file in its place: no claim is worth anything there."""
    folder = tmp_path / "locks"
    if trick == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    elif trick == "writable":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        folder.touch()
    with pytest.raises(blocks.NoneFree, match=str(folder)):
        blocks.claim(blocks.DEFAULT, folder)


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """Should somebody have put one there all the same."""
    folder = tmp_path / "locks"
    folder.mkdir(mode=0o755)
    (folder / "50176").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        blocks.claim([range(50_176, 50_688)], folder)
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("text", ["1-2000", "70000-70100", "x", "70000", "-5-9000"])
def test_a_setting_that_is_no_range_is_refused_by_name(text: str) -> None:
    """The message names the variable, the value and what it should be."""
    with pytest.raises(ValueError, match=f"{blocks.USER_IDS} is '{text}'"):
        blocks.ranges({blocks.USER_IDS: text})


def test_numbers_that_mean_somebody_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Subordinate ids that the host has promised, and who can log in."""
    promised = tmp_path / "subuid"
    promised.write_text("ada:52276:10\nbroken line\n")
    monkeypatch.setattr(blocks, "_PROMISED", (promised,))
    part = [range(52_224, 52_224 + 2 * blocks.SIZE)]
    block = blocks.claim(part, tmp_path / "locks")
    assert block.first == 52_224 + blocks.SIZE
    block.close()
    with pytest.raises(blocks.NoneFree, match="set ALLPASS_AGENT_USER_IDS"):
        blocks.claim([range(65_024, 65_536)], tmp_path / "locks")  # of nobody


def test_a_claim_can_be_handed_on(tmp_path: Path) -> None:
    """The keeper's lock is the cloud's own: it holds on when the cloud closes its end."""
    block = blocks.claim([range(53_248, 53_760)], tmp_path / "locks")
    keeper = subprocess.Popen(["/bin/sleep", "600"], pass_fds=[block.lock])
    try:
        block.close()
        with (tmp_path / "locks" / "53248").open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        keeper.kill()
        keeper.wait()
    again = blocks.reclaim(53_248, tmp_path / "locks")
    assert again is not None
    again.close()


def test_who_is_not_root_claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything runs as that user then."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert users.claim() is None

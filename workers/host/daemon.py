"""A member of a pool at work: says what is, does what is asked, until it has left or is told to stop.

Agents are processes of their own: they go on while this one is updated or restarted, and are found again.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from workers.agent.errors import AgentError, Forgotten, Refused, Unreachable
from workers.agent.transport import Transport
from workers.host.facts import GPUS, facts_of, free_bytes
from workers.host.machines import HostMachines, remove_all
from workers.host.place import HostPlace, Member
from workers.host.talk import WAIT_S, HostApi, fetch_agent
from workers.machines.processes import boot_id

LEFT, STOPPED, FORGOTTEN = 0, 0, 3
_TICK_S = 0.1
_FACTS_S = 15.0
_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0


class Daemon:
    """One thread waits for orders, one looks at the host now and then; all that is done is done by the caller's."""

    def __init__(self, place: HostPlace, member: Member, *, with_machines: bool = False) -> None:
        self._place, self._member = place, member
        self._transport = Transport()
        self._api = HostApi(member.url, member.host_token, self._transport)
        smi = member.nvidia_smi if member.gives == GPUS else "none"
        self._machines = HostMachines(place.root, python=member.python, nvidia_smi=smi, die_with_host=with_machines)
        self._facts = self._look()
        self._boot = boot_id()
        self._version = 0
        self._replies: queue.Queue[Any] = queue.Queue()
        self._stop = threading.Event()
        self._leaving = False
        self._news = True
        self._making_room: str | None = None

    def stop(self, *_: object) -> None:
        """From a signal: agents are left running."""
        self._stop.set()

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)
        for work in (self._listen, self._keep_looking):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()
        code: int | None = None
        while code is None and not self._stop.is_set():
            try:
                code = self._turn()
            except (OSError, subprocess.SubprocessError) as error:  # of this host: what runs here goes on, and so do we
                _say(f"could not do all that it should: {error}")
                self._stop.wait(_PAUSE_S)
        self._stop.set()
        self._transport.close()
        if code is None:
            self._machines.release()
            return STOPPED
        return code

    def _turn(self) -> int | None:
        """One look at the world; an exit code when there is nothing left to do."""
        try:
            reply = self._replies.get(timeout=_TICK_S)
        except queue.Empty:
            reply = None
        self._news |= self._machines.look()
        self._guard_disk()
        if self._place.is_to_leave() and not self._leaving:
            self._leaving = self._news = True
        if self._news:
            reply = self._tell() or reply
        if isinstance(reply, Forgotten):
            return self._forgotten(str(reply))
        return self._obey(reply) if isinstance(reply, dict) else None

    def _tell(self) -> Any:
        """At once: something has changed here."""
        try:
            told = self._sync(0.0)
        except Forgotten as error:
            return error if _is_ours(error) else None
        except AgentError:
            return None
        self._news = False
        return told

    def _listen(self) -> None:
        """In its own thread: whatever is asked is heard at once."""
        pause_s = _PAUSE_S
        while not self._stop.is_set():
            try:
                self._replies.put(self._sync(WAIT_S))
                pause_s = _PAUSE_S
            except (AgentError, OSError) as error:
                if isinstance(error, Forgotten) and _is_ours(error):
                    self._replies.put(error)
                    return
                if self._stop.is_set():
                    return
                _say(f"no answer, trying again in {pause_s:g} s: {error}")
                self._stop.wait(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    def _sync(self, wait_s: float) -> dict[str, Any]:
        return self._api.sync(
            self._boot,
            self._facts,
            self._machines.reports(),
            version=self._version,
            wait_s=wait_s,
            leaving=self._leaving,
        )

    def _obey(self, reply: dict[str, Any]) -> int | None:
        self._version = int(reply.get("version", 0))
        orders = [order for order in reply["machines"] if isinstance(order, dict)]
        for order in orders:
            self._obey_one(order)
        self._machines.forget([str(order.get("id")) for order in orders])
        if not reply.get("gone"):
            return None
        for machine in self._machines.live:
            self._machines.end(machine.machine_id)
        remove_all(self._place.root)
        self._place.forget()
        _say(f"has left pool {self._member.pool}: nothing of it runs here any more")
        return LEFT

    def _obey_one(self, order: dict[str, Any]) -> None:
        """One that is no order, or cannot be carried out, is told of and harms no other."""
        machine_id, indices = str(order.get("id")), order.get("gpu_indices") or []
        try:
            if order.get("ends"):
                if self._machines.knows(machine_id):
                    self._machines.end(machine_id)
                    self._news = True
            elif not self._machines.knows(machine_id) and isinstance(order.get("environment"), dict):
                self._start(machine_id, indices, order["environment"])
        except Unreachable as error:  # the agent could not be fetched: it is asked for again
            _say(f"{machine_id} waits: {error}")
        except (ValueError, OSError, Refused) as error:
            _say(f"{machine_id} cannot be started: {error}")
            self._machines.fail(machine_id, [], str(error))
            self._news = True

    def _start(self, machine_id: str, indices: list[int], environment: dict[str, str]) -> None:
        url, sha256 = environment.get("ALLPASS_URL", ""), environment.get("ALLPASS_AGENT_SHA256", "")
        agent = fetch_agent(self._transport, url, sha256, self._place.root / "agents")
        self._machines.start(machine_id, indices, environment, agent)
        self._news = True

    def _forgotten(self, why: str) -> int:
        """The pool's owner has removed this host: what runs here is nobody's any more."""
        for machine in self._machines.live:
            self._machines.end(machine.machine_id)
        remove_all(self._place.root)
        self._place.forget()
        _say(f"is in no pool any more: {why}")
        return FORGOTTEN

    def _keep_looking(self) -> None:
        while not self._stop.wait(_FACTS_S):
            found = self._look()
            self._news |= {**found, "disk_free_bytes": 0} != {**self._facts, "disk_free_bytes": 0}
            self._facts = found

    def _look(self) -> dict[str, Any]:
        member = self._member
        ours = self._machines.is_ours
        return facts_of(self._place.root, member.gives, member.nvidia_smi, member.keep_free_bytes, ours)

    def _guard_disk(self) -> None:
        """Half of what is to stay free is gone: the machine that takes most saves its work and goes, one at a time."""
        if free_bytes(self._place.root) >= self._member.keep_free_bytes // 2:
            self._making_room = None
            return
        if self._making_room in {one.machine_id for one in self._machines.live}:
            return  # it saves; what that frees is seen when it is gone
        self._making_room = self._machines.largest()
        if self._making_room is not None:
            _say(f"nearly fills its disk: {self._making_room}, which takes most of it, saves its work and ends")
            self._machines.tell_end(self._making_room)


def _is_ours(error: Forgotten) -> bool:
    """Whether the service itself says that it knows us no more: a proxy on the way may refuse anything, and nothing
    that runs well is ended for that."""
    return error.code == "unauthenticated"


def _say(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} this host {text}", file=sys.stderr, flush=True)

"""A job on several machines: where they meet, whether they reach each other, and what a further machine does otherwise.

The first machine listens on an address of its own until its code begins, and each further one fetches a few megabytes
from there before it says that it is prepared: what does not reach the others is found out before any code runs, and
how fast the network is stands in the log, and is told.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
import socket
import struct
import threading
import time
from typing import Any, Callable, Dict, Iterator, Mapping, Optional
from urllib.parse import urlsplit

from workers.agent.config import Config
from workers.agent.errors import MachineFailed

PROBE_BYTES = 4 * 1024 * 1024
REACH_S = 60.0  # for so long a machine tries to reach the first one
_ANSWER_S = 10.0
_PAUSE_S = 0.5
_KEY_BYTES = 32
_NOWHERE = "192.0.2.1"  # reserved for documentation: asked which address would be used, and never sent anything
_SIOCGIFADDR = 0x8915


class GangSeat:
    """Of one run. `tell` what the server says; on the first machine `open` before anything is prepared."""

    def __init__(self, spec: Mapping[str, Any], config: Config, say: Callable[[str], None]) -> None:
        self._gpus = len(spec.get("gpu_indices") or ())
        self._config = config
        self._say = say
        self._lock = threading.Lock()  # guards what is told and to tell
        self._told: Mapping[str, Any] = spec["gang"]
        self._own: Optional[Dict[str, Any]] = None  # where the first machine listens
        self._listener: Optional[socket.socket] = None
        self._held: Optional[socket.socket] = None  # the port at which the code's processes will meet
        self._bits_per_s: Optional[int] = None  # from the first machine to this one
        self._address = ""  # of this machine, on the network of the others

    @property
    def rank(self) -> int:
        return int(self._told["rank"])

    @property
    def count(self) -> int:
        return int(self._told["nodes"])

    @property
    def sends_parts(self) -> bool:
        """Whether the agents of all machines send what each has written of a checkpoint."""
        with self._lock:
            return bool(self._told.get("parts"))

    @property
    def part_step(self) -> Optional[int]:
        """The step of which the first machine sends its part, and that is not complete."""
        with self._lock:
            step = self._told.get("part_step")
            return None if step is None else int(step)

    def tell(self, spec: Mapping[str, Any]) -> None:
        """From the sync threads."""
        with self._lock:
            self._told = spec.get("gang") or self._told

    def told(self) -> Dict[str, Any]:
        """What the server has to know."""
        with self._lock:
            meeting = {} if self._own is None else {"meeting": self._own}
            return meeting if self._bits_per_s is None else {**meeting, "network_bits_per_s": self._bits_per_s}

    def open(self) -> None:
        """Listen for the others, and hold a port for the code: another one, so that whoever comes early there is
        refused and tries again, and never takes the agent for it. Raises MachineFailed."""
        self._address = own_address(self._config)
        try:
            self._listener, self._held = self._bound(), self._bound()
            self._listener.listen(64)
        except OSError as error:
            raise MachineFailed(f"this machine cannot listen for the others of its job: {error}") from error
        key = secrets.token_hex(_KEY_BYTES)
        ports = {"port": self._listener.getsockname()[1], "code_port": self._held.getsockname()[1]}
        with self._lock:
            self._own = {"address": self._address, **ports, "key": key}
        threading.Thread(target=self._serve, args=(self._listener, key), name="meeting", daemon=True).start()

    def close(self) -> None:
        """The code's own processes listen from now on, or nobody does."""
        listener, self._listener = self._listener, None
        held, self._held = self._held, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        if held is not None:
            held.close()

    def _bound(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((self._address, 0))
        return bound

    def reach(self, check_wanted: Callable[[], None]) -> None:
        """On a further machine: wait until it is known where the first one is, and fetch from there. Raises
        MachineFailed."""
        while True:
            check_wanted()
            with self._lock:
                meeting = self._told.get("meeting")
            if meeting is not None:
                break
            time.sleep(0.1)
        where = f"{meeting['address']}:{meeting['port']}"
        until = time.monotonic() + REACH_S
        while True:
            check_wanted()
            try:
                took_s = self._fetch(meeting)
            except OSError as error:
                if time.monotonic() > until:
                    raise MachineFailed(
                        f"machine {self.rank} of the job cannot reach machine 0 at {where} ({error}); the machines of "
                        "a job on several need a private network on which every port between them is open"
                    ) from error
                time.sleep(_PAUSE_S)
                continue
            bits_per_s = int(8 * PROBE_BYTES / max(took_s, 1e-6))
            with self._lock:
                self._bits_per_s = bits_per_s
            self._say(f"machine {self.rank} reaches machine 0 at {where}, at {bits_per_s / 1e9:.1f} Gbit/s")
            return

    def seat(self) -> Dict[str, str]:
        """What is known before they have met."""
        return {"ALLPASS_NODES": str(self._told["nodes"]), "ALLPASS_NODE_RANK": str(self._told["rank"])}

    def environ(self) -> Dict[str, str]:
        """What torchrun and torch.distributed read: one process on each machine, unless torchrun starts more."""
        self.close()
        with self._lock:
            told, own = self._told, self._own
        meeting = told.get("meeting") or own or {}
        nodes, rank = str(told["nodes"]), str(told["rank"])
        address, port = str(meeting.get("address", "")), str(meeting.get("code_port", ""))
        environ = {
            **self.seat(),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "ALLPASS_NODES_KEY": _key_of_code(str(meeting.get("key", ""))),
            "WORLD_SIZE": nodes,
            "RANK": rank,
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "PET_NNODES": nodes,
            "PET_NODE_RANK": rank,
            "PET_NPROC_PER_NODE": str(max(1, self._gpus)),
            "PET_MASTER_ADDR": address,
            "PET_MASTER_PORT": port,
        }
        interface = interface_of(self._address)
        if told.get("parts"):
            environ["ALLPASS_PARTS"] = "1"
        if interface:
            environ.update(GLOO_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME=interface, TP_SOCKET_IFNAME=interface)
        return environ

    def _fetch(self, meeting: Mapping[str, Any]) -> float:
        """Seconds that the bytes took."""
        where = str(meeting["address"]), int(meeting["port"])
        with socket.create_connection(where, timeout=_ANSWER_S) as link:
            self._address = str(link.getsockname()[0])
            link.sendall(str(meeting.get("key", "")).encode())
            began_s, left = time.monotonic(), PROBE_BYTES
            while left > 0:
                data = link.recv(min(left, 1024 * 1024))
                if not data:
                    raise ConnectionResetError("it did not answer as the first machine of this job does")
                left -= len(data)
            return time.monotonic() - began_s

    def _serve(self, listener: socket.socket, key: str) -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_answer, args=(link, key), name="meeting", daemon=True).start()


def _key_of_code(key: str) -> str:
    """What the code's processes may know each other by: the agents' own key is not the code's to know."""
    return hmac.new(key.encode(), b"code", hashlib.sha256).hexdigest()


def _answer(link: socket.socket, key: str) -> None:
    """Nothing for who does not know the key."""
    with contextlib.suppress(OSError), link:
        link.settimeout(_ANSWER_S)
        shown = b""
        while len(shown) < len(key):
            data = link.recv(len(key) - len(shown))
            if not data:
                return
            shown += data
        if hmac.compare_digest(shown, key.encode()):
            link.sendall(bytes(PROBE_BYTES))


def own_address(config: Config) -> str:
    """The address under which the others of a private network see this machine: the one from which it calls home. From
    the server's own host it calls itself: then that of its way out, unless it only plays a machine there."""
    parts = urlsplit(config.url)
    home = _source_of(parts.hostname or "127.0.0.1", parts.port or 443)
    is_played = config.shares_host and not config.of_pool
    if home and (is_played or not _is_loopback(home)):
        return home
    return _source_of(_NOWHERE, 9) or home or "127.0.0.1"


def _source_of(host: str, port: int) -> str:
    """No packet is sent."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as asked:
            asked.connect(where)
            return str(asked.getsockname()[0])
    except OSError:
        return ""


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def interface_of(address: str) -> str:
    """The network interface that has the address; empty where that is not found out."""
    for name, own in _interfaces():
        if own == address or (_is_loopback(address) and _is_loopback(own)):
            return name
    return ""


def _interfaces() -> "Iterator[tuple[str, str]]":
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", os.fsencode(name)[:15])
            try:
                answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, request)
            except OSError:  # it has none of this kind
                continue
            yield name, socket.inet_ntoa(answer[20:24])

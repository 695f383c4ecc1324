"""What a host says to its pool's service, and hears: `allpass.wire.hosts` is the contract."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workers.agent import __version__
from workers.agent.api import refusal
from workers.agent.errors import Refused, Unreachable
from workers.agent.transport import Transport
from workers.host.place import HostError

CALL_TIMEOUT_S = 30.0
WAIT_S = 20.0
_LARGEST_PROGRAM = 1 << 25
_SHA256 = re.compile(r"[0-9a-f]{64}")


class HostApi:
    """Raises Unreachable (try again) and Refused (Forgotten for a token that counts no longer)."""

    def __init__(self, url: str, token: str, transport: Transport) -> None:
        self._url = url.rstrip("/")
        self._transport = transport
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": f"allpass-host/{__version__}",
        }

    def join(
        self, nonce: str, name: str, boot_id: str, facts: Mapping[str, Any], labels: Mapping[str, str]
    ) -> dict[str, str]:
        """Exchange the pool's token for the host's own."""
        said = {"nonce": nonce, "name": name, "boot_id": boot_id, "facts": facts}
        reply = self._post("/join", {**said, "labels": labels} if labels else said)
        if not isinstance(reply, dict) or not all(isinstance(reply.get(key), str) for key in _OF_MEMBERS):
            raise Unreachable(f"{self._url} answered something else than a service of Allpass does")
        return {key: reply[key] for key in _OF_MEMBERS}

    def sync(
        self,
        boot_id: str,
        facts: Mapping[str, Any],
        machines: Sequence[Mapping[str, Any]],
        *,
        version: int,
        wait_s: float,
        leaving: bool,
    ) -> dict[str, Any]:
        """Report what is; what should be, as soon as that is another version, or the wait is over."""
        said = {"boot_id": boot_id, "facts": facts, "machines": list(machines), "version": version, "wait_s": wait_s}
        reply = self._post("/sync", {**said, "leaving": leaving}, timeout_s=wait_s + CALL_TIMEOUT_S)
        if not isinstance(reply, dict) or not isinstance(reply.get("machines"), list):
            raise Unreachable("/sync answered something else than orders")
        return reply

    def _post(self, path: str, body: Mapping[str, Any], *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        url, data = f"{self._url}/v1/agent/hosts{path}", json.dumps(body, allow_nan=False).encode()
        with self._transport.exchange("POST", url, headers=self._headers, body=data, timeout_s=timeout_s) as answer:
            text = answer.read()
            if answer.status >= 300:
                raise refusal(answer.status, text)
        try:
            return json.loads(text)
        except ValueError as error:
            raise Unreachable(f"{path} answered something that is not JSON: {text[:80]!r}") from error


_OF_MEMBERS = ("host_id", "host_token", "pool")


def join(
    api: HostApi,
    url: str,
    nonce: str,
    name: str,
    boot_id: str,
    facts: Mapping[str, Any],
    labels: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Raises HostError, in one sentence."""
    try:
        return api.join(nonce, name, boot_id, facts, labels)
    except Refused as error:
        raise HostError(error.message or f"{url} refuses this host: {error}") from error
    except Unreachable as error:
        raise HostError(
            f"{error}: check the address and that this host may reach it ({url} is what hosts call)"
        ) from error


def fetch_agent(transport: Transport, url: str, sha256: str, folder: Path) -> Path:
    """The agent's program, kept for those that come later, and proven each time. Raises Unreachable, and ValueError for
    one that is not what was ordered."""
    if not _SHA256.fullmatch(sha256) or not url.startswith(("http://", "https://")):
        raise ValueError("the order names no agent: its service is of a release that this host does not understand")
    path = folder / f"agent-{sha256}.pyz"
    if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
        return path
    headers = {"User-Agent": f"allpass-host/{__version__}"}
    where = f"{url.rstrip('/')}/agent/{sha256}.pyz"
    with transport.exchange("GET", where, headers=headers, timeout_s=CALL_TIMEOUT_S) as answer:
        if answer.status != 200:
            raise refusal(answer.status, answer.read())
        data = answer.read(_LARGEST_PROGRAM)
    got = hashlib.sha256(data).hexdigest()
    if got != sha256:
        raise Unreachable(f"the agent came as {len(data)} bytes of sha256 {got}, not {sha256}")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # users of jobs read it
    part = path.with_suffix(".part")
    part.write_bytes(data)
    part.chmod(0o644)
    part.replace(path)
    _keep_newest(folder, path)
    return path


def _keep_newest(folder: Path, newest: Path, number: int = 3) -> None:
    """Machines that run hold theirs open; of older ones some are enough."""
    older = sorted((one for one in folder.glob("agent-*.pyz") if one != newest), key=lambda one: one.stat().st_mtime)
    for one in older[: max(0, len(older) + 1 - number)]:
        one.unlink(missing_ok=True)

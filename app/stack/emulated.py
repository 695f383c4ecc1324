"""The rental companies played by emulators, and a cluster: how each is started, and what a server is told to use it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.stack.child import Child
from providers.emulators.companies import Company, kubeconfig_in
from providers.emulators.serving import ADMIN_KEY_VARIABLE, KEY_VARIABLE, emulator_command

# However fast time goes, machines are real processes: deadlines and graces do not shrink below this.
_LEAST_DEADLINE_S = 30.0  # a process still has to start, however fast the company is
_LEAST_GRACE_S = 5.0
# What the emulated cluster has: two nodes with eight of them.
_SHAPES = [{"name": "a100", "gpu_type": "A100", "gpu_memory_gb": 80, "cpus": 4, "memory_gb": 32, "most": 16}]


@dataclass(frozen=True, slots=True)
class Emulated:
    """One company on this host. `key` is what its customers present, `admin_key` opens the books.

    `data_dir` is its own.
    """

    company: Company
    data_dir: Path
    url: str
    admin_url: str
    key: str
    admin_key: str
    speed: float

    def settings(self) -> dict[str, str]:
        """What a server needs to be told."""
        return connection_settings(self.company, self.url, self.key, self.speed, self.data_dir)


def connection_settings(company: Company, url: str, key: str, speed: float, data_dir: Path) -> dict[str, str]:
    """What a server needs to be told, as environment variables: where, with what, and how fast time goes there.
    `data_dir`: the emulator's."""
    if company is Company.KUBERNETES:
        return {
            "ALLPASS_KUBERNETES_KUBECONFIG": str(kubeconfig_in(data_dir)),
            "ALLPASS_KUBERNETES_SHAPES": json.dumps(_SHAPES),
            "ALLPASS_KUBERNETES_STARTUP_S": f"{max(0.001, 8 * speed):g}",
            "ALLPASS_KUBERNETES_STARTUP_DEADLINE_S": f"{max(_LEAST_DEADLINE_S, 900 * speed):g}",
            "ALLPASS_KUBERNETES_CREATE_GRACE_S": f"{max(_LEAST_GRACE_S, 10 * speed):g}",
        }
    if company is Company.MODAL:
        token_id, _, token_secret = key.partition(":")
        return {
            "ALLPASS_MODAL_SERVER_URL": url,
            "ALLPASS_MODAL_TOKEN_ID": token_id,
            "ALLPASS_MODAL_TOKEN_SECRET": token_secret,
            "ALLPASS_MODAL_STARTUP_S": f"{max(0.001, 3.88 * speed):g}",
            "ALLPASS_MODAL_STARTUP_DEADLINE_S": f"{max(_LEAST_DEADLINE_S, 180 * speed):g}",
            "ALLPASS_MODAL_CREATE_GRACE_S": f"{max(_LEAST_GRACE_S, 30 * speed):g}",
        }
    if company is Company.VAST:
        return {
            "ALLPASS_VAST_URL": url,
            "ALLPASS_VAST_API_KEY": key,
            "ALLPASS_VAST_STARTUP_S": f"{max(0.001, 36.04 * speed):g}",
            "ALLPASS_VAST_STARTUP_DEADLINE_S": f"{max(_LEAST_DEADLINE_S, 600 * speed):g}",
            "ALLPASS_VAST_CREATE_GRACE_S": f"{max(_LEAST_GRACE_S, 30 * speed):g}",
        }
    if company is Company.RUNPOD:
        return {
            "ALLPASS_RUNPOD_URL": url,
            "ALLPASS_RUNPOD_API_KEY": key,
            "ALLPASS_RUNPOD_STARTUP_S": f"{max(0.001, 42 * speed):g}",
            "ALLPASS_RUNPOD_STARTUP_DEADLINE_S": f"{max(_LEAST_DEADLINE_S, 1200 * speed):g}",
            "ALLPASS_RUNPOD_CREATE_GRACE_S": f"{max(_LEAST_GRACE_S, 60 * speed):g}",
            "ALLPASS_RUNPOD_CALL_EVERY_S": f"{1.25 * speed:g}",
        }
    margin_s = 0.05 if speed else 0  # a tenth of little time is too little between two processes
    return {
        "ALLPASS_LAMBDA_URL": url,
        "ALLPASS_LAMBDA_API_KEY": key,
        "ALLPASS_LAMBDA_SSH_KEY": "allpass",
        "ALLPASS_LAMBDA_STARTUP_S": f"{max(0.001, 255.59 * speed):g}",
        "ALLPASS_LAMBDA_STARTUP_DEADLINE_S": f"{max(_LEAST_DEADLINE_S, 1800 * speed):g}",
        "ALLPASS_LAMBDA_CREATE_GRACE_S": f"{max(_LEAST_GRACE_S, 60 * speed):g}",
        "ALLPASS_LAMBDA_CALL_EVERY_S": f"{1.1 * speed + margin_s:g}",
        "ALLPASS_LAMBDA_LAUNCH_EVERY_S": f"{12.5 * speed + margin_s:g}",
    }


def emulated(
    company: Company, data_dir: Path, *, host: str, port: int, admin_port: int, secret: str, speed: float
) -> Emulated:
    """The company at these ports, with keys that follow from the stack's secret: the same at every start."""
    key, admin_key = _key(secret, company, "customer"), _key(secret, company, "admin")
    if company is Company.MODAL:
        key = f"ak-{key[:32]}:as-{key[32:]}"
    scheme = "https" if company is Company.KUBERNETES else "http"
    url, admin_url = f"{scheme}://{host}:{port}", f"http://{host}:{admin_port}"
    return Emulated(company, data_dir, url, admin_url, key, admin_key, speed)


def emulator_child(
    one: Emulated, log_file: Path, *, seed: int, host_settings: Mapping[str, str] | None = None
) -> Child:
    """The process, to be started by the main thread. Ready when its admin port answers. `host_settings`: what whoever
    starts machines on this host has to know."""
    host, port = one.url.partition("://")[2].split(":")
    admin_port = int(one.admin_url.rsplit(":", 1)[1])
    command = emulator_command(
        one.company.value, one.data_dir, host=host, port=int(port), admin_port=admin_port, speed=one.speed, seed=seed
    )
    keys = {KEY_VARIABLE: one.key, ADMIN_KEY_VARIABLE: one.admin_key, **(host_settings or {})}
    return Child(one.company.value, command, environment=keys, log_file=log_file, port=admin_port)


def _key(secret: str, company: Company, purpose: str) -> str:
    return hashlib.sha256(f"{secret}/{company}/{purpose}".encode()).hexdigest()

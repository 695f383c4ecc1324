"""Examples of what owners of the installation settle: limits, names of models, projects, pools of own machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.api.example_ids import example_id

MODEL_NAME_REQUEST: Final[Mapping[str, Any]] = {"model": "meta-llama/Llama-3.1-8B-Instruct"}
MODEL_NAME: Final[Mapping[str, Any]] = {
    "name": "gpt-4o-mini",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "source": "owner",
    "from_start": "Qwen/Qwen2.5-7B-Instruct",
}
LIMITS: Final[Mapping[str, Any]] = {
    "machines": 2,
    "per_day": 10_000_000,
    "providers": ["modal", "vast"],
    "machines_rented": 1,
    "spent_today": 4_120_000,
    "day_ends_at": "2026-11-22T00:00:00Z",
}
POOL_REQUEST: Final[Mapping[str, Any]] = {
    "name": "lab",
    "price_usd": 0.4,
    "spot_share": 0.3,
    "rebate": 0.5,
    "grace_s": 300,
    "preference": 1,
    "projects": ["research"],
    "hours": "mon-fri 20:00-08:00, sat-sun 00:00-24:00",
    "most_gpus": 8,
    "quotas": {"research": 6},
    "host_quotas": {"research": [{"hosts": 2, "gpus": 8, "gpu_type": "A100"}]},
    "labels": {"rack": "a4"},
}
POOL_HOST: Final[Mapping[str, Any]] = {
    "id": example_id("host"),
    "name": "gpu-box-1",
    "pool": "lab",
    "state": "ready",
    "gpus": [{"index": 0, "type": "A100", "memory_bytes": 85_899_345_920, "busy": False}],
    "used": [0],
    "cpus": 32,
    "memory_bytes": 270_582_939_648,
    "driver": "550.90.07",
    "why": None,
    "labels": {},
    "joined_at": "2026-11-20T08:00:00Z",
    "heard_at": "2026-11-21T00:22:16Z",
    "leaves_at": None,
}
DEFRAGMENTATION: Final[Mapping[str, Any]] = {
    "id": example_id("dfrg"),
    "goal": "pools",
    "pool": "lab",
    "state": "done",
    "begun_by": "owner",
    "max_moves": 20,
    "nodes": 3,
    "occupied": 3,
    "least": 2,
    "settled": True,
    "left_alone": {"has never saved": 1},
    "releases": [
        {
            "node": "gpu-box-1",
            "gpus": 4,
            "state": "freed",
            "reason": "1 job moves together with others",
            "saves": 0,
            "costs": 0,
            "pause_s": 3.1,
            "steps": [
                {
                    "job_id": example_id("job"),
                    "source": "gpu-box-1",
                    "target": "gpu-box-2",
                    "gpus": 2,
                    "state": "done",
                    "why": None,
                }
            ],
            "why": "gpu-box-1 is vacated: all 4 GPUs are free, for 1 move with 2.9 GPU-seconds of pause",
        }
    ],
    "repairs": [
        {
            "job_id": example_id("job"),
            "state": "done",
            "machines": 2,
            "gpus": 8,
            "here": "1 under leaf-3, 1 under leaf-4",
            "there": "2 under leaf-3",
            "entropy": 0.6931,
            "entropy_there": 0.0,
            "hosts": ["gpu-box-7"],
            "pause_s": 11.0,
            "gain_s": 540.0,
            "why": "its 2 machines came together",
        }
    ],
    "asked_at": "2026-11-21T00:22:16Z",
    "planned_at": "2026-11-21T00:22:17Z",
    "ended_at": "2026-11-21T00:23:02Z",
    "message": "1 of 1 node vacated",
}
POOL: Final[Mapping[str, Any]] = {
    "name": "lab",
    "launcher": "joined",
    "state": "open",
    "price_per_gpu_hour": 400_000,
    "spot_share": 0.3,
    "rebate": 0.5,
    "grace_s": 300,
    "preference": 1,
    "projects": [example_id("proj")],
    "hours": "mon-fri 20:00-08:00, sat-sun 00:00-24:00",
    "most_gpus": 8,
    "quotas": {example_id("proj"): 6},
    "host_quotas": {
        example_id("proj"): [{"hosts": 2, "gpus": 8, "gpu_type": "A100", "short_gpus": 0, "blocked_gpus": 0}]
    },
    "labels": {"rack": "a4"},
    "hosts": [POOL_HOST],
    "drains_at": None,
    "created_at": "2026-11-20T07:55:00Z",
}
FRAGMENTATION: Final[Mapping[str, Any]] = {
    "pool": "lab",
    "hosts": 3,
    "whole_hosts": 1,
    "gpus": 24,
    "free_gpus": 13,
    "switches": 1,
    "requests": [
        {"gpus": 1, "cpus": 8, "fitting": 13, "blocked_by_gpus": 0, "blocked_by_cpus": 0},
        {"gpus": 8, "cpus": 128, "fitting": 0, "blocked_by_gpus": 5, "blocked_by_cpus": 8},
    ],
    "gangs": [
        {
            "gpus": 128,
            "host_gpus": 8,
            "host_cpus": 64,
            "fitting": 0,
            "blocked_by_gpus": 5,
            "blocked_by_cpus": 0,
            "blocked_by_switch": 8,
        }
    ],
}
_TOKEN: Final[str] = "apj_" + 48 * "0"
_FACTS: Final[Mapping[str, Any]] = {
    "cpus": 32,
    "memory_bytes": 270_582_939_648,
    "disk_free_bytes": 1_900_000_000_000,
    "gpus": [{"index": 0, "name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 85_899_345_920, "busy": False}],
    "driver": "550.90.07",
    "system": "Linux 6.1.0 x86_64",
}
_MACHINE: Final[str] = example_id("mach")
OWNER_REQUESTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ModelNameRequest": MODEL_NAME_REQUEST,
    "ProjectChange": {"default_class": "spot"},
    "PoolRequest": POOL_REQUEST,
    "HostChange": {"labels": {"switch": "leaf-3", "rack": None}},
    "PoolChange": {"most_gpus": 4, "hours": ""},
    "PoolTokenRequest": {"joins": 8, "valid_s": 3600},
    "DrainRequest": {"within_s": 1200, "host": "gpu-box-1"},
    "DefragmentationRequest": {"goal": "pools", "dry_run": True, "max_moves": 20},
    "UndrainRequest": {"host": "gpu-box-1"},
    "HostJoinRequest": {"nonce": 64 * "0", "name": "gpu-box-1", "boot_id": "5f7c", "facts": _FACTS},
    "HostSyncRequest": {
        "boot_id": "5f7c",
        "facts": _FACTS,
        "machines": [{"id": _MACHINE, "state": "running"}],
        "version": 12,
        "wait_s": 20.0,
    },
}
OWNER_ANSWERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ModelName": MODEL_NAME,
    "Limits": LIMITS,
    "Pool": POOL,
    "PoolHost": POOL_HOST,
    "Defragmentation": DEFRAGMENTATION,
    "Defragmentations": {"items": [DEFRAGMENTATION]},
    "Fragmentation": FRAGMENTATION,
    "PoolToken": {"pool": "lab", "token": _TOKEN, "joins": 8, "expires_at": "2026-11-21T01:22:16Z"},
    "HostJoinReply": {"host_id": example_id("host"), "host_token": 64 * "0", "pool": "lab"},
    "HostSyncReply": {
        "version": 12,
        "machines": [
            {
                "id": _MACHINE,
                "node_id": example_id("node"),
                "gpu_indices": [0],
                "environment": None,
                "ends": False,
            }
        ],
        "leaving": False,
        "gone": False,
    },
}

"""One example of every body, as the API reference shows it. They tell one story; a test holds them to the models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.api.cursors import text_cursor
from app.api.price_examples import PRICE_LIST, REFRESHED
from app.core.model.ids import Prefix

_DIGITS = "01M7XQPVE2A96009XYYX"
_BUNDLE = "682e3424caf6280f2f67110031d0cdf018a4252dc29247d932003111d3b5e36d"
_FILE = "3f57dc06ff0b95cb321acfcfb9f28ce972ce0780e0d7ba22866c853e512b93a8"
_SIGNED = "https://objects.example.com/projects/proj_1/sha256/3f57dc?expires=1795600000&signature=f00d"


def example_id(prefix: Prefix) -> str:
    """The id that examples use for a thing of this kind."""
    return f"{prefix}_{_DIGITS}"


_TEMPLATE: Final = {
    "model": {"name": "meta-llama/Meta-Llama-3-8B", "parameters": 8_030_000_000},
    "training": {"steps": 400, "method": "lora", "precision": "bf16"},
    "gpu": {"count": 1, "memory_gb": 24},
    "caps": {"max_cost_usd": 20},
    "labels": {"team": "nlp"},
}
_DECISION: Final = {
    "id": 812,
    "at": "2026-11-21T00:22:16Z",
    "policy": "allpass",
    "trigger": "tick",
    "pressure": 0.42,
    "serverless_budget_s": 296,
    "capacity_gpus": 2,
    "demand_gpu_s": 1512,
    "jobs_waiting": 0,
    "nodes": {"serverless": 1, "marketplace": 2, "conventional": 0},
    "actions": {"release": 1},
    "reasons": [],
    "duration_ms": 4,
}
_JOB: Final = {
    "id": example_id("job"),
    "app_id": example_id("app"),
    "app_name": "llama-lora",
    "app_version": 3,
    "sweep_id": None,
    "name": "long-lora",
    "status": "running",
    "reason": None,
    "message": None,
    "where": {
        "node_id": example_id("node"),
        "provider": "local",
        "tier": "marketplace",
        "gpu_type": "A100",
        "gpu_count": 1,
        "price_per_hour": 474_300,
    },
    "epoch": 2,
    "moves": 1,
    "faults": 0,
    "step": 212,
    "total_steps": 400,
    "checkpoint_step": 192,
    "from_checkpoint_id": None,
    "soft_deadline": "2026-11-21T06:21:50Z",
    "submitted_at": "2026-11-21T00:21:50Z",
    "started_at": "2026-11-21T00:21:52Z",
    "ended_at": None,
    "cost": 13_120,
    "max_cost": 20_000_000,
    "max_duration_s": None,
    "estimated_finish_at": "2026-11-21T00:22:45Z",
    "expected": {
        "likely": 188,
        "least": 188,
        "most": 188,
        "by": "steps",
        "earliest_at": "2026-11-21T00:22:45Z",
        "latest_at": "2026-11-21T00:22:45Z",
    },
    "merge": None,
    "labels": {"team": "nlp"},
    "parameters": {"learning_rate": 0.0002, "rank": 8},
    "template": _TEMPLATE,
}
_APP_REQUEST: Final = {
    "name": "llama-lora",
    "user_name": "ada",
    "runtime": {"base_image": "pytorch:2.3.0", "pip": ["transformers==4.45.0", "peft==0.13.0"]},
    "bundle_sha256": _BUNDLE,
    "entrypoint": "train.py",
}
_KEY: Final = {
    "id": example_id("key"),
    "name": "ci",
    "prefix": "ak_5c1f0e2b",
    "scopes": ["read", "submit"],
    "created_at": "2026-11-21T00:00:00Z",
    "expires_at": "2036-11-21T00:00:00Z",
    "last_used_at": None,
    "revoked_at": None,
}
_PROJECT: Final = {
    "id": example_id("proj"),
    "name": "default",
    "created_at": "2026-11-20T08:00:00Z",
    "ahead": True,
    "archived_at": None,
}
_WRITER: Final = {"run_id": example_id("run"), "job_id": example_id("job"), "epoch": 2}
_ENTRY: Final[Mapping[str, Any]] = {"path": "adapter/adapter_model.safetensors", "sha256": _FILE, "size_bytes": 850_140}

REQUESTS: Final[Mapping[str, Any]] = {
    "BundleUploadRequest": {"sha256": _BUNDLE, "size_bytes": 48_213},
    "AppRequest": _APP_REQUEST,
    "JobRequest": {
        "app_id": example_id("app"),
        "name": "long-lora",
        "template": _TEMPLATE,
        "parameters": {"learning_rate": 0.0002, "rank": 8},
        "soft_deadline": "6hr",
    },
    "SweepRequest": {
        "app_id": example_id("app"),
        "name": "rank",
        "template": _TEMPLATE,
        "parameters": [{"rank": 8}, {"rank": 16}],
        "soft_deadline": "6hr",
    },
    "PlanRequest": {
        "model": "llama-3-8b",
        "method": "qlora",
        "batch": 16,
        "sequence": 2048,
        "rank": 16,
        "steps": 3_120,
        "soft_deadline": "6hr",
    },
    "ReplayRequest": {"policy": "cheapest-first", "rules": {"move_gain": 1.5}},
    "CalibrationUpdate": {"enabled": False},
    "PauseRequest": {"lose_steps": True},
    "JobUpdate": {"soft_deadline": "12hr", "max_cost_usd": 25, "labels": {"team": "nlp", "draft": None}},
    "ProjectRequest": {"name": "vision"},
    "ProjectUpdate": {"ahead": False},
    "LimitsUpdate": {"machines": 10, "per_day_usd": 200.0},
    "ImageRequest": {"image": "docker.io/lab/train:7"},
    "BudgetRequest": {"key_id": example_id("key"), "provider": "vast", "period": "day", "amount_usd": 20.0},
    "OwnPricesRequest": {"prices": {"H100": 3.65, "cpu": 0.1415}, "as_of": "2026-11-20"},
    "KeyRequest": {"name": "ci", "scopes": ["read", "submit"], "expires_at": "2036-11-21T00:00:00Z"},
    "SecretRequest": {"value": "hf_not_a_real_token"},
    "JoinRequest": {"agent_version": "0.1.0", "nonce": "5e" * 32},
    "InstallerRequest": {"machine": "x86_64"},
    "SyncRequest": {
        "agent_version": "0.1.0",
        "seen": 0,
        "wait_ms": 0,
        "runs": [{**_WRITER, "phase": "running", "step": 212}],
        "host": {"python": "3.11.9", "cpus": 8},
    },
    "DownloadRequest": {"job_id": example_id("job"), "epoch": 2, "sha256s": [_FILE]},
    "UploadRequest": {"job_id": example_id("job"), "epoch": 2, "files": [_ENTRY]},
    "CheckpointOpen": {**_WRITER, "step": 192, "files": [_ENTRY], "metrics": {"loss": 1.25}},
    "DamageReport": {"job_id": example_id("job"), "epoch": 2, "sha256": _FILE},
    "CheckpointComing": {
        **_WRITER,
        "step": 192,
        "spans": [
            {
                "path": "state",
                "file_bytes": 850_140,
                "offset": 0,
                "sha256": _FILE,
                "size_bytes": 850_140,
                "start": 0,
                "length": 850_140,
            }
        ],
    },
    "Refusal": {
        "run_id": example_id("run"),
        "job_id": example_id("job"),
        "epoch": 2,
        "step": 400,
        "why": "pipe is not a regular file",
    },
    "TransferReport": {
        "run_id": example_id("run"),
        "job_id": example_id("job"),
        "epoch": 2,
        "kind": "send",
        "done_bytes": 40_000_000_000,
        "total_bytes": 100_000_000_000,
    },
    "CheckpointCommit": {"job_id": example_id("job"), "epoch": 2},
    "LogReport": {
        **_WRITER,
        "chunks": [
            {
                "sequence": 0,
                "sha256": _FILE,
                "size_bytes": 64,
                "line_count": 2,
                "first_ms": 1_795_220_512_000,
                "last_ms": 1_795_220_513_000,
            }
        ],
    },
    "MetricReport": {**_WRITER, "points": [{"step": 212, "at_ms": 1_795_220_550_000, "values": {"loss": 1.25}}]},
    "ArtifactReport": {**_WRITER, "files": [_ENTRY]},
}

ANSWERS: Final[Mapping[str, Any]] = {
    "BundleUpload": {"sha256": _BUNDLE, "upload_url": _SIGNED},
    "App": {
        "id": example_id("app"),
        "version": 3,
        "version_id": example_id("ver"),
        "created_at": "2026-11-21T00:21:40Z",
        **_APP_REQUEST,
    },
    "Job": _JOB,
    "Sweep": {"id": example_id("swp"), "jobs": [{**_JOB, "sweep_id": example_id("swp"), "parameters": {"rank": 8}}]},
    "JobEvent": {
        "position": 7,
        "at": "2026-11-21T00:22:16Z",
        "kind": "run_assigned",
        "message": "goes on local A100, the cheapest ready node that fits",
        "data": {"node_id": example_id("node"), "step": 192},
    },
    "LogPage": {"text": "step 212 loss 1.25\n", "next_position": "1.12-2.3", "complete": False},
    "LogMatch": {"line": 131, "position": "2.3", "text": "RuntimeError: CUDA out of memory"},
    "MetricPoint": {"step": 212, "at": "2026-11-21T00:22:30Z", "values": {"loss": 1.25}},
    "Checkpoint": {
        "id": example_id("ckpt"),
        "step": 192,
        "epoch": 1,
        "size_bytes": 850_140,
        "stored_bytes": 850_140,
        "metrics": {"loss": 1.31},
        "created_at": "2026-11-21T00:22:14Z",
    },
    "FileLink": {**_ENTRY, "url": _SIGNED, "pieces": []},
    "Timeline": {
        "stays": [
            {
                "run_id": example_id("run"),
                "node_id": example_id("node"),
                "provider": "local",
                "tier": "serverless",
                "gpu_type": "A100",
                "gpu_count": 1,
                "price_per_hour": 2_100_000,
                "resumed_from_step": None,
                "from_at": "2026-11-21T00:21:50Z",
                "running_at": "2026-11-21T00:21:52Z",
                "to_at": "2026-11-21T00:22:14Z",
                "end_reason": "demoted",
                "cost": 12_833,
            }
        ],
        "waiting_ms": 4_000,
        "running_ms": 51_000,
        "cost": 17_390,
        "all_serverless": 30_920,
        "repeated_ms": 0,
    },
    "Explanation": {
        "job_id": example_id("job"),
        "status": "waiting",
        "headline": "waits for a marketplace node that boots",
        "because": [{"text": "it has run on serverless for 20 s, its budget there", "data": {"budget_ms": 20_000}}],
        "next": [{"text": "goes on at step 192 when the node is ready", "data": {"step": 192}}],
        "deadline": {
            "at": "2026-11-21T06:21:50Z",
            "given": True,
            "estimated_finish_at": "2026-11-21T00:22:45Z",
            "slack_ms": 21_545_000,
            "text": "will be met, with 5 h 59 min to spare",
        },
        "history": f"/v1/jobs/{example_id('job')}/events",
    },
    "Node": {
        "id": example_id("node"),
        "provider": "local",
        "tier": "marketplace",
        "state": "ready",
        "gpu_type": "A100",
        "gpu_count": 1,
        "gpu_memory_bytes": 42_949_672_960,
        "region": "eu-west",
        "price_per_hour": 474_300,
        "job_ids": [example_id("job")],
        "requested_at": "2026-11-21T00:22:12Z",
        "ready_at": "2026-11-21T00:22:16Z",
        "ended_at": None,
        "cost": 4_557,
        "message": None,
    },
    "Offer": {
        "provider": "local",
        "offer_id": "marketplace-a100-3",
        "tier": "marketplace",
        "gpu_type": "A100",
        "gpu_count": 1,
        "gpu_memory_bytes": 42_949_672_960,
        "cpus": 8,
        "memory_bytes": 68_719_476_736,
        "region": "eu-west",
        "price_per_hour": 474_300,
        "price_per_gpu_hour": 474_300,
        "startup_ms": 3_600,
        "seen_at": "2026-11-21T00:22:00Z",
    },
    "Providers": {
        "providers": [
            {
                "name": "lambda",
                "state": "paused",
                "why": "its limit is reached (global/quota-exceeded); tried again later",
                "last_success_at": "2026-11-21T00:21:40Z",
                "last_failure": {
                    "call": "create",
                    "code": "quota_exceeded",
                    "message": "global/quota-exceeded",
                    "at": "2026-11-21T00:21:50Z",
                },
                "quota_errors": 1,
                "refused_at": None,
                "paused_until": "2026-11-21T00:23:50Z",
                "machines": 2,
                "offers": 3,
                "prices": [
                    {
                        "tier": "conventional",
                        "gpu_type": "A100",
                        "offers": 3,
                        "lowest": 1_290_000,
                        "highest": 1_790_000,
                    }
                ],
                "images": [],
                "barred_hosts": [],
                "price_list": None,
            }
        ]
    },
    "PriceList": PRICE_LIST,
    "PriceRefreshes": {"refreshes": [REFRESHED]},
    "ProviderChecks": {
        "checks": [
            {
                "name": "lambda",
                "code": None,
                "message": "the credentials are taken",
                "machines": 2,
                "offers": 3,
                "took_ms": 412,
            }
        ]
    },
    "Plan": {
        "model": "llama-3-8b",
        "parameters": 8_030_261_248,
        "batch": 16,
        "sequence": 2048,
        "method": "qlora",
        "profile": "transformers-5",
        "steps": 3_120,
        "one_gpu_bytes": 16_400_248_431,
        "chosen": 0,
        "reason": "the least for 3120 steps of 4 offers where it fits and that end by the deadline",
        "options": [
            {
                "gpu_type": "A100",
                "gpu_count": 1,
                "gpu_memory_bytes": 80_000_000_000,
                "verdict": "fits",
                "layout": {
                    "gpus": 1,
                    "replicas": 1,
                    "tensor_parallel": 1,
                    "sharding": "none",
                    "micro_batch": 2,
                    "accumulation": 8,
                    "checkpointing": False,
                },
                "peak_in": "backward",
                "allocated": {"low": 52_923_573_051, "expected": 55_709_024_264, "high": 58_494_475_477},
                "reserved": {"low": 52_923_573_051, "expected": 61_279_926_690, "high": 71_307_551_058},
                "process": {"low": 53_447_861_051, "expected": 61_804_214_690, "high": 71_831_839_058},
                "step_ms": 6_559.05,
                "step_source": "estimate",
                "offers": [
                    {
                        "tier": "marketplace",
                        "provider": "local",
                        "offer_id": "a100-marketplace",
                        "price_per_hour": 474_300,
                        "startup_ms": 3_600,
                        "duration_ms": 20_467_840,
                        "cost": 2_696_637,
                        "in_time": True,
                        "steps_in_time": 3_292,
                    }
                ],
            }
        ],
        "remedies": [],
    },
    "ImageBuilds": {
        "images": [
            {
                "provider": "modal",
                "image": "docker.io/lab/train:7",
                "state": "building",
                "since": "2026-11-21T00:21:00Z",
                "ready_at": "2026-11-21T00:23:00Z",
                "took_ms": None,
                "failures": 0,
                "why": None,
                "log": None,
                "again_at": None,
            }
        ]
    },
    "Project": _PROJECT,
    "Limits": {
        "machines": 2,
        "per_day": 10_000_000,
        "providers": ["modal", "vast"],
        "machines_rented": 1,
        "spent_today": 4_120_000,
        "day_ends_at": "2026-11-22T00:00:00Z",
    },
    "Budget": {
        "id": example_id("bud"),
        "scope": "project",
        "key_id": example_id("key"),
        "provider": "vast",
        "period": "day",
        "amount": 20_000_000,
        "spent": 4_120_000,
        "left": 15_880_000,
        "foreseen": 11_260_000,
        "state": "open",
        "begins_at": "2026-11-21T00:00:00Z",
        "ends_at": "2026-11-22T00:00:00Z",
        "set_by": example_id("key"),
        "set_at": "2026-11-20T08:00:00Z",
    },
    "CreatedProject": {
        **_PROJECT,
        "name": "vision",
        "key": {**_KEY, "name": "first", "scopes": ["admin"], "key": "ak_5c1f0e2b_" + "0" * 64},
    },
    "Calibration": {
        "id": example_id("cal"),
        "family": "llama",
        "method": "qlora",
        "kernel": "flash/full",
        "gpu_type": "a100",
        "versions": "bitsandbytes 0.44, peft 0.13, torch 2.5, transformers 4.46",
        "runs": 4,
        "ratio": 1.03,
        "fragmentation": 0.07,
        "overhead_bytes": 471_859_200,
        "weight": 0.571,
        "updated_at": "2026-11-21T00:22:00Z",
    },
    "Pressure": {
        "policy": "allpass",
        "decisions": [_DECISION],
    },
    "Decision": _DECISION,
    "Replay": {
        "id": 812,
        "at": "2026-11-21T00:22:16Z",
        "policy_then": "allpass",
        "policy_now": "cheapest-first",
        "same": False,
        "caveat": None,
        "both": [],
        "only_then": [
            {
                "kind": "start",
                "job_id": example_id("job"),
                "node_id": None,
                "offer": "modal/A100",
                "price_per_hour": 2_100_000,
                "reason": "starts on modal A100 at $2.10/h, the cheapest of 8 serverless offers that fit",
            }
        ],
        "only_now": [],
        "waits": [{"job_id": example_id("job"), "then": None, "now": "no machine is there, and none is rented"}],
        "unchanged_waits": 0,
        "others": {"both": 2, "only_then": 0, "only_now": 0, "waits": 0},
        "signals_then": {"p": 0.42, "F_s": 296},
        "signals_now": {},
    },
    "Usage": {
        "group_by": "app",
        "from_at": "2026-11-01T00:00:00Z",
        "to_at": "2026-12-01T00:00:00Z",
        "lines": [{"key": example_id("app"), "name": "llama-lora", "payer": "run", "cost": 17_390, "gpu_ms": 51_000}],
        "rest": {"lines": 0, "cost": 0, "gpu_ms": 0},
        "cost": 17_390,
        "gpu_ms": 51_000,
        "so_far": True,
        "open_nodes": 1,
    },
    "Key": _KEY,
    "CreatedKey": {**_KEY, "key": "ak_5c1f0e2b_" + "0" * 64},
    "Secret": {
        "name": "HF_TOKEN",
        "created_at": "2026-11-21T00:00:00Z",
        "changed_at": "2026-11-21T00:00:00Z",
        "used_by_jobs": 1,
    },
    "AuditEntry": {
        "id": 42,
        "at": "2026-11-21T00:21:50Z",
        "key_id": example_id("key"),
        "action": "POST /v1/jobs",
        "object_id": example_id("job"),
        "request_id": example_id("req"),
        "status": 201,
    },
    "Health": {"status": "ok", "parts": {"api": "ok", "database": "ok"}, "version": "0.1.0"},
    "JoinReply": {"node_id": example_id("node"), "node_token": "not-a-real-token"},
    "InstallerReply": {"sha256": "9c" * 32, "size_bytes": 38_409_000},
    "SyncReply": {
        "version": 5,
        "runs": [
            {
                **_WRITER,
                "want": "run",
                "grace_ms": 60_000,
                "spec": {
                    "app_name": "llama-lora",
                    "job_name": "long-lora",
                    "project_id": example_id("proj"),
                    "bundle_sha256": _BUNDLE,
                    "bundle_size_bytes": 48_213,
                    "entrypoint": "train.py",
                    "pip": ["peft==0.13.0"],
                    "environment_sha256": _BUNDLE,
                    "base_image": "pytorch:2.3.0",
                    "parameters": {"rank": 8},
                    "template": _TEMPLATE,
                    "total_steps": 400,
                    "checkpoint_interval_s": 300,
                    "gpu_indices": [0],
                    "resume": {"checkpoint_id": example_id("ckpt"), "step": 192, "files": [_ENTRY]},
                    "secrets": {},
                },
                "coming": [],
            }
        ],
    },
    "DownloadReply": {"urls": {_FILE: _SIGNED}},
    "UploadReply": {"urls": {_FILE: _SIGNED}},
    "DamageAnswer": {"resume": {"checkpoint_id": example_id("ckpt"), "step": 96, "files": [_ENTRY]}},
    "CheckpointOpened": {"checkpoint_id": example_id("ckpt"), "urls": {_FILE: _SIGNED}},
}

# By what a list is of: the cursor that goes on behind the example.
CURSORS: Final[Mapping[str, str]] = {
    "Project": example_id("proj"),
    "Decision": "812",
    "App": example_id("app"),
    "AuditEntry": "42",
    "Budget": example_id("bud"),
    "Calibration": example_id("cal"),
    "Checkpoint": example_id("ckpt"),
    "FileLink": text_cursor(_ENTRY["path"]),
    "Job": example_id("job"),
    "JobEvent": "7",
    "Key": example_id("key"),
    "LogMatch": "2.3.64.132.0",
    "MetricPoint": "212",
    "Node": example_id("node"),
    "Offer": text_cursor("474300:local:marketplace-a100-3"),
    "Secret": text_cursor("HF_TOKEN"),
}

TEXTS: Final[Mapping[str, str]] = {
    "text/event-stream": 'retry: 1000\n\nid: 7\ndata: {"position":7,"at":"2026-11-21T00:22:16Z","kind":"run_assigned",'
    '"message":"goes on local A100","data":{}}\n\nid: 9\nevent: end\ndata: {"status":"succeeded"}\n\n',
    "application/gzip": "\u001f...",
    "application/octet-stream": "#!/usr/bin/env python3\nPK...",
    "text/csv": "step,at,loss\r\n212,2026-11-21T00:22:30+00:00,1.25\r\n",
    "text/plain": '# HELP allpass_jobs Jobs by state\n# TYPE allpass_jobs gauge\nallpass_jobs{state="running"} 1.0\n',
}

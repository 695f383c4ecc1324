"""Examples of what the dashboard asks for beside what every client does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from app.api.cursors import text_cursor
from app.api.example_ids import example_id

SESSION_REQUEST: Final[dict[str, Any]] = {"api_key": "ak_5c1f0e2b_" + "0" * 64}
SESSION: Final[dict[str, Any]] = {
    "project_id": example_id("proj"),
    "project_name": "default",
    "key_id": example_id("key"),
    "key_name": "ci",
    "scopes": ["read", "submit"],
    "csrf_token": "7d" * 32,
    "expires_at": "2026-11-21T12:21:50Z",
}
JOB_LINE: Final[dict[str, Any]] = {
    "id": example_id("job"),
    "name": "long-lora",
    "app_id": example_id("app"),
    "app_name": "llama-lora",
    "sweep_id": None,
    "status": "running",
    "priority_class": "guaranteed",
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
    "step": 212,
    "total_steps": 400,
    "moves": 1,
    "faults": 0,
    "cost": 13_120,
    "saved": 17_800,
    "soft_deadline": "2026-11-21T06:21:50Z",
    "submitted_at": "2026-11-21T00:21:50Z",
    "started_at": "2026-11-21T00:21:52Z",
    "ended_at": None,
    "estimated_finish_at": "2026-11-21T00:22:45Z",
    "step_ms": 79.5,
    "losses": [2.31, 1.8, 1.42, 1.31, 1.25],
    "labels": {"team": "nlp"},
}
JOB_CHANGES: Final[dict[str, Any]] = {"data": [JOB_LINE], "counts": {"running": 12, "succeeded": 340}}
JOB_TABLE: Final[dict[str, Any]] = {
    **JOB_CHANGES,
    "next_cursor": example_id("job"),
    "total": 352,
    "position": "1795220550.750:752:750",
}
JOB_STREAM: Final = f"""\
retry: 1000

id: 1795220550.750:752:750
event: jobs
data: {json.dumps(JOB_CHANGES)}

"""
PREVIEW: Final[dict[str, Any]] = {
    "path": "adapter/README.md",
    "size_bytes": 26,
    "kind": "text",
    "text": "# An adapter of llama-3-8b",
    "truncated": False,
}
FINETUNE_REQUEST: Final[dict[str, Any]] = {
    "data": {"sha256": "9c5d21f0" * 8, "name": "support.jsonl"},
    "model": "HuggingFaceTB/SmolLM2-135M",
    "method": "lora",
    "settings": {"epochs": 3, "batch_size": 16, "sequence_length": 1024},
    "template": {"caps": {"max_cost_usd": 5}},
    "name": "support",
    "soft_deadline": "6hr",
}
DATA_REPORT: Final[dict[str, Any]] = {
    "sha256": "9c5d21f0" * 8,
    "name": "support.jsonl",
    "size_bytes": 1_843_200,
    "rows": 4_096,
    "shape": "prompt",
    "labels": 0,
    "characters": 1_512_300,
    "ignored": ["ticket"],
    "problems": [],
    "problem_count": 0,
}
TRACE_REPORT: Final[dict[str, Any]] = {
    "sha256": "4e07408562bedb8b" * 4,
    "name": "seren",
    "jobs": 1_204,
    "left_out": 31,
    "span_s": 86_210.5,
    "gpu_hours": 4_811.2,
}
SIMULATE_REQUEST: Final[dict[str, Any]] = {
    "generated": {"like": "seren", "jobs": 200, "seed": 0},
    "policies": ["allpass", "modal-only"],
    "world": "measured",
    "seeds": 1,
    "settings": {"move_gain": 1.5},
}
SIMULATION: Final[dict[str, Any]] = {
    "trace": "seren-200-0",
    "jobs": 200,
    "span_s": 9_120.0,
    "gpu_hours": 61.4,
    "seeds": 1,
    "options": {"world": "measured", "gpus": "one", "rules.move_gain": "1.5"},
    "policies": [
        {
            "name": "allpass",
            "figures": {
                "cost_usd": 74.91,
                "mean_jct_s": 1_204.2,
                "mean_wait_s": 99.1,
                "deadline_misses": 1,
                "moves": 28,
            },
            "cost_by_provider_usd": {"modal": 9.2, "vast": 65.71},
            "gpu_hours_by_provider": {"modal": 4.4, "vast": 57.0},
            "completion": [[12.5, 0.005], [980.0, 0.5], [21_004.0, 1.0]],
            "stayed": 151,
            "moved": 28,
            "rented": 21,
            "course": {
                "times_s": [0.0, 4_560.0, 9_120.0],
                "queue": [0, 3, 0],
                "serverless": [1, 6, 0],
                "marketplace": [0, 9, 2],
                "conventional": [0, 0, 0],
                "budget_s": [300.0, 241.0, 300.0],
            },
        }
    ],
}
SYSTEM: Final[dict[str, float]] = {
    "system/cpu_percent": 104.5,
    "system/memory_bytes": 9_126_805_504,
    "system/gpu0/util_percent": 97,
    "system/gpu0/memory_bytes": 33_822_867_456,
}


def system_report(writer: Mapping[str, Any]) -> dict[str, Any]:
    """Of this run."""
    return {**writer, "samples": [{"at_ms": 1_795_220_550_000, "values": SYSTEM}]}


REQUESTS: Final[Mapping[str, Any]] = {
    "SessionRequest": SESSION_REQUEST,
    "FinetuneRequest": FINETUNE_REQUEST,
    "SimulateRequest": SIMULATE_REQUEST,
}
JOB_SIZE: Final = {
    "run_id": example_id("run"),
    "node_id": example_id("node"),
    "gpu_type": "A100",
    "gpus": 3,
    "gpus_before": 4,
    "price_per_hour": 2_220_000,
    "from_at": "2026-11-21T00:22:14Z",
    "to_at": None,
    "why": "lent",
    "text": f"lends 1 of 1 GPU that {example_id('job')} waits for",
    "for_job_id": example_id("job"),
}
ANSWERS: Final[Mapping[str, Any]] = {
    "JobSize": JOB_SIZE,
    "Session": SESSION,
    "JobTable": JOB_TABLE,
    "FilePreview": PREVIEW,
    "DataReport": DATA_REPORT,
    "Simulation": SIMULATION,
    "TraceReport": TRACE_REPORT,
    "SystemUse": {"points": [{"at": "2026-11-21T00:22:30Z", "values": SYSTEM}]},
}
CURSORS: Final[Mapping[str, str]] = {
    "JobSize": text_cursor(f"1795220534000 {example_id('aloc')}"),
    "Pool": text_cursor("lab"),
}

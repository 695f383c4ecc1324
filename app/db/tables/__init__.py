"""Every table, each in the file of the wing that owns it. Times are BIGINT milliseconds since the epoch; leases alone
use the database's own clock. Constraint names follow one convention, so that migrations can name what they change.
"""

from __future__ import annotations

from app.db.tables.access import api_keys, audit_log, idempotency_keys, installations, projects, secrets, sessions
from app.db.tables.apps import app_versions, apps
from app.db.tables.base import ID, MICROS, MS, metadata
from app.db.tables.checkpoints import (
    checkpoint_files,
    checkpoint_listings,
    checkpoint_part_pieces,
    checkpoint_parts,
    checkpoint_pieces,
    checkpoints,
    condemned_objects,
    objects,
    transfers,
)
from app.db.tables.counting import counts, counts_until
from app.db.tables.decisions import changed_rows, item_failures, leader_leases, part_health, tick_offers, ticks
from app.db.tables.defragmentation import defragmentations, node_releases
from app.db.tables.doors import (
    completion_pieces,
    completions,
    door_files,
    door_parts,
    door_uploads,
    model_names,
    model_servers,
    tunings,
)
from app.db.tables.jobs import job_events, jobs
from app.db.tables.learning import calibrations, run_history, size_speeds, step_times
from app.db.tables.merging import merges, profiles
from app.db.tables.money import budgets, ledger, limits, spending, tier_spending
from app.db.tables.moves import moves
from app.db.tables.nodes import host_failures, node_events, node_heartbeats, node_joins, nodes, provider_operations
from app.db.tables.offers import (
    image_builds,
    offers,
    own_prices,
    provider_checks,
    provider_errors,
    provider_paces,
    provider_states,
)
from app.db.tables.pools import host_machines, hosts, pool_spot_shares, pool_tokens, pools
from app.db.tables.queues import job_queues, queue_thresholds
from app.db.tables.reservations import reservations, reserved_gpus
from app.db.tables.runs import (
    allocations,
    artifacts,
    log_chunks,
    metric_points,
    run_jobs,
    run_results,
    runs,
    system_samples,
)
from app.db.tables.standby import standby_windows, standbys

__all__ = [
    "ID",
    "MICROS",
    "MS",
    "allocations",
    "api_keys",
    "app_versions",
    "apps",
    "artifacts",
    "audit_log",
    "budgets",
    "calibrations",
    "changed_rows",
    "checkpoint_files",
    "checkpoint_listings",
    "checkpoint_part_pieces",
    "checkpoint_parts",
    "checkpoint_pieces",
    "checkpoints",
    "completion_pieces",
    "completions",
    "condemned_objects",
    "counts",
    "counts_until",
    "defragmentations",
    "door_files",
    "door_parts",
    "door_uploads",
    "host_failures",
    "host_machines",
    "hosts",
    "idempotency_keys",
    "image_builds",
    "installations",
    "item_failures",
    "job_events",
    "job_queues",
    "jobs",
    "leader_leases",
    "ledger",
    "limits",
    "log_chunks",
    "merges",
    "metadata",
    "metric_points",
    "model_names",
    "model_servers",
    "moves",
    "node_events",
    "node_heartbeats",
    "node_joins",
    "node_releases",
    "nodes",
    "objects",
    "offers",
    "own_prices",
    "part_health",
    "pool_spot_shares",
    "pool_tokens",
    "pools",
    "profiles",
    "projects",
    "provider_checks",
    "provider_errors",
    "provider_operations",
    "provider_paces",
    "provider_states",
    "queue_thresholds",
    "reservations",
    "reserved_gpus",
    "run_history",
    "run_jobs",
    "run_results",
    "runs",
    "secrets",
    "sessions",
    "size_speeds",
    "spending",
    "standby_windows",
    "standbys",
    "step_times",
    "system_samples",
    "tick_offers",
    "ticks",
    "tier_spending",
    "transfers",
    "tunings",
]

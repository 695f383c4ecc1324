"""Why a job is where it is: its rows and events, put into words."""

from __future__ import annotations

from app.core.explaining import JobExplanation, explain
from app.core.explaining.facts import Facts, Merged, Said
from app.core.model.job import PLACEABLE_JOB_STATES, JobState, PriorityClass
from app.core.model.merge import MergeState
from app.core.policy import ALLPASS_RULES
from app.db.checkpoints.transfers import HEARD_MS, transfer_of
from app.db.connection import Connection
from app.db.jobs.affinities import most_under_one
from app.db.jobs.reads import JobRow
from app.db.jobs.steering import standings_of
from app.db.merging.merges import MergeRow, newest_merges
from app.db.reading import explanations
from app.services.reading.estimate_finish import estimate_one
from app.services.reading.explain_spread import explain_spread
from app.services.reservations.show import explain_reservation
from app.services.sizes.explain_kept import explain_kept
from app.services.sizes.explain_nodes import explain_nodes
from app.services.sizes.explain_queue import explain_queue
from app.services.sizes.explain_restarts import explain_restarts
from app.services.sizes.explain_speeds import explain_speeds
from app.services.standby.show_standby import explain_standby
from app.settings import Settings

_FREED = (
    *("evicts", "evicted", "interrupted", "gpus_lent", "gpus_given_back", "gpus_no_faster", "defragmented"),
    *("begins_larger", "grows_for_deadline", "begins_smaller", "moves_smaller", "moves_larger"),
)


async def explain_job(connection: Connection, settings: Settings, job: JobRow, *, now_ms: int) -> JobExplanation:
    """The explanation of a job that was just read. One that has moved on meanwhile is explained as it is now."""
    standing = (await standings_of(connection, [job.id]))[job.id]
    row = await explanations.job_columns(connection, job.id)
    live = await explanations.live_run(connection, job.id)
    waits = standing.state in PLACEABLE_JOB_STATES
    coming = await explanations.coming_machine(connection, job.id) if waits else None
    saving = standing.state is JobState.CHECKPOINTING
    asked = most_under_one(row["affinity"] or {})
    pause_s, restarts = settings.move_save_s + settings.move_load_s, job.template.get("resize_by") == "restart"
    merge = (await newest_merges(connection, [job.id])).get(job.id)
    return explain(
        Facts(
            now_ms=now_ms,
            job=standing,
            submitted_ms=row["submitted_ms"],
            since_ms=await explanations.entered_ms(connection, job.id, standing.state),
            ended_ms=row["ended_ms"],
            deadline_ms=row["deadline_ms"],
            deadline_given=row["deadline_given"],
            step=row["step"],
            total_steps=row["total_steps"],
            checkpoint_step=row["checkpoint_step"],
            serverless_used_ms=row["serverless_used_ms"],
            not_before_ms=row["not_before_ms"],
            wait_reason=row["wait_reason"],
            end_message=row["end_message"],
            finish=await estimate_one(connection, job, now_ms=now_ms),
            placed=None if live is None else await explanations.last_event(connection, job.id, (JobState.STARTING,)),
            stopping=await explanations.last_event(connection, job.id, ("run_stopping",)) if saving else None,
            run_state=None if live is None else live.state,
            running_ms=None if live is None else live.running_ms,
            machine=None if live is None else live.machine,
            coming=coming,
            cut=await explanations.cut_event(connection, job.id, coming if live is None else live.machine),
            last_stay=await explanations.last_stay(connection, job.id),
            earlier_waiting=await explanations.earlier_waiting(connection, job.project_id, job.id) if waits else 0,
            decided=await explanations.last_decision(connection),
            is_spot=row["priority_class"] == PriorityClass.SPOT,
            freed=await explanations.last_event(connection, job.id, _FREED),
            retried=await explanations.last_event(connection, job.id, ("memory_retry", "retry")),
            tick_ms=int(settings.tick_s * 1000),
            grace_ms=(None if live is None else live.own_grace_ms) or int(settings.stop_grace_s * 1000),
            merged=None if merge is None or merge.state is not MergeState.OPEN else _merged(merge, job.id, settings),
            split=None if merge is None else _split(merge),
            learned=None if merge is None else _learned(merge, job.id),
            transfer=await transfer_of(connection, job.id, heard_after_ms=now_ms - HEARD_MS),
            unsaved=row["refused_why"],
            saves=row["saves_ms"] is not None,
            max_wait_ms=row["max_wait_ms"],
            locked=bool((row["affinity"] or {}).get("locked")),
            moving=await explanations.open_move(connection, job.id),
            move_timeout_ms=int(settings.move_timeout_s * 1000),
            spread=() if live is None else await explain_spread(connection, job.id, asked),
            resized=await explain_nodes(connection, job.id, row["resources"]),
            lent=(
                *await explain_standby(connection, job.id, _node_of(live), now_ms=now_ms),
                *([] if live is None else await explain_kept(connection, job.id, live.run_id, now_ms=now_ms)),
                *(await explain_restarts(connection, live.run_id, restart_s=pause_s) if live and restarts else []),
            ),
            queued=(
                *await explain_queue(connection, job.id, now_ms=now_ms),
                *([] if live is None else await explain_speeds(connection, job.id, live.machine.gpu_type)),
            ),
            reserved=tuple(
                await explain_reservation(
                    connection, job.project_id, row["priority_class"], _node_of(live), waits=waits, now_ms=now_ms
                )
            ),
        )
    )


def _node_of(live: explanations.ExplainedRun | None) -> str | None:
    return None if live is None else live.machine.node_id


def _merged(merge: MergeRow, job_id: str, settings: Settings) -> Merged:
    return Merged(
        mode=merge.mode,
        leads=merge.leads(job_id),
        other=merge.partner_of(job_id),
        reason=merge.reason,
        begun_ms=merge.begun_ms,
        fruitless_epochs=merge.fruitless_epochs,
        most_epochs=round(settings.policy_rules.get("merge_epochs", ALLPASS_RULES.merge_epochs)),
    )


def _split(merge: MergeRow) -> Said | None:
    """Why the job's last merge was undone, if it was."""
    if merge.state is not MergeState.SPLIT or merge.ended_ms is None:
        return None
    return Said(merge.ended_ms, merge.end_message or "", {"merge_id": merge.merge_id})


def _learned(merge: MergeRow, job_id: str) -> Said | None:
    """From whom the job has what it began with, or begins with when it has a place."""
    if merge.leads(job_id) or merge.checkpoint_id is None or merge.ended_ms is None:
        return None
    text = f"begins from what {merge.lead_id} has learned"
    return Said(merge.ended_ms, text, {"merge_id": merge.merge_id, "checkpoint_id": merge.checkpoint_id})

"""What a move saves and what it costs, in micro-dollar-milliseconds per hour: prices times durations."""

from __future__ import annotations

from app.core import queue
from app.core.due import begins_ms
from app.core.gpu_speeds import time_on
from app.core.job_prices import arrival_cost, job_micros, usual_micros
from app.core.model.job import JobKind, JobState, StartRule
from app.core.model.offer import Offer
from app.core.model.snapshot import JobView, RunView
from app.core.policy import PolicyConfig
from app.core.remaining import OUTLIVED_DENOMINATOR, OUTLIVED_NUMERATOR, predicted_ms, remaining_ms

_LIVES_LEAST_MS = 3_600_000  # a machine, for a job that saves by itself to wait for it


def move_cost(config: PolicyConfig, source_micros: int, target_micros: int) -> int:
    """Both machines are paid while the job saves on the one and loads on the other, and does no work; the target also
    while it prepares, and the source works."""
    moves = config.moves
    return moves.save_ms * (source_micros + target_micros) + (moves.load_ms + moves.prepare_ms) * target_micros


def break_even_ms(
    config: PolicyConfig, source_micros: int, target_micros: int, lost_ms: int = 0, arrival: int = 0
) -> int | None:
    """From which remaining time on a move pays, with the gain that is asked for; None: at these prices never.

    `lost_ms`: of work that the move throws away, and that is done again on the target. `arrival`: what the job's
    arrival there costs (`arrival_cost`).
    """
    gap = source_micros - target_micros
    if gap <= 0:
        return None
    cost = move_cost(config, source_micros, target_micros) + lost_ms * target_micros + arrival
    return int(config.rules.move_gain * cost / gap)


def patience_ms(config: PolicyConfig, serverless: Offer | None) -> int:
    """The longest wait for a node: longer where an arrival on serverless takes long itself, as the job would arrive
    twice, there and then on the node."""
    return config.rules.patience_ms + (0 if serverless is None else 2 * serverless.arrival_ms)


def most_wait_ms(config: PolicyConfig, job: JobView, now_ms: int, serverless: Offer | None = None) -> int:
    """How long the job may wait for a node instead of starting on `serverless`; negative: not at all.

    Only a batch job whose user left the start to us waits, and one that has waited for long has lost its patience. So
    may one that has lost its place and has time to spare, each time: where machines fail often, to start on serverless
    and to move after each failure costs most.
    """
    rules = config.rules
    if job.kind != JobKind.BATCH or job.start != StartRule.AUTO:
        return -1
    if now_ms > patient_until_ms(config, job, serverless) and not waits_again(config, job, now_ms):
        return -1
    share_ms = rules.patience_share * job.resources.gpus_min * (job.deadline_ms - job.submitted_ms)
    return int(min(patience_ms(config, serverless), share_ms, queue.may_wait_ms(job, now_ms)))


def waits_again(config: PolicyConfig, job: JobView, now_ms: int) -> bool:
    """Whether the job has lost its place, and two more moves and its work still fit before its deadline; or not even
    its work does, so that waiting costs nothing: it would leave serverless again, and each move makes it later."""
    if job.state != JobState.WAITING:
        return False
    return slack_ms(config, job, None, now_ms) >= 0 or now_ms >= late_from_ms(job, now_ms)


def late_from_ms(job: JobView, now_ms: int) -> int:
    """From when on a job without a place is late wherever it goes, as far as its run time is known."""
    return job.deadline_ms - remaining_ms(job, None, now_ms) + 1


def patient_until_ms(config: PolicyConfig, job: JobView, serverless: Offer | None = None) -> int:
    """When the job stops waiting, however near a node is."""
    return job.submitted_ms + merge_wait_ms(config, job) + 2 * patience_ms(config, serverless)


def merge_wait_ms(config: PolicyConfig, job: JobView) -> int:
    """How long the job may wait for another one to be merged with; nothing is paid meanwhile. Short jobs do not wait,
    nor do those that somebody looks at or that are due soon."""
    rules, run_ms = config.rules, job.total_run_ms
    if not config.merging or job.recipe is None or run_ms is None or run_ms < rules.merge_least_ms:
        return 0
    if job.kind != JobKind.BATCH or job.start != StartRule.AUTO or not job.recipe.shares:
        return 0
    wait_ms = min(rules.merge_wait_ms, int(rules.merge_wait_share * run_ms))
    wait_ms = wait_ms if job.caps.max_wait_ms is None else min(wait_ms, job.caps.max_wait_ms)
    return 0 if job.submitted_ms + 2 * wait_ms + run_ms > job.deadline_ms else wait_ms


def is_patient(config: PolicyConfig, job: JobView, left_ms: int, serverless: Offer, fresh: Offer, now_ms: int) -> bool:
    """Whether the job rather waits for a fresh node than starts on serverless.

    It may wait so long, would be worth a move all the same, and loses next to nothing: waiting takes hardly longer
    than starting on serverless and moving. And no deadline is lost by it. What a wait saves grows with the GPUs: a job
    of eight saves as much in a minute as one of one GPU in eight. Where arrivals take long it waits as well if that
    saves more than the wait is worth (`_saves_enough`).
    """
    is_guess = predicted_ms(job, None, now_ms) is None and job.state != JobState.WAITING  # as much as it has done
    if is_guess or fresh.startup_ms > most_wait_ms(config, job, now_ms, serverless):
        return False
    by_ms = starts_by_ms(job, left_ms, serverless, now_ms)
    if by_ms is not None and now_ms + begins_ms(fresh) - serverless.arrival_ms > by_ms:
        return False
    if _saves_enough(config, job, left_ms, serverless, fresh):
        return True
    longer_ms = begins_ms(fresh) - begins_ms(serverless) - config.moves.save_ms - config.moves.load_ms
    saving_ms = left_ms * job.resources.gpus_min
    if longer_ms > config.rules.patience_extra_share * saving_ms:
        return False
    worth_ms = break_even_ms(config, usual_micros(serverless, job), usual_micros(fresh, job))
    return worth_ms is not None and saving_ms > worth_ms


def _saves_enough(config: PolicyConfig, job: JobView, left_ms: int, serverless: Offer, fresh: Offer) -> bool:
    """Whether to wait costs so much less than the cheaper of the other ways, to stay on serverless or to move from
    there, that each hour by which the job is done later saves more than an hour of serverless costs. Only where an
    arrival on serverless is known to take time: elsewhere a job that is not worth a move starts at once."""
    if not serverless.arrival_ms:
        return False
    dear, cheap = (job_micros(one, job) // one.gpu_count for one in (serverless, fresh))
    arrival = arrival_cost(fresh) // fresh.gpu_count
    soon_ms, move_ms = begins_ms(serverless), config.moves.save_ms + config.moves.load_ms
    moves_at_ms = max(soon_ms, begins_ms(fresh))
    waits = cheap * left_ms + arrival
    longer_ms = time_on(job.speeds, fresh.gpu_type, left_ms) - time_on(job.speeds, serverless.gpu_type, left_ms)
    other, later_ms = dear * (soon_ms + left_ms), begins_ms(fresh) - soon_ms + longer_ms
    done_ms = moves_at_ms - soon_ms
    if done_ms < left_ms:
        moved = dear * moves_at_ms + move_cost(config, dear, cheap) + cheap * (left_ms - done_ms) + arrival
        if moved < other:
            other, later_ms = moved, later_ms - longer_ms - move_ms
    return other > waits and other - waits >= dear * later_ms


def starts_by_ms(job: JobView, left_ms: int, serverless: Offer, now_ms: int) -> int | None:
    """Until when a job without a place may be kept waiting and still be in time by starting on serverless, should it
    take as much longer than predicted as predictions are believed in (`remaining`). None: nothing of it is to be lost,
    as it would be late even now."""
    left_ms = time_on(job.speeds, serverless.gpu_type, left_ms)
    if now_ms + begins_ms(serverless) + left_ms > job.deadline_ms:
        return None
    longer_ms = left_ms * (OUTLIVED_NUMERATOR - OUTLIVED_DENOMINATOR) // OUTLIVED_DENOMINATOR
    return job.deadline_ms - begins_ms(serverless) - left_ms - longer_ms


def settles(config: PolicyConfig, job: JobView, left_ms: int, serverless: Offer, fresh: Offer, now_ms: int) -> bool:
    """Whether a job that never saves begins on a rented node: where one that saves would move to. It could not later.
    So does one that goes on from a save of its own: what it did on serverless until then would be lost with the move.
    How far apart its saves are nobody knows, so not where machines fail within the hour: it might never reach one.

    Only where its owner left the start to us, and where the wait for the node costs no deadline.
    """
    saves_by_itself = job.saves_by_itself and not 0 < fresh.mean_life_ms < _LIVES_LEAST_MS
    if not (job.never_saves or saves_by_itself) or job.kind != JobKind.BATCH or job.start != StartRule.AUTO:
        return False
    if fresh.startup_ms > queue.may_wait_ms(job, now_ms):
        return False
    if done_ms(job, left_ms, serverless, now_ms) <= job.deadline_ms < done_ms(job, left_ms, fresh, now_ms):
        return False
    worth_ms = break_even_ms(config, usual_micros(serverless, job), usual_micros(fresh, job))
    return worth_ms is not None and left_ms > max(worth_ms, int(fresh.startup_ms / config.rules.move_pause_share))


def done_ms(job: JobView, left_ms: int, offer: Offer, now_ms: int) -> int:
    """When the job would be done on a machine that is asked for now."""
    return now_ms + begins_ms(offer) + time_on(job.speeds, offer.gpu_type, left_ms)


def may_be_parked(job: JobView) -> bool:
    """Whether the job may be kept off serverless to save money: not if its owner said `now`, or looks at it."""
    return job.kind == JobKind.BATCH and job.start != StartRule.NOW


def slack_ms(config: PolicyConfig, job: JobView, run: RunView | None, now_ms: int) -> int:
    """How long the job may still wait before two moves and its work no longer fit before its deadline, should the work
    take as much longer than predicted as predictions are believed in (`remaining`)."""
    work_ms = remaining_ms(job, run, now_ms) * OUTLIVED_NUMERATOR // OUTLIVED_DENOMINATOR
    return job.deadline_ms - now_ms - work_ms - 2 * (config.moves.save_ms + config.moves.load_ms)

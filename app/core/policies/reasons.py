"""Numbers in words, for the reasons that users read."""

from __future__ import annotations

from collections.abc import Iterable

from app.core import queue
from app.core.gpu_speeds import SAME, GpuSpeeds, time_permille
from app.core.job_prices import arrival_cost, entered_micros, job_micros, staying_ms, stretch_ms
from app.core.model.image import ImageState, ImageView
from app.core.model.job import Resources
from app.core.model.money import ZERO, Money
from app.core.model.offer import Offer
from app.core.model.snapshot import ClosedProvider, JobView, NodeView

GIB = 1024**3
_SPOKEN_WITH_A_VOWEL = "AEFHILMNORSX"  # an A100, an RTX 4090; a T4


def duration(duration_ms: int) -> str:
    """`0.4 s`, `301 s`, `12 min`, `3 h 10 min`, `2 d 4 h`: never rounded up."""
    if duration_ms % 1000 and duration_ms < 10_000:
        return f"{duration_ms // 100 / 10:.1f} s"
    seconds = duration_ms // 1000
    if seconds < 600:
        return f"{seconds} s"
    minutes = seconds // 60
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes // 60
    if hours < 48:
        return f"{hours} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"


def times(both_ms: Iterable[float]) -> str:
    """`3 h 10 min`, or `40 min and 3 h 10 min`: when each of two jobs is done."""
    return " and ".join(dict.fromkeys(duration(int(one_ms)) for one_ms in both_ms))


def gpus(count: int, gpu_type: str) -> str:
    """`A100`, `4 x A100`."""
    return gpu_type if count == 1 else f"{count} x {gpu_type}"


def offer(taken: Offer) -> str:
    """What is rented, from whom, at which price per hour."""
    bid = ", by a bid that may be lost" if taken.interruptible else ""
    return f"{taken.provider} {gpus(taken.gpu_count, taken.gpu_type)} at {taken.price_per_hour}/h{bid}"


def bid_or_not(job: JobView, taken: Offer, beside: Offer) -> str:
    """Why a spot job takes a bid, or does not: what an hour of its work costs in both ways."""
    stretch, staying = stretch_ms(job), staying_ms(job)
    costs = {
        one.interruptible: Money(round(entered_micros(one, stretch, staying, job.speeds), -3))
        for one in (taken, beside)
    }  # in tenths of a cent
    return (
        f"with what is likely to be lost, an hour of its work costs {costs[True]} by a bid and {costs[False]} on demand"
    )


def speed(job: JobView, speeds: GpuSpeeds, taken: Offer) -> str:
    """What an hour of work costs there, where GPUs are not as fast as those that the job's times speak of."""
    permille = time_permille(speeds, taken.gpu_type)
    if permille == SAME or not taken.price_per_hour.micros:
        return ""
    work, name = Money(round(job_micros(taken, job), -4)), speeds.named  # in cents
    article = "an" if name[0] in _SPOKEN_WITH_A_VOWEL else "a"
    takes = "takes" if speeds.knows(taken.gpu_type) else "is taken to need"
    return f"; what {article} {name} does in an hour {takes} {permille / SAME:.2g} h there, and costs {work}"


def too_slow(passed_over: Offer) -> str:
    """Why what costs less is not taken."""
    return f"on {offer(passed_over)} it would cost less and be done later than its deadline"


def failing(job: JobView, taken: Offer, passed_over: Offer) -> str:
    """Why a tier that comes first is not taken: what an hour of the job's work costs there, and here."""
    told = f"machines of {offer(passed_over)} fail after {duration(passed_over.mean_life_ms)} on average, so that"
    stretch, staying = stretch_ms(job), staying_ms(job)
    there, here = (Money(round(entered_micros(one, stretch, staying, job.speeds), -4)) for one in (passed_over, taken))
    arrives = staying and (arrival_cost(passed_over) or arrival_cost(taken))
    if arrives:
        return f"{told}, with its arrival, an hour of its work costs {there} there and {here} here"
    return f"{told} an hour of work costs {there} there"


def node(view: NodeView) -> str:
    """Which node, and what it is."""
    bid = ", by a bid that may be lost" if view.interruptible else ""
    return f"{view.node_id} ({view.provider} {gpus(view.gpu_count, view.gpu_type)}, {view.price_per_hour}/h{bid})"


def needs(resources: Resources) -> str:
    """What a job asks of one machine."""
    parts = [gpus(resources.gpus_min, resources.gpu_type or "GPU of any type")]
    if resources.gpu_memory_bytes_min:
        parts.append(f"{_gib(resources.gpu_memory_bytes_min)} per GPU")
    parts.append(f"{resources.cpus_min} CPU" + ("s" if resources.cpus_min > 1 else ""))
    if resources.memory_bytes_min:
        parts.append(f"{_gib(resources.memory_bytes_min)} of memory")
    return ", ".join(parts)


def room(resources: Resources) -> str:
    """What a job asks of a node that is there: `needs`, and the image that the node has to run."""
    return needs(resources) + (f", with image {resources.base_image}" if resources.base_image else "")


def other_image(view: NodeView, resources: Resources) -> str:
    """Why a node that is large enough is not for this job."""
    runs, wants = view.image or "the usual image", resources.base_image or "the usual one"
    return f"; {node(view)} has room but runs {runs}, and the job wants {wants}"


def closed_providers(closed: tuple[ClosedProvider, ...]) -> str:
    """From whom nothing is rented now, and why not; empty when all are open."""
    return "".join(f"; nothing is rented from {one.provider} now: {one.why}" for one in closed)


def awaited_image(image: ImageView, now_ms: int) -> str:
    """Why a job cannot start where its image has to be built first, how long that takes, and what helps."""
    name = image.name or "the usual image"
    if image.state == ImageState.FAILED:
        again = "is tried again only when somebody asks for it"
        if image.again_ms is not None:
            again = f"is tried again in {duration(max(0, image.again_ms - now_ms))}"
        return (
            f"held: {image.provider} could not build its image {name}: {image.why}. The build {again} "
            f"(at once: allpass providers prepare {name})"
        )
    left = "" if image.ready_ms is None else f", about {duration(max(0, image.ready_ms - now_ms))} to go"
    if image.ready_ms is not None and image.ready_ms <= now_ms:
        left = ", longer than builds have usually taken"
    begun = "is about to build" if image.state == ImageState.WANTED else "builds"
    since = "" if image.state == ImageState.WANTED else f" (for {duration(max(0, now_ms - image.since_ms))}{left})"
    return f"waits until {image.provider} has built its image {name}: it {begun} it now{since}"


def too_dear(job: JobView, cheapest: Offer, least: Money) -> str:
    """Why an offer that fits is not taken: it, or its first billing unit, is more than the job's limits allow."""
    if not job.caps.allows_hourly(cheapest.price_per_hour.micros):
        return (
            f"may take what costs at most {job.caps.max_hourly}/h (max_hourly), and the cheapest offer that fits is "
            f"{offer(cheapest)}: goes on when max_hourly is raised or an offer is cheaper"
        )
    budget = job.refused_by(cheapest.provider, least)
    if budget is not None and (job.caps.max_cost is None or job.spent + least <= job.caps.max_cost):
        return f"cannot have {offer(cheapest)}, the cheapest offer that fits: {budget.why_not(least)}"
    left = (job.caps.max_cost or ZERO) - job.spent
    return (
        f"has {left} left of its max_cost of {job.caps.max_cost}, and the first billing unit of the cheapest offer "
        f"that fits, {offer(cheapest)}, is {least}: goes on when max_cost is raised or an offer is cheaper"
    )


def most_wait(job: JobView, now_ms: int) -> str:
    """Of a job that has never started: how long it may wait. Empty where nobody said."""
    if queue.waits_until_ms(job) is None:
        return ""
    most = f"its max_wait of {duration(job.caps.max_wait_ms or 0)}"
    if queue.has_waited_enough(job, now_ms):
        return f"; has waited longer than {most}: starts on the first place that is to be had and that its limits allow"
    return f"; starts at any price that its limits allow when {most} is over"


def waited_enough(job: JobView) -> str:
    """Why a job is started where it would else have waited for something cheaper."""
    return f": it has waited for its max_wait of {duration(job.caps.max_wait_ms or 0)}"


def nothing_to_spend(job: JobView) -> str:
    """Why a job on which nothing more may be spent is given nothing."""
    budget = queue.used_up_budget(job)
    if budget is not None and not queue.cost_cap_reached(job):
        return budget.why_not(ZERO)
    return f"has cost {job.spent} of at most {job.caps.max_cost}: is paused until max_cost is raised"


def nothing_fits(resources: Resources, offers: tuple[Offer, ...], closed: str) -> str:
    """Why no offer helps, and what would. `closed`: what the settings switch off, if anything."""
    if not offers:
        return f"no provider offers a machine now; it needs {needs(resources)}{closed}"
    largest = max(offers, key=lambda o: (o.gpu_count, o.gpu_memory_bytes, o.cpus, o.memory_bytes, o.key))
    return (
        f"no offer has {needs(resources)}; the largest of {len(offers)} is {offer(largest)} with "
        f"{_gib(largest.gpu_memory_bytes)} per GPU, {largest.cpus} CPUs and {_gib(largest.memory_bytes)}{closed}"
    )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.4g} GiB"

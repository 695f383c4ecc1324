"""What a world consists of: figures of three tiers, of what jobs bring along, and of how jobs save.

The endings of names are their units and their ranges: `_s` seconds, `_ms` milliseconds, `_share` of 1, `_gb` decimal
gigabytes, `_mbps` megabits a second, `usd` dollars.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from app.core.elastic.runs import RESIZE_S
from app.core.model.node import RENTED_TIERS, Tier


@dataclass(frozen=True, slots=True)
class TierWorld:
    """Machines of one tier, with one GPU each where it matters.

    Of all starts `never_share` never end and are given up after `give_up_s`; `slow_share` take `slow_s` at least, up to
    three times that; `cold_share` take `cold_mean_s` on average; all others are log-normal with `startup_mean_s` and
    `startup_sd_s`. A fresh machine has a link between `link_least_mbps` and `link_most_mbps`; through it come the
    image, while it boots, and the environment, once it is ready. `storage_usd` is of a host and hour from the request
    on, `traffic_usd` of a gigabyte. The first host costs `usd` an hour for each GPU, each further one that is rented at
    the same time `dearer_share` of that more, until it costs `dearer_most` times as much; there are `hosts` of them (0:
    as many as are wanted, at one price). Machines live for `mean_life_s` on average (None: for ever), and are told of
    their end `notice_s` before. For `drought_share` of the time nothing is to be had, for `drought_s` on average.
    """

    usd: float
    startup_mean_s: float
    startup_sd_s: float
    cold_share: float = 0.0
    cold_mean_s: float = 30.0
    slow_share: float = 0.0
    slow_s: float = 0.0
    never_share: float = 0.0
    give_up_s: float = 3_600.0
    image_gb: float = 0.0
    environment_gb: float = 0.0
    link_least_mbps: float = 1_000.0
    link_most_mbps: float = 1_000.0
    storage_usd: float = 0.0
    traffic_usd: float = 0.0
    hosts: int = 0
    dearer_share: float = 0.0
    dearer_most: float = 1.0
    mean_life_s: float | None = None
    notice_s: float = 0.0
    drought_share: float = 0.0
    drought_s: float = 3_600.0


OWN_MACHINES = TierWorld(usd=0.0, startup_mean_s=1.0, startup_sd_s=0.0)


@dataclass(frozen=True, slots=True)
class World:
    """The three tiers, and what is so wherever a job runs.

    Each machine fetches the base model of its first job, one of `models`, and each job its data. `begin_s` passes from
    then to the first step. `never_saves_share` of the jobs never save, and are not moved; of `known_share` of these it
    is known beforehand. Who runs for longer than `never_saves_most_s` saves by itself at least: nobody trains for a day
    without. `own_saves_share` save by themselves every `own_saves_every_s` and not when they are asked to:
    what they did since is lost when they move. All others save every `checkpoint_every_s` of work, and each save makes
    the training wait for `save_s`. `prepare_s` is what policies take the target of a move to need before it.

    Where hosts of the marketplace can be bid for, the lowest bid is `bid_share` of the price on demand in the middle;
    its logarithm wanders with a standard deviation of `bid_sd_share` and forgets where it was with a time constant of
    `bid_forgets_s`. After `bid_taken_s` on average somebody rents on demand what was bid for (0: nobody does).

    A training that goes on with another number of GPUs of its machine stands still for `resize_s`.
    """

    name: str
    serverless: TierWorld
    marketplace: TierWorld
    conventional: TierWorld
    model_gb: float = 0.0
    models: int = 1
    data_gb: float = 0.0
    begin_s: float = 0.0
    never_saves_share: float = 0.0
    never_saves_most_s: float = 14_400.0
    known_share: float = 1.0
    own_saves_share: float = 0.0
    own_saves_every_s: float = 900.0
    checkpoint_every_s: float = 600.0
    save_s: float = 0.0
    prepare_s: float = 0.0
    bid_share: float = 0.5
    bid_sd_share: float = 0.24
    bid_forgets_s: float = 10_800.0
    bid_taken_s: float = 49_680.0
    resize_s: float = RESIZE_S

    def of(self, tier: Tier) -> TierWorld:
        """The figures of a tier. Machines of one's own are the same in every world: there at once, on a good link."""
        found: TierWorld = OWN_MACHINES if tier == Tier.OWN else getattr(self, tier.value)
        return found

    def having(self, values: dict[str, Any]) -> World:
        """With other figures, by names as those of `figures`."""
        own: dict[str, Any] = {name: one for name, one in values.items() if "." not in name}
        own |= {
            tier.value: replace(
                self.of(tier),
                **{name.partition(".")[2]: one for name, one in values.items() if name.startswith(f"{tier.value}.")},
            )
            for tier in RENTED_TIERS
        }
        return replace(self, **own)

    def figures(self) -> Iterator[tuple[str, float | None]]:
        """Every figure with its name: `save_s`, `marketplace.usd`."""
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, TierWorld):
                yield from ((f"{one.name}.{inner.name}", getattr(value, inner.name)) for inner in fields(value))
            elif one.name != "name":
                yield one.name, value

    def breach(self) -> tuple[str, str] | None:
        """The first name whose figure contradicts others, and how; None: all of them go together."""
        for tier in RENTED_TIERS:
            one, at = self.of(tier), tier.value
            if one.link_least_mbps > one.link_most_mbps:
                return f"{at}.link_least_mbps", f"is above link_most_mbps, {one.link_most_mbps:g}"
            if one.never_share + one.slow_share + one.cold_share > 1:
                return f"{at}.never_share", "makes more than all starts, with slow_share and cold_share"
            if one.startup_mean_s > one.give_up_s:
                return (
                    f"{at}.give_up_s",
                    f"is below startup_mean_s, {one.startup_mean_s:g}: no start would be waited for",
                )
        if self.never_saves_share + self.own_saves_share > 1:
            return "never_saves_share", "makes more than all jobs, with own_saves_share"
        return None

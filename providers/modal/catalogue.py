"""What Modal rents out and what it costs, as published: its interface tells neither prices nor supply.

Rates are micro-dollars per second, as of `AS_OF` (GPUs: the price list, confirmed by a third party's table of that day;
B200, H200 and RTX PRO 6000 from the list of the same month). Sandboxes pay about three times what Functions pay
for CPU and memory, and Modal bills the greater of what was asked for and what was used; a sandbox of ours is given what
it asked for. Whoever compares these prices with Modal's again changes their date with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.price_list import ListedPrice, PriceList

NAME = "modal"
AS_OF = "2026-05-07"
GIB = 1024**3
CPU = "cpu"
MEMORY = "memory_gib"
STARTUP_MS = 3_880  # mean from request to running code: 20 starts, 1 or 2 GPUs
_FEW = 2
_MANY_TAKE = 4  # times that; more GPUs wait longer, how much is not published
_SECONDS_PER_HOUR = 3_600


@dataclass(frozen=True, slots=True)
class CatalogueLine:
    """A line of the price list. `ask` is how a request names it: never so that Modal may answer with another card.

    A plain `A100` or `H100` may be given as a larger card; `H100!` and the A100s with their memory may not.
    """

    name: str
    gpu_type: str
    ask: str
    memory_bytes: int
    micros_per_second: int
    most: int = 8


GPUS = (
    CatalogueLine("T4", "T4", "T4", 16 * GIB, 164),
    CatalogueLine("L4", "L4", "L4", 24 * GIB, 222),
    CatalogueLine("A10", "A10", "A10", 24 * GIB, 306, 4),
    CatalogueLine("L40S", "L40S", "L40S", 48 * GIB, 542),
    CatalogueLine("A100-40GB", "A100", "A100-40GB", 40 * GIB, 583),
    CatalogueLine("A100-80GB", "A100", "A100-80GB", 80 * GIB, 694),
    CatalogueLine("RTX-PRO-6000", "RTXPRO6000", "RTX-PRO-6000", 95 * GIB, 842),  # of its 96 the driver reports 95.6
    CatalogueLine("H100", "H100", "H100!", 80 * GIB, 1_097),
    CatalogueLine("H200", "H200", "H200", 140 * GIB, 1_261),  # of its 141 GB the driver reports 140.4 GiB
    CatalogueLine("B200", "B200", "B200", 180 * GIB, 1_736),
)
_CPU_NANOS_PER_SECOND = 39_300  # per physical core
_MEMORY_NANOS_PER_SECOND = 6_660  # per GiB
_COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a sandbox asks for beside its GPUs, for each of them."""

    cpus: int
    memory_gib: int


class Catalogue:
    """The offers of one account: every GPU in every count, at the price of GPU, CPU and memory together.

    `own` are prices that an owner has set since, by the names of the list; others have no effect.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        gpus: Iterable[str] | None = None,
        usd_per_hour: Mapping[str, Decimal] | None = None,
        startup_ms: int = STARTUP_MS,
    ) -> None:
        """`gpus`: only these names of the price list. `usd_per_hour`: prices in place of the published ones, by GPU
        name, `cpu` (a physical core) and `memory_gib`. Raises ValueError for a name that is not in the list.
        """
        known = {gpu.name for gpu in GPUS}
        wanted = known if gpus is None else set(gpus)
        given = dict(usd_per_hour or {})
        unknown = sorted((wanted - known) | (set(given) - known - {CPU, MEMORY}))
        if unknown:
            raise ValueError(f"Modal's price list has no {', '.join(unknown)}; it has {', '.join(sorted(known))}")
        self._settings = {name: Money.usd(price) for name, price in given.items()}
        self._shape = shape
        self._startup_ms = startup_ms
        self._gpus = {gpu.name: gpu for gpu in GPUS if gpu.name in wanted}
        self._listed = PriceList(AS_OF, tuple(self._prices()))

    def price_list(self) -> PriceList:
        """What its offers are made of."""
        return self._listed

    def offers(self, own: Mapping[str, Money] | None = None) -> list[Offer]:
        """All of them: whether there is capacity is seen only when a sandbox is asked for."""
        rates = self._rates(own)
        return [self._offer(gpu, n, rates) for gpu in self._gpus.values() for n in _COUNTS if n <= gpu.most]

    def current(self, offer_id: str, own: Mapping[str, Money] | None = None) -> Offer | None:
        """The offer as it stands now."""
        return next((offer for offer in self.offers(own) if offer.offer_id == offer_id), None)

    def gpu_argument(self, offer: Offer) -> str:
        """How Modal is asked for the offer's GPUs."""
        name = offer.offer_id.partition(":")[0]
        return f"{self._gpus[name].ask}:{offer.gpu_count}"

    def _prices(self) -> Iterator[ListedPrice]:
        published: list[tuple[str, int, str | None]] = [
            (gpu.name, gpu.micros_per_second * _SECONDS_PER_HOUR, gpu.gpu_type) for gpu in self._gpus.values()
        ]
        for name, nanos in ((CPU, _CPU_NANOS_PER_SECOND), (MEMORY, _MEMORY_NANOS_PER_SECOND)):
            published.append((name, nanos * _SECONDS_PER_HOUR // 1_000, None))
        for name, micros, gpu_type in published:
            yield ListedPrice(name, Money(micros), gpu_type, self._settings.get(name))

    def _rates(self, own: Mapping[str, Money] | None) -> dict[str, int]:
        """Micro-dollars per hour: an owner's word, else the settings', else the list's."""
        known = own or {}
        return {
            one.name: known.get(one.name, one.published if one.setting is None else one.setting).micros
            for one in self._listed.prices
        }

    def _offer(self, gpu: CatalogueLine, count: int, rates: Mapping[str, int]) -> Offer:
        cpus, memory_gib = self._shape.cpus * count, self._shape.memory_gib * count
        price = rates[gpu.name] * count + rates[CPU] * cpus + rates[MEMORY] * memory_gib
        return Offer(
            provider=NAME,
            offer_id=f"{gpu.name}:{count}",
            tier=Tier.SERVERLESS,
            gpu_type=gpu.gpu_type,
            gpu_count=count,
            gpu_memory_bytes=gpu.memory_bytes,
            cpus=cpus,
            memory_bytes=memory_gib * GIB,
            price_per_hour=Money(price),
            startup_ms=self._startup_ms if count <= _FEW else self._startup_ms * _MANY_TAKE,
        )

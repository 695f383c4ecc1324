"""What the emulated Vast.ai rents out, what can be switched, and what can be made to go wrong."""

from __future__ import annotations

from decimal import Decimal

from providers.emulators import registry
from providers.emulators.faults import FaultKind
from providers.emulators.gpu_faults import BAD_GPUS, bad_gpus
from providers.emulators.market import Good
from providers.emulators.meter import VAST_RULE
from providers.emulators.serving import Built, Emulation, Grounds
from providers.emulators.startup import VAST
from providers.emulators.vast.api import build_app
from providers.emulators.vast.contracts import Contracts
from providers.emulators.vast.front import VastFront
from providers.emulators.vast.hosts import Hosts
from providers.emulators.vast.limits import RequestLimits

OPS = ("search", "create", "show", "list", "change", "destroy", "logs", "charges", "execute", "account", "other")
_CREATE = frozenset({"create"})
KINDS = {
    "no_such_ask": FaultKind(ops=_CREATE, args={"status": int}),  # taken a moment ago: 404 or 410
    "price_moves": FaultKind(ops=_CREATE, args={"percent": int}),  # it costs so much more than was listed (10 %)
    "error_with_contract": FaultKind(
        ops=_CREATE, args={"code": str}
    ),  # refused, and there all the same: stopped, billed
    "stuck": FaultKind(ops=_CREATE, args={"status": str}),  # it never comes up
    "boot_fails": FaultKind(ops=_CREATE, args={"message": str}),  # nor does this one, and status_msg says why
    "broken_gpu": FaultKind(ops=_CREATE),  # it runs, and its GPU cannot be used
    BAD_GPUS: bad_gpus("create"),
    "empty_list": FaultKind(ops=frozenset({"list"})),  # 200, and nothing in it
    "rate_limited": FaultKind(args={"retry_after_ms": int, "shape": str}),
    "search_quota": FaultKind(ops=frozenset({"search"})),  # of the day
}
SWITCHES: dict[str, bool | int | str] = {
    "rate_limits": "off",  # off | on | scaled: minimum intervals per endpoint, as documented or times the speed
    "limit_shape": "text",  # text | detail | json: what a 429 looks like
    "double_rent": False,  # an offer that is taken can be rented again; the second machine never starts
    "stale_search_ms": 0,  # so long a rented offer is still found
    "list_lag_ms": 0,  # so long a fresh contract is missing from the listing
    "charges_lag_ms": 0,  # so long charges are not posted
    "log_delay_ms": 0,  # so long a log is not there yet
    "image_mb": 0,  # pulled at the host's speed where it has not run before; 0: as in the published start-up times
    "image_entrypoint": "",  # of every image; empty: none, so that a contract's arguments are its command
    registry.SWITCH: "",  # `registry user password`: its images are fetched with that login alone
    "odd_data": True,  # every fifth host tells no CPU cores, and an odd place
    "credit_micros": 0,  # when this much is spent everything is stopped; 0: there is enough
}


def _good(name: str, lowest: str, median: str, highest: str, supply: int, **moving: float) -> Good:
    low, middle, high = (int(Decimal(price) * 1_000_000) for price in (lowest, median, highest))
    swing, empty = float(moving.get("swing", 0.0)), int(moving.get("empty", 0))
    return Good(name, low, middle, high, supply, supply_swing=swing, empty_ppm=empty)


# Dollars per GPU-hour over one month, and how many hosts (Allpass paper, Table 2, Figures 2 and 3).
GOODS = (
    _good("Tesla T4", ".14", ".14", ".15", 6),
    _good("Tesla V100", ".11", ".21", ".26", 12, swing=0.3),
    _good("L4", ".38", ".38", ".39", 6),
    _good("A10", ".25", ".26", ".26", 6),
    _good("L40", ".60", ".68", ".72", 5, swing=0.6, empty=430_000),
    _good("L40S", ".60", ".68", ".72", 8, swing=0.3),
    _good("RTX 4090", ".17", ".42", ".92", 220, swing=0.05),
    _good("RTX 5080", ".25", ".30", ".35", 210, swing=0.05),
    _good("A100 SXM4", ".38", "1.08", "1.66", 34, swing=0.3),
    _good("A100 PCIE", ".38", "1.08", "1.66", 26, swing=0.3),
    _good("H100 SXM", "1.53", "2.05", "2.62", 34, swing=0.3),
    _good("H100 PCIE", "1.53", "2.05", "2.62", 26, swing=0.3),
)


def _build(grounds: Grounds) -> Built:
    hosts = Hosts(grounds)
    contracts = Contracts(grounds, hosts)
    limits = RequestLimits(grounds.switches, speed=grounds.speed, now_ms=grounds.now_ms)
    app = build_app(grounds, hosts, contracts, limits)
    return Built(VastFront(app, contracts), actions=contracts.actions())


VAST_EMULATION = Emulation(
    name="vast",
    default_port=7722,
    default_admin_port=7732,
    rule=VAST_RULE,
    startup=VAST,
    goods=GOODS,
    ops=OPS,
    build=_build,
    kinds=KINDS,
    switches=SWITCHES,
    listing_lag_ms=10_000,
)

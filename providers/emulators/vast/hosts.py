"""The hosts of the emulated market: the same for the same seed, and now and then for rent."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from providers.emulators.rows import Cause, MachineRow, MachineState
from providers.emulators.serving import Grounds
from providers.emulators.vast.cards import CARDS, DRIVERS

MICROS_PER_USD = 1_000_000
DAY_S = 86_400
_FIRST_MACHINE = 10_000
_MACHINES_PER_GOOD = 1_000
_FIRST_OFFER = 7_000_000
_ODD_EVERY = 5
_HOURS_A_MONTH = 720
_BID_STEP_MICROS = 1_000
_BIG = ("A100", "H100")
_CUDAS = (12.4, 12.8, *(13.0,) * 8)
_PLACES: tuple[str | None, ...] = ("Sweden, SE", "Washington, US", "Quebec, CA", "Germany, DE", "Japan, JP")
_ODD_PLACES: tuple[str | None, ...] = (", US", None, " Norway, NO ", "")
_TAKEN_WHEN_STOPPED_BY = frozenset({Cause.COMPANY, Cause.PROGRAM, Cause.FAILURE})


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that somebody rents out as a whole. `number` orders the hosts of a good: the last go first."""

    good: str
    number: int
    machine_id: int
    gpus: int
    odd: bool
    verified: bool
    reliability: float
    inet_down_mbps: float
    inet_up_mbps: float
    inet_micros_per_gb: int
    disk_gb: int
    disk_micros_per_gb_hour: int
    lease_s: int
    cuda: float
    cores: int
    memory_mb: int
    place: str | None

    @property
    def offer_id(self) -> str:
        return str(_FIRST_OFFER + self.machine_id)


class Hosts:
    """What can be found, what can be rented, and for how much."""

    def __init__(self, grounds: Grounds) -> None:
        self._grounds = grounds
        self._hosts: dict[str, Host] = {}
        for place, good in enumerate(grounds.market.goods.values()):
            for number in range(good.supply):
                host = _draw(good.name, number, _FIRST_MACHINE + place * _MACHINES_PER_GOOD + number, grounds.seed)
                self._hosts[host.offer_id] = host

    def get(self, offer_id: str) -> Host | None:
        """The host behind an offer, whether it is for rent or not."""
        return self._hosts.get(offer_id)

    def found(self, disk_gb: float, *, bids: bool) -> list[dict[str, Any]]:
        """What a search sees: the market of a moment ago, and what was rented in the last moments."""
        market, now_ms = self._grounds.market, self._grounds.now_ms()
        taken = self._taken(found_until_ms=now_ms - self._grounds.switches["stale_search_ms"])
        listed = {name: market.listed_supply(name, now_ms) for name in market.goods}
        free = (h for h in self._hosts.values() if h.number < listed[h.good] and h.machine_id not in taken)
        return [self._offer(host, disk_gb, bids=bids) for host in free]

    def can_be_rented(self, host: Host) -> bool:
        """Whether it is on the market at this moment, by anybody."""
        return host.number < self._grounds.market.supply(host.good, self._grounds.now_ms())

    def is_taken(self, host: Host) -> bool:
        """Whether a contract holds it."""
        return host.machine_id in self._taken()

    def price_micros(self, host: Host) -> int:
        """On demand, for all its GPUs, an hour, at this moment."""
        return self._grounds.market.price_micros(host.good, self._grounds.now_ms(), host.machine_id) * host.gpus

    def lowest_bid_micros(self, host: Host) -> int:
        """What wins it at this moment: half the price, to a tenth of a cent."""
        return _half(self.price_micros(host))

    def _taken(self, found_until_ms: int | None = None) -> set[int]:
        held = (machine for machine in self._grounds.estate.live() if _holds(machine))
        return {
            int(machine.facts["machine_id"])
            for machine in held
            if found_until_ms is None or machine.created_ms <= found_until_ms
        }

    def _offer(self, host: Host, disk_gb: float, *, bids: bool) -> dict[str, Any]:
        market, now_ms = self._grounds.market, self._grounds.now_ms()
        price = market.listed_price_micros(host.good, now_ms, host.machine_id) * host.gpus
        lowest_bid = _half(price)
        base = (lowest_bid if bids else price) / MICROS_PER_USD
        disk = disk_gb * host.disk_micros_per_gb_hour / MICROS_PER_USD
        row: dict[str, Any] = {
            "id": int(host.offer_id),
            "ask_contract_id": int(host.offer_id),
            "bundle_id": int(host.offer_id) + 1,
            "dph_base": base,
            "dph_total": base + disk,
            "dph_total_adj": base + disk,
            "search": {"gpuCostPerHour": base, "diskHour": disk, "totalHour": base + disk},
            "min_bid": lowest_bid / MICROS_PER_USD,
            "is_bid": bids,
            "rentable": True,
            "rented": False,
            "external": False,
            "start_date": now_ms / 1000,
            "end_date": now_ms / 1000 + host.lease_s,
            "duration": float(host.lease_s),
            "dlperf": 20.0 * host.gpus,
            "dlperf_per_dphtotal": 20.0 * host.gpus / (base + disk),
            "flops_per_dphtotal": CARDS[host.good].tflops * host.gpus / (base + disk),
            "score": host.reliability * 20.0 * host.gpus / (base + disk),
            **hardware(host),
        }
        if host.odd and self._grounds.switches["odd_data"]:
            row["cpu_cores"] = None
        return row


def hardware(host: Host) -> dict[str, Any]:
    """What offers and contracts tell of the host."""
    card = CARDS[host.good]
    return {
        "machine_id": host.machine_id,
        "host_id": host.machine_id // 7,
        "gpu_name": host.good,
        "num_gpus": host.gpus,
        "gpu_frac": 1.0,
        "gpu_ram": card.ram_mb,
        "gpu_total_ram": card.ram_mb * host.gpus,
        "gpu_arch": "nvidia",
        "gpu_mem_bw": card.bandwidth_gb_s,
        "gpu_max_power": float(card.watts),
        "gpu_max_temp": 90.0,
        "gpu_display_active": False,
        "bw_nvlink": 0.0,
        "total_flops": card.tflops * host.gpus,
        "compute_cap": card.compute_cap,
        "cuda_max_good": host.cuda,
        "driver_version": DRIVERS[host.cuda],
        "pci_gen": 4.0,
        "pcie_bw": 24.0,
        "mobo_name": "H12SSL-i",
        "cluster_id": None,
        "cpu_arch": "amd64",
        "cpu_ghz": 3.4,
        "has_avx": 1,
        "ubuntu_version": "22.04",
        "cpu_cores": host.cores,
        "cpu_cores_effective": float(host.cores),
        "cpu_ram": host.memory_mb,
        "disk_space": float(host.disk_gb),
        "disk_bw": 2_000.0,
        "inet_up": host.inet_up_mbps,
        "inet_down": host.inet_down_mbps,
        "inet_up_cost": host.inet_micros_per_gb / MICROS_PER_USD,
        "inet_down_cost": host.inet_micros_per_gb / MICROS_PER_USD,
        "direct_port_count": 64,
        "storage_cost": host.disk_micros_per_gb_hour * _HOURS_A_MONTH / MICROS_PER_USD,
        "reliability": host.reliability,
        "reliability2": host.reliability,
        "verified": host.verified,
        "verification": "verified" if host.verified else "unverified",
        "hosting_type": 1,
        "datacenter": False,
        "geolocation": host.place,
        "static_ip": True,
        "public_ipaddr": f"203.0.113.{host.machine_id % 250}\n",
        "vms_enabled": False,
    }


def shown_gpus(host: Host, wrong: str = "") -> dict[str, Any]:
    """What nvidia-smi shows there, as the fields of `EmulatedGpus`."""
    return {
        "good": host.good,
        "count": host.gpus,
        "memory_mib": CARDS[host.good].ram_mb,
        "driver": DRIVERS[host.cuda],
        "cuda": f"{host.cuda:.1f}",
        "wrong": wrong,
    }


OFFER_FIELDS = frozenset(
    {"id", "ask_contract_id", "bundle_id", "dph_base", "dph_total", "min_bid", "rentable", "rented", "external"}
    | {"duration", "end_date", "start_date", "dlperf", "dlperf_per_dphtotal", "flops_per_dphtotal", "score"}
    | {"machine_id", "host_id", "gpu_name", "num_gpus", "gpu_frac", "gpu_ram", "gpu_total_ram", "gpu_arch"}
    | {"gpu_mem_bw", "gpu_max_power", "gpu_max_temp", "gpu_display_active", "bw_nvlink", "total_flops", "compute_cap"}
    | {"cuda_max_good", "driver_version", "pci_gen", "pcie_bw", "cpu_arch", "cpu_ghz", "has_avx", "ubuntu_version"}
    | {"cpu_cores", "cpu_cores_effective", "cpu_ram", "disk_space", "disk_bw", "inet_up", "inet_down", "inet_up_cost"}
    | {"inet_down_cost", "direct_port_count", "storage_cost", "reliability", "reliability2", "verified", "verification"}
    | {"mobo_name", "cluster_id", "datacenter", "geolocation", "static_ip", "vms_enabled"}
)


def _holds(machine: MachineRow) -> bool:
    """A contract that its customer has stopped, or whose time is over, leaves the GPUs to others."""
    return machine.state is not MachineState.STOPPED or machine.cause in _TAKEN_WHEN_STOPPED_BY


def _half(price_micros: int) -> int:
    return max(_BID_STEP_MICROS, price_micros // 2 // _BID_STEP_MICROS * _BID_STEP_MICROS)


def _draw(good: str, number: int, machine_id: int, seed: int) -> Host:
    chance = random.Random(f"{seed}/host/{machine_id}")  # noqa: S311 - a model, not a secret
    odd = number % _ODD_EVERY == _ODD_EVERY - 1
    gpus = chance.choice((2, 4, 8)) if good.startswith(_BIG) and number % 3 == 2 else 1
    down_mbps = float(chance.randrange(150, 5_000, 10))
    return Host(
        good=good,
        number=number,
        machine_id=machine_id,
        gpus=gpus,
        odd=odd,
        verified=chance.random() < 0.85,
        reliability=round(1 - chance.random() ** 3 * 0.08, 4),
        inet_down_mbps=down_mbps,
        inet_up_mbps=down_mbps / 2,
        inet_micros_per_gb=chance.randrange(1_000, 20_000, 1_000),
        disk_gb=chance.randrange(200, 4_000, 100),
        disk_micros_per_gb_hour=chance.choice((150, 200, 300)),
        lease_s=chance.randrange(2, 90) * DAY_S,
        cuda=chance.choice([each for each in _CUDAS if each >= CARDS[good].least_cuda]),
        cores=12 * gpus,
        memory_mb=65_536 * gpus,
        place=chance.choice(_ODD_PLACES if odd else _PLACES),
    )

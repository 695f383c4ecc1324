"""What the company remembers: its machines, in one SQLite file that survives the cloud process."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from providers.local.market import RentalClass
from workers.machines.processes import ProcessIdentity

_SCHEMA = """
CREATE TABLE IF NOT EXISTS machines (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    machine_id TEXT NOT NULL UNIQUE,
    label TEXT,
    rental_class TEXT NOT NULL,
    offer_id TEXT NOT NULL,
    single INTEGER NOT NULL,
    gpu_type TEXT NOT NULL,
    gpu_count INTEGER NOT NULL,
    price_micros_per_hour INTEGER NOT NULL CHECK (price_micros_per_hour >= 0),
    image TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('booting', 'running', 'ended')),
    detail TEXT NOT NULL DEFAULT '',
    outage INTEGER NOT NULL DEFAULT 0,
    created_ms INTEGER NOT NULL,
    boot_at_ms INTEGER,
    expires_ms INTEGER,
    slot INTEGER NOT NULL DEFAULT 0,  -- of no use: earlier versions, should they come back, expect it
    ready_ms INTEGER,
    ended_ms INTEGER,
    keeper_pid INTEGER,
    keeper_started TEXT,
    keeper_boot TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS machines_by_label ON machines (label);
CREATE INDEX IF NOT EXISTS machines_by_state ON machines (state, ended_ms);
CREATE UNIQUE INDEX IF NOT EXISTS one_machine_per_single_offer ON machines (offer_id)
    WHERE single AND state <> 'ended';
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
"""


class MachineState(StrEnum):
    BOOTING = "booting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class NewMachine:
    """A machine that has been rented and not yet started. `boot_at_ms` None: it never comes up."""

    machine_id: str
    label: str | None
    rental_class: RentalClass
    offer_id: str
    single: bool
    gpu_type: str
    gpu_count: int
    price_micros_per_hour: int
    image: str
    created_ms: int
    boot_at_ms: int | None
    expires_ms: int | None


@dataclass(frozen=True, slots=True)
class MachineRow(NewMachine):
    """A machine as it stands. `keeper` is the process at the root of its tree, once there is one.

    `outage`: it has ended because the company went down, or could not start it, and not by what ran on it.
    """

    state: MachineState
    detail: str
    outage: bool
    ready_ms: int | None
    ended_ms: int | None
    keeper: ProcessIdentity | None


class OfferTaken(Exception):
    """Somebody holds this single offer."""


class Store:
    """All calls are short and run on the caller's thread; one process at a time uses a file."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        path.chmod(0o600)
        self._database.row_factory = sqlite3.Row
        self._database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + _SCHEMA)
        if "outage" not in {row["name"] for row in self._database.execute("PRAGMA table_info(machines)")}:
            self._database.execute("ALTER TABLE machines ADD COLUMN outage INTEGER NOT NULL DEFAULT 0")

    def close(self) -> None:
        self._database.close()

    def next_number(self) -> int:
        """The number that the next added machine will have."""
        row = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'machines'").fetchone()
        return (row["seq"] if row else 0) + 1

    def add(self, machine: NewMachine) -> MachineRow:
        """Raises OfferTaken when a live machine holds the same single offer."""
        names = [field.name for field in fields(NewMachine)]
        holes = ", ".join("?" * (len(names) + 1))
        try:
            self._database.execute(
                f"INSERT INTO machines ({', '.join(names)}, state, slot) VALUES ({holes}, 0)",  # noqa: S608 - our own field names
                [*(getattr(machine, name) for name in names), MachineState.BOOTING],
            )
        except sqlite3.IntegrityError as error:
            if "machines.offer_id" in str(error):
                raise OfferTaken(machine.offer_id) from error
            raise
        return self._required(machine.machine_id)

    def set_running(self, machine_id: str, ready_ms: int, keeper: ProcessIdentity) -> MachineRow:
        """The keeper is up: from now on the machine can be found again after a restart."""
        self._database.execute(
            "UPDATE machines SET state = 'running', ready_ms = ?, keeper_pid = ?, keeper_started = ?, keeper_boot = ?"
            " WHERE machine_id = ? AND state = 'booting'",
            [ready_ms, keeper.pid, keeper.started, keeper.boot, machine_id],
        )
        return self._required(machine_id)

    def set_ended(self, machine_id: str, ended_ms: int, detail: str, *, outage: bool = False) -> MachineRow:
        """Ending twice keeps the first end. An end before the machine's own beginning counts as that beginning."""
        self._database.execute(
            "UPDATE machines SET state = 'ended', ended_ms = max(?, created_ms, coalesce(ready_ms, 0)), detail = ?,"
            " outage = ? WHERE machine_id = ? AND state <> 'ended'",
            [ended_ms, detail, outage, machine_id],
        )
        return self._required(machine_id)

    def get(self, machine_id: str) -> MachineRow | None:
        rows = self._select("WHERE machine_id = ?", [machine_id])
        return rows[0] if rows else None

    def with_label(self, label: str) -> list[MachineRow]:
        """Ended ones included, oldest first."""
        return self._select("WHERE label = ?", [label])

    def live(self) -> list[MachineRow]:
        return self._select("WHERE state <> 'ended'", [])

    def live_or_ended_since(self, since_ms: int) -> list[MachineRow]:
        return self._select("WHERE state <> 'ended' OR ended_ms >= ?", [since_ms])

    def all(self) -> list[MachineRow]:
        return self._select("", [])

    def ended_ids(self) -> set[str]:
        """Of all machines that there ever were and are no more."""
        rows = self._database.execute("SELECT machine_id FROM machines WHERE state = 'ended'")
        return {row["machine_id"] for row in rows}

    def taken_offers(self) -> set[str]:
        """The single offers that live machines hold."""
        rows = self._database.execute("SELECT offer_id FROM machines WHERE single AND state <> 'ended'")
        return {row["offer_id"] for row in rows}

    def set_fact(self, name: str, value: int) -> None:
        self._database.execute("INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", [name, value])

    def fact(self, name: str) -> int | None:
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", [name]).fetchone()
        return int(row["value"]) if row else None

    def _required(self, machine_id: str) -> MachineRow:
        machine = self.get(machine_id)
        if machine is None:
            raise LookupError(f"machine {machine_id} is not in the store")
        return machine

    def _select(self, condition: str, values: list[Any]) -> list[MachineRow]:
        query = f"SELECT * FROM machines {condition} ORDER BY number"  # noqa: S608 - fixed texts of this file
        return [_machine(row) for row in self._database.execute(query, values)]


def _machine(row: sqlite3.Row) -> MachineRow:
    keeper = None
    if row["keeper_pid"] is not None:
        keeper = ProcessIdentity(row["keeper_pid"], row["keeper_started"], row["keeper_boot"])
    plain = {field.name: row[field.name] for field in fields(MachineRow) if field.name != "keeper"}
    plain |= {"rental_class": RentalClass(row["rental_class"]), "state": MachineState(row["state"])}
    plain |= {"single": bool(row["single"]), "outage": bool(row["outage"])}
    return MachineRow(**plain, keeper=keeper)

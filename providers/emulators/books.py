"""What an emulated company remembers: its machines, in one SQLite file that survives the process."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from providers.emulators.rows import (
    Cause,
    Interval,
    MachineEnding,
    MachineProgram,
    MachineRow,
    MachineState,
    NewMachine,
    Then,
)
from workers.machines.processes import ProcessIdentity

_SCHEMA = """
CREATE TABLE IF NOT EXISTS machines (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    ref TEXT NOT NULL UNIQUE,
    label TEXT,
    state TEXT NOT NULL CHECK (state IN ('booting', 'running', 'stopped', 'ended')),
    cause TEXT,
    detail TEXT NOT NULL DEFAULT '',
    exit_code INTEGER,
    program TEXT NOT NULL,
    when_it_exits TEXT NOT NULL,
    price_micros_per_hour INTEGER NOT NULL CHECK (price_micros_per_hour >= 0),
    storage_micros_per_hour INTEGER NOT NULL CHECK (storage_micros_per_hour >= 0),
    created_ms INTEGER NOT NULL,
    boot_at_ms INTEGER,
    ready_ms INTEGER,
    stopped_ms INTEGER,
    ended_ms INTEGER,
    deadline_ms INTEGER,
    lifetime_ms INTEGER,
    at_deadline TEXT NOT NULL,
    deadline_cause TEXT NOT NULL DEFAULT 'deadline',
    ending TEXT,
    slot INTEGER NOT NULL DEFAULT 0,  -- of no use: earlier versions, should they come back, expect it
    facts TEXT NOT NULL,
    keeper_pid INTEGER,
    keeper_started TEXT,
    keeper_boot TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS machines_by_label ON machines (label);
CREATE INDEX IF NOT EXISTS machines_by_state ON machines (state, ended_ms);
CREATE TABLE IF NOT EXISTS intervals (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    ref TEXT NOT NULL,
    state TEXT NOT NULL,
    price_micros_per_hour INTEGER NOT NULL,
    from_ms INTEGER NOT NULL,
    to_ms INTEGER
) STRICT;
CREATE INDEX IF NOT EXISTS intervals_by_machine ON intervals (ref);
CREATE TABLE IF NOT EXISTS remembered (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
"""


class Books:
    """All calls are short and run on the caller's thread; one process at a time uses a file."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        path.chmod(0o600)
        self._database.row_factory = sqlite3.Row
        self._database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + _SCHEMA)

    def close(self) -> None:
        self._database.close()

    def next_number(self) -> int:
        """The number that the next added machine will have; never used twice."""
        row = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'machines'").fetchone()
        return (row["seq"] if row else 0) + 1

    def add(self, new: NewMachine, now_ms: int) -> MachineRow:
        """Raises ValueError when the ref is taken."""
        values = {
            "ref": new.ref,
            "label": new.label,
            "state": MachineState.BOOTING,
            "program": _program_text(new),
            "when_it_exits": new.when_it_exits,
            "price_micros_per_hour": new.price_micros_per_hour,
            "storage_micros_per_hour": new.storage_micros_per_hour,
            "created_ms": now_ms,
            "boot_at_ms": None if new.boot_ms is None else now_ms + new.boot_ms,
            "deadline_ms": new.deadline_ms,
            "lifetime_ms": new.lifetime_ms,
            "at_deadline": new.at_deadline,
            "slot": 0,
            "facts": json.dumps(dict(new.facts or {})),
        }
        holes = ", ".join("?" * len(values))
        try:
            self._database.execute(
                f"INSERT INTO machines ({', '.join(values)}) VALUES ({holes})",  # noqa: S608 - our own names
                list(values.values()),
            )
        except sqlite3.IntegrityError as error:
            raise ValueError(f"there is a machine {new.ref} already") from error
        self._open_interval(new.ref, MachineState.BOOTING, new.price_micros_per_hour, now_ms)
        return self.required(new.ref)

    def change(self, ref: str, **columns: Any) -> MachineRow:
        """Set columns of one machine; `facts`, `ending` and `keeper` are given as they are in MachineRow."""
        if "facts" in columns:
            columns["facts"] = json.dumps(columns["facts"])
        if "ending" in columns:
            ending = columns["ending"]
            columns["ending"] = ending and json.dumps([ending.state, ending.cause, ending.detail, ending.at_ms])
        if "keeper" in columns:
            keeper = columns.pop("keeper")
            columns["keeper_pid"] = keeper and keeper.pid
            columns["keeper_started"] = keeper and keeper.started
            columns["keeper_boot"] = keeper and keeper.boot
        names = ", ".join(f"{name} = ?" for name in columns)
        self._database.execute(
            f"UPDATE machines SET {names} WHERE ref = ?",  # noqa: S608 - our own names
            [*columns.values(), ref],
        )
        return self.required(ref)

    def enter(self, ref: str, state: MachineState, at_ms: int, **columns: Any) -> MachineRow:
        """Bring a machine into a state: the open interval ends, and the next begins (none when it has ended)."""
        begin = self._database.execute(
            "SELECT max(from_ms) AS last_ms FROM intervals WHERE ref = ? AND to_ms IS NULL", [ref]
        ).fetchone()["last_ms"]
        at_ms = at_ms if begin is None else max(at_ms, begin)  # clocks may step back
        with self._database:
            self._database.execute("BEGIN")
            self._database.execute("UPDATE intervals SET to_ms = ? WHERE ref = ? AND to_ms IS NULL", [at_ms, ref])
            row = self.change(ref, state=state, **columns)
            if state is MachineState.ENDED:
                self.change(ref, ended_ms=at_ms, program="")  # it held the node's token
            else:
                self._open_interval(ref, state, row.price_micros_per_hour, at_ms)
        return self.required(ref)

    def program(self, ref: str) -> tuple[MachineProgram, dict[str, str]]:
        """What the machine runs, and the environment that its customer gave."""
        row = self._database.execute("SELECT program FROM machines WHERE ref = ?", [ref]).fetchone()
        told = json.loads(row["program"])
        return MachineProgram(tuple(told["command"]), told["script"]), told["environment"]

    def get(self, ref: str) -> MachineRow | None:
        rows = self._select("WHERE ref = ?", [ref])
        return rows[0] if rows else None

    def required(self, ref: str) -> MachineRow:
        """The machine. Raises LookupError when there never was such a one."""
        row = self.get(ref)
        if row is None:
            raise LookupError(f"there is no machine {ref}")
        return row

    def with_label(self, label: str) -> list[MachineRow]:
        """Ended ones included, oldest first."""
        return self._select("WHERE label = ?", [label])

    def live(self) -> list[MachineRow]:
        return self._select("WHERE state <> 'ended'", [])

    def live_or_ended_since(self, since_ms: int) -> list[MachineRow]:
        return self._select("WHERE state <> 'ended' OR ended_ms >= ?", [since_ms])

    def all(self) -> list[MachineRow]:
        return self._select("", [])

    def remember(self, name: str, value: Any) -> None:
        self._database.execute("INSERT OR REPLACE INTO remembered VALUES (?, ?)", [name, json.dumps(value)])

    def recall(self, name: str, default: Any) -> Any:
        row = self._database.execute("SELECT value FROM remembered WHERE name = ?", [name]).fetchone()
        return json.loads(row["value"]) if row else default

    def _open_interval(self, ref: str, state: MachineState, price_micros_per_hour: int, at_ms: int) -> None:
        self._database.execute(
            "INSERT INTO intervals (ref, state, price_micros_per_hour, from_ms) VALUES (?, ?, ?, ?)",
            [ref, state, price_micros_per_hour, at_ms],
        )

    def _select(self, condition: str, values: list[Any]) -> list[MachineRow]:
        query = f"SELECT * FROM machines {condition} ORDER BY number"  # noqa: S608 - fixed texts of this file
        found = self._database.execute(query, values).fetchall()
        refs = f"SELECT ref FROM machines {condition}"  # noqa: S608 - as above
        stretches: dict[str, list[Interval]] = {}
        for row in self._database.execute(
            f"SELECT * FROM intervals WHERE ref IN ({refs}) ORDER BY number",  # noqa: S608 - as above
            values,
        ):
            interval = Interval(MachineState(row["state"]), row["price_micros_per_hour"], row["from_ms"], row["to_ms"])
            stretches.setdefault(row["ref"], []).append(interval)
        return [_machine(row, tuple(stretches.get(row["ref"], ()))) for row in found]


def _program_text(new: NewMachine) -> str:
    environment = dict(new.environment or {})
    told = {"command": new.program.command, "script": new.program.script, "environment": environment}
    texts = [*new.program.command, new.program.script or "", *environment, *environment.values()]
    if any("\0" in text for text in texts):
        raise ValueError("a command, script or environment variable of a machine holds a zero byte")
    return json.dumps(told)


def _machine(row: sqlite3.Row, intervals: tuple[Interval, ...]) -> MachineRow:
    keeper = None
    if row["keeper_pid"] is not None:
        keeper = ProcessIdentity(row["keeper_pid"], row["keeper_started"], row["keeper_boot"])
    ending = json.loads(row["ending"]) if row["ending"] else None
    return MachineRow(
        number=row["number"],
        ref=row["ref"],
        label=row["label"],
        state=MachineState(row["state"]),
        cause=Cause(row["cause"]) if row["cause"] else None,
        detail=row["detail"],
        exit_code=row["exit_code"],
        when_it_exits=Then(row["when_it_exits"]),
        price_micros_per_hour=row["price_micros_per_hour"],
        storage_micros_per_hour=row["storage_micros_per_hour"],
        created_ms=row["created_ms"],
        boot_at_ms=row["boot_at_ms"],
        ready_ms=row["ready_ms"],
        stopped_ms=row["stopped_ms"],
        ended_ms=row["ended_ms"],
        deadline_ms=row["deadline_ms"],
        lifetime_ms=row["lifetime_ms"],
        at_deadline=Then(row["at_deadline"]),
        deadline_cause=Cause(row["deadline_cause"]),
        ending=ending and MachineEnding(MachineState(ending[0]), Cause(ending[1]), ending[2], ending[3]),
        facts=json.loads(row["facts"]),
        keeper=keeper,
        intervals=intervals,
    )

"""Who writes what: a table is written in the wing that owns it, and a column of a job or a machine by one file.

Whoever asks "where does this value come from?" finds one place. Those that are written elsewhere stand here with the
reason; a new one is either moved to its wing or added here, and so seen by whoever reviews the change.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import app
from app.db import tables

_APP = Path(app.__file__).parent
_OWNER = {
    name: path.stem
    for path in (_APP / "db" / "tables").glob("*.py")
    for name in re.findall(r"^([a-z_]+) = Table\(", path.read_text(), re.MULTILINE)
}
_SQL = re.compile(r"(?:INSERT INTO|UPDATE|DELETE FROM)\s+([a-z_]+)")
_WRITES = {"insert", "update", "delete", "insert_rows"}

_STATES = "the one guarded door for changes of state"
_ONE_STATEMENT = "an accepted submission is one statement, its answer and its row of the audit log included"
_METER = "what was metered is written in the transaction of the line that it adds"
_PLAN = "rows that a plan's actions write, in the transaction that has checked the leader's term"
_CHECKPOINT = "a job points to its newest checkpoint, and that changes when the checkpoint does"
ELSEWHERE = {
    ("audit_log", "db/jobs/submissions.py"): _ONE_STATEMENT,
    ("idempotency_keys", "db/jobs/submissions.py"): _ONE_STATEMENT,
    ("jobs", "db/checkpoints/damage.py"): _CHECKPOINT,
    ("jobs", "db/checkpoints/manifests.py"): _CHECKPOINT,
    ("jobs", "db/checkpoints/unsaved.py"): "whether its work can be saved, and how often it is, is found out by saving",
    ("jobs", "db/money/ledger.py"): _METER,
    ("nodes", "db/money/ledger.py"): _METER,
    ("run_jobs", "db/money/ledger.py"): _METER,
    ("jobs", "db/decisions/enactment.py"): _PLAN,
    ("nodes", "db/decisions/placements.py"): _PLAN,
    ("node_events", "db/decisions/placements.py"): _PLAN,
    ("provider_operations", "db/decisions/placements.py"): _PLAN,
    ("runs", "db/decisions/placements.py"): _PLAN,
    ("run_jobs", "db/decisions/placements.py"): _PLAN,
    ("allocations", "db/decisions/placements.py"): _PLAN,
    ("jobs", "db/nodes/lifecycle.py"): "the offers that failed a job are noted as its machine is given up",
    ("jobs", "db/runs/progress.py"): "the step of a job is the newest that one of its runs told",
    ("nodes", "db/runs/live_runs.py"): "a machine is idle from the end of its last run on",
    ("jobs", "db/transitions.py"): _STATES,
    ("job_events", "db/transitions.py"): _STATES,
    ("nodes", "db/transitions.py"): _STATES,
    ("runs", "db/transitions.py"): _STATES,
    ("runs", "db/learning/calibrations.py"): "that a run has been learned from is marked on it",
    ("objects", "db/apps/versions.py"): "a bundle is known to the store from its registration on",
    ("projects", "db/checkpoints/garbage.py"): "rounds of deletion are counted under the lock of the project's row",
}

_SHARED = {
    ("jobs", "checkpoint_id"): "a commit sets it, a damaged piece sets it back",
    ("jobs", "checkpoint_step"): "a commit sets it, a damaged piece sets it back",
    ("jobs", "not_before_ms"): "it only ever grows: after a fault, and after a failure of its own code",
    ("jobs", "refused_ms"): "a refusal sets it, the next commit clears it",
    ("jobs", "refused_why"): "a refusal sets it, the next commit clears it",
    ("jobs", "step"): "told while a run lives, and once when its code starts",
    ("jobs", "epoch"): "raised as a run begins, and as one is ended against its will",
    ("jobs", "wait_reason"): "told while a job waits, cleared as its run begins",
    ("jobs", "row_version"): "counted up by whoever changes what decisions see",
    ("nodes", "row_version"): "counted up by whoever changes what decisions see",
    ("nodes", "desired_version"): "counted up by whoever changes what the agent should do",
    ("nodes", "idle_since_ms"): "begins with the end of the last run, ends with a plan that uses the machine",
    ("nodes", "token_sha256"): "set as the machine joins, cleared when its agent is not let in any more",
}


def _written() -> Iterator[tuple[str, str]]:
    """Tables, and the files with a statement that writes them."""
    for path in sorted(_APP.rglob("*.py")):
        tree = ast.parse(path.read_text())
        where = path.relative_to(_APP).as_posix()
        names = {
            alias.asname or alias.name: alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("app.db.tables")
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from ((name, where) for name in _SQL.findall(node.value) if name in _OWNER)
            elif isinstance(node, ast.Call):
                yield from ((names[name], where) for name in names.keys() & _target(node) if names[name] in _OWNER)


def _target(call: ast.Call) -> set[str]:
    """The name in `insert(name)`, `insert_rows(name, ...)` or `name.insert()`."""
    of = call.func
    if isinstance(of, ast.Name) and of.id in _WRITES and call.args:
        return {getattr(call.args[0], "id", "")}
    return {getattr(of.value, "id", "")} if isinstance(of, ast.Attribute) and of.attr in _WRITES else set()


def test_every_table_is_written_in_its_wing() -> None:
    """Those that are not are listed, each with its reason, and the list holds no more than there are."""
    elsewhere = {(table, where) for table, where in _written() if not where.startswith(f"db/{_OWNER[table]}/")}
    assert elsewhere == set(ELSEWHERE)


def test_every_table_has_an_owner() -> None:
    """A wing is a package of `app.db`; all tables that PostgreSQL has are there."""
    assert {table.name for table in tables.metadata.sorted_tables} == set(_OWNER)
    assert all((_APP / "db" / wing / "__init__.py").exists() for wing in _OWNER.values())


def test_a_column_has_one_file_that_writes_it() -> None:
    """For jobs and machines, which many ask about. Rows are inserted whole elsewhere."""
    files: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in sorted(_APP.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "values":
                for table in {"jobs", "nodes"} & _updated(node.func.value):
                    for keyword in node.keywords:
                        if keyword.arg is not None:
                            files[table, keyword.arg].add(path.relative_to(_APP).as_posix())
    assert {column for column, of in files.items() if len(of) > 1} == set(_SHARED)
    assert len(files) > 20  # the search itself finds something


def _updated(node: ast.expr) -> set[str]:
    """The table of `update(table)...`, however many calls stand between."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            is_update = node.func.id == "update" and isinstance(node.args[0], ast.Name)
            return {node.args[0].id} if is_update and isinstance(node.args[0], ast.Name) else set()
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Attribute):
            node = node.value
        else:
            return set()


def test_every_wing_says_what_it_owns() -> None:
    """A stranger reads one paragraph at each door."""
    wings = [path for pkg in ("db", "services") for path in (_APP / pkg).glob("*/__init__.py")]
    assert len(wings) >= 26
    for path in wings:
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert len(said) > 60, path

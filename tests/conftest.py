"""Fixtures that every part shares: a real PostgreSQL, and a fresh migrated database per test."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from app.core.model.ids import Prefix, make_id
from app.db.engine import Database, make_engine
from app.db.migrate import upgrade
from app.stack.outside import withheld_settings
from app.stack.postgres import EmbeddedPostgres
from tests.compiled import share
from tests.databases import Databases, name_of, server_folder
from tests.folders import open_to_all
from tests.lines import Lines, starts_stacks

# Accounts in the shell of whoever runs the tests are nobody's business here.
for _name in withheld_settings(os.environ, ()):
    del os.environ[_name]

# Other people's libraries are in environments of their own, which `./allpass test clients` makes.
collect_ignore = [] if os.environ.get("ALLPASS_TEST_CLIENTS") else ["clients"]

# A busy machine is no bug, and the same checkout gives the same verdict. `HYPOTHESIS_PROFILE=explore` tries new cases.
settings.register_profile(
    "repeatable", deadline=None, print_blob=True, database=None, max_examples=50, derandomize=True
)
settings.register_profile("sweep", settings.get_profile("repeatable"), max_examples=200)
settings.register_profile("explore", deadline=None, print_blob=True, database=None, max_examples=300, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# A shell that starts the tests in the background, or nohup, has them ignore Ctrl-C or the end of the terminal, and so
# would every process that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


_NOT_QUICK = Path(__file__).with_name("not_quick.txt")
# How a test says that something did not come in time: ours, those of libraries, and pytest's own.
_MISSED_DEADLINE = [AssertionError, TimeoutError, pytest.fail.Exception, "Timeout", "Overdue", "timed out"]
_RECURSION_LIMIT = sys.getrecursionlimit()
_GIVES_WAY = 4  # half the share of a process that does not: enough to meet deadlines, too little to be starved
_SWEEP_TIMEOUT_S = 7200  # for a test that plays all cases of a sweep one after the other


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out the files of tests/not_quick.txt, which take long")
    parser.addoption("--sweep", action="store_true", help="play all cases of every sweep, not only its sample (hours)")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is imported: a property keeps the number of cases that its module found."""
    if config.getoption("--sweep") and "HYPOTHESIS_PROFILE" not in os.environ:
        settings.load_profile("sweep")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file that takes long, or starts whole stacks, is not even imported in a quick run, but where it is asked for by
    name."""
    if not config.getoption("--quick") or any(str(collection_path) in one for one in map(os.path.abspath, config.args)):
        return None
    name = os.path.relpath(collection_path, config.rootpath)
    is_long = name in _NOT_QUICK.read_text().splitlines()
    return True if is_long or (collection_path.suffix == ".py" and starts_stacks(str(collection_path))) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_out_beyond_sample(config, items)
    if config.getoption("reruns", None) != 0:
        _try_again(items)


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: no garbage collection has to go through them again and again."""
    gc.collect()
    gc.freeze()


def _leave_out_beyond_sample(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a sweep (tests/sweeps.py) the sample, and what is asked for by its name; with `--sweep` all, in its time."""
    if config.getoption("--sweep"):
        for item in items:
            if "sweep" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.timeout(_SWEEP_TIMEOUT_S), append=False)
        return
    left_out = [one for one in items if one.get_closest_marker("beyond_sample") and one.nodeid not in config.args]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def _try_again(items: list[pytest.Item]) -> None:
    """A whole stack meets real deadlines. On a machine that stalls it can miss one: what fails so is tried once more,
    and told. Any other error fails at once, a file or a process that is gone among them: that is no stall, but a race.
    """
    for item in items:
        if item.get_closest_marker("stack"):
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=_MISSED_DEADLINE))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lines | None:
    """Stacks in one line, where tests are grouped at all."""
    return Lines(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What only calculates gives way to what meets deadlines: the processes of the stacks, which mostly wait, run when
    they want to. The process that runs the stacks does so first; one that has given way stays so."""
    sys.setrecursionlimit(_RECURSION_LIMIT)  # some libraries raise it and leave it so
    shares_out = "PYTEST_XDIST_WORKER" in os.environ
    if shares_out and not starts_stacks(str(item.path)) and os.nice(0) < _GIVES_WAY:
        os.nice(_GIVES_WAY)


_DURABILITY_OFF = (
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "max_connections=200",
    "max_wal_size=256MB",
)


class ManualClock:
    """A clock that moves only when a test says so. A sleep moves it: nothing ever waits for real."""

    def __init__(self, start_ms: int = 1_800_000_000_000) -> None:
        self.ms = start_ms

    def now_ms(self) -> int:
        return self.ms

    async def sleep_ms(self, duration_ms: int) -> None:
        self.ms += duration_ms
        await asyncio.sleep(0)

    def advance(self, *, s: float = 0, ms: int = 0) -> None:
        self.ms += int(s * 1000) + ms


class CountingIds:
    """Ids that are new, sorted and the same in every run of a test."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._count = itertools.count(1)

    def new(self, prefix: Prefix) -> str:
        return make_id(prefix, self._clock.now_ms(), next(self._count))


@pytest.fixture(scope="session", autouse=True)
def _compiled_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        share(patched)
        yield


@pytest.fixture(scope="session")
def sweep(pytestconfig: pytest.Config) -> bool:
    """Whether all cases of a sweep are played, or its sample."""
    return bool(pytestconfig.getoption("--sweep"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ids(clock: ManualClock) -> CountingIds:
    return CountingIds(clock)


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """One real server for the whole session; durability is off, since no test here pulls its plug."""
    with server_folder() as folder:
        server = EmbeddedPostgres(folder / "data", settings=_DURABILITY_OFF)
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def template_database(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The name of a database at the newest schema, from which every test's own is copied."""
    with Databases(postgres) as databases:
        url = databases.make()
        upgrade(url)
        yield name_of(url)


@pytest.fixture
def databases(postgres: EmbeddedPostgres) -> Iterator[Databases]:
    with Databases(postgres) as databases:
        yield databases


@pytest.fixture
def new_database(databases: Databases, template_database: str) -> Callable[[], str]:
    """Makes fresh migrated databases and returns their URLs."""
    return lambda: databases.make(template_database)


@pytest.fixture
def database_url(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(make_engine(database_url, pool_size=8, timeout_s=30.0))
    yield database
    await database.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user of this machine can reach, unlike pytest's own."""
    with open_to_all() as folder:
        yield folder


@pytest.fixture(scope="session")
def repository_root() -> Path:
    return Path(__file__).resolve().parents[1]

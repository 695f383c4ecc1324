"""The guides, followed to the letter in empty folders: every command and every script of them is run against one real
stack, in the order in which they stand. Each has a reader of its own; a few read at a time, since they mostly wait."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from allpass.config import remember_stack
from tests.documents import Block, blocks_of, commands_of
from tests.e2e.service import EXAMPLES, Service

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
GUIDES = EXAMPLES.parent / "docs" / "guides"
SHOWN = {path.read_text() for path in EXAMPLES.glob("*.py")}
Seen = Callable[[str, Path], None]
_READERS = 4
_REASON = re.compile(
    r"<!-- not run: (?:it )?(?:needs (?:torch|an account|docker|a database|a job of|the emulator|the published|"
    r"a registry)|serves until|brings a stack|the test has|they are needed)"
)


class Reader:
    """Somebody with a shell in a folder of their own, who has called `allpass up` in another one, and nothing else."""

    def __init__(self, service: Service, folder: Path) -> None:
        known = json.loads(service.stack.layout.client_file.read_text())
        self.folder = folder / "here"
        self.folder.mkdir()
        settings = {name: value for name, value in os.environ.items() if not name.startswith("ALLPASS_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**settings, "PATH": path, "XDG_CONFIG_HOME": str(folder / "config")}
        assert remember_stack("local", known["url"], known["api_key"], self._environment)  # as `up` does

    def follow(self, guide: Path) -> str:
        """Its blocks, one after the other in one shell; what they print."""
        blocks = [one for one in commands_of(guide) if one.text not in SHOWN]
        done = subprocess.run(
            ["sh", "-euc", "".join(_as_shell(one) for one in blocks)],
            cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False, timeout=800,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout


def _as_shell(block: Block) -> str:
    return block.text if block.language == "sh" else f"python - <<'END-OF-BLOCK'\n{block.text}END-OF-BLOCK\n"


def first_job(printed: str, folder: Path) -> None:
    """It succeeds and leaves its file; the broken one shows its own traceback; Python does the same."""
    assert "succeeded: exit code 0" in printed
    assert (folder / "results" / "model.txt").read_text() == "trained\n"
    assert "KeyError: 2\n\njob_" in printed
    assert printed.endswith("done\nallpass: 1 output file is stored\nsucceeded\n['model.txt']\n")


def paused(printed: str, folder: Path) -> None:
    """Paused while it trains and resumed, the script goes on where it was: it shows."""
    first, second = re.findall(r"^from step (\d+)$", printed, re.MULTILINE)[:2]
    assert (int(first), int(second) >= 20) == (0, True)
    assert printed.count("done\n") == 2  # the one with three lines, too


def moved(printed: str, folder: Path) -> None:
    """The five lines are enough for a pause in the middle."""
    assert "last loss " in printed


def kept(printed: str, folder: Path) -> None:
    """An ordinary script's files come back with their paths; some of them alone; and it is shown how many there are."""
    assert "results     3 files, " in printed
    assert json.loads((folder / "results/out/final/model.json").read_text())["weight"] == pytest.approx(3.0, abs=1e-3)
    assert len((folder / "results/runs/loss.csv").read_text().splitlines()) == 100
    model = sorted(path.name for path in (folder / "model").rglob("*") if path.is_file())
    assert model == ["config.json", "model.json"]


def swept(printed: str, folder: Path) -> None:
    """The best of three is the one with the largest learning rate; Python finds it as well."""
    assert "total $" in printed
    assert json.loads((folder / "best" / "model.json").read_text())["weight"] == pytest.approx(3.0, abs=1e-4)
    first, second, best = printed.splitlines()[-3:]
    assert (first.split()[:2], second.split()[:2]) == (["0.05", "succeeded"], ["0.2", "succeeded"])
    assert best.endswith("['model.json']")


def planned(printed: str, folder: Path) -> None:
    """Each question is answered from the local cloud's offers; Python is told the same reason."""
    assert printed.count("would take: ") == 3
    assert "each step passes " in printed
    assert "it would fit on " in printed
    assert printed.splitlines()[-1].startswith("the least for 3000 steps of ")


def limited(printed: str, folder: Path) -> None:
    """The limit is raised twice, and the pause holds until the job is resumed."""
    assert "$20" in printed and "$30" in printed
    assert re.findall(r"^job_\w+ +(paused|checkpointing|starting|queued)", printed, re.MULTILINE)


def sealed(printed: str, folder: Path) -> None:
    """The secret is used and printed nowhere; the key is printed once."""
    assert "hf_a-token" not in printed
    assert printed.count("ak_") >= 1 and "revoked" in printed


SEEN: dict[str, Seen] = {
    "first-job.md": first_job,
    "your-own-script.md": paused,
    "movable.md": moved,
    "results.md": kept,
    "sweeps.md": swept,
    "plan.md": planned,
    "cost-caps.md": limited,
    "secrets.md": sealed,
}
FOLLOWED = sorted(path for path in GUIDES.glob("*.md") if any(one.text not in SHOWN for one in commands_of(path)))


@pytest.fixture(scope="module")
def reading(
    service: Service, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Path], Future[tuple[str, Path]]]]:
    """Gives what comes of a guide. Those of all tests that were asked for are begun when the first is."""

    def read(guide: Path) -> tuple[str, Path]:
        reader = Reader(service, tmp_path_factory.mktemp(guide.stem))
        return reader.follow(guide), reader.folder

    asked = [one.callspec.params.get("guide") for one in request.session.items if hasattr(one, "callspec")]
    with ThreadPoolExecutor(_READERS) as readers:
        begun = {guide: readers.submit(read, guide) for guide in sorted(FOLLOWED, key=_first) if guide in asked}
        yield lambda guide: begun.pop(guide) if guide in begun else readers.submit(read, guide)


def _first(guide: Path) -> int:
    """Those that wait longest begin first."""
    return -sum(one.text.count("allpass") for one in commands_of(guide))


@pytest.mark.parametrize("guide", FOLLOWED, ids=lambda path: path.stem)
def test_a_guide_is_true(guide: Path, reading: Callable[[Path], Future[tuple[str, Path]]]) -> None:
    """Whoever types what it says gets what it says."""
    printed, folder = reading(guide).result()
    SEEN.get(guide.name, lambda *_: None)(printed, folder)


def test_what_is_looked_at_is_followed() -> None:
    """No guide leaves the list because all of its blocks were marked."""
    assert set(SEEN) <= {path.name for path in FOLLOWED}
    blocks = [(path, one) for path in GUIDES.glob("*.md") for one in blocks_of(path, "sh")]
    elsewhere = [(path, one.run_by) for path, one in blocks if one.run_by is not None]
    for path, runner in elsewhere:
        assert path.name in (GUIDES.parents[1] / runner).read_text(), f"{runner} does not read {path.name}"
    left = [one.before for _, one in blocks if not one.is_run and one.run_by is None]
    assert sum(one.is_run for _, one in blocks) + len(elsewhere) > len(left)
    assert [reason for reason in left if not _REASON.match(reason)] == []

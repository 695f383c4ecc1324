"""Jobs that were imported from OpenAI, on the real service: trained anew through the API of its door, and compared."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update
from typer.testing import CliRunner, Result

from allpass.cli import imported
from allpass.cli import main as cli
from allpass.cli.openai import door as door_module
from app.api.context import ApiContext
from app.core.model.job import JobState
from app.db.engine import Database, make_engine
from app.db.listen import Listener
from app.db.tables import jobs
from app.services.access.create_key import create_key
from app.settings import Settings
from app.stack.postgres import EmbeddedPostgres
from app.storage.directory import DirectoryStore
from app.system import RandomIds, SystemClock
from tests.api.builders import add_metric
from tests.api.openai.conftest import chats, preferences
from tests.api.served import serve, settings_for
from tests.databases import Databases
from tests.sdk.openai_api import KEY, OpenAiApi, serving
from tests.seeds import T0_MS, seed_project

MEANT = "Qwen/Qwen2.5-7B-Instruct"


@dataclass(frozen=True)
class Server:
    """`write` does something with its database."""

    url: str
    key: str
    write: Callable[[Callable[[ApiContext], Awaitable[Any]]], Any]

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path, headers={"Authorization": f"Bearer {self.key}"}).json()

    def jobs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/openai/v1/fine_tuning/jobs")["data"]
        return found


@pytest.fixture(scope="module")
def address(
    postgres: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Settings, str]]:
    with Databases(postgres) as databases:
        settings = settings_for(databases.make(template_database), tmp_path_factory.mktemp("objects"))
        with serve(settings) as url:
            yield settings, url


@pytest.fixture
def server(address: tuple[Settings, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A project of its own for each test, which the command line is connected to."""
    settings, url = address

    def write(does: Callable[[ApiContext], Awaitable[Any]]) -> Any:
        return asyncio.run(_with_context(settings, does))

    monkeypatch.chdir(tmp_path)
    key = write(_new_key)
    monkeypatch.setenv("ALLPASS_URL", url)
    monkeypatch.setenv("ALLPASS_API_KEY", key)
    monkeypatch.setattr(imported, "_LOOK_S", 0.05)
    return Server(url, key, write)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAiApi]:
    made = OpenAiApi()
    with serving(made) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield made


async def _with_context(settings: Settings, does: Callable[[ApiContext], Awaitable[Any]]) -> Any:
    clock, url = SystemClock(), settings.database_url.get_secret_value()
    database = Database(make_engine(url, pool_size=1, timeout_s=30.0))
    store = DirectoryStore(settings.objects_dir, "http://127.0.0.1:1", "k" * 32, max_object_bytes=2**30, clock=clock)
    listener = Listener(url, timeout_s=30.0)
    try:
        return await does(ApiContext(database, listener, store, settings, clock, RandomIds(clock)))
    finally:
        await database.close()


async def _new_key(context: ApiContext) -> str:
    async with context.database.transaction() as connection:
        project_id = await seed_project(connection)
        return await create_key(connection, project_id, "a", ("admin", "owner"), clock=context.clock, ids=context.ids)


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["import", "openai", *words])


def imported_job(api: OpenAiApi, **changes: Any) -> str:
    """The id of a job that lies in the folder."""
    train = changes.pop("rows", chats(20))
    job = api.add_job(api.add_file(train), validation_file=api.add_file(chats(12)), **changes)
    result = call("--yes", "--job", job["id"])
    assert result.exit_code == 0, result.output
    return str(job["id"])


def test_it_is_trained_anew_as_it_was(server: Server, api: OpenAiApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the model that its name means here, with the same rows, numbers, seed and suffix; OpenAI is not asked."""
    old = imported_job(api)
    api.requests.clear()
    monkeypatch.delenv("OPENAI_API_KEY")
    result = call("--repeat", old)
    assert result.exit_code == 0, result.output
    (new,) = server.jobs()
    assert result.stdout.startswith(f"{new['id']}   submitted")
    (job,) = server.get("/v1/jobs")["data"]
    for part in (f"allpass logs -f {job['id']}", f"--compare {old} {new['id']}", f"{MEANT} (gpt-4o-mini-2024-07-18"):
        assert part in " ".join(result.stdout.split())
    assert api.requests == []
    assert new["metadata"] == {"imported_from": old}
    assert (new["seed"], new["model"]) == (683058546, "gpt-4o-mini-2024-07-18")
    assert new["hyperparameters"] == {"n_epochs": 3, "batch_size": 1, "learning_rate_multiplier": 1.8}
    assert (job["name"], job["parameters"]["model"]) == ("sums", MEANT)
    for name, field in (("train.jsonl", "training_file"), ("valid.jsonl", "validation_file")):
        content = httpx.get(
            f"{server.url}/openai/v1/files/{new[field]}/content", headers={"Authorization": f"Bearer {server.key}"}
        )
        assert content.content == (Path("openai-import") / old / name).read_bytes()


def test_it_is_submitted_once_however_often_it_is_asked_for(server: Server, api: OpenAiApi) -> None:
    """Unless it is to be done again, or on another model."""
    old = imported_job(api)
    first = json.loads(call("--repeat", old, "--json").stdout)
    second = call("--repeat", old)
    assert f"{first['id']}   was submitted before (once more: --again)" in second.stdout
    other = json.loads(call("--repeat", old, "--model", "Qwen/Qwen2.5-0.5B", "--json").stdout)
    again = json.loads(call("--repeat", old, "--again", "--max-cost", "3", "--deadline", "6h", "--json").stdout)
    assert len({first["id"], other["id"], again["id"]}) == 3
    assert {first["training_file"]} == {one["training_file"] for one in server.jobs()}, "the file was sent once"
    newest = server.get("/v1/jobs")["data"][0]
    assert newest["max_cost"] == 3_000_000
    assert json.loads(call("--repeat", old, "--json").stdout)["id"] == again["id"]


def test_two_who_ask_at_once_get_one_job(server: Server, api: OpenAiApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has sent files of its own by then: the second request is another one under the same key."""
    old = imported_job(api)
    both = threading.Barrier(2)
    create = door_module.Door.create

    def together(self: door_module.Door, body: Any, key: str) -> dict[str, Any]:
        both.wait(120)  # a busy machine is no bug
        return create(self, body, key)

    monkeypatch.setattr(door_module.Door, "create", together)
    from allpass.cli.openai import folder
    from allpass.cli.openai.repeat import Wanted, repeat
    from allpass.config import Connection

    def one(_: int) -> str:
        door = door_module.Door(Connection(server.url, server.key, "test"))
        try:
            wanted = Wanted(folder.imported(folder.DEFAULT, old), "gpt-4o-mini-2024-07-18", MEANT)
            return repeat(door, folder.DEFAULT, wanted).id
        finally:
            door.close()

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(one, range(2)))) == 1
    assert len(server.jobs()) == 1


def test_pairs_are_repeated_with_their_method(server: Server, api: OpenAiApi) -> None:
    numbers = {"n_epochs": "auto", "batch_size": 2, "beta": 0.2}
    method = {"type": "dpo", "dpo": {"hyperparameters": numbers}}
    job = api.add_job(api.add_file(preferences(20)), method=method, hyperparameters={})
    assert call("--yes").exit_code == 0
    assert call("--repeat", job["id"]).exit_code == 0
    (new,) = server.jobs()
    assert new["method"]["type"] == "dpo"
    told = new["method"]["dpo"]["hyperparameters"]
    assert (told["beta"], told["batch_size"]) == (0.2, 2)


def test_what_cannot_be_repeated_is_told_before_anything_is_sent(server: Server, api: OpenAiApi) -> None:
    """Each time with what to do instead."""
    graded = imported_job(api, method={"type": "reinforcement", "reinforcement": {}})
    tuned = imported_job(api, model="ft:gpt-4o-mini:example::abc")
    unknown = imported_job(api, model="gpt-9")
    whole = imported_job(api)
    (Path("openai-import") / whole / "train.jsonl").unlink()
    for words, told in (
        (["ftjob-nothing"], "allpass import openai --job ftjob-nothing"),
        ([graded], "method 'reinforcement' cannot be repeated"),
        ([tuned], "--model gpt-4o-mini"),
        ([unknown], "allpass model-names set gpt-9"),
        ([whole], "put your own copy there"),
        ([whole, "--model", "gpt-9"], "means no open model on this server"),
    ):
        result = call("--repeat", *words)
        assert result.exit_code != 0
        assert told in result.output, result.output
    assert server.jobs() == []
    assert server.get("/openai/v1/files")["data"] == []
    assert call("--repeat", tuned, "--model", "gpt-4o-mini").exit_code == 0


def test_rows_that_are_refused_are_told(server: Server, api: OpenAiApi) -> None:
    old = imported_job(api, rows=chats(3))
    result = call("--repeat", old)
    assert result.exit_code == 1
    assert "at least 10 examples" in result.output


def test_both_runs_are_compared(server: Server, api: OpenAiApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a table and as a page: hyperparameters, losses on one axis of epochs, how they ended, the new one's cost."""
    old = imported_job(api)
    new = json.loads(call("--repeat", old, "--json").stdout)["id"]
    job_id = server.get("/v1/jobs")["data"][0]["id"]

    async def train(context: ApiContext) -> None:
        for step in range(1, 61):
            await add_metric(context, job_id, step, loss=3 / step, **({"eval_loss": 1.5} if step % 20 == 0 else {}))
        async with context.database.transaction() as connection:
            ended = {"state": JobState.SUCCEEDED, "ended_ms": T0_MS, "total_steps": 60, "spent_micros": 2_340_000}
            await connection.execute(update(jobs).where(jobs.c.id == job_id).values(ended))

    server.write(train)
    result = call("--compare", old, new)
    assert result.exit_code == 0, result.output
    rows = {line[:28].strip(): line[28:].split() for line in result.stdout.splitlines()}
    text = " ".join(result.stdout.split())
    for part in (
        "n_epochs 3 3",
        "learning_rate_multiplier 1.8 1.8",
        "last training loss 0.33333 0.05",
        "cost - $2.34",
        "seed 683058546 683058546",
    ):
        assert part in text, rows
    told = json.loads(call("--compare", old, job_id, "--json").stdout)
    assert told["unit"] == "epochs"
    for side, validations in (("old", 2), ("new", 3)):
        curves = told[side]["curves"]
        assert curves["training loss"][-1][0] == pytest.approx(3.0)
        assert len(curves["validation loss"]) == validations
    page = Path(told["page"]).read_text()
    assert page.count('class="line') == 8, "four curves, and four keys to them"
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_a_page_runs_nothing_that_others_have_written(server: Server, api: OpenAiApi) -> None:
    evil = '"><script>alert(1)</script>'
    old = imported_job(api, model=evil, status=evil)
    assert call("--repeat", old, "--model", MEANT).exit_code == 0
    result = call("--compare", old, server.jobs()[0]["id"])
    assert result.exit_code == 0, result.output
    (path,) = (Path("openai-import") / old).glob("compare-*.html")
    assert "<script" not in path.read_text()
    assert "&lt;script&gt;" in path.read_text()


def test_a_run_of_which_little_is_known_is_compared_as_well(server: Server, api: OpenAiApi) -> None:
    """What is missing is said."""
    numbers = {"n_epochs": "auto"}
    old = imported_job(
        api, hyperparameters=numbers, method={"type": "supervised", "supervised": {"hyperparameters": numbers}}
    )
    (Path("openai-import") / old / "metrics.csv").write_bytes(b"step,train_loss\nx,y\n\x00,\xff\n1,inf\n2,0.5\n,,,,\n")
    assert call("--repeat", old).exit_code == 0
    told = json.loads(call("--compare", old, server.jobs()[0]["id"], "--json").stdout)
    assert told["unit"] == "share of the training"
    assert told["old"]["curves"]["training loss"] == [[1.0, 0.5]]
    assert any("has no metrics yet" in one for one in told["remarks"])
    missing = call("--compare", old, "ftjob-nothing")
    assert missing.exit_code == 1
    assert "there is no job of it" in missing.output


def test_jobs_of_another_allpass_are_imported_as_well(
    server: Server, api: OpenAiApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its OpenAI-compatible API is one that this command knows: `--from` names it."""
    old = imported_job(api)
    new = json.loads(call("--repeat", old, "--json").stdout)["id"]
    job_id = server.get("/v1/jobs")["data"][0]["id"]

    async def train(context: ApiContext) -> None:
        await add_metric(context, job_id, 1, loss=1.5)
        async with context.database.transaction() as connection:
            ended = {"state": JobState.SUCCEEDED, "ended_ms": T0_MS}
            await connection.execute(update(jobs).where(jobs.c.id == job_id).values(ended))

    server.write(train)
    monkeypatch.setenv("OPENAI_API_KEY", server.key)
    result = call("--from", f"{server.url}/openai/v1", "--yes", "--into", "other")
    assert result.exit_code == 0, result.output
    assert f"next: allpass import openai --repeat {new} --into other" in result.stdout
    for name in ("train.jsonl", "valid.jsonl"):
        assert (Path("other") / new / name).read_bytes() == (Path("openai-import") / old / name).read_bytes()
    assert (Path("other") / new / "metrics.csv").read_text().splitlines()[1] == "1,1.5,,,"

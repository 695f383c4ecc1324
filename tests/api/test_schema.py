"""The running service keeps to its OpenAPI document: schemathesis makes requests from it and judges the answers.

Every check of schemathesis is on. Deterministic: the same checkout makes the same requests. Of an operation for which
it derives more than 300 from the document (four have up to a thousand) every second to fourth is made, with `--sweep`
each. `SCHEMA_EXAMPLES=500` makes more of them, by chance.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import requests
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.specs.openapi.schemas import OpenApiSchema

from app.api import job_table
from app.stack.postgres import EmbeddedPostgres
from tests.api.document import document, named_operations
from tests.api.served import World, build_world, serve, settings_for
from tests.databases import Databases
from tests.sweeps import sample

_ID = re.compile(r"[a-z]{2,5}_[0-9A-HJKMNP-TV-Z]{20}")
EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "0"))
MOST_CASES = 60
# Each request begins a process, which takes most of a second: of these, fewer are made.
_BEGIN_A_PROCESS = {"send_trace", "simulate"}
_MOST_PROCESSES = 20
_CONFIG: dict[str, Any] = {
    "seed": 1,
    "generation": {
        "deterministic": not EXAMPLES,
        "max-examples": EXAMPLES or 5,
        "database": "none",
        # The schema of a string cannot say that text holds no NUL (tests/api/test_errors.py: 422).
        "allow-x00": False,
        # Each request is sent with a token that opens the route; `ignored_auth` takes it away again.
        "with-security-parameters": False,
    },
}
# A schema cannot say what these are checked for besides; each has tests of its own.
_MORE_THAN_A_SCHEMA_SAYS = {
    "submit_job": "a deadline in the future, nothing kept for later, secrets that exist, whole micro-dollars",
    "submit_sweep": "the same",
    "update_job": "the same",
    "submit_finetune": "rows that were sent before, settings that the recipe has, a name of the hub",
    "send_rows": "a name that a file can have",
    "send_trace": "jobs that can be read; a name that a file can have",
    "simulate": "policies, knowledge, deadlines and settings that are known; larger than a setting allows is 413",
    "plan_job": "a known model or a config, sizes that go together, adapters for methods that have them",
    "register_app": "a bundle that is stored, a path inside of it, requirements of pip",
    "resize_job": "GPUs or machines, and as many GPUs as there are in one machine",
    "reserve": "a window that is one, and begins within a year",
    "repeat_standby": "days that differ, a zone that there is, hours that are some",
    "begin_standby": "a window that is one, and ends within seven days",
    "offer_bundle": "the size of content that is stored already; larger than a setting allows is 413",
    "get_usage": "`from` before `to`",
    "stream_job_lines": "a position that a page or the stream has told",
    "create_key": "an end in the future",
    "prepare_image": "a provider of this service that builds images",
    "agent_probe": "a few times for each machine",
    "set_budget": "a provider of this service, no key of one project for all of them, money in whole micro-dollars",
    "set_secret": "not white space alone, as many bytes as are allowed",
    "agent_sync": "an exit that was seen in one way",
    "agent_open_checkpoint": "paths inside the folder, each once; sizes of content that is stored already",
    "agent_note_coming": "paths inside the folder, parts inside of their files; larger than a setting allows is 413",
    "agent_report_artifacts": "the same",
    "agent_sign_uploads": "sizes of content that is stored already; larger than a setting allows is 413",
    "agent_report_logs": "the same",
    "agent_report_transfer": "no more bytes done than there are",
}
# What user code told and is wrong is left out of a report, which is taken all the same.
_LENIENT = {"agent_sync"}
_JOBS = {
    "cancel_job": "cancelled", "pause_job": "steered", "resume_job": "steered", "resize_job": "steered",
    "update_job": "steered", "begin_standby": "steered", "end_standby": "steered", "list_standbys": "steered",
    "repeat_standby": "steered", "list_standby_windows": "steered",
}  # fmt: skip


@cache
def _schema(*more: str, lenient: bool = False) -> OpenApiSchema:
    """The document; `more`: statuses that requests may be answered with although the schema allows them; `lenient`:
    some that it does not allow are taken."""
    accepted = ["2xx", "401", "403", "404", "409", *more]
    refused = ["400", "401", "403", "404", "413", "422"]  # a list that is too long is too large a body, too
    refused += ["2xx"] if lenient else []
    checks = {
        "positive_data_acceptance": {"expected-statuses": accepted},
        "negative_data_rejection": {"expected-statuses": refused},
    }
    return schemathesis.openapi.from_dict(document(), config=SchemathesisConfig.from_dict(_CONFIG | {"checks": checks}))


def _statuses(name: str) -> tuple[str, ...]:
    reason = _MORE_THAN_A_SCHEMA_SAYS.get(name)
    if reason is None:
        return ()
    if name == "agent_probe":
        return ("429",)
    return ("413", "422") if "larger" in reason else ("422",)


@dataclass(frozen=True)
class Service:
    url: str
    world: World
    session: requests.Session

    def aim(self, case: schemathesis.Case) -> dict[str, str]:
        """Ids that are well-formed become those of real things: made up, they would all be answered with 404.

        Returns the headers of a caller who may.
        """
        operation = case.operation.definition.raw
        agent = operation["tags"] == ["agent"]
        job = "on_node" if agent else _JOBS.get(operation["operationId"], "finished")
        ids = self.world.ids | {"job": getattr(self.world, job)}
        for opaque in ("cursor", "position"):  # only what the service gave is one (test_paging.py, test_job_records.py)
            case.query.pop(opaque, None)
        case.path_parameters = {name: _aimed(value, ids) for name, value in case.path_parameters.items()}
        if isinstance(case.body, dict):
            case.body = {
                name: _aimed(value, ids) if name.endswith("_id") else value for name, value in case.body.items()
            }
        token = self.world.node_token if agent else self.world.api_key
        if operation["operationId"] == "agent_join":
            token = self.world.join_token
        return {"Authorization": f"Bearer {token}"}


def _aimed(value: Any, ids: dict[str, str]) -> Any:
    prefix = value.partition("_")[0] if isinstance(value, str) else ""
    return ids[prefix] if prefix in ids and _ID.fullmatch(value) else value


@pytest.fixture(scope="module")
def service(
    postgres: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    with Databases(postgres) as databases, pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_table, "LONGEST_S", 0.05)  # nothing else ends this stream
        settings = settings_for(databases.make(template_database), tmp_path_factory.mktemp("objects"))
        world = build_world(settings)
        with serve(settings) as url, requests.Session() as session:
            yield Service(url, world, session)


def _played(cases: list[Any], sweep: bool, most: int = MOST_CASES) -> list[Any]:
    return cases if sweep else sample(cases, every=-(-len(cases) // most))


@pytest.mark.parametrize("name", sorted(named_operations()))
def test_the_service_keeps_to_its_document(name: str, service: Service, sweep: bool) -> None:
    """Whatever a request is like, the answer is one that the document promises for it."""
    made_requests = 0

    def check(case: schemathesis.Case) -> None:
        nonlocal made_requests
        made_requests += 1
        headers = service.aim(case)
        # Some of them begin a process, which takes its time beside others.
        case.call_and_validate(base_url=service.url, session=service.session, headers=headers, timeout=90)

    most = _MOST_PROCESSES if name in _BEGIN_A_PROCESS else MOST_CASES
    one = _schema(*_statuses(name), lenient=name in _LENIENT).include(operation_id=name)
    # Made here, not by `parametrize`: that makes all requests of all operations already when tests are collected.
    (made,) = get_all_tests(schema=one, test_func=check, settings=None, given_kwargs=None)
    _, run = made.ok()
    run.hypothesis_explicit_examples = cases = _played(run.hypothesis_explicit_examples, sweep, most)
    run()
    drawn = _CONFIG["generation"]["max-examples"]
    assert 0 < len(cases) <= made_requests
    assert sweep or made_requests <= MOST_CASES + 2 * drawn


def test_an_ordinary_run_makes_a_part_of_all_requests() -> None:
    """The first one among them, and never more than there is time for."""
    cases = list(range(988))
    played = _played(cases, sweep=False)
    assert [case for case in cases if case in played] == played
    assert played[0] == cases[0]
    assert MOST_CASES / 2 < len(played) <= MOST_CASES
    assert _played(cases, sweep=True) == cases

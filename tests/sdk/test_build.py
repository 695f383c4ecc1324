"""`build()` and `run()`: the published example as printed, and mistakes told before anything is sent."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import allpass as aps
from allpass import errors
from allpass.client import Client
from allpass.submission import check_parameters
from allpass.sweep import Sweep
from tests.sdk.fake_service import KEY, FakeService, json_of, served


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('training')\n")
    (tmp_path / "template.json").write_text(json.dumps({"gpu": {"count": 1}, "training": {"steps": 100}}))
    return tmp_path


def test_the_published_example_works_as_printed(
    service: FakeService, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """build() and run() as printed, against a real socket, found through the environment."""
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        app = aps.build(
            app_name="LLM-finetune",
            user_name="user",
            runtime={"base_image": "pytorch:2.3.0", "pip": ["transformers==4.45.0"]},
            code="train.py",
        )
        job = app.run(
            app_name="Fine-tuning LLaMA3-8B",
            template="template.json",
            soft_deadline="6hr",
            parameters=["--lr", "1e-4"],
        )
        assert isinstance(job, aps.Job)
        assert job.status() == "queued"
        app._client.close()
    registered = service.apps[app.id]
    assert registered["runtime"] == {"base_image": "pytorch:2.3.0", "pip": ["transformers==4.45.0"]}
    assert (registered["name"], registered["user_name"], registered["entrypoint"]) == (
        "LLM-finetune",
        "user",
        "train.py",
    )
    sent = json_of(next(one for one in service.requests if one.url.path == "/v1/jobs"))
    assert sent == {
        "app_id": app.id,
        "app_version": 1,
        "name": "Fine-tuning LLaMA3-8B",
        "template": {"gpu": {"count": 1}, "training": {"steps": 100}},
        "soft_deadline": "6hr",
        "parameters": ["--lr", "1e-4"],
    }


def test_building_twice_sends_the_code_once(service: FakeService, client: Client, code: Path) -> None:
    """The second build finds the bytes in the store."""
    for _ in range(2):
        aps.build("app", "ada", code=code, client=client)
    assert sum(one.method == "PUT" for one in service.requests) == 1


def test_a_list_of_dicts_is_a_sweep(service: FakeService, client: Client, code: Path) -> None:
    """One job per parameter set, in order, in one request."""
    app = aps.build("app", "ada", code="train.py", client=client)
    sweep = app.run(parameters=[{"lr": 0.1}, {"lr": 0.01}])
    assert isinstance(sweep, Sweep)
    assert [one.info().parameters for one in sweep] == [{"lr": 0.1}, {"lr": 0.01}]
    assert service.paths().count("POST /v1/sweeps") == 1


def test_deadlines_of_every_kind_are_sent_as_text(service: FakeService, client: Client, code: Path) -> None:
    """A timedelta and an aware datetime become the wire's text."""
    app = aps.build("app", "ada", code="train.py", client=client)
    instant = datetime.now(UTC) + timedelta(days=2)
    app.run(soft_deadline=timedelta(hours=6))
    app.run(soft_deadline=instant)
    texts = [json_of(one)["soft_deadline"] for one in service.requests if one.url.path == "/v1/jobs"]
    assert texts == ["P0DT21600.000000S", instant.isoformat()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"template": {"training": {"batch_size": -4}}}, "template, training.batch_size: -4 is not a positive integer"),
        ({"template": "none.json"}, "there is no such file"),
        ({"soft_deadline": "soon"}, "soft_deadline: 'soon' is not a deadline"),
        ({"soft_deadline": datetime(2040, 1, 1)}, "soft_deadline: .* has no time zone"),
        ({"parameters": "--lr 1"}, "parameters: '--lr 1' is neither a dict nor a list"),
        ({"parameters": ["--lr", 1]}, r"parameters\[1\]: 1 is not text"),
        ({"parameters": [{"lr": 1}, "x"]}, r"parameters\[1\]: 'x' is not a dict"),
        ({"parameters": {"lr": float("nan")}}, r"parameters\['lr'\]: nan cannot be written as JSON"),
        ({"parameters": {"f": object()}}, r"parameters\['f'\]"),
        ({"parameters": {1: 2}}, "the name 1 is not text"),
        ({"parameters": [...]}, "stands for your own parameters"),
        ({"app_name": ""}, "app_name: '' is empty"),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(
    service: FakeService, client: Client, code: Path, arguments: dict[str, Any], words: str
) -> None:
    """Each wrong argument is an InvalidInput that names it, and no request was made."""
    app = aps.build("app", "ada", code="train.py", client=client)
    before = len(service.requests)
    with pytest.raises(errors.InvalidInput, match=words):
        app.run(**arguments)
    assert len(service.requests) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"app_name": ""}, "app_name: '' is refused"),
        ({"app_name": "a", "runtime": {"pips": []}}, "runtime.pips"),
        ({"app_name": "a", "runtime": {"pip": "torch"}}, "runtime.pip: 'torch' is refused"),
        ({"app_name": "a", "runtime": 3}, "runtime: is not a dict"),
        ({"app_name": "a", "code": "gone.py"}, "no file or folder 'gone.py'"),
    ],
)
def test_build_checks_before_it_sends(
    service: FakeService, client: Client, code: Path, arguments: dict[str, Any], words: str
) -> None:
    """Wrong arguments of build() name themselves, and nothing is uploaded."""
    with pytest.raises(errors.InvalidInput, match=words):
        aps.build(**{"user_name": "ada", "code": "train.py", "client": client, **arguments})
    assert service.requests == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(), JSON) | st.lists(st.text()) | st.lists(st.dictionaries(st.text(), JSON), min_size=1))
def test_parameters_are_passed_on_unchanged(parameters: Any) -> None:
    """Whatever JSON can say arrives as it was given."""
    assert check_parameters(parameters) == parameters


def test_what_is_kept_is_said_when_an_app_is_built_or_run(client: Client, service: FakeService, code: Path) -> None:
    """What `run` says goes before what `build` said; both add to the template's."""
    app = aps.build("a", "ada", code="train.py", outputs=["out/final/"], client=client)
    app.run()
    app.run(outputs=["runs", "."], template={"outputs": ["model"]})
    app.run(outputs=[])
    kept = [job["template"].get("outputs") for job in service.jobs.values()]
    assert kept == [["out/final"], ["model", "runs", "."], []]


@pytest.mark.parametrize(
    ("outputs", "words"),
    [(["ok", "../up"], "outputs.1: '../up' is refused"), ("out", "a list of paths is needed"), ([3], "outputs.0: 3")],
)
def test_outputs_that_cannot_be_kept_are_refused_before_anything_is_sent(
    client: Client, service: FakeService, code: Path, outputs: Any, words: str
) -> None:
    with pytest.raises(errors.InvalidInput, match=re.escape(words)):
        aps.build("a", "ada", code="train.py", outputs=outputs, client=client)
    assert not service.requests

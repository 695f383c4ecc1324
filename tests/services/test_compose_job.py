"""Composing rows: what is remembered of a template never shows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpass.wire.jobs import JobRequest, SweepRequest
from app.core.model.job import PriorityClass
from app.db.apps.versions import AppContent, AppVersion
from app.db.jobs.submissions import NewJob
from app.errors import InvalidInput
from app.services.jobs import compose_job as composing
from app.services.jobs.compose_job import Defaults, compose_jobs

_NOW_MS = 1_800_000_000_000
_DEFAULTS = Defaults(deadline_ms=86_400_000, checkpoint_interval_s=300)
_APP_ID = "app_00000000000000000000"


def _app(base_image: str | None = None) -> AppVersion:
    return AppVersion(_APP_ID, "app", "ada", 1, "ver", AppContent(base_image, (), "e" * 64, "b" * 64, 1, "train.py"), 0)


def _compose(template: dict[str, Any], app: AppVersion, defaults: Defaults = _DEFAULTS, **fields: Any) -> NewJob:
    request = JobRequest.model_validate({"app_id": _APP_ID, "template": template, **fields})
    (job,) = compose_jobs(["job"], "proj", app, request, [request.parameters], now_ms=_NOW_MS, defaults=defaults)
    return job


_templates = st.fixed_dictionaries(
    {},
    optional={
        "labels": st.dictionaries(st.text("ab", min_size=1, max_size=2), st.text("xyé", max_size=2), max_size=2),
        "gpu": st.fixed_dictionaries(
            {}, optional={"count": st.integers(1, 4), "type": st.sampled_from(["A100", "H100"])}
        ),
        "training": st.fixed_dictionaries({}, optional={"steps": st.integers(1, 9), "learning_rate": st.just(1e-4)}),
        "caps": st.fixed_dictionaries({}, optional={"max_cost_usd": st.sampled_from([1, 1.0, 2.5])}),
        "kind": st.sampled_from(["interactive", "batch"]),
        "sharing": st.booleans(),
        "placement": st.fixed_dictionaries({}, optional={"locked": st.booleans()}),
        "checkpoint_interval_s": st.sampled_from([None, 60]),
    },
)


@given(st.lists(st.tuples(_templates, st.sampled_from([None, "image:1", "image:2"]), st.integers(1, 2)), max_size=8))
@settings(max_examples=100)
def test_a_row_is_the_same_whatever_was_composed_before(given_: list[tuple[dict[str, Any], str | None, int]]) -> None:
    """Templates, images and defaults in any order: each row equals the one composed with nothing remembered."""
    composing._derived.clear()
    warm = [_compose(t, _app(image), Defaults(1000, interval_s)) for t, image, interval_s in given_]
    for (template, image, interval_s), row in zip(given_, warm, strict=True):
        composing._derived.clear()
        assert _compose(template, _app(image), Defaults(1000, interval_s)) == row


def test_what_a_request_says_apart_from_its_template_is_its_own() -> None:
    """Two requests with one template differ in name, parameters and deadline."""
    template = {"labels": {"team": "x"}}
    one = _compose(template, _app(), parameters={"seed": 1}, soft_deadline="1hr")
    two = _compose(template, _app(), parameters={"seed": 2}, name="second")
    assert (one.own.parameters, two.own.parameters) == ('{"seed":1}', '{"seed":2}')
    assert (one.own.deadline_ms, one.requested.deadline_given) == (_NOW_MS + 3_600_000, True)
    assert (two.own.deadline_ms, two.requested.deadline_given) == (_NOW_MS + 86_400_000, False)
    assert (one.requested.name, two.requested.name) == ("app", "second")
    assert one.stated.template == two.stated.template


def test_a_refused_template_is_refused_every_time() -> None:
    """An amount that cannot be counted with is an error on the second try as well."""
    for _ in range(2):
        with pytest.raises(InvalidInput, match="max_cost_usd"):
            _compose({"caps": {"max_cost_usd": 1e-9}}, _app())


def test_memory_of_templates_is_bounded() -> None:
    """Many templates and large ones do not grow it without end."""
    composing._derived.clear()
    large = {f"{number}": "x" * 200 for number in range(64)}
    assert composing._LARGEST_REMEMBERED_BYTES < 64 * 200
    _compose({"labels": large}, _app())
    assert composing._derived == {}
    for number in range(composing._MOST_DERIVED + 10):
        _compose({"name": f"n{number}"}, _app())
    assert 0 < len(composing._derived) <= composing._MOST_DERIVED


def test_a_sweep_has_a_row_for_each_parameter_set_in_order() -> None:
    """Ids and parameters keep their order; all else is the same."""
    request = SweepRequest.model_validate({"app_id": _APP_ID, "parameters": [{"seed": n} for n in range(3)]})
    ids = ["job_1", "job_2", "job_3"]
    rows = compose_jobs(
        ids, "proj", _app(), request, request.parameters, now_ms=_NOW_MS, defaults=_DEFAULTS, sweep_id="swp"
    )
    assert [(row.own.id, row.own.parameters) for row in rows] == [(i, f'{{"seed":{n}}}') for n, i in enumerate(ids)]
    assert len({(*row.own[2:], *row.requested, *row.stated) for row in rows}) == 1
    assert rows[0].requested.sweep_id == "swp"


@pytest.mark.parametrize("field", ["most_per_switch", "most_per_rack"])
def test_how_many_may_be_under_one_is_asked_of_several_machines(field: str) -> None:
    asked = {"placement": {field: 2}}
    assert f'"{field}":2' in _compose({**asked, "nodes": 2}, _app()).stated.affinity
    why = f"template.placement.{field}: is 2, of a job on several machines, and this one runs on one; say nodes"
    with pytest.raises(InvalidInput, match=why) as refused:
        _compose(asked, _app())
    assert refused.value.param == f"template.placement.{field}"


@pytest.mark.parametrize(
    ("field", "template"),
    [
        ("priority_class", {"priority_class": "spot"}),
        ("elastic", {"elastic": True}),
        ("kind", {"kind": "interactive"}),
        ("placement.affinity", {"placement": {"affinity": {"team": "nlp"}}}),
        ("placement.anti_affinity", {"placement": {"anti_affinity": {"team": "nlp"}}}),
        ("checkpoints.folders", {"checkpoints": {"folders": "out/checkpoint-*"}}),
    ],
)
def test_what_a_job_on_several_machines_cannot_have_is_refused_by_name(field: str, template: dict[str, Any]) -> None:
    """Each is fine on one machine."""
    _compose(template, _app())
    with pytest.raises(InvalidInput, match=f"template.{field}: a job on several machines") as refused:
        _compose({**template, "nodes": 2}, _app())
    assert refused.value.param == f"template.{field}"


def test_the_default_class_of_a_project_is_not_forced_on_a_job_on_several_machines() -> None:
    for nodes, stated in ((1, "spot"), (2, "guaranteed")):
        request = JobRequest.model_validate({"app_id": _APP_ID, "template": {"nodes": nodes}})
        (job,) = compose_jobs(
            ["job"], "proj", _app(), request, [{}], now_ms=_NOW_MS, defaults=_DEFAULTS,
            default_class=PriorityClass.SPOT,
        )  # fmt: skip
        assert job.stated.priority_class == stated


def test_a_job_on_one_machine_is_stored_as_an_older_release_stores_it() -> None:
    assert '"nodes"' not in _compose({}, _app()).stated.resources
    assert '"nodes":3' in _compose({"nodes": 3}, _app()).stated.resources


def test_a_job_that_keeps_to_the_usual_way_is_stored_as_an_older_release_stores_it() -> None:
    """Which would read no template that has a field more. What it would not keep to, it is told."""
    assert '"resize_by"' not in _compose({}, _app()).stated.template
    restarted = _compose({"resize_by": "restart"}, _app()).stated
    assert '"resize_by":"restart"' in restarted.template
    assert (_compose({}, _app()).stated.sharing, restarted.sharing) == (True, False)


@pytest.mark.parametrize(
    ("template", "param", "why"),
    [
        ({"gpu": {"count": 9}}, "gpu.count", "9 are too many: a job that changes its GPUs has at most 8"),
        ({"nodes": 2}, "resize_by", "a job on several machines .nodes: 2. keeps its GPUs"),
        ({"command": ["torchrun", "--nproc-per-node", "2", "t.py"]}, "command", "--nproc-per-node 2 starts so many"),
        ({"command": ["accelerate", "launch", "--num_processes=4", "t.py"]}, "command", "--num_processes=4 starts"),
    ],
)
def test_what_does_not_go_with_restarts_is_refused_by_name(template: dict[str, Any], param: str, why: str) -> None:
    """Each is fine without."""
    _compose(template, _app())
    with pytest.raises(InvalidInput, match=f"template.{param}: {why}") as refused:
        _compose({**template, "resize_by": "restart"}, _app())
    assert refused.value.param == f"template.{param}"

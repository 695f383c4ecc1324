"""A run of MLflow goes on after a move. Its server gives the ids, so it is found by a tag that the job's machines
agree on: where a run begins, one with that tag is taken up.

It is the client's `create_run` that is served, for `mlflow.start_run`, autologging and the loggers of other libraries
all end there. A run that a script names by its id (MLFLOW_RUN_ID too) does not get here, and a child of another one is
let be.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Dict, Optional, Tuple

from allpass.hooks.tracked import key_of, tell_link
from allpass.hooks.trainer import say

TAG = "allpass.run"
_PARENT, _NAME = "mlflow.parentRunId", "mlflow.runName"
_known: "Dict[str, Known]" = {}  # of runs that go on


class Known:
    """What a run has from before: its parameters, which never change, and the newest step of each metric."""

    def __init__(self, data: Any) -> None:
        self.params: "Dict[str, str]" = dict(data.params)
        steps = {one.key: one.step for one in getattr(data, "_metric_objs", ())}
        self._steps: "Dict[str, int]" = {key: step for key, step in steps.items() if step > 0}

    def has_point(self, key: str, step: "Optional[int]") -> bool:
        """Whether this is one that was logged before: taken again from a checkpoint, a step has the same values. From
        the first one that is new on, nothing is held back."""
        if key in self._steps and (step or 0) > self._steps[key]:
            del self._steps[key]
        return key in self._steps


def serve(original: "Callable[..., Any]", args: "Tuple[Any, ...]", kwargs: "Dict[str, Any]") -> Any:
    """Call `original`, `MlflowClient.create_run`, unless the run is there."""
    client, run = args[0], None
    try:
        call = inspect.signature(original).bind(*args, **kwargs)
        key = _key(call.arguments)
        if key is not None:
            run = _found(client, call.arguments["experiment_id"], key)
            call.arguments["tags"] = {**(call.arguments.get("tags") or {}), TAG: key}
            args, kwargs = call.args, call.kwargs
    except Exception as error:
        say(f"this MLflow run does not go on after a move, the hook failed: {error!r}")
    run = original(*args, **kwargs) if run is None else run
    try:
        _tell(client, run)
    except Exception as error:
        say(f"the link to an MLflow run is not known: {error!r}")
    return run


def _key(given: "Dict[str, Any]") -> "Any":
    tags = given.get("tags") or {}
    if _PARENT in tags or TAG in tags:
        return None
    name = given.get("run_name") or tags.get(_NAME)
    return key_of("mlflow", {"experiment": given["experiment_id"], "name": name})


def _found(client: Any, experiment_id: str, key: str) -> Any:
    found = client.search_runs([experiment_id], filter_string=f"tags.`{TAG}` = '{key}'", max_results=1)
    if not found:
        return None
    run_id = found[0].info.run_id
    client.update_run(run_id, status="RUNNING")
    _keep_what_is_known(type(client), run_id, Known(found[0].data))
    return client.get_run(run_id)


def _keep_what_is_known(owner: Any, run_id: str, known: Known) -> None:
    """A server refuses another value of a parameter. Begun again, a script may have another folder or time: the first
    value stays, and nothing ends for it. A point that is there is not logged twice."""
    if not _known:
        owner.log_param = _once(owner.log_param, lambda known, key, value, **_: key in known.params, "value")
        owner.log_metric = _once(owner.log_metric, lambda known, key, step=None, **_: known.has_point(key, step), None)
        owner.log_batch = _new_alone(owner.log_batch)
    _known[run_id] = known


def _once(log: "Callable[..., Any]", is_known: "Callable[..., bool]", answer: "Optional[str]") -> "Callable[..., Any]":
    """As `log`, but for what is known, for which the argument named `answer` is returned."""
    signature = inspect.signature(log)

    @functools.wraps(log)
    def logged(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        known = _known.get(given["run_id"])
        if known is not None and is_known(
            known, **{name: given[name] for name in ("key", "value", "step") if name in given}
        ):
            return given[answer] if answer else None
        return log(*args, **kwargs)

    return logged


def _new_alone(log_batch: "Callable[..., Any]") -> "Callable[..., Any]":
    signature = inspect.signature(log_batch)

    @functools.wraps(log_batch)
    def logged(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        given, known = call.arguments, _known.get(call.arguments["run_id"])
        if known is not None:
            given["params"] = [one for one in given.get("params") or () if one.key not in known.params]
            given["metrics"] = [one for one in given.get("metrics") or () if not known.has_point(one.key, one.step)]
        return log_batch(*call.args, **call.kwargs)

    return logged


def _tell(client: Any, run: Any) -> None:
    place = client.tracking_uri.rstrip("/")
    if place.startswith(("http://", "https://")):
        tell_link("mlflow", f"{place}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}")

"""A run of MLflow goes on after a move. Its server gives the ids, so it is found by a tag that the job's machines
agree on: where a run begins, one with that tag is taken up.

It is the client's `create_run` that is served, for `mlflow.start_run`, autologging and the loggers of other libraries
all end there. A run that a script names by its id (MLFLOW_RUN_ID too) does not get here, and a child of another one is
let be.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Dict, Tuple

from allpass.hooks.tracked import key_of, tell_link
from allpass.hooks.trainer import say

TAG = "allpass.run"
_PARENT, _NAME = "mlflow.parentRunId", "mlflow.runName"
_known: "Dict[str, Dict[str, str]]" = {}  # of a run that goes on: its parameters, which never change


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
    _keep_parameters(type(client), run_id, dict(found[0].data.params))
    return client.get_run(run_id)


def _keep_parameters(owner: Any, run_id: str, known: "Dict[str, str]") -> None:
    """A server refuses another value of a parameter. Begun again, a script may have another folder or time: the first
    value stays, and nothing ends for it."""
    if not _known:
        owner.log_param = _first_param_stays(owner.log_param)
        owner.log_batch = _first_params_stay(owner.log_batch)
    _known[run_id] = known


def _first_param_stays(log_param: "Callable[..., Any]") -> "Callable[..., Any]":
    @functools.wraps(log_param)
    def logged(client: Any, run_id: str, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return value if key in _known.get(run_id, ()) else log_param(client, run_id, key, value, *args, **kwargs)

    return logged


def _first_params_stay(log_batch: "Callable[..., Any]") -> "Callable[..., Any]":
    signature = inspect.signature(log_batch)

    @functools.wraps(log_batch)
    def logged(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        known = _known.get(call.arguments["run_id"], {})
        if known and call.arguments.get("params"):
            call.arguments["params"] = [one for one in call.arguments["params"] if one.key not in known]
        return log_batch(*call.args, **call.kwargs)

    return logged


def _tell(client: Any, run: Any) -> None:
    place = client.tracking_uri.rstrip("/")
    if place.startswith(("http://", "https://")):
        tell_link("mlflow", f"{place}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}")

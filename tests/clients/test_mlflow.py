"""A script with MLflow goes on with its run where its job does, in a real server."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

from tests.clients.environments import SCRIPTS, Done, run
from tests.training import test_unaware_trainer as unaware
from tests.training.scripts import Machine

LOOP = SCRIPTS / "tracked.py"


def tracked(server: str, folder: Path, resume: Path | None = None, **parameters: Any) -> tuple[Machine, Done]:
    environ = {"MLFLOW_TRACKING_URI": server, **parameters.pop("environ", {})}
    return run("mlflow", LOOP, folder, resume, environ=environ, tracker="mlflow", **parameters)


def asked(server: str, path: str, **told: Any) -> Any:
    request = urllib.request.Request(f"{server}/api/2.0/mlflow/{path}", headers={"Content-Type": "application/json"})
    if told:
        request.data = json.dumps(told).encode()
    return json.loads(urllib.request.urlopen(request).read())


def told_of(server: str, run_id: str) -> Any:
    return asked(server, f"runs/get?run_id={run_id}")["run"]


def steps_of(server: str, run_id: str, metric: str = "loss") -> list[int]:
    history = asked(server, f"metrics/get-history?run_id={run_id}&metric_key={metric}")
    return [point["step"] for point in history["metrics"]]


def ids_of(done: Done) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("began ")]


def links_of(machine: Machine) -> list[str]:
    return [line["training"]["link"]["url"] for line in machine.lines() if "link" in line.get("training", {})]


def test_a_moved_job_goes_on_with_its_run(tmp_path: Path, server: str) -> None:
    """One run, each step once, and a parameter that is another one on the new machine ends nothing."""
    first, done = tracked(server, tmp_path / "first", stop_at=3, experiment="moves")
    assert done.returncode == 75, done.stderr
    second, done = tracked(server, tmp_path / "second", first.announced()[-1], experiment="moves")
    (run_id,) = ids_of(done)
    told = told_of(server, run_id)
    assert steps_of(server, run_id) == [1, 2, 3, 4, 5, 6]
    assert told["info"]["status"] == "FINISHED"
    assert {one["key"]: one["value"] for one in told["data"]["params"]}["folder"] == str(first.folder)
    experiment = told["info"]["experiment_id"]
    assert len(asked(server, "runs/search", experiment_ids=[experiment])["runs"]) == 1
    assert links_of(first) == links_of(second) == [f"{server}/#/experiments/{experiment}/runs/{run_id}"]


def test_a_point_is_logged_once_though_its_step_is_taken_again(tmp_path: Path, server: str) -> None:
    """The machine died two steps after its newest checkpoint. What comes after them is logged as ever, and what another
    metric says as well."""
    first, done = tracked(server, tmp_path / "first", dies_at=6, save_every=4, steps=9, experiment="deaths")
    assert done.returncode == 1
    assert first.announced()[-1].name == "step-00000004"
    _, done = tracked(server, tmp_path / "second", first.announced()[-1], steps=9, experiment="deaths")
    (run_id,) = ids_of(done)
    assert steps_of(server, run_id) == steps_of(server, run_id, "batched") == list(range(1, 10))


def test_a_trainer_that_reports_to_it_goes_on_with_its_run(tmp_path: Path, server: str) -> None:
    """It logs its arguments as parameters, with the folders of each machine."""
    environ = {"MLFLOW_TRACKING_URI": server, "MLFLOW_EXPERIMENT_NAME": "trainer"}
    given: dict[str, Any] = {"steps": 6, "environ": environ}
    ids, stopped = [], None
    for name, more in (("first", {"stop_at": 3}), ("second", {})):
        arguments = {"report_to": "mlflow", "output_dir": str(tmp_path / name / "out")}
        machine, done = run("mlflow", unaware.SCRIPT, tmp_path / name, stopped, **given, **more, arguments=arguments)
        assert done.returncode == (75 if more else 0), done.stderr
        stopped = None if not more else machine.announced()[-1]
        ids += [link.rpartition("/")[2] for link in links_of(machine)]
    assert ids[0] == ids[1]
    assert steps_of(server, ids[0]) == [1, 2, 3, 4, 5, 6]


def test_a_run_that_the_script_names_stays_that_one(tmp_path: Path, server: str) -> None:
    """Named by a variable, too. One that is not there is the script's fault, as it would be without us."""
    (mine,) = ids_of(tracked(server, tmp_path / "mine", environ={"ALLPASS_HOOKS": "off"})[1])
    given: dict[str, Any] = {"given": {"run_id": mine}, "keeps_folder": False}
    assert ids_of(tracked(server, tmp_path / "run", **given)[1]) == [mine]
    named: dict[str, Any] = {"environ": {"MLFLOW_RUN_ID": mine}, "keeps_folder": False}
    assert ids_of(tracked(server, tmp_path / "named", **named)[1]) == [mine]
    _, done = tracked(server, tmp_path / "none", environ={"MLFLOW_RUN_ID": "f" * 32})
    assert done.returncode == 1
    assert "RESOURCE_DOES_NOT_EXIST" in done.stderr
    assert "allpass:" not in done.stderr


def test_each_run_of_a_script_is_its_own_after_a_move(tmp_path: Path, server: str) -> None:
    first = ids_of(tracked(server, tmp_path / "first", names=["a", "b"])[1])
    assert len(set(first)) == 2
    assert ids_of(tracked(server, tmp_path / "second", names=["b", "a"])[1]) == first[::-1]
    other = ids_of(tracked(server, tmp_path / "other", names=["a"], environ={"ALLPASS_JOB_ID": "job_other"})[1])
    assert other[0] not in first
    _, done = tracked(server, tmp_path / "same", names=["a", "a"])
    again = ids_of(done)
    assert again[0] == first[0]
    assert again[1] not in first
    assert done.stderr.count("several mlflow runs of one name") == 1


def test_a_password_in_the_servers_address_is_shown_to_nobody(tmp_path: Path, server: str) -> None:
    machine, _ = tracked(server.replace("://", "://ada:secret@"), tmp_path / "run")
    assert len(links_of(machine)) == 1
    assert links_of(machine)[0].startswith(f"{server}/#/")


def test_runs_in_a_folder_of_the_machine_have_no_link(tmp_path: Path) -> None:
    machine, done = tracked(f"sqlite:///{tmp_path}/store.db", tmp_path / "run")
    assert len(ids_of(done)) == 1
    assert links_of(machine) == []

"""A loop with a tracker, as people have it, that keeps its place with three lines.

parameters.json says what it is to do: tracker ("wandb", "mlflow"), names (of runs that it begins one after the other),
steps, stop_at, dies_at, step_s, save_every, settings, given (to begin a run with), experiment, keeps_folder (as a
parameter).
"""

import json
import os
import signal
import time
from pathlib import Path

from allpass import training

options = {
    "names": [None],
    "steps": 6,
    "stop_at": 0,
    "dies_at": 0,
    "step_s": 0,
    "save_every": 0,
    "settings": {},
    "given": {},
    "experiment": "tests",
    "keeps_folder": True,
}
options.update(json.loads(Path(os.environ["ALLPASS_PARAMETERS_FILE"]).read_text()))


def begin(name):
    settings = {**options["settings"], "lr": 0.1}
    if options["tracker"] == "wandb":
        import wandb

        run = wandb.init(project="tests", name=name, config=settings, **options["given"])
        run.config.update({"folder": str(Path.cwd())})
        return run, lambda step, loss: run.log({"loss": loss}, step=step), run.finish
    import mlflow

    mlflow.set_experiment(options["experiment"])
    run = mlflow.start_run(run_name=name, **options["given"])
    if options["keeps_folder"]:
        mlflow.log_params({**settings, "folder": str(Path.cwd())})
        mlflow.log_param("host", str(Path.cwd()))

    def log(step, loss):
        mlflow.log_metric("loss", loss, step=step)
        mlflow.log_metrics({"batched": loss}, step=step)

    return run, log, mlflow.end_run


for name in options["names"]:
    run, log, end = begin(name)
    resume = training.resume()
    for step in range(resume.step + 1 if resume else 1, options["steps"] + 1):
        log(step, 1.0 / step)
        if step == options["stop_at"]:
            os.kill(os.getpid(), signal.SIGTERM)
        if step == options["dies_at"]:
            os._exit(1)
        time.sleep(options["step_s"])
        if training.should_checkpoint(step) or (options["save_every"] and step % options["save_every"] == 0):
            training.save(step, write=lambda folder: (folder / "state").write_text("all"))
        training.exit_if_stopping(step)
    print("began", getattr(run, "id", None) or run.info.run_id)
    end()

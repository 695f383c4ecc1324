"""`build()`: register code as an app. `App.run()`: submit it as a job, or as a sweep of jobs."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, overload

from allpass.bundle import checked_code, make_bundle
from allpass.client import Client
from allpass.job import Job
from allpass.packages import with_packages
from allpass.submission import app_request, check_command, job_request, with_command, with_outputs, with_secrets
from allpass.sweep import Sweep
from allpass.templates import load_template
from allpass.wire.apps import App as AppInfo
from allpass.wire.apps import Runtime
from allpass.wire.jobs import JobRequest
from allpass.wire.template import Template


def build(
    app_name: str,
    user_name: str | None = None,
    runtime: Mapping[str, Any] | Runtime | None = None,
    code: str | os.PathLike[str] = ".",
    *,
    entrypoint: str | None = None,
    command: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    client: Client | None = None,
) -> App:
    """Register an app and send its code, unless the service has that very code already.

    app_name    what the app is called; building again under the same name gives a new version if anything changed
    user_name   who it belongs to; default: your login name
    runtime     {"base_image": "pytorch:2.3.0", "pip": ["transformers==4.45.0"]}; both optional. Without "pip", the
                packages of the folder's uv.lock, requirements.txt or pyproject.toml, or of the script's head
    code        a script, or a folder with everything it needs (see `allpass.bundle`)
    entrypoint  the script to run inside a folder, Python or shell; default: train.py, else main.py
    command     what `run()` runs in the folder instead of a script: ["torchrun", "train.py"]
    entrypoint  the script to run inside a folder; default: train.py, else main.py
    outputs     what `run` keeps of a job's working folder unless it is given its own, e.g. ["out/final", "runs"]
    client      default: one made from the environment or the configuration

    Everything is checked before anything is sent; raises InvalidInput or BundleError for what the caller can mend.
    """
    words = None if command is None else check_command(command)
    bundle = make_bundle(checked_code(code), entrypoint, needs_script=words is None)
    user = user_name or getpass.getuser()
    request = app_request(app_name, user, with_packages(runtime, code), bundle.sha256, bundle.entrypoint)
    with_outputs(Template(), outputs)
    used = client or Client()
    used.upload(bundle)
    return App(used.register_app(request), used, command=words, outputs=outputs)


class App:
    """A registered app: code, runtime and name, at one version. `info` is what the service knows of it."""

    def __init__(
        self,
        info: AppInfo,
        client: Client,
        *,
        command: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
    ) -> None:
        self.info = info
        self._client = client
        self._command = command
        self._outputs = outputs

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def version(self) -> int:
        return self.info.version

    def __repr__(self) -> str:
        return f"<App {self.name!r} version {self.version} ({self.id})>"

    @overload
    def run(
        self,
        app_name: str | None = None,
        template: str | os.PathLike[str] | Mapping[str, Any] | Template | None = None,
        soft_deadline: str | timedelta | datetime | None = None,
        parameters: Mapping[str, Any] | Sequence[str] | None = None,
        *,
        command: Sequence[str] | None = None,
        secrets: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        from_checkpoint: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job: ...

    @overload
    def run(
        self,
        app_name: str | None = None,
        template: str | os.PathLike[str] | Mapping[str, Any] | Template | None = None,
        soft_deadline: str | timedelta | datetime | None = None,
        parameters: Sequence[Mapping[str, Any]] = ...,
        *,
        command: Sequence[str] | None = None,
        secrets: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        from_checkpoint: str | None = None,
        idempotency_key: str | None = None,
    ) -> Sweep: ...

    def run(
        self,
        app_name: str | None = None,
        template: str | os.PathLike[str] | Mapping[str, Any] | Template | None = None,
        soft_deadline: str | timedelta | datetime | None = None,
        parameters: Mapping[str, Any] | Sequence[str] | Sequence[Mapping[str, Any]] | None = None,
        *,
        command: Sequence[str] | None = None,
        secrets: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        from_checkpoint: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job | Sweep:
        """Submit this version of the app; returns at once with a handle.

        app_name         the job's own name, shown in lists; default: the template's, else the app's
        template         path to a JSON or YAML file, or a dict: GPUs, training, caps (`allpass schema template`)
        soft_deadline    "6hr", "90m", "PT6H", a timedelta, or an instant with its time zone
        parameters       a dict (the script's parameters file), a list of str (also its argv), or a list of dicts: a
                         sweep, one job per dict, and the result is a Sweep
        command          words to run in the folder of the code: ["torchrun", "train.py"]; default: the template's, else
                         that of `build()`, else the app's script
        secrets          names of secrets that the script finds in its environment (`allpass secret set HF_TOKEN`)
        outputs          what is kept of the working folder, e.g. ["out/final"]; default: all that is new or changed, up
                         to the server's limit
        from_checkpoint  "job_...:step": begin with that checkpoint of a job of the same project; without the step,
                         with its newest
        idempotency_key  repeating a call with the same key never submits twice; default: a new key per call
        """
        request = job_request(
            self.info.id,
            self.info.version,
            name=app_name,
            template=self._filled(load_template(template), command, secrets, outputs),
            parameters=parameters,
            soft_deadline=soft_deadline,
            from_checkpoint=from_checkpoint,
        )
        if isinstance(request, JobRequest):
            return Job(self._client.submit_job(request, idempotency_key=idempotency_key).id, self._client)
        sweep = self._client.submit_sweep(request, idempotency_key=idempotency_key)
        return Sweep(sweep.id, [Job(job.id, self._client) for job in sweep.jobs], self._client)

    def _filled(
        self,
        template: Template,
        command: Sequence[str] | None,
        secrets: Sequence[str] | None,
        outputs: Sequence[str] | None,
    ) -> Template:
        """The template with what the call, or else `build()`, says beside it."""
        with_words = with_secrets(with_command(template, command, self._command), secrets)
        return with_outputs(with_words, self._outputs if outputs is None else outputs)

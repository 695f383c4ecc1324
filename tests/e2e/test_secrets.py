"""A secret's way through the whole service: set by its owner, used by a job, and seen by nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

import allpass
from tests.e2e.service import Service
from tests.living import files_with

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
TOKEN = "hf_A1b2C3d4E5f6G7h8"
SCRIPT = """
import os
token = os.environ["HF_TOKEN"]
print("logging in with", token)
print("length", len(token))
"""


def test_a_job_that_prints_its_secret_shows_stars(service: Service, tmp_path: Path) -> None:
    """The code has the value, the log has ***; no file of the stack holds it, the database included."""
    service.client.set_secret("HF_TOKEN", TOKEN)
    (tmp_path / "leaks.py").write_text(SCRIPT)
    app = allpass.build("leaks", "ada", code=tmp_path / "leaks.py", client=service.client)
    job = app.run(parameters={}, soft_deadline="6hr", secrets=["HF_TOKEN"])
    assert service.wait_for_end(job).status == "succeeded", service.story(job)
    log = list(job.logs())
    assert "logging in with ***" in log
    assert f"length {len(TOKEN)}" in log
    assert TOKEN not in repr(list(job.events()))
    assert files_with(TOKEN, service.stack.layout.root) == []

"""Whatever lies in the folder in which a command is given: only what is documented is read there, nothing is run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stack.hostile_folder import lay_traps
from tests.stack.up_process import ALLPASS, Up, until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(400)]
_CODE = """
import json, os
import mine
print("mine is", mine.VALUE)
"""
_TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}


def command(here: Path, *words: str, within_s: float = 100) -> str:
    """What it prints; it must succeed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [ALLPASS, *words], cwd=here, env=environment, capture_output=True, text=True, timeout=within_s, check=False
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_traps_are_traps(tmp_path: Path) -> None:
    """A Python that is started as any other steps into them: the tests beside this one can fail."""
    marker = lay_traps(tmp_path / "here")
    subprocess.run([sys.executable, "-m", "queue"], cwd=tmp_path / "here", capture_output=True, check=False)
    assert marker.exists()


def test_a_stack_its_jobs_and_the_commands_about_them_step_into_no_trap(tmp_path: Path) -> None:
    """`up` with its data in that folder, a job whose own modules are found beside it, and a symbolic run."""
    here = tmp_path / "here"
    marker = lay_traps(here)
    code = here / "code"
    code.mkdir()
    (code / "train.py").write_text(_CODE)
    (code / "mine.py").write_text("VALUE = 42\n")
    (here / "config.json").write_text(json.dumps(_TINY))
    with Up(here / ".allpass", cwd=here) as up:
        client = up.start()
        assert not marker.exists(), marker.read_text()
        job_id = re.findall(r"job_\w+", command(here, "run", "code", "--json"))[0]
        job = client.wait(job_id, timeout_s=60, poll_s=0.1)
        log = "".join(page.text for page in client.log_pages(job_id))
        assert (job.status, "mine is 42" in log) == ("succeeded", True), log
        planned = command(
            here,
            "plan",
            "--config",
            "config.json",
            "--exact",
            "--method",
            "full",
            "--batch",
            "1",
            "--seq",
            "16",
            "--json",
        )
        assert json.loads(planned)["options"]
        assert up.stop(signal.SIGTERM) == 0
    assert not marker.exists(), marker.read_text()


def test_an_emulated_company_steps_into_no_trap(tmp_path: Path) -> None:
    """`emulate` starts another process, which starts machines."""
    here = tmp_path / "here"
    marker = lay_traps(here)
    words = [ALLPASS, "emulate", "lambda", "--port", "0", "--admin-port", "0", "--speed", "0"]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(words, cwd=here, stdout=said, stderr=said)
    try:
        until("what it says when it serves", lambda: "ALLPASS_LAMBDA_URL" in (tmp_path / "said").read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert not marker.exists(), marker.read_text()

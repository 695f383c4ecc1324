"""A job whose checkpoint is more files than one request could name, paused and resumed on a whole stack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import allpass
from tests.e2e.service import Service

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

COUNT = 12_000
SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path

count = json.loads(Path(os.environ["ALLPASS_PARAMETERS_FILE"]).read_text())["count"]
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
metrics = open(os.environ["ALLPASS_METRICS_FILE"], "a", buffering=1)
metrics.write(json.dumps({"step": 0, "training": {"saves": True}}) + "\\n")

def content(number):
    return (b"%08d" % number) * 12 + b"...."

if "ALLPASS_RESUME_DIR" in os.environ:
    there = Path(os.environ["ALLPASS_RESUME_DIR"])
    wrong = [n for n in range(count) if (there / f"shard-{n % 100:02}" / f"{n:06}").read_bytes() != content(n)]
    found = sum(len(files) for _, _, files in os.walk(there))
    told = {"found": found, "wrong": len(wrong), "step": int(os.environ["ALLPASS_RESUME_STEP"])}
    Path(os.environ["ALLPASS_OUTPUT_DIR"], "found.json").write_text(json.dumps(told))
    sys.exit(0)

folder = Path(os.environ["ALLPASS_CHECKPOINT_DIR"], "step-7")
for shard in range(100):
    (folder / f"shard-{shard:02}").mkdir(parents=True)
for number in range(count):
    descriptor = os.open(folder / f"shard-{number % 100:02}" / f"{number:06}", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, content(number))
    os.close(descriptor)
metrics.write(json.dumps({"step": 7}) + "\\n")
while not asked:
    time.sleep(0.05)
metrics.write(json.dumps({"step": 7, "checkpoint": "step-7"}) + "\\n")
sys.exit(75)
"""


def test_12_000_files_are_saved_and_go_on_elsewhere(service: Service, tmp_path: Path) -> None:
    """Each of them comes back with its bytes; the database has one row for all of their names."""
    script = tmp_path / "many.py"
    script.write_text(SCRIPT)
    app = allpass.build("many-files", "ada", code=script, client=service.client)
    job = app.run(template={}, parameters={"count": COUNT}, soft_deadline="6hr")
    service.wait_for(job, "its files are written", lambda info: info.step == 7)
    job.pause()
    service.wait_for(job, "it has saved and left", lambda info: info.status == "paused")
    (checkpoint,) = job.checkpoints()
    assert (checkpoint.step, checkpoint.size_bytes) == (7, 100 * COUNT)
    owned = f"WHERE checkpoint_id = '{checkpoint.id}'"
    rows = [
        service.rows(f"SELECT count(*) FROM {table} {owned}")[0][0]
        for table in ("checkpoint_files", "checkpoint_pieces", "checkpoint_listings")
    ]
    assert rows == [1, 2, 1]
    assert "steps_lost" not in [event.kind for event in job.events()], service.story(job)
    job.resume()
    assert service.wait_for_end(job).status == "succeeded", service.story(job)
    job.download(tmp_path / "output")
    assert json.loads((tmp_path / "output" / "found.json").read_text()) == {"found": COUNT, "wrong": 0, "step": 7}

"""A script that runs out of memory on a real machine: recognised, learned from, tried where there is more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import allpass
from tests.e2e.service import Service, until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
SCRIPT = """
import os
import sys
from pathlib import Path

from allpass import training

there = int(os.environ["NVIDIA_EMULATED_MEMORY_BYTES"])
had = Path(sys.argv[1])
training.describe(micro_batch=4, accumulation=2, checkpointing=True)
training.report(1, loss=2.5)
if there <= int(had.read_text() or there):  # it needs more than the first machine has, whichever that is
    had.write_text(str(there))
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of %d bytes" % there)
training.report(2, loss=2.0)
print("trained on", there)
"""
# The largest GPU is too dear where the job starts, however cheap an hour of its work is there: then nothing would be
# larger. It is to be rented for less.
STATED = {
    "caps": {"max_hourly_usd": 3},
    "model": {"name": "llama-3.2-1b"},
    "training": {"method": "lora", "batch_size": 8, "sequence_length": 512, "precision": "bf16", "steps": 2},
}
TOLD = re.compile(r"ran out of GPU memory on (\w+) with (\d+) GiB: is tried once more where there is more, such as ")


def test_a_job_that_ran_out_of_memory_ends_well_on_a_larger_gpu(service: Service, open_folder: Path) -> None:
    """The prediction was too low for this script. Its end is read, the job asks for more than there was, starts once
    more on a GPU that has it, and succeeds; events and the explanation tell it, and the project's predictions of such
    runs are higher from then on."""
    code, had = open_folder / "hungry.py", open_folder / "had"
    code.write_text(SCRIPT)
    had.touch()
    had.chmod(0o666)  # each run is another user, and what belongs to one of them ends with it
    app = allpass.build("hungry", "ada", code=code, client=service.client)
    job = app.run(template=STATED, parameters=[str(had)], soft_deadline="6hr")
    assert service.wait_for_end(job).status == "succeeded", service.story(job)
    told = list(job.events())
    (again,) = [one for one in told if one.kind == "memory_retry"]
    found = TOLD.match(again.message)
    assert found is not None, again.message
    assert [one.kind for one in told].count("running") >= 2
    (line,) = [one for one in job.logs() if one.startswith("trained on ")]
    assert int(line.split()[2]) > int(found[2]) << 30
    assert again.message in service.client.explain_job(job.id).because[-1].text

    def learned() -> float | None:
        known = {(one.family, one.gpu_type): one.ratio for one in service.client.calibrations()}
        return known.get(("llama", found[1].lower()))

    assert until("the calibration of such runs", learned) > 1

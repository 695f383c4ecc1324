"""A script of TRL that knows nothing of Allpass is moved, and its adapter is the one of the run that was left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import SCRIPTS, run
from tests.training.scripts import Machine

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]
SCRIPT = SCRIPTS / "tuned.py"
PACKED = {"packing": True, "packing_strategy": "wrapped", "gradient_accumulation_steps": 2}


def trained(folder: Path, resume: Path | None = None, code: int = 0, **given: Any) -> Machine:
    machine, done = run("trl", SCRIPT, folder, resume, **given)
    assert done.returncode == code, done.stderr
    assert "not moved by itself" not in done.stderr
    return machine


@pytest.mark.parametrize("parameters", [{"arguments": PACKED}, {"kind": "dpo"}])
def test_a_script_of_trl_moves_exactly(tmp_path: Path, parameters: dict[str, Any]) -> None:
    """Packed rows with a LoRA, and pairs of which one is preferred: losses, and the adapter's bytes."""
    alone = trained(tmp_path / "alone", environ={"ALLPASS_HOOKS": "off"}, **parameters)
    stopped = trained(tmp_path / "stopped", code=75, environ={}, stop_at=4, **parameters)
    last = stopped.announced()[-1]
    assert last.name == "step-00000004"
    moved = trained(tmp_path / "moved", last, environ={}, **parameters)
    assert (moved.folder / "losses.json").read_text() == (alone.folder / "losses.json").read_text()
    adapters = [one.folder / "final" / "adapter_model.safetensors" for one in (alone, moved)]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()
    told = {int(step): loss for step, loss in json.loads((alone.folder / "losses.json").read_text()).items()}
    assert {line["step"]: line["loss"] for one in (stopped, moved) for line in one.lines() if "loss" in line} == told
    assert len(told) == 10

"""The benchmark: it scores the rows that count, reports the others apart, and says where a verdict would overflow."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from app.core.memory import MODELS, PROFILES, Training, peak_of
from benchmarks import memory

TRAINING = Training(method="full", batch=2, sequence=256)
_SYMBOLIC = {
    "model": "gpt2",
    "method": "full",
    "precision": "bf16",
    "batch": 2,
    "seq": 256,
    "optimizer": "adamw",
    "ckpt": False,
    "attn": "sdpa",
    "lora_r": "",
    "lora_targets": "",
    "lora_dropout": "",
    "autocast": False,
    "double_quant": "",
    "layers": "",
}
_MEASURED = {
    "case_id": "one",
    "source": "nobody",
    "framework": "hf-peft",
    "model": "own",
    "method": "full",
    "quant": "none",
    "lora_r": "",
    "lora_targets": "",
    "lora_dropout": "",
    "precision": "bf16",
    "batch": 2,
    "seq": 256,
    "seq_kind": "exact",
    "optimizer": "adamw_foreach",
    "ckpt": "no",
    "attn": "flash2",
    "loss": "hf_fp32_logits",
    "n_gpus": 1,
    "parallel": "none",
    "metric": "torch_allocated",
    "complete": "yes",
    "notes": "",
}
_OWN = {
    "model_type": "llama",
    "hidden": 512,
    "intermediate": 1024,
    "layers": 4,
    "heads": 8,
    "kv_heads": 8,
    "head_dim": 64,
    "vocab": 1000,
    "tied": False,
}


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_symbolic_rows(tmp_path: Path) -> None:
    """A row at the predicted peak scores one, and one at half of it zero; the value is their mean."""
    peak = peak_of(MODELS["gpt2"], TRAINING, PROFILES["symbolic-1"]).allocated
    rows = [_SYMBOLIC | {"peak_bytes": peak}, _SYMBOLIC | {"peak_bytes": peak // 2}]
    told = memory.scored(_write(tmp_path / "cases.csv", rows), "symbolic")
    assert told["value"] == pytest.approx(0.5, abs=0.001)
    assert told["detail"]["strong"]["worst"] == pytest.approx(0, abs=0.001)
    assert told["detail"]["by_group"]["full/symbolic/torch_allocated"]["count"] == 2
    assert told["detail"]["prediction_us"] > 0


def test_measured_rows(tmp_path: Path) -> None:
    """Shapes come from the file beside; incomplete rows are not scored, padded ones and unknown models apart."""
    (tmp_path / "models.json").write_text(json.dumps({"own": _OWN, "odd": {"model_type": "t5"}}))
    rows = [
        _MEASURED | {"measured_bytes": 10**12},
        _MEASURED | {"measured_bytes": 10**9, "complete": "no"},
        _MEASURED | {"measured_bytes": 10**9, "seq_kind": "max_len_dynamic_padding"},
        _MEASURED | {"measured_bytes": 10**9, "model": "odd"},
    ]
    detail = memory.scored(_write(tmp_path / "cases.csv", rows), "measured")["detail"]
    assert detail["strong"]["count"] == detail["other"]["count"] == 1
    assert detail["left_out"] == ["one odd"]
    assert detail["overflowing_fits"] == {"strong": 1, "other": 0}


def test_the_last_line_is_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Printed for people with a table before it, and with `--json` alone."""
    path = _write(tmp_path / "cases.csv", [_SYMBOLIC | {"peak_bytes": 10**9}])
    for flag, lines in (([], 6), (["--json"], 1)):
        monkeypatch.setattr("sys.argv", ["memory", "--cases", str(path), "--kind", "symbolic", *flag])
        memory.main()
        printed = capsys.readouterr().out.strip().splitlines()
        assert len(printed) == lines + (len(flag) == 0)
        assert json.loads(printed[-1])["name"] == "memory_symbolic"

"""The nvidia-smi of an emulated machine: a small script that answers as the real one does for the ordered GPUs.

The agent there asks it by its path, and believes it as it would believe the real one. What can be wrong with a GPU is
played by what the script says: see `WRONGS`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

GPUS = "gpus"  # the fact of a machine that holds the fields of its `EmulatedGpus`
WRONGS: Mapping[str, str] = {
    "missing": "it has a GPU less than was ordered",
    "kind": "its GPUs are others",
    "memory": "they have half of their memory",
    "driver": "its driver is older than was said",
    "ecc": "their memory has errors that cannot be corrected",
    "silent": "nvidia-smi never answers",
    "broken": "the driver cannot be reached",
    "lost": "a GPU has fallen off the bus",
    "computes": "a GPU computes wrongly, seen only where a machine begins",
    "crashes": "a GPU ends what computes on it, seen likewise",
}
_PLAYS = {"computes": "wrong", "crashes": "crash"}
_OLD_DRIVER, _OLD_CUDA = "550.90.07", "12.4"
_SILENT_S = 600
_NAMES = {
    "A100 SXM4": "NVIDIA A100-SXM4-{gb}GB",
    "A100 PCIE": "NVIDIA A100 {gb}GB PCIe",
    "H100 SXM": "NVIDIA H100 80GB HBM3",
    "H100 PCIE": "NVIDIA H100 PCIe",
    "Tesla T4": "Tesla T4",
    "Tesla V100": "Tesla V100-SXM2-16GB",
}
# The columns that drivers of today know, of those that are asked for.
_SCRIPT = """\
#!/bin/sh
# The GPUs of an emulated machine: there are none.
count={count} name={name} memory={memory} driver={driver} cuda={cuda} ecc={ecc} wrong={wrong}
case $wrong in
silent) exec sleep {silent_s} ;;
broken) echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18 ;;
lost) echo 'Unable to determine the device handle for GPU0000:01:00.0: GPU is lost.  Reboot the system'; exit 15 ;;
esac
columns=
for word in "$@"; do
  case $word in
  --query-gpu=*) columns=${{word#*=}} ;;
  --query-compute-apps=*) cat "$0.apps" 2>/dev/null; exit 0 ;;
  esac
done
if [ -z "$columns" ]; then
  echo "| NVIDIA-SMI $driver    Driver Version: $driver    CUDA Version: $cuda |"
  exit 0
fi
if [ "$count" -eq 0 ]; then echo 'No devices were found'; exit 6; fi
index=0
while [ "$index" -lt "$count" ]; do
  line= rest=$columns,
  while [ -n "$rest" ]; do
    column=${{rest%%,*}} rest=${{rest#*,}}
    case $column in
    index) cell=$index ;;
    uuid) cell=$(printf 'GPU-%08d-0000-0000-0000-000000000000' "$index") ;;
    name) cell=$name ;;
    memory.total) cell=$memory ;;
    driver_version) cell=$driver ;;
    ecc.errors.uncorrected.volatile.total) cell=$ecc ;;
    mig.mode.current) cell='[N/A]' ;;
    utilization.gpu) cell=$((60 + index)) ;;
    memory.used) cell=$((memory / 2)) ;;
    *) echo "Field \\"$column\\" is not a valid field to query."; exit 2 ;;
    esac
    line="$line${{line:+, }}$cell"
  done
  echo "$line"
  index=$((index + 1))
done
"""


@dataclass(frozen=True, slots=True)
class EmulatedGpus:
    """The GPUs that a machine shows. `ecc`: as nvidia-smi writes it, "[N/A]" where the card does not count. `wrong`:
    one of `WRONGS`, or nothing."""

    good: str
    count: int
    memory_mib: int
    driver: str = "580.95.05"
    cuda: str = "13.0"
    ecc: str = "0"
    wrong: str = ""

    def script(self) -> str:
        """The program that shows them."""
        shown = self._as_shown()
        if self.wrong not in {*WRONGS, ""}:
            raise ValueError(f"wrong is {self.wrong!r}; it must be one of {', '.join(WRONGS)}, or empty")
        return _SCRIPT.format(
            count=shown.count,
            name=shlex.quote(shown.good),
            memory=shown.memory_mib,
            driver=shlex.quote(shown.driver),
            cuda=shlex.quote(shown.cuda),
            ecc=shlex.quote(shown.ecc),
            wrong=self.wrong or "none",
            silent_s=_SILENT_S,
        )

    @property
    def plays(self) -> str:
        """What the machine's stand-in for torch plays (`torch_double.PLAYS`); empty for a machine without torch."""
        return _PLAYS.get(self.wrong, "")

    def _as_shown(self) -> EmulatedGpus:
        wrongs: dict[str, dict[str, Any]] = {
            "missing": {"count": self.count - 1},
            "kind": {"good": "NVIDIA GeForce GTX 1080"},
            "memory": {"memory_mib": self.memory_mib // 2},
            "driver": {"driver": _OLD_DRIVER, "cuda": _OLD_CUDA},
            "ecc": {"ecc": "37"},
        }
        named = replace(self, good=name_of(self.good, self.memory_mib))
        return replace(named, **wrongs.get(self.wrong, {}))


def name_of(good: str, memory_mib: int) -> str:
    """What nvidia-smi calls what the market calls `good`."""
    if good in _NAMES:
        return _NAMES[good].format(gb=40 if memory_mib < 60_000 else 80)
    return f"NVIDIA GeForce {good}" if good.startswith(("RTX 4", "RTX 5", "RTX 3")) else f"NVIDIA {good}"

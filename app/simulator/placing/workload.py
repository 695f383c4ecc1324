"""A cluster and the pods that come to it, from the files of Alibaba's cluster-trace-gpu-v2023.

`openb_node_list_*.csv`: sn, cpu_milli, memory_mib, gpu (how many), model. `openb_pod_list_*.csv`: name, cpu_milli,
memory_mib, num_gpu, gpu_milli (of each), and where it is there gpu_spec (kinds, joined by `|`). `app.simulator.traces`
reads the same pods as jobs with times; here they have none, and keep the part of a GPU that they ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.core.ranking import NodeLeft, PodNeed
from app.core.ranking.model import WHOLE_MILLI
from app.errors import InvalidInput
from app.simulator.tables import TableRow, read_text, rows_of

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MOST_GPUS = 1_024  # of a node: a number that is larger is in the wrong column


@dataclass(frozen=True, slots=True)
class PlacementWorkload:
    """Nodes without pods by their id, and the pods, each as often as it comes."""

    name: str
    nodes: Mapping[str, NodeLeft]
    pods: tuple[PodNeed, ...]

    @property
    def gpu_milli(self) -> int:
        """Of the whole cluster."""
        return sum(node.free_milli for node in self.nodes.values())


def read_nodes(path: Path) -> dict[str, NodeLeft]:
    """InvalidInput for another form, two nodes of one id, or a cluster without a GPU."""
    nodes: dict[str, NodeLeft] = {}
    for row in rows_of(path, read_text(path), NODE_COLUMNS):
        gpus = row.whole("gpu")
        if gpus > MOST_GPUS:
            row.fail("gpu", f"is above {MOST_GPUS:,}", "give the GPUs of one node")
        if row.text("sn") in nodes:
            row.fail("sn", "is there twice", "give each node an id of its own")
        cpu_milli, memory_mib = row.whole("cpu_milli"), row.whole("memory_mib")
        nodes[row.text("sn")] = NodeLeft(row.text("model"), cpu_milli, memory_mib, (WHOLE_MILLI,) * gpus)
    if not any(node.gpus_milli for node in nodes.values()):
        raise InvalidInput(f"{path}: no node has a GPU; is it a list of nodes with GPUs?", param="path")
    return nodes


def read_pods(path: Path) -> tuple[PodNeed, ...]:
    """InvalidInput for another form, a pod that asks for a part of several GPUs, or no pod with a GPU."""
    pods = tuple(_pod(row) for row in rows_of(path, read_text(path), POD_COLUMNS))
    if not any(pod.gpus for pod in pods):
        raise InvalidInput(f"{path}: no pod asks for a GPU; is it a list of pods?", param="path")
    return pods


def _pod(row: TableRow) -> PodNeed:
    gpus, milli = row.whole("num_gpu"), row.whole("gpu_milli")
    if gpus > MOST_GPUS:
        row.fail("num_gpu", f"is above {MOST_GPUS:,}", "give the GPUs of one pod")
    if gpus and not 0 < milli <= WHOLE_MILLI:
        row.fail("gpu_milli", "is no part of a GPU", "give thousandths of each GPU, from 1 to 1000")
    if gpus > 1 and milli != WHOLE_MILLI:
        row.fail("gpu_milli", f"is a part of each of {gpus} GPUs", "give 1000, or one GPU")
    kinds = frozenset(filter(None, (kind.strip() for kind in row.text("gpu_spec").split("|")))) if gpus else frozenset()
    return PodNeed(row.whole("cpu_milli"), row.whole("memory_mib"), gpus, milli if gpus else 0, kinds)

"""Lists of nodes and pods are read as they are published; what makes no sense is told with its place."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.core.ranking import NodeLeft, PodNeed
from app.errors import InvalidInput
from app.simulator.placing import generate_workload, read_nodes, read_pods

_NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
_PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "list.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_nodes_have_their_kind_and_whole_gpus(tmp_path: Path) -> None:
    nodes = read_nodes(_file(tmp_path, f"{_NODES}n-0,64000,262144,2,P100\nn-1,32000,131072,0,\n"))
    assert nodes == {
        "n-0": NodeLeft("P100", 64_000, 262_144, (1000, 1000)),
        "n-1": NodeLeft("", 32_000, 131_072, ()),
    }


def test_pods_have_whole_gpus_a_part_or_none_and_kinds(tmp_path: Path) -> None:
    rows = "p-0,12000,16384,1,1000,\np-1,6000,12288,1,460,T4|V100M16\np-2,8000,30517,0,0,T4\np-3,96000,1024,8,1000,G2\n"
    assert read_pods(_file(tmp_path, _PODS + rows)) == (
        PodNeed(12_000, 16_384, 1, 1000),
        PodNeed(6_000, 12_288, 1, 460, frozenset(("T4", "V100M16"))),
        PodNeed(8_000, 30_517, 0, 0),
        PodNeed(96_000, 1_024, 8, 1000, frozenset(("G2",))),
    )


def test_lists_without_kinds_and_packed_ones_are_read(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv.gz"
    path.write_bytes(gzip.compress(b"name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,2,1,7\n"))
    assert read_pods(path) == (PodNeed(1, 2, 1, 7),)


@pytest.mark.parametrize(
    ("read", "text", "told"),
    [
        (read_nodes, f"{_NODES}n,1,1,9999999,A\n", "line 2, column gpu: '9999999' is above 1,024"),
        (read_nodes, f"{_NODES}n,1,1,1,A\nn,1,1,1,A\n", "line 3, column sn: 'n' is there twice"),
        (read_nodes, f"{_NODES}n,1,1,0,A\n", "no node has a GPU"),
        (read_nodes, f"{_NODES}n,-1,1,1,A\n", "column cpu_milli: '-1' is below 0"),
        (read_nodes, _PODS, "there is no column sn, gpu, model"),
        (read_pods, f"{_PODS}p,1,1,2,500,\n", "column gpu_milli: '500' is a part of each of 2 GPUs"),
        (read_pods, f"{_PODS}p,1,1,1,0,\n", "column gpu_milli: '0' is no part of a GPU"),
        (read_pods, f"{_PODS}p,1,1,1,1001,\n", "column gpu_milli: '1001' is no part of a GPU"),
        (read_pods, f"{_PODS}p,1,1,1e9,1000,\n", "column num_gpu: '1e9' is above 1,024"),
        (read_pods, f"{_PODS}p,nan,1,1,1000,\n", "column cpu_milli: 'nan' is not a number"),
        (read_pods, f"{_PODS}p,1,1,0,0,\n", "no pod asks for a GPU"),
        (read_pods, "", "is empty"),
    ],
)
def test_what_makes_no_sense_is_told(tmp_path: Path, read: Callable[[Path], Any], text: str, told: str) -> None:
    with pytest.raises(InvalidInput) as error:
        read(_file(tmp_path, text))
    assert told in str(error.value)


def test_a_generated_workload_has_the_published_shares() -> None:
    workload = generate_workload(2_000, 1)
    pods = workload.pods
    assert sum(pod.gpus == 0 for pod in pods) / len(pods) == pytest.approx(0.133, abs=0.01)
    assert sum(0 < pod.gpu_milli < 1000 for pod in pods) / len(pods) == pytest.approx(0.378, abs=0.01)
    asked_milli = sum(pod.taken_milli for pod in pods)
    assert 0.8 < asked_milli / workload.gpu_milli < 1.2
    assert workload == generate_workload(2_000, 1) != generate_workload(2_000, 2)

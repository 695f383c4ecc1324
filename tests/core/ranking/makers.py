"""Nodes and pods, short to write down and drawn."""

from __future__ import annotations

from hypothesis import strategies as st

from app.core.ranking import NodeLeft, PodNeed


def node(gpus_milli: tuple[int, ...] = (1000,) * 8, cpus: int = 96, memory_gib: int = 384, kind: str = "A") -> NodeLeft:
    return NodeLeft(kind, cpus * 1_000, memory_gib << 10, gpus_milli)


def pod(gpus: int = 1, milli: int = 1000, cpus: int = 8, memory_gib: int = 32, kinds: tuple[str, ...] = ()) -> PodNeed:
    return PodNeed(cpus * 1_000, memory_gib << 10, gpus, milli if gpus else 0, frozenset(kinds))


nodes = st.builds(
    node,
    st.integers(0, 8).map(lambda gpus: (1000,) * gpus),
    st.integers(0, 128),
    st.integers(0, 512),
    st.sampled_from("AB"),
)
pods = st.one_of(
    st.builds(pod, st.sampled_from((0, 1, 1, 2, 4, 8)), st.just(1000), st.integers(0, 40), st.integers(0, 128)),
    st.builds(pod, st.just(1), st.integers(1, 999), st.integers(0, 40), st.integers(0, 128)),
    st.builds(pod, kinds=st.sampled_from((("A",), ("B",), ("A", "B"), ("none",)))),
)

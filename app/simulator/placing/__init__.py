"""Pods that come one after the other onto a cluster and stay: how much of its GPUs a ranker fills."""

from app.simulator.placing.generating import generate_workload
from app.simulator.placing.playing import Filled, arrivals, play
from app.simulator.placing.workload import PlacementWorkload, read_nodes, read_pods

__all__ = ["Filled", "PlacementWorkload", "arrivals", "generate_workload", "play", "read_nodes", "read_pods"]

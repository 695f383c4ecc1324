"""Kubernetes: Jobs on a cluster of one's own, by the shapes that its owner describes. Adapter for its API, batch/v1."""

"""RunPod: pods, containers with GPUs by the second. Adapter for its REST API, version 2."""

"""RunPod, emulated: its REST API, version 2, its habits, and its bill."""

"""A Kubernetes cluster, emulated: its API as clients speak it, its controllers, and pods that are processes here."""

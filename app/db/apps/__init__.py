"""Apps and their versions.

Owns `apps` and `app_versions`: a version never changes once it is written. Knows nothing of the jobs that run it.
"""

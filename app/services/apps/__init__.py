"""Code that is registered, checked and found again.

Writes `apps` and `app_versions`. What a bundle holds is read here and never run.
"""

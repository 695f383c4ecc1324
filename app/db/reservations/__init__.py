"""Reservations of GPUs of pools, and which GPUs are kept for them.

Owns the tables `reservations` and `reserved_gpus`. It must not know which GPUs to keep: `app.core.reserving` decides
that.
"""

"""Jobs that stand by, and what their GPUs are lent to meanwhile.

Owns the table `standbys`. It must not know why a job is called back or given up: `app.core.standby` decides that.
"""

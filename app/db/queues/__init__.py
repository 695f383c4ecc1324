"""Where jobs stand that share machines with elastic ones, and from when on they leave a queue.

Owns the tables `job_queues` and `queue_thresholds`. It must not know when a job falls or rises:
`app.core.elastic.standing` decides that.
"""

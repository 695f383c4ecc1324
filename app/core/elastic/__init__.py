"""Elastic jobs that share a pool of GPUs: the scheduling of the Cornucopia paper (sections 4.2 to 4.4), and ours.

`kinds` says whether people wait for a job, `queues` in which of three queues it stands, `profile` how fast it is at
each size, `pool` which job holds how many GPUs. Nothing here is told how long a job will take. Where the paper is
silent or contradicts itself, `rules` has both readings by name (`literal`, `mended`).
"""

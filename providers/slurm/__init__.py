"""Slurm: machines are jobs on a cluster that a team shares with others. Adapter for its commands, from 21.08 on."""

"""Traces of jobs: their model, and the ways to read, import, sample, generate and describe them."""

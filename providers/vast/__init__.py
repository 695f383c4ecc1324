"""Vast.ai: a marketplace of single hosts, spoken to over its HTTP API."""

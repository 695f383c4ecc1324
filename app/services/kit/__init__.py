"""Tools that are no use cases: group commit, long polls, rate limits, sealing, tokens, histograms, idempotency.

They know no noun of the service, and no use case.
"""

"""Tools that are no use cases: group commit, long polls, rate limits, sealing, tokens, histograms,
idempotency, and the hooks by which a capability takes part in what happens to runs (`capability.py`).

None of them is a use case, and none may import one.
"""

"""A pool with two classes of jobs, guaranteed and spot, on a virtual clock: what rules for eviction do to both."""

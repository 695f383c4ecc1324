"""The page with pictures that `allpass simulate --report` writes."""

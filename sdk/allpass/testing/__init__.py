"""For tests of what others add to Allpass: `allpass.testing.providers` is the exam for providers."""

"""Claims of the SpotGPU paper ("Heterogeneity at Hyperscale", OSDI 2026) that can be played, beside what comes out.

What is played are the pure functions that the service and the benchmarks use, on a virtual clock or on drawn states.
"""

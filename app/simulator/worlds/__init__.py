"""Worlds that a simulation can play in, from a friendly one, in which machines start and never fail, to a harsh one.

`world` is what a world consists of, `known` are the three that have names, `calibrating` puts measured figures in their
place. `supply`, `hosts`, `rhythm` and `habits` play them, `rough` joins that to the engine.
"""

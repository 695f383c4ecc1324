"""`allpass demo`: the main job of the product, start to finish, on one machine, and the proof that it was exact."""

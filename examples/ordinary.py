"""A training as people have it: nothing of Allpass is in it, and its results are in the folder that it runs in."""

import json
import time
from pathlib import Path

weight, losses = 0.0, []
for _ in range(100):
    weight += 0.1 * (3.0 - weight)  # one step of training
    losses.append((3.0 - weight) ** 2)
    time.sleep(0.01)

final = Path("out/final")
final.mkdir(parents=True)
(final / "config.json").write_text(json.dumps({"steps": len(losses)}))
(final / "model.json").write_text(json.dumps({"weight": weight}))
Path("runs").mkdir()
Path("runs/loss.csv").write_text("\n".join(map(str, losses)))
print("done", flush=True)

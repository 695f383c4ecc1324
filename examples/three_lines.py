"""The same with allpass.training: report, save if it is time, leave if asked. It also runs without Allpass."""

import json
import time

from allpass import training

parameters = training.parameters(steps=100, lr=0.1)

step, weight = 0, 0.0
resume = training.resume()
if resume:
    step, weight = json.loads((resume.path / "state.json").read_text())
print(f"from step {step}", flush=True)


def save(folder):
    (folder / "state.json").write_text(json.dumps([step, weight]))


while step < parameters["steps"]:
    weight += parameters["lr"] * (3.0 - weight)  # one step of training
    step += 1
    time.sleep(0.02)
    training.report(step, loss=(3.0 - weight) ** 2)
    if training.should_checkpoint(step):
        training.save(step, write=save)
    training.exit_if_stopping(step)

(training.output_dir() / "model.json").write_text(json.dumps({"weight": weight}))
print("done", flush=True)

"""A training on as many GPUs as there are just now, with the same bytes on any number of them.

    from allpass import training
    from allpass.training import elastic

    def build(device):
        model = make_model().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return elastic.Training(model, optimizer, steps=1000, parts=parts_of_step, loss=loss_of_part)

    trained = elastic.train(build)  # returns in the first process alone, when all steps are taken
    torch.save(trained.model.state_dict(), training.output_dir() / "model.pt")

A step is a fixed row of parts, such as 8 micro-batches. The processes, one for each GPU, take the parts by turns, and
gradients are added up in the order of the parts, as one process would: so weights, losses and checkpoints do not depend
on how many there are. Between two steps they may become more or fewer (`allpass resize`, `allpass run --elastic`), and
one that is killed costs the step that was being taken. The processes run the same script; on a laptop it is one, or as
many as `elastic.train(build, processes=2)` says.

The promise holds for what a training can promise: `parts(step)` depends on the step alone; `loss(part)` on the weights,
the part, and random numbers, which are seeded before it; and GPUs of one kind compute alike. What is found to break it
ends the training with a word.
"""

from __future__ import annotations

from allpass.training.elastic.script import Diverged, NotExact, Training, train

__all__ = ["Diverged", "NotExact", "Training", "train"]

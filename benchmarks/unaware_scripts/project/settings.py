"""The settings of a project."""


def defaults():
    return {"dataloader_num_workers": 2, "logging_steps": 5, "max_grad_norm": 0.5}

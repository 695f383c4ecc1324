"""The settings of the project."""


def arguments():
    return {
        "output_dir": "runs/first",
        "max_steps": 240,
        "per_device_train_batch_size": 4,
        "learning_rate": 5e-3,
        "logging_steps": 5,
        "eval_strategy": "steps",
        "eval_steps": 50,
        "dataloader_num_workers": 2,
        "dataloader_pin_memory": False,
        "max_grad_norm": 0.5,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
    }

"""A Lightning script as people have it: it knows nothing of where it runs. What it is to do is in parameters.json.

Parameters: library ("lightning.pytorch", "pytorch_lightning"), trainer (arguments), workers, crops (data that is random
while it is loaded), own_generator, schedule ("step", "plateau", "cycle"), stop_at (it sends itself SIGTERM in that
step), own (checkpoint, for `fit()`), manual, unsized, times (it trains so often), breaks (a method of ours),
always (a save of ours is due at each step).
"""

import importlib
import json
import os
import random
import signal
from pathlib import Path

import torch
import torchmetrics

options = {"library": "lightning.pytorch", "trainer": {}, "workers": 0, "schedule": "step", "stop_at": 0, "times": 1}
options.update(json.loads(Path("parameters.json").read_text()))
pl = importlib.import_module(options["library"])


class Rows(torch.utils.data.Dataset):
    def __init__(self, count):
        self.rows = torch.rand(count, 8, generator=torch.Generator().manual_seed(5))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        if options.get("crops"):
            row = row.roll(random.randrange(8)) + torch.rand(8)
        return row, (self.rows[index].sum() > 4).long()


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(Rows(30))


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = not options.get("manual")
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 2)
        )
        self.right = torchmetrics.classification.MulticlassAccuracy(num_classes=2)

    def training_step(self, batch, index):
        if self.global_step + 1 == options["stop_at"]:
            os.kill(os.getpid(), signal.SIGTERM)
        rows, labels = batch
        found = self.layers(rows)
        loss = torch.nn.functional.cross_entropy(found, labels)
        self.right(found, labels)
        self.log("right", self.right, on_step=False, on_epoch=True)
        self.log("loss", loss, on_step=True, on_epoch=True)
        if options.get("manual"):
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()
        return loss

    def validation_step(self, batch, index):
        rows, labels = batch
        self.log("val_loss", torch.nn.functional.cross_entropy(self.layers(rows), labels))

    def on_train_epoch_start(self):
        self.log("drawn", torch.rand(()))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        if options["schedule"] == "plateau":
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}
        if options["schedule"] == "cycle":
            steps = self.trainer.estimated_stepping_batches
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
        else:
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    if options.get("breaks"):
        from allpass.hooks.fitting import Fit

        def broken(*_, **__):
            raise RuntimeError("broken on purpose")

        setattr(Fit, options["breaks"], broken)
    if options.get("always"):
        from allpass.hooks import fitting

        fitting._SHARE = 0.0
    torch.set_num_threads(1)
    pl.seed_everything(7)
    generator = torch.Generator().manual_seed(9) if options.get("own_generator") else None
    rows = Endless() if options.get("unsized") else Rows(30)
    shuffle = None if options.get("unsized") else True
    loader = torch.utils.data.DataLoader(
        rows, 4, shuffle=shuffle, num_workers=options["workers"], drop_last=True, generator=generator
    )
    model = Model()
    best = pl.callbacks.ModelCheckpoint(monitor="val_loss", save_last=True)
    given = {"max_epochs": 3, "accelerator": "cpu", "log_every_n_steps": 1, "enable_progress_bar": False}
    for _ in range(options["times"]):
        trainer = pl.Trainer(callbacks=[best], **{**given, **options["trainer"]})
        trainer.fit(model, loader, torch.utils.data.DataLoader(Rows(10), 4), ckpt_path=options.get("own"))
    torch.save(model.state_dict(), "final.pt")
    told = {name: float(value) for name, value in trainer.callback_metrics.items()}
    Path("told.json").write_text(json.dumps({"step": trainer.global_step, **told}, sort_keys=True))
    Path("best").write_text(f"{os.path.relpath(best.best_model_path or '.')} {best.best_model_score}")
    if Path(best.best_model_path).is_file():
        trainer.validate(model, torch.utils.data.DataLoader(Rows(10), 4), ckpt_path="best", verbose=False)


if __name__ == "__main__":
    main()

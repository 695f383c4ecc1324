"""The base model's layers split over the processes of a machine (FSDP): each holds a share of every frozen matrix, and
a layer is put together while it is at work. Of several machines each holds all of the layers.

Nothing that is trained is split: adapters, their gradients and the optimizer's states are small, and whole in every
process. So what comes out is what one GPU would give, bit for bit: a layer that is put together is a copy (ADR 0114).
Of a full fine-tuning all is split, over all processes of all machines (`splitting_all`).

The processes have to go through the layers together. One that is lost takes its share with it, which ends the training:
it goes on from its last checkpoint.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from allpass.recipe.settings import Recipe
from allpass.training.elastic.ranks import BLAME_S, Join, RankFailed, Ranks
from allpass.training.parts import line_of
from allpass.training.session import Session
from workers.trainer import model
from workers.trainer.model import Prepared
from workers.trainer.rows import Data
from workers.trainer.splitting_all import SplitModel


def prepare(recipe: Recipe, data: Data, session: Session, join: Join) -> tuple[Prepared, Join]:
    """The model, split over the processes of each machine, which have met for it; and how its loop comes to them.
    Raises what `model.prepare` and `join` raise, and ValueError for a model that has no row of layers, and where nobody
    puts together what several machines save."""
    met: list[Ranks] = []
    split: list[SplitModel] = []

    def place(whole: Any, device: Any) -> Any:
        layers = layers_of(whole)  # before others are waited for
        met.append(join(device))
        if recipe.splits_all:
            split.extend(_all_split(whole, layers[1], met[0], device, session))
            return whole if split else whole.to(device)
        return _split(whole, layers, met[0], device) if met[0].count > met[0].machines else whole.to(device)

    prepared = model.prepare(recipe, data.labels, data.adapter, place=place)
    return replace(prepared, split=split[0] if split else None), _Once(met[0])


def _all_split(whole: Any, row: nn.ModuleList, ranks: Ranks, device: Any, session: Session) -> list[SplitModel]:
    """Nothing is, where there is one process."""
    if ranks.count == 1:
        return []
    try:
        line_of(session.environment)
    except RuntimeError as error:  # now, rather than at the first save
        raise ValueError(f"sharded: each machine saves a part of a checkpoint: {error}") from None
    if ranks.is_first:
        print(f"training: weights, gradients and states are split over {ranks.count} GPUs", flush=True)
    return [SplitModel(whole, row, ranks, device)]


def layers_of(whole: Any) -> tuple[Any, nn.ModuleList]:
    """The longest row of a model's layers, by their parameters, and the module that goes through it."""
    found = [
        (owner, row) for owner in whole.modules() for row in owner.children()
        if isinstance(row, nn.ModuleList) and _size(row)
    ]  # fmt: skip
    if not found:
        raise ValueError("sharded: this model has no row of layers that could be split over GPUs; leave it out")
    return max(found, key=lambda one: _size(one[1]))


def _split(whole: Any, layers: tuple[Any, nn.ModuleList], ranks: Ranks, device: Any) -> Any:
    owner, row = layers
    each = ranks.count // ranks.machines
    mesh = init_device_mesh(device.type, (ranks.machines, each), mesh_dim_names=("machines", "gpus"))["gpus"]
    trained = {one for one in whole.parameters() if one.requires_grad}
    for layer in row:
        fully_shard(layer, mesh=mesh, ignored_params=trained)
    split = {one for layer in row for one in layer.parameters()}
    whole.to(device)  # what is not split: embeddings, the head, what is trained
    fully_shard(owner, mesh=mesh, ignored_params=trained | (set(owner.parameters()) - split))
    ranks.is_in_step = True
    of_each = " of each machine" if ranks.machines > 1 else ""
    if ranks.is_first:
        print(f"training: the base model's {len(row)} layers are split over {each} GPUs{of_each}", flush=True)
    return whole


def _size(module: Any) -> int:
    """Of what could be split: what is frozen, or all where nothing is."""
    found = list(module.parameters())
    frozen = [one for one in found if not one.requires_grad]
    return sum(one.numel() for one in frozen or found)


class _Once:
    """How a loop comes to those who have met already."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks: Ranks | None = ranks

    def __call__(self, device: Any) -> Ranks:
        """Raises RankFailed the second time: then one of them is gone."""
        if self._ranks is None:
            time.sleep(BLAME_S)
            raise RankFailed("another process is gone, and with it its share of the base model's weights")
        ranks, self._ranks = self._ranks, None
        return ranks

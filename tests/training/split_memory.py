"""As `sharded_memory`, of a full fine-tuning: everything is split, and gradients are summed in the order of parts."""

from __future__ import annotations

import json

import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker  # type: ignore[attr-defined]
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, LlamaConfig

from allpass.training.elastic.ranks import Ranks
from workers.trainer import sharding, splitting_all
from workers.trainer.loss import Loss

COUNT, BATCH, TOKENS = 4, 1, 16


def main() -> None:
    distributed.init_process_group("fake", rank=0, world_size=COUNT, store=FakeStore())
    mesh = splitting_all.init_device_mesh("cpu", (COUNT,))
    splitting_all.init_device_mesh = lambda *args, **more: mesh
    config = LlamaConfig(
        vocab_size=2048, hidden_size=512, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=4,
    )  # fmt: skip
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
        layer = sum(one.nbytes for one in model.model.layers[0].parameters())
        total = sum(one.nbytes for one in model.parameters())
        ranks = Ranks()
        ranks.count, ranks.own = COUNT, 1
        split = splitting_all.SplitModel(model, sharding.layers_of(model)[1], ranks, torch.device("cpu"))
        parameters = list(model.parameters())
        optimizer = torch.optim.AdamW(parameters)
        ids = torch.zeros((BATCH, TOKENS), dtype=torch.long)

        def ask() -> Loss:
            return Loss(model(input_ids=ids, use_cache=False).logits.float().sum(), None)

        tracker = FSDPMemTracker(split._asked, optimizer)
        with tracker:
            for number in range(2):
                if number:
                    tracker.reset_mod_stats()
                summing = split.summing(parameters, COUNT)
                summing.begin(0, COUNT)
                split.ask(ask).total.backward()
                summing.keep()
                summing.finish()
                optimizer.step()
                optimizer.zero_grad()
    (found,) = tracker.get_tracker_snapshot("peak").values()
    told = {str(kind).rpartition(".")[2].lower(): size for kind, size in found.items()}
    print(json.dumps({**told, "count": COUNT, "layer": layer, "layers": config.num_hidden_layers, "all": total}))


if __name__ == "__main__":
    main()

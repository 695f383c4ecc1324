"""One of four processes of a training whose base is split, played without weights: torch's tracker of FSDP's memory
says what it holds at the worst moment of a step. Prints JSON: bytes by kind, and those of one layer."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import linear
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, LlamaConfig

from allpass.training.elastic.ranks import Ranks
from workers.trainer import sharding

COUNT, BATCH, TOKENS, RANK = 4, 2, 256, 4


class Adapted(nn.Module):
    """A frozen matrix with an adapter in float32, as PEFT has it: PEFT itself takes no played tensors."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.narrow = nn.Parameter(torch.zeros(RANK, base.in_features))
        self.wide = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, given: Any) -> Any:
        return self.base(given) + linear(linear(given, self.narrow.to(given.dtype)), self.wide.to(given.dtype))


def adapted() -> Any:
    config = LlamaConfig(
        vocab_size=256, hidden_size=512, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=4,
    )  # fmt: skip
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).requires_grad_(False)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    for layer in model.model.layers:
        for owner in (layer.self_attn, layer.mlp):
            for name, child in list(owner.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(owner, name, Adapted(child))
    model.to = lambda device: model  # it is there: played tensors do not move
    return model.train()


def main() -> None:
    distributed.init_process_group("fake", rank=0, world_size=COUNT, store=FakeStore())
    mesh = init_device_mesh("cpu", (1, COUNT), mesh_dim_names=("machines", "gpus"))
    sharding.init_device_mesh = lambda *args, **more: mesh
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = adapted()
        ranks = Ranks()
        ranks.count, ranks.own = COUNT, 1
        layer = sum(one.nbytes for one in model.model.layers[0].parameters() if not one.requires_grad)
        sharding._split(model, sharding.layers_of(model), ranks, torch.device("cpu"))
        body = model.model
        optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
        ids = torch.zeros((BATCH, TOKENS), dtype=torch.long)
        tracker = FSDPMemTracker(body, optimizer)
        tracker.track_inputs((ids,))
        with tracker:
            for _ in range(2):
                body(input_ids=ids, use_cache=False).last_hidden_state.float().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    (found,) = tracker.get_tracker_snapshot("peak").values()
    told = {str(kind).rpartition(".")[2].lower(): size for kind, size in found.items()}
    print(json.dumps({**told, "count": COUNT, "layer": layer, "layers": len(body.layers)}), flush=True)


if __name__ == "__main__":
    main()

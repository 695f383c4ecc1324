"""Several processes, one per GPU, each with a part of the model (FSDP2): a training that moves as a whole.

Started as a plain script, it starts itself again under torchrun. On a machine without GPUs the processes talk by gloo.

Parameters: steps (60), processes (as many as GPUs), hidden (64), lr (1e-2), seed (0), step_ms (0).
"""

import os
import sys
import time

from allpass import training


def under_torchrun(processes):
    """Become torchrun, which starts this script once per process and passes SIGTERM on to all of them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    own_port = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    os.execv(sys.executable, [*command, *own_port, __file__])  # noqa: S606 - ourselves again


def main():
    options = training.parameters(steps=60, processes=0, hidden=64, lr=1e-2, seed=0, step_ms=0)
    if "RANK" not in os.environ:
        gpus_given = os.environ.get("CUDA_VISIBLE_DEVICES", "").count(",") + 1
        under_torchrun(options["processes"] or gpus_given)

    import torch
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from allpass.training.torch_checkpoints import Checkpoints

    gpus = torch.cuda.device_count()
    kind, backend = ("cuda", "nccl") if gpus else ("cpu", "gloo")
    torch.set_num_threads(1)
    if gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group(backend)
    rank = distributed.get_rank()
    mesh = init_device_mesh(kind, (distributed.get_world_size(),))

    torch.manual_seed(options["seed"])  # the same weights everywhere
    model = torch.nn.Sequential(
        torch.nn.Linear(8, options["hidden"]),
        torch.nn.Tanh(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(options["hidden"], 1),
    ).to(kind)
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options["lr"])
    torch.manual_seed(1000 * options["seed"] + rank)  # another dropout and other data in each process

    checkpoints = Checkpoints(model, optimizer=optimizer)
    state = checkpoints.resume()
    for step in range(state.step + 1 if state else 1, options["steps"] + 1):
        inputs = torch.randn(16, 8, device=kind)
        loss = (model(inputs) - inputs.prod(dim=1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        distributed.all_reduce(mean)
        if rank == 0:
            training.report(step, loss=mean / distributed.get_world_size())
        checkpoints.after_step(step)
        time.sleep(options["step_ms"] / 1000)
    checkpoints.finish()
    weights = {name: value.full_tensor().cpu() for name, value in model.state_dict().items()}
    if rank == 0:
        torch.save(weights, training.output_dir() / "model.pt")
    distributed.destroy_process_group()
    if backend == "gloo":  # its threads let go of the last tensors a moment later; who ends before that is aborted
        time.sleep(1.0)


if __name__ == "__main__":
    main()

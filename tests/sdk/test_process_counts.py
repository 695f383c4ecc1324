"""Command lines that start a number of processes whatever GPUs there are."""

from __future__ import annotations

import pytest

from allpass.process_counts import fixed_processes


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("torchrun train.py", None),
        ("torchrun --nproc-per-node=gpu train.py", None),
        ("torchrun --nproc-per-node auto train.py", None),
        ("torchrun --standalone --nproc-per-node=4 train.py", "--nproc-per-node=4"),
        ("torchrun --nproc_per_node 2 train.py", "--nproc_per_node 2"),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", "--nproc-per-node 2"),
        ("accelerate launch --num_processes 8 train.py", "--num_processes 8"),
        ("deepspeed --num_gpus=2 train.py", "--num_gpus=2"),
        ("accelerate launch train.py --num_processes 4", None),  # of the script
        ("torchrun --nproc-per-node", None),
        ("", None),
    ],
)
def test_what_fixes_their_number_is_named(command: str, found: str | None) -> None:
    assert fixed_processes(command.split()) == found

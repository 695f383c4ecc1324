"""An end for want of memory is told from other ends, and is tried again once."""

from __future__ import annotations

import pytest

from app.core.model.job import JobEnd, JobState, Resources
from app.core.out_of_memory import Ran, RentedMemory, judge_out_of_memory, raised, ran_out
from tests.core.samples import GIB

A100 = RentedMemory("A100", 40 * GIB, 64 * GIB)
TORCH_2 = (
    "Traceback (most recent call last):\n  File 'train.py', line 9\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB"
)


@pytest.mark.parametrize(
    ("exit_code", "lines", "expected"),
    [
        (1, TORCH_2, Ran.GPU),
        (1, "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", Ran.GPU),
        (1, "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 4.00 GiB", Ran.GPU),
        (1, "RuntimeError: CUDA error: out of memory", Ran.GPU),
        (1, "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", Ran.GPU),
        (1, TORCH_2 + "\nE0101 torch.distributed.elastic: ChildFailedError: train.py FAILED", Ran.GPU),
        (137, "Killed", Ran.HOST),
        (137, TORCH_2, Ran.GPU),
        (1, "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to", Ran.HOST),
        (1, "Traceback:\nMemoryError", Ran.HOST),
        (0, TORCH_2, None),
        (None, TORCH_2, None),
        (1, "KeyError: 'memory'", None),
        (1, "ValueError: out of range", None),
        (1, "class MyOutOfMemoryErrorHandler", None),
    ],
)
def test_what_ran_out_is_read_from_the_end(exit_code: int | None, lines: str, expected: Ran | None) -> None:
    """The words of torch and CUDA, and the code of a killed child; other errors and good ends are not mistaken."""
    assert ran_out(exit_code, lines) == expected


def test_more_is_asked_for_than_there_was() -> None:
    """Of the memory that ran out alone, and never less than before."""
    more = raised(Resources(), Ran.GPU, A100)
    assert (more.gpu_memory_bytes_min, more.memory_bytes_min) == (40 * GIB + 1, 0)
    assert raised(Resources(gpu_memory_bytes_min=80 * GIB), Ran.GPU, A100).gpu_memory_bytes_min == 80 * GIB
    assert raised(Resources(), Ran.HOST, A100).memory_bytes_min == 64 * GIB + 1


def test_what_ran_out_is_not_tried_again_by_an_earlier_number() -> None:
    """Needs of single types that are no more than what there was are forgotten; larger ones stay."""
    learned = (("a100", 20 * GIB), ("h100", 60 * GIB))
    more = raised(Resources(gpu_memory_bytes_by_type=learned), Ran.GPU, A100)
    assert more.gpu_memory_bytes_by_type == (("h100", 60 * GIB),)


def test_once_more_where_there_is_more_then_never_again() -> None:
    """The first time it waits for the larger machine that is named; the second time it has failed."""
    first = judge_out_of_memory(Ran.GPU, A100, Resources(), retries=0, larger="vast H100")
    assert (first.job_state, first.fault) == (JobState.WAITING, False)
    assert first.message == (
        "ran out of GPU memory on A100 with 40 GiB: is tried once more where there is more, such as vast H100"
    )
    second = judge_out_of_memory(Ran.GPU, A100, Resources(), retries=1, larger="vast H100")
    assert (second.job_state, second.job_end) == (JobState.FAILED, JobEnd.OUT_OF_MEMORY)
    assert "again" in second.message


@pytest.mark.parametrize(
    ("kind", "asked", "told"),
    [
        (Ran.GPU, Resources(), "nothing larger is offered; a smaller micro-batch"),
        (Ran.GPU, Resources(gpu_type="A100"), "no A100 with more is offered: allow other types (gpu.type)"),
        (Ran.HOST, Resources(), "main memory on a machine with 64 GiB, and nothing larger is offered; ask for more"),
    ],
)
def test_nowhere_to_go_says_what_helps(kind: Ran, asked: Resources, told: str) -> None:
    """No second try where nothing is larger: the message names the change that would help."""
    outcome = judge_out_of_memory(kind, A100, asked, retries=0, larger=None)
    assert outcome.job_end is JobEnd.OUT_OF_MEMORY
    assert told in outcome.message

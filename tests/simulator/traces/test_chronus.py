"""Chronus's published traces: minutes become seconds, and what is wrong is named with its line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.errors import InvalidInput
from app.simulator.traces.importing import import_trace
from app.simulator.traces.job import TraceJob
from app.simulator.traces.reading import read_trace

HEAD = (
    "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,expect_value_list,"
    "best_effort,job_type"
)


def row(job_id: str = "0", *, gpus: str = "1", submit: str = "10", duration: str = "20") -> str:
    return f"{job_id},vc_1,{gpus},{submit},5049,vgg16,{duration},14,1105,10,0,strict"


def file(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "trace_job_Philly_MIX1.csv"
    path.write_text("\n".join((head, *rows)) + "\n")
    return path


def told(path: Path) -> str:
    with pytest.raises(InvalidInput) as caught:
        import_trace("chronus", path)
    return caught.value.message


def test_minutes_become_seconds(tmp_path: Path) -> None:
    """In the order of submission, counted from the first one; rows come in any order."""
    trace = import_trace("chronus", file(tmp_path, row("7", submit="11.5", gpus="8"), row("3", duration="747")))
    assert trace.jobs == (
        TraceJob("3", 0.0, 747 * 60.0, 1, user="vc_1", job_type="strict"),
        TraceJob("7", 90.0, 20 * 60.0, 8, user="vc_1", job_type="strict"),
    )


def test_a_job_without_gpus_or_length_is_left_out_and_counted(tmp_path: Path) -> None:
    trace = import_trace("chronus", file(tmp_path, row("0", gpus="0"), row("1", duration="0"), row("2")))
    assert ([one.job_id for one in trace.jobs], trace.left_out) == (["2"], 2)


@pytest.mark.parametrize(
    ("bad", "column", "value"),
    [
        (row("bad", duration="-5"), "duration", "'-5'"),
        (row("bad", duration="nan"), "duration", "'nan'"),
        (row("bad", duration="1e400"), "duration", "'1e400'"),
        (row("bad", duration=""), "duration", "''"),
        (row("bad", submit="-1"), "submit_time", "'-1'"),
        (row("bad", submit="noon"), "submit_time", "'noon'"),
        (row("bad", gpus="2.5"), "num_gpu", "'2.5'"),
        (row("bad", gpus="-8"), "num_gpu", "'-8'"),
        (row("bad", gpus="inf"), "num_gpu", "'inf'"),
    ],
)
def test_one_bad_row_among_many_is_named_by_its_line(tmp_path: Path, bad: str, column: str, value: str) -> None:
    """Also where the row would be left out for something else."""
    message = told(file(tmp_path, *(row(str(one)) for one in range(500)), bad, *(row(f"b{one}") for one in range(500))))
    assert f"line 502, column {column}: {value}" in message
    assert "; give a" in message


def test_a_row_of_another_length_is_named(tmp_path: Path) -> None:
    assert "line 3: has 13 cells where the header names 12" in told(file(tmp_path, row(), row() + ",more"))


def test_a_huge_row_is_refused(tmp_path: Path) -> None:
    """A cell of 17 MB is no job; it is told by its line, without being shown."""
    message = told(file(tmp_path, row(), row("9" * (17 << 20))))
    assert "line 3" in message
    assert len(message) < 500


@pytest.mark.parametrize("column", ["num_gpu", "submit_time", "duration", "interval", "job_type", "job_id"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    """Among them one that Chronus alone has: the list of another simulator, in seconds, is not read as minutes."""
    assert f"there is no column {column}" in told(file(tmp_path, row(), head=HEAD.replace(column, "other", 1)))


def test_its_minutes_are_not_taken_for_seconds(tmp_path: Path) -> None:
    """Its columns are those of the Tiresias simulator and more."""
    with pytest.raises(InvalidInput, match="whose times are minutes; use allpass trace import chronus"):
        read_trace(file(tmp_path, row()))


def test_a_file_without_jobs_is_told(tmp_path: Path) -> None:
    assert "holds no job that ran on a GPU; 1 rows were left out" in told(file(tmp_path, row(gpus="0")))
    assert "is empty" in told(file(tmp_path, head=""))

"""Traces are read from csv; every fault of a file is told with its line, column, value and what to do."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidInput
from app.simulator.traces.job import KINDS, Trace, TraceJob
from app.simulator.traces.reading import read_trace, text_of, write_trace

DATA = Path(__file__).resolve().parents[1] / "data"
HEAD = "job_id,submit_time_s,duration_s,num_gpus"


def written(folder: Path, text: str | bytes, name: str = "jobs.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(path: Path, **options: float) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        read_trace(path, **options)  # type: ignore[arg-type]  # options of the case
    return caught.value


def test_every_column(tmp_path: Path) -> None:
    """The documented columns in any order, with one that is not known; ids, times and kinds come out as they are."""
    path = written(
        tmp_path,
        "kind,vc,job_id,duration_s,num_gpus,submit_time_s,gpu_type,state,user,job_type,deadline_s\n"
        "interactive,x,b,60.5,8,0.25,A100,completed,ann,SFT,3600\n"
        ",x,a,7,1.0,3,,,,,\n",
    )
    trace = read_trace(path)
    assert trace.name == "jobs"
    assert trace.jobs == (
        TraceJob("b", 0.25, 60.5, 8, 3600.0, "interactive", "ann", "A100", "completed", "SFT"),
        TraceJob("a", 3.0, 7.0, 1),
    )
    assert [job.line for job in trace.jobs] == [2, 3]


def test_jobs_are_sorted_by_submission_then_id(tmp_path: Path) -> None:
    """Whatever their order in the file, whose lines they keep."""
    trace = read_trace(written(tmp_path, f"{HEAD}\nz,5,1,1\nb,2,1,1\na,5,1,1\n"))
    assert [(job.job_id, job.line) for job in trace.jobs] == [("b", 3), ("a", 4), ("z", 2)]


def test_rows_that_are_no_jobs_are_counted(tmp_path: Path) -> None:
    """Without a duration nothing can run, without a GPU nothing is rented; a job of 0 s is one."""
    trace = read_trace(written(tmp_path, f"{HEAD}\na,0,,1\nb,0,5,0\nc,0,5,\nd,0,0,1\n\n"))
    assert [job.job_id for job in trace.jobs] == ["d"]
    assert trace.left_out == 3


def test_the_format_of_tiresias() -> None:
    """It is known by its header; the model is the kind of work."""
    trace = read_trace(DATA / "s240.csv")
    assert len(trace.jobs) == 240
    assert trace.jobs[0] == TraceJob("0", 0, 950, 2, job_type="googlenet")


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.csv.gz", "jobs"])
def test_packed_files_are_known_by_their_content(tmp_path: Path, name: str) -> None:
    """Whatever the name; a byte-order mark and Windows line ends do no harm."""
    text = "\ufeff" + f"{HEAD}\r\na,0,5,1\r\n"
    trace = read_trace(written(tmp_path, gzip.compress(text.encode()), name))
    assert (trace.name, len(trace.jobs)) == ("jobs", 1)


def test_a_part_of_a_trace(tmp_path: Path) -> None:
    """Times count from `start_s`; the first ones from there are kept."""
    path = written(tmp_path, f"{HEAD}\na,0,1,1\nb,10,1,1\nc,12.5,1,1\nd,30,1,1\n")
    cut = read_trace(path, start_s=10, most_jobs=2)
    assert [(job.job_id, job.submit_s) for job in cut.jobs] == [("b", 0.0), ("c", 2.5)]
    assert read_trace(path, most_jobs=99) == read_trace(path)


@pytest.mark.parametrize(
    ("line", "column", "told"),
    [
        (",0,5,1", "job_id", "'' is empty; give every job an id"),
        ("a,-1,5,1", "submit_time_s", "'-1' is below 0; give a number of at least 0"),
        ("a,,5,1", "submit_time_s", "'' is not a number"),
        ("a,nan,5,1", "submit_time_s", "'nan' is not a number"),
        ("a,inf,5,1", "submit_time_s", "'inf' is not a number"),
        ("a,1_0,5,1", "submit_time_s", "'1_0' is not a number"),
        ("a,0,5 s,1", "duration_s", "'5 s' is not a number"),
        ("a,0,-5,1", "duration_s", "'-5' is below 0"),
        ("a,0,5,two", "num_gpus", "'two' is not a number; give a number of at least 1"),
        ("a,0,5,1.5", "num_gpus", "'1.5' is not a whole number; give a whole number of at least 1"),
        ("a,0,5,-2", "num_gpus", "'-2' is below 1"),
    ],
)
def test_a_bad_cell_is_named(tmp_path: Path, line: str, column: str, told: str) -> None:
    """With file, line, column, value and fix, and the column as the parameter."""
    path = written(tmp_path, f"{HEAD}\nok,0,5,1\n{line}\n")
    error = refused(path)
    assert f"{path} line 3, column {column}: {told}" in error.message
    assert (error.param, error.error_code) == (column, "invalid_input")


def test_bad_optional_cells_are_named(tmp_path: Path) -> None:
    """A deadline is a time above 0, a kind one of those there are."""
    head = f"{HEAD},deadline_s,kind\n"
    assert "column deadline_s: '0' leaves no time" in refused(written(tmp_path, f"{head}a,0,5,1,0,\n")).message
    assert "column deadline_s: 'soon' is not a number" in refused(written(tmp_path, f"{head}a,0,5,1,soon,\n")).message
    told = refused(written(tmp_path, f"{head}a,0,5,1,,nightly\n")).message
    assert "column kind: 'nightly' is no kind of job; choose from batch, interactive" in told


def test_an_id_that_is_there_twice(tmp_path: Path) -> None:
    """Both lines are named, also when the first row was left out."""
    error = refused(written(tmp_path, f"{HEAD}\na,0,,1\nb,0,5,1\na,1,5,1\n"))
    assert "line 4, column job_id: 'a' is also in line 2" in error.message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "jobs.csv: is empty; its first line must name the columns"),
        ("\n\n", "jobs.csv: is empty"),
        ("job_id,duration_s\na,5\n", "line 1: there is no column submit_time_s, num_gpus; it has job_id, duration_s"),
        (f"{HEAD},job_id\na,0,5,1,b\n", "line 1: the column job_id is there twice"),
        (f"{HEAD}\na,0,5\n", "line 2: has 3 cells where the header names 4"),
        (f"{HEAD}\na,0,5,1,9\n", "line 2: has 5 cells where the header names 4"),
        (f'{HEAD}\n"a,0,5,1\n', "is not csv"),
        (f"{HEAD}\na,0,,1\nb,0,5,0\n", "holds no job with a duration and a GPU; 2 rows"),
        (f"{HEAD}\na,0,5,1\nb\xff,0,5,1\n".encode("latin-1"), "line 3: the byte 0xff is not UTF-8"),
        (gzip.compress(f"{HEAD}\na,0,5,1\n".encode(), mtime=0)[:-9], "broken gzip data"),
    ],
)
def test_a_file_that_is_no_trace(tmp_path: Path, text: str | bytes, told: str) -> None:
    """The error says what is wrong with it, and where."""
    error = refused(written(tmp_path, text))
    assert told in error.message
    assert str(tmp_path) in error.message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Not there, a folder, or not packed though its name says so."""
    assert "there is no such file" in refused(tmp_path / "none.csv").message
    assert "is a folder" in refused(tmp_path).message
    assert "is not gzip data" in refused(written(tmp_path, f"{HEAD}\na,0,5,1\n", "jobs.csv.gz")).message


def test_a_cut_that_leaves_nothing(tmp_path: Path) -> None:
    """The last submission is told; numbers that make no sense are refused."""
    path = written(tmp_path, f"{HEAD}\na,7,5,1\n")
    assert "start_s: nothing is submitted after 8 s; the last job" in refused(path, start_s=8).message
    assert "start_s: -1 is negative" in refused(path, start_s=-1).message
    assert "most_jobs: 0 is below 1" in refused(path, most_jobs=0).message


words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=8)
seconds = st.floats(0, 1e9, allow_subnormal=False)
jobs = st.builds(
    TraceJob,
    job_id=words.filter(bool),
    submit_s=seconds,
    duration_s=seconds,
    gpus=st.integers(1, 4096),
    deadline_s=st.none() | st.floats(1e-3, 1e9),
    kind=st.sampled_from(KINDS),
    user=words,
    gpu_type=words,
    state=words,
    job_type=words,
)


@given(made=st.lists(jobs, min_size=1, max_size=8, unique_by=lambda job: job.job_id), packed=st.booleans())
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, made: list[TraceJob], packed: bool
) -> None:
    """To the last digit, packed or not."""
    path = tmp_path_factory.mktemp("traces") / ("jobs.csv.gz" if packed else "jobs.csv")
    trace = Trace.of("jobs", made)
    write_trace(trace, path)
    assert read_trace(path) == trace


def test_whole_numbers_are_written_without_a_point() -> None:
    """So that the file reads well, and is the same whatever wrote it."""
    text = text_of(Trace.of("t", [TraceJob("a", 0.0, 60.0, 2, deadline_s=90.5)]))
    assert text.splitlines()[1] == "a,0,60,2,,,,,90.5,batch,"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """The path is named."""
    with pytest.raises(InvalidInput, match=r"none/jobs\.csv: cannot be written"):
        write_trace(Trace.of("t", [TraceJob("a", 0, 1, 1)]), tmp_path / "none" / "jobs.csv")

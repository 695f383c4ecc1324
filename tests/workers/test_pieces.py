"""The agent's parts one by one: log, spool, metrics file, files, patience, and the zipapp itself."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.agent import process
from workers.agent.build import build_zipapp, library_files
from workers.agent.checkpoints import inside
from workers.agent.errors import Aborted, Unreachable, Unsafe
from workers.agent.files import Fence, listing
from workers.agent.logs import FLUSH_BYTES, Log
from workers.agent.metric_lines import MetricTail, parse
from workers.agent.patience import Backoff, patiently
from workers.agent.spool import Spool

SOURCES = sorted((Path(__file__).resolve().parents[2] / "workers" / "agent").glob("*.py"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_the_agent_is_python_3_9_and_standard_library_only(source: Path) -> None:
    """Every module parses as Python 3.9 and imports nothing but the standard library and the agent itself."""
    tree = ast.parse(source.read_text(), feature_version=(3, 9))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    foreign = {
        name for name in names if not name.startswith("workers.agent") and name != "workers"
        and name.partition(".")[0] not in sys.stdlib_module_names
    }  # fmt: skip
    assert foreign == set()
    assert not any(isinstance(node, ast.Match) for node in ast.walk(tree))


@pytest.mark.parametrize("program", ["asking.py", "guard.py", "requirements_check.py", "sweep.py", "views.py"])
def test_programs_that_run_by_themselves_import_nothing_of_ours(program: str) -> None:
    """They are started without the agent on their path."""
    source = next(path for path in SOURCES if path.name == program)
    assert "workers" not in source.read_text().split('"""', 2)[2]


def test_the_zipapp_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    """One source, one file, one hash; it brings the training helpers and the trainer, and of the SDK nothing else."""
    first, second = tmp_path / "one.pyz", tmp_path / "deep" / "two.pyz"
    assert build_zipapp(first) == build_zipapp(second)
    assert first.read_bytes() == second.read_bytes()
    assert os.access(first, os.X_OK)
    names = zipfile.ZipFile(first).namelist()
    assert {
        "__main__.py",
        "workers/agent/guard.py",
        "lib/allpass/__init__.py",
        "lib/allpass/training/__init__.py",
        "lib/allpass/recipe/settings.py",
        "lib/workers/trainer/main.py",
    } <= set(names)
    assert "lib/workers/__init__.py" not in names, "it would hide a package of the user's"
    assert [name for name in names if "wire" in name or "client" in name] == []


def test_what_user_code_may_import_is_all_there() -> None:
    """The trainer and the helpers import of ours nothing but what is shipped with them."""
    shipped = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): text for name, text in library_files()
    }
    for module, text in shipped.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("allpass", "workers"):
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                is_typing = module in ("allpass", "allpass.errors")  # they name other classes to type checkers only
                assert node.module in shipped or inner <= shipped.keys() or is_typing, (module, node.module)


def test_the_zipapp_needs_no_package(zipapp: Path, tmp_path: Path) -> None:
    """It starts in a Python without site-packages."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(zipapp)], env={}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "ALLPASS_URL" in done.stderr) == (2, True)


def test_the_zipapp_starts_in_a_python_that_its_bytecode_is_not_for(zipapp: Path, tmp_path: Path) -> None:
    """Every module lies there as bytecode for the building Python; another version takes the source instead."""
    foreign = tmp_path / "foreign.pyz"
    with zipfile.ZipFile(zipapp) as packed, zipfile.ZipFile(foreign, "w") as other:
        names = packed.namelist()
        modules = {name for name in names if name.endswith(".py") and not name.startswith("lib/")}
        assert {f"{name}c" for name in modules} == {name for name in names if name.endswith(".pyc")}
        for name in names:
            content = packed.read(name)
            other.writestr(name, b"\0\0\r\n" + content[4:] if name.endswith(".pyc") else content)
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(foreign)], env={}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "ALLPASS_URL" in done.stderr) == (2, True)


def test_the_zipapp_does_not_depend_on_what_its_builder_has_loaded(zipapp: Path, tmp_path: Path) -> None:
    """A fresh process with another order of sets builds the same bytes as this one, which has loaded a lot."""
    command = [sys.executable, "-m", "workers.agent.build", str(tmp_path / "fresh.pyz")]
    subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "7"}, cwd=SOURCES[0].parents[2], check=True)
    assert (tmp_path / "fresh.pyz").read_bytes() == zipapp.read_bytes()


def test_a_standby_guard_that_is_not_needed_ends(tmp_path: Path) -> None:
    """Dismissed, it is gone, having started nothing."""
    standby = process.Standby(next(path for path in SOURCES if path.name == "guard.py"))
    assert standby.process.poll() is None
    standby.dismiss()
    assert standby.process.returncode == 1


def text_of(spool: Spool) -> str:
    return b"".join(chunk.file.read_bytes() for chunk in spool.head(1_000_000)).decode("utf-8")


@given(st.lists(st.binary(max_size=200), max_size=30))
def test_a_log_is_its_bytes_as_text_however_they_come(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    """The chunks, each valid UTF-8, join to the whole output without NUL decoded at once, numbered without gaps."""
    spool = Spool(tmp_path_factory.mktemp("spool"))
    log = Log(spool)
    for piece in pieces:
        log.feed(piece)
    log.finish()
    assert text_of(spool) == b"".join(pieces).replace(b"\0", b"").decode("utf-8", "replace")
    chunks = spool.head(1000)
    assert [chunk.sequence for chunk in chunks] == list(range(len(chunks)))
    for chunk in chunks:
        data = chunk.file.read_bytes()
        assert (len(data), data.count(b"\n")) == (chunk.size_bytes, chunk.line_count)
        data.decode("utf-8")
        assert chunk.first_ms <= chunk.last_ms


@given(st.integers(1, 300_000), st.integers(1, 70_000))
def test_chunks_are_bounded_and_end_with_lines(
    tmp_path_factory: pytest.TempPathFactory, total: int, width: int
) -> None:
    """Output that comes fast is cut at line ends, and no chunk is larger than what one read can bring on top."""
    spool = Spool(tmp_path_factory.mktemp("spool"))
    log = Log(spool)
    data = (b"x" * width + b"\n") * (total // width + 1)
    for start in range(0, len(data), 65536):
        log.feed(data[start : start + 65536])
    log.finish()
    chunks = spool.head(1000)
    assert all(chunk.size_bytes <= 2 * FLUSH_BYTES + 65536 for chunk in chunks)
    if width < FLUSH_BYTES:
        assert all(chunk.file.read_bytes().endswith(b"\n") for chunk in chunks)


def test_remarks_never_split_a_line_of_the_process(tmp_path: Path) -> None:
    """What the agent says stands between lines, and is not part of the process's last lines."""
    spool = Spool(tmp_path)
    log = Log(spool)
    log.feed(b"first\nhalf of ")
    log.say("a remark")
    log.feed(b"a line\n")
    log.finish()
    assert text_of(spool) == "first\nallpass: a remark\nhalf of a line\n"
    assert log.last_lines() == "first\nhalf of a line"


@given(st.text(alphabet="ab\n", max_size=300).map(lambda text: text * 60))
def test_last_lines_are_the_end(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """At most 40 lines and 8000 characters, and always the end of the output."""
    log = Log(Spool(tmp_path_factory.mktemp("spool")))
    log.feed(text.encode())
    last = log.last_lines()
    assert len(last) <= 8000
    assert last.count("\n") < 40
    assert text.rstrip("\n").endswith(last)


def test_output_is_complete_though_its_receiver_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has ended only when all its output is delivered, however long the receiver holds it up."""
    monkeypatch.setattr(process, "_PIPE_END_S", 0.1)
    guard = next(path for path in SOURCES if path.name == "guard.py")
    received: list[bytes] = []
    blocked = threading.Event()

    def receive(data: bytes) -> None:
        blocked.wait(0.4)
        received.append(data)

    code = "import sys; sys.stdout.write('z' * 200_000)"
    ended = process.Process(
        [sys.executable, "-c", code], guard=guard, environ={}, cwd=tmp_path, user=process.User(), output=receive
    ).wait()
    assert (ended.exit_code, len(b"".join(received))) == (0, 200_000)


def test_a_program_that_cannot_start_says_why(tmp_path: Path) -> None:
    """Exit code 126 and the reason in the output."""
    guard = next(path for path in SOURCES if path.name == "guard.py")
    received: list[bytes] = []
    ended = process.Process(
        ["/no/such/program"], guard=guard, environ={}, cwd=tmp_path, user=process.User(), output=received.append
    ).wait()
    assert ended.exit_code == 126
    assert b"cannot start /no/such/program" in b"".join(received)


records = st.dictionaries(
    st.text(max_size=5),
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers())),
    max_size=5,
)


@given(records, st.one_of(st.integers(-5, 2**60), st.booleans(), st.none(), st.floats(), st.text()))
def test_a_metrics_line_is_a_step_with_finite_numbers_or_refused(record: dict[str, object], step: object) -> None:
    """Whatever JSON a script writes, what goes on is a whole step and finite numbers that JSON can carry."""
    record = {key: value for key, value in record.items() if key != "checkpoint"}
    text = json.dumps({**record, "step": step}).encode()
    good = isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**53
    if not good:
        with pytest.raises(ValueError, match="step"):
            parse(text, 0)
        return
    line = parse(text, 7)
    assert (line.step, line.offset) == (step, 7)
    assert json.loads(json.dumps(line.values, allow_nan=False)) == line.values
    assert "step" not in line.values


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1]",
        b"3",
        b"[" * 100_000,
        b'{"step": 1, "checkpoint": 3}',
        b'{"step": 1, "checkpoint": ""}',
        b"\xff",
    ],
)
def test_lines_that_are_no_record_are_refused(text: bytes) -> None:
    """Each with a reason that can be shown."""
    with pytest.raises(ValueError, match=r"^its? "):
        parse(text, 0)


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"")), max_size=10), st.data())
def test_lines_are_whole_however_the_file_grows(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], data: st.DataObject
) -> None:
    """A line is handed out once, whole, at its offset, wherever a write was cut; the last one at the end."""
    folder = tmp_path_factory.mktemp("tail")
    path = folder / "metrics"
    path.touch()
    tail = MetricTail(path, Fence(folder, None))
    content = b"\n".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=4)))
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        with path.open("ab") as file:
            file.write(content[start:end])
        found += tail.read()
    found += tail.read(final=True)
    tail.close()
    assert [line for line, _ in found] == [line for line in lines if line.strip()]
    assert all(content[offset : offset + len(line)] == line for line, offset in found)


def test_a_replaced_metrics_file_is_read_anew(tmp_path: Path) -> None:
    """A script that opens its metrics file for writing again, or truncates it, is still heard."""
    path = tmp_path / "metrics"
    path.write_bytes(b"one\ntwo\n")
    tail = MetricTail(path, Fence(tmp_path, None))
    assert [line for line, _ in tail.read()] == [b"one", b"two"]
    path.write_bytes(b"three\n")
    assert tail.read() == [(b"three", 0)]
    path.unlink()
    assert tail.read() == []
    path.write_bytes(b"four, longer than before\n")
    assert tail.read() == [(b"four, longer than before", 0)]
    tail.close()


def test_only_files_inside_are_opened(tmp_path: Path) -> None:
    """Links that stay inside are followed; links that leave, folders, pipes and other people's files are refused."""
    inner = tmp_path / "inner"
    (inner / "deep").mkdir(parents=True)
    (inner / "deep" / "file").write_bytes(b"data")
    (tmp_path / "outer").write_bytes(b"secret")
    (inner / "good").symlink_to(inner / "deep" / "file")
    (inner / "bad").symlink_to(tmp_path / "outer")
    (inner / "up").symlink_to(tmp_path)
    os.mkfifo(inner / "pipe")
    fence = Fence(inner, None)
    assert fence.fingerprint(inner, "good", most_bytes=9, gone=threading.Event()).size_bytes == 4
    for name in ("bad", "up/outer", "pipe", "deep"):
        with pytest.raises(Unsafe):
            fence.open(inner / name)
    with pytest.raises(Unsafe, match="somebody else"):
        Fence(inner, os.getuid() + 1).open(inner / "good")


def test_a_listing_is_sorted_and_names_what_cannot_be_stored(tmp_path: Path) -> None:
    """Relative paths, linked folders not entered; a name that is no text is refused by name."""
    (tmp_path / "b").mkdir()
    for name in ("b/x", "a", "resume-3"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "skipped").mkdir()
    (tmp_path / "skipped" / "x").touch()
    assert listing(tmp_path, without=("skipped",)) == ["a", "b/x", "resume-3"]
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff")).touch()
    with pytest.raises(Unsafe, match="cannot be stored"):
        listing(tmp_path)


@pytest.mark.parametrize("name", ["..", "../x", "/etc", "a/../../b", ".", "a\0b"])
def test_a_checkpoint_line_names_something_inside(name: str) -> None:
    """A name that leads elsewhere is refused."""
    with pytest.raises(Unsafe):
        inside(Path("/run/checkpoints"), name)


@given(st.integers(1, 60))
def test_pauses_grow_and_are_capped(count: int) -> None:
    """Each pause is at least half of the doubled one before, and never above 5 seconds."""
    backoff = Backoff()
    pauses = [backoff.next_s() for _ in range(count)]
    for index, pause in enumerate(pauses):
        full = min(5.0, 0.1 * 2**index)
        assert full / 2 <= pause <= full


def test_patience_ends_when_the_work_is_not_wanted() -> None:
    """An unreachable server is tried again until it answers or nobody wants the answer."""
    failures = [Unreachable("one"), Unreachable("two")]

    def call() -> str:
        if failures:
            raise failures.pop()
        return "three"

    gone = threading.Event()
    assert patiently(call, gone) == "three"

    def never() -> str:
        raise Unreachable("never")

    threading.Timer(0.05, gone.set).start()
    begin_s = time.monotonic()
    with pytest.raises(Aborted):
        patiently(never, gone)
    assert time.monotonic() - begin_s < 5

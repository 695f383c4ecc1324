"""Code bundles: the same content is the same bytes, and what cannot be sent is refused by name."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allpass import bundle as bundles
from allpass.archive import packed_size, tar_gz
from allpass.bundle import make_bundle
from allpass.errors import BundleError
from allpass.ignore import IgnoreRules

SEGMENT = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S"), exclude_characters="/\\\0"), min_size=1, max_size=60
).filter(lambda text: text not in (".", ".."))
PATHS = st.lists(SEGMENT, min_size=1, max_size=4).map("/".join)
TREES = st.dictionaries(PATHS, st.binary(max_size=2000), min_size=1, max_size=8)


def unpacked(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        members = archive.getmembers()
        assert all(one.isreg() and one.mode == 0o644 and (one.uid, one.gid, one.mtime) == (0, 0, 0) for one in members)
        return {one.name: archive.extractfile(one).read() for one in members}  # type: ignore[union-attr]  # members are files


def write(root: Path, files: dict[str, bytes | str]) -> Path:
    for path, content in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


@settings(max_examples=50)
@given(TREES)
def test_standard_tools_read_the_archive(files: dict[str, bytes]) -> None:
    """Whatever the names and contents, tarfile and gzip give back exactly what was packed, in the predicted size."""
    content = tar_gz(files.items())
    assert unpacked(content) == files
    assert len(content) == packed_size((path, len(data)) for path, data in files.items())
    assert gzip.decompress(content)


def test_contents_beyond_one_stored_block_survive() -> None:
    """Archives of many gzip blocks, and one that ends on a block boundary, are whole."""
    for length in (0, 1, 65535 - 2048, 65536, 1_000_003):
        data = os.urandom(length)
        assert unpacked(tar_gz([("model.bin", data)])) == {"model.bin": data}


def test_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    """The format never changes by accident: this hash was true for every earlier version too."""
    write(tmp_path, {"train.py": "print(1)\n", "data/müller.txt": "ü", "a" * 120 + ".txt": "long"})
    made = make_bundle(tmp_path)
    assert made.sha256 == "e9992b9df7a8de105052ffdf8927f2b3436151e2c9a412e08387ff282e3483ef"
    assert made.sha256 == hashlib.sha256(made.content).hexdigest()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.permutations(["train.py", "b/x.py", "b/y.py", "B.py", "a-b.py", "a/b.py", "z"]), st.integers(0, 2**31))
def test_bundle_depends_on_names_and_contents_only(tmp_path: Path, order: list[str], mtime: int) -> None:
    """Order of creation, times, modes and place on disk do not change the bytes."""
    folder = tmp_path / hashlib.sha256(repr((order, mtime)).encode()).hexdigest()[:12]
    write(folder, {name: f"# {name}" for name in order})
    for index, name in enumerate(order):
        os.utime(folder / name, (mtime, mtime + index))
        (folder / name).chmod(0o755 if index % 2 else 0o600)
    reference = write(tmp_path / "reference", {name: f"# {name}" for name in sorted(order)})
    assert make_bundle(folder) == make_bundle(reference)


@settings(max_examples=40)
@given(TREES, st.data())
def test_another_content_is_another_bundle(files: dict[str, bytes], data: st.DataObject) -> None:
    """Changing one file's bytes or name changes the archive."""
    path = data.draw(st.sampled_from(sorted(files)))
    assert tar_gz({**files, path: files[path] + b"!"}.items()) != tar_gz(files.items())
    renamed = {(name + "x" if name == path else name): content for name, content in files.items()}
    assert tar_gz(renamed.items()) != tar_gz(files.items())


def test_single_script(tmp_path: Path) -> None:
    """A script is a bundle of one file, and is its own entry point."""
    write(tmp_path, {"train.py": "print(1)", "secret.txt": "no"})
    made = make_bundle(tmp_path / "train.py")
    assert (made.entrypoint, made.paths, unpacked(made.content)) == (
        "train.py", ("train.py",), {"train.py": b"print(1)"},
    )  # fmt: skip


def test_what_is_not_code_is_left_out(tmp_path: Path) -> None:
    """Repositories, environments, caches and secrets stay here, and so does what .allpassignore names."""
    write(
        tmp_path,
        {
            "train.py": "1", ".git/config": "x", "pkg/__pycache__/m.pyc": "x", ".venv/bin/python": "x", ".env": "KEY=1",
            ".allpass/client.json": "{}", "data/big.bin": "x", "data/keep.txt": "x", "notes.md": "x", "pkg/m.py": "1",
            ".allpassignore": "# comment\n*.md\ndata/*\n!data/keep.txt\n",
        },
    )  # fmt: skip
    assert make_bundle(tmp_path).paths == (".allpassignore", "data/keep.txt", "pkg/m.py", "train.py")


def test_default_exclusions_can_be_taken_back(tmp_path: Path) -> None:
    """A file that is left out by default is sent when .allpassignore says so."""
    write(tmp_path, {"train.py": "1", ".env": "A=1", ".allpassignore": "!.env\n"})
    assert ".env" in make_bundle(tmp_path).paths


IGNORE_LINES = [
    "*.log", "/root.txt", "build/", "docs/*.txt", "**/temp", "a/**/z", "deep/**", "!keep.log", "q?.py", "[ab].c",
    "[!x]y", "# no", "", "  ", "spaced\\ ", "\\#hash", "foo*bar", "x/", "*.d/", "un[closed",
]  # fmt: skip
TREE = [
    "a.log", "keep.log", "sub/a.log", "root.txt", "sub/root.txt", "build/x", "sub/build/y", "docs/a.txt",
    "docs/b/c.txt", "temp", "u/temp", "u/v/temp/file", "a/z", "a/b/z", "a/b/c/z", "deep/er/f", "q1.py", "q12.py",
    "a.c", "c.c", "zy", "xy", "spaced ", "#hash", "foobar", "foo1bar", "x", "n.d/f", "un[closed", "sub/keep.log",
]  # fmt: skip


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(IGNORE_LINES), max_size=8))
@pytest.mark.skipif(shutil.which("git") is None, reason="git is the reference here")
def test_ignore_rules_are_those_of_git(tmp_path: Path, lines: list[str]) -> None:
    """For any of these patterns in any order, a file is left out exactly when git would ignore it."""
    if not (tmp_path / ".git").exists():
        write(tmp_path, dict.fromkeys(TREE, ""))
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".git/info/exclude").write_text("\n".join(lines) + "\n")
    command = ["git", "-C", str(tmp_path), "-c", "core.excludesFile=", "check-ignore", "-z", "--stdin"]
    asked = subprocess.run(command, input="\0".join(TREE), capture_output=True, text=True, check=False)
    ignored_by_git = set(filter(None, asked.stdout.split("\0")))
    rules = IgnoreRules(lines)
    ours = set()
    for path in TREE:
        parents = ["/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 1)]
        if any(rules.leaves_out(one, is_folder=True) for one in parents) or rules.leaves_out(path, is_folder=False):
            ours.add(path)
    assert ours == ignored_by_git


def test_links_inside_are_followed_and_links_outside_refused(tmp_path: Path) -> None:
    """A link is stored as what it points to; one that leaves the folder is an error that names it."""
    code = write(tmp_path / "code", {"train.py": "1", "lib/m.py": "2"})
    (code / "alias.py").symlink_to("lib/m.py")
    (code / "pkg").symlink_to("lib")
    assert unpacked(make_bundle(code).content)["pkg/m.py"] == b"2"
    (tmp_path / "secret").write_text("s")
    (code / "out").symlink_to(tmp_path / "secret")
    with pytest.raises(BundleError, match=r"^out: the link points outside") as refused:
        make_bundle(code)
    assert refused.value.path == "out"
    assert ".allpassignore" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("target", "words"), [(".", "leads back"), ("nowhere", "does not exist"), ("loop", "does not exist")]
)
def test_links_to_nothing_or_to_themselves_are_refused(tmp_path: Path, target: str, words: str) -> None:
    """Broken links and circles are told, never followed for ever."""
    write(tmp_path, {"train.py": "1"})
    (tmp_path / "loop").symlink_to(target)
    with pytest.raises(BundleError, match=f"^loop: .*{words}"):
        make_bundle(tmp_path)


def test_special_files_are_refused_by_name(tmp_path: Path) -> None:
    """A pipe or socket in the folder is an error, not a hang."""
    write(tmp_path, {"train.py": "1"})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BundleError, match=r"^pipe: a named pipe cannot be sent"):
        make_bundle(tmp_path)
    (tmp_path / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "s"))
        with pytest.raises(BundleError, match=r"^s: a socket cannot be sent"):
            make_bundle(tmp_path)


def test_too_much_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the limit is refused, naming the largest file; one byte less passes."""
    write(tmp_path, {"train.py": "1", "weights.bin": b"x" * 5000})
    limit = packed_size([("train.py", 1), ("weights.bin", 5000)])
    monkeypatch.setattr(bundles, "MAX_BUNDLE_BYTES", limit)
    assert make_bundle(tmp_path).size_bytes == limit
    monkeypatch.setattr(bundles, "MAX_BUNDLE_BYTES", limit - 1)
    monkeypatch.setattr(bundles, "_read", lambda one: pytest.fail("was read"))
    with pytest.raises(BundleError, match=r"Largest: weights\.bin") as refused:
        make_bundle(tmp_path)
    assert refused.value.path == "weights.bin"


@pytest.mark.parametrize(
    ("files", "entrypoint", "words"),
    [
        ({}, None, "has no file to send"),
        ({".env": "x"}, None, "has no file to send"),
        ({"run.py": "1", "a/b.py": "1"}, None, "neither train.py nor main.py .it has a/b.py, run.py"),
        ({"data.csv": "1"}, None, "no script among its 1 files"),
        ({"train.py": "1"}, "go.py", "entrypoint 'go.py' is not in the folder .*it has train.py"),
    ],
)
def test_without_a_script_to_run_it_says_what_was_found(
    tmp_path: Path, files: dict[str, bytes | str], entrypoint: str | None, words: str
) -> None:
    """An unclear folder is an error that lists the candidates."""
    with pytest.raises(BundleError, match=words):
        make_bundle(write(tmp_path, files), entrypoint)


def test_entry_points(tmp_path: Path) -> None:
    """train.py comes before main.py, and an explicit script before both."""
    write(tmp_path, {"main.py": "1", "jobs/go.py": "1"})
    assert make_bundle(tmp_path).entrypoint == "main.py"
    write(tmp_path, {"train.py": "1"})
    assert make_bundle(tmp_path).entrypoint == "train.py"
    assert make_bundle(tmp_path, "./jobs/go.py").entrypoint == "jobs/go.py"
    with pytest.raises(BundleError, match=r"code is the single file main.py"):
        make_bundle(tmp_path / "main.py", "train.py")


def test_missing_code_and_bad_names(tmp_path: Path) -> None:
    """What is not there, and names that mean something else elsewhere, are refused."""
    with pytest.raises(BundleError, match=r"no file or folder 'gone.py'"):
        make_bundle("gone.py")
    write(tmp_path, {"train.py": "1", "a\\b.py": "1"})
    with pytest.raises(BundleError, match=r"backslash"):
        make_bundle(tmp_path)
    (tmp_path / "a\\b.py").unlink()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")).write_text("x")
    with pytest.raises(BundleError, match=r"not valid UTF-8"):
        make_bundle(tmp_path)

"""The packages that code asks for, as people write them down."""

from __future__ import annotations

from pathlib import Path

import pytest

from allpass.errors import BundleError
from allpass.packages import Packages, find_packages, find_pip, read_requirements, with_packages

LOCK = """
version = 1
[[package]]
name = "mine"
version = "0.1.0"
source = { virtual = "." }
dependencies = [
    { name = "torch", marker = "sys_platform == 'linux'" },
    { name = "datasets", extra = ["audio"] },
    { name = "tool" },
    { name = "beside" },
]
[package.optional-dependencies]
never = [{ name = "unused" }]
[[package]]
name = "torch"
version = "2.3.0"
source = { registry = "https://index.example/simple" }
dependencies = [{ name = "numpy" }, { name = "triton", marker = "python_full_version < '3.13' or extra == 'x'" }]
[[package]]
name = "numpy"
version = "1.26.4"
source = { registry = "https://index.example/simple" }
[[package]]
name = "triton"
version = "2.3.0"
source = { registry = "https://index.example/simple" }
[[package]]
name = "datasets"
version = "3.1.0"
source = { registry = "https://index.example/simple" }
dependencies = [{ name = "numpy" }]
[package.optional-dependencies]
audio = [{ name = "soundfile" }]
[[package]]
name = "soundfile"
version = "0.12.1"
source = { registry = "https://index.example/simple" }
[[package]]
name = "tool"
version = "1.0"
source = { git = "https://git.example/tool?rev=main#abc123" }
[[package]]
name = "beside"
version = "1.0"
source = { editable = "../beside" }
[[package]]
name = "unused"
version = "9.9"
source = { registry = "https://index.example/simple" }
"""


def write(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


def test_a_requirements_file_is_read_as_pip_reads_it(tmp_path: Path) -> None:
    """Comments, continued lines, hashes, markers and included files are understood; what machines do not heed is named
    with its line."""
    write(
        tmp_path,
        requirements__txt="# what we need\n-r base.txt\n--extra-index-url https://x.example/cu121\n"
        "torch==2.3.0 \\\n  --hash=sha256:abc \\\n  --hash=sha256:def\n"
        "numpy<2 ; python_version < '3.13'  # why\n-e .\n\n",
        base__txt="transformers>=4.40,<5\nnumpy<2 ; python_version < '3.13'\n",
    )
    assert find_packages(tmp_path) == Packages(
        "requirements.txt",
        ("transformers<5,>=4.40", 'numpy<2; python_version < "3.13"', "torch==2.3.0"),
        ("requirements.txt, line 3: --extra-index-url https://x.example/cu121", "requirements.txt, line 8: -e ."),
    )


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        ("torch=2.3.0\n", "requirements.txt, line 1: 'torch=2.3.0' is not a requirement", "torch==2.3.0"),
        ("\npip install peft\n", "requirements.txt, line 2: 'pip install peft' is not a requirement", "peft"),
        ("-r gone.txt\n", "requirements.txt, line 1: includes 'gone.txt', which is not there", "take the line out"),
        ("-r requirements.txt\n", "requirements.txt: includes itself, or too many others", "take that line out"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, content: str, message: str, hint: str) -> None:
    """With the file, the line and what was probably meant."""
    write(tmp_path, requirements__txt=content)
    with pytest.raises(BundleError) as raised:
        find_packages(tmp_path)
    assert str(raised.value).startswith(message)
    assert raised.value.hint == hint


def test_a_project_says_its_dependencies(tmp_path: Path) -> None:
    """Those of pyproject.toml, unless there is a requirements.txt; Poetry's own table is not read, and that is told."""
    project = write(tmp_path, pyproject__toml='[project]\nname = "mine"\ndependencies = ["peft>=0.11", "trl"]\n')
    assert find_packages(project) == Packages("pyproject.toml", ("peft>=0.11", "trl"))
    write(tmp_path, pyproject__toml='[tool.poetry.dependencies]\ntorch = "^2.3"\n')
    told = find_packages(tmp_path)
    assert told is not None
    assert (told.pip, len(told.left_out)) == ((), 1)
    write(tmp_path, pyproject__toml="[tool.ruff]\n")
    assert find_packages(tmp_path) is None
    write(tmp_path, pyproject__toml="[project\n")
    with pytest.raises(BundleError, match=r"pyproject.toml: is not TOML"):
        find_packages(tmp_path)


def test_a_lock_pins_everything_that_is_needed(tmp_path: Path) -> None:
    """Direct and indirect, with the conditions on the way; nothing of extras that were not asked for, and what is not
    from an index or a repository is named."""
    project = write(tmp_path, pyproject__toml='[project]\nname = "Mine"\n', uv__lock=LOCK)
    told = find_packages(project)
    assert told is not None
    assert set(told.pip) == {
        "torch==2.3.0 ; sys_platform == 'linux'",
        "triton==2.3.0 ; sys_platform == 'linux' and (python_full_version < '3.13' or extra == 'x')",
        "numpy==1.26.4",
        "datasets[audio]==3.1.0",
        "soundfile==0.12.1",
        "tool @ git+https://git.example/tool@abc123",
    }
    assert told.left_out == ("uv.lock: beside, which is not from an index",)


def test_a_script_says_its_dependencies_in_its_head(tmp_path: Path) -> None:
    """`# /// script` comes before what lies beside it."""
    script = tmp_path / "one.py"
    script.write_text(
        '# /// script\n# requires-python = ">=3.11"\n# dependencies = [\n#   "peft",\n# ]\n# ///\nprint()\n'
    )
    write(tmp_path, requirements__txt="trl\n")
    assert find_packages(script) == Packages("one.py", ("peft",))
    script.write_text("print()\n")
    assert find_packages(script) == Packages("requirements.txt", ("trl",))


def test_what_is_named_comes_before_what_is_found(tmp_path: Path) -> None:
    """--pip takes the place of the same package in a file; `none` reads no file, and another file can be named."""
    write(tmp_path, requirements__txt="Torch==2.3.0\npeft\n", other__txt="trl\n")
    named = find_pip(tmp_path, ["torch==2.4.0"])
    assert named == Packages("requirements.txt and --pip", ("torch==2.4.0", "peft"))
    assert find_pip(tmp_path, ["torch"], "none").pip == ("torch",)
    assert find_pip(tmp_path, [], str(tmp_path / "other.txt")) == read_requirements(tmp_path / "other.txt")
    with pytest.raises(BundleError, match="there is no file"):
        find_pip(tmp_path, [], "gone.txt")
    assert with_packages({"base_image": "x"}, tmp_path) == {"base_image": "x", "pip": ["Torch==2.3.0", "peft"]}
    assert with_packages({"pip": ["trl"]}, tmp_path) == {"pip": ["trl"]}

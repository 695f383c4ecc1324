"""What is read out of an image's configuration, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core.images.facts import AMD64, ARM64, ImageContents, ImageFacts, contents_of
from app.core.images.fitness import Circumstances, Severity, download_s, judge
from app.core.images.reference import parse_image

AROUND = Circumstances(200, {"vast": 600.0}, {"vast": 13.0})
FACTS = ImageFacts(
    reference=parse_image("team/node:1"),
    digest="sha256:" + "a" * 64,
    platform=AMD64,
    platforms=(AMD64, ARM64),
    download_bytes=4_000_000_000,
    environment={"PYTHON_VERSION": "3.12.3", "CUDA_VERSION": "13.0.2", "PATH": "/usr/bin"},
    steps=("RUN /bin/sh -c pip install torch # buildkit",),
)


def contents(tag: str = "1", steps: tuple[str, ...] = (), **environment: str) -> ImageContents:
    reference = parse_image(f"team/node:{tag}")
    return contents_of(replace(FACTS, reference=reference, environment=environment, steps=steps))


@pytest.mark.parametrize(
    ("given", "python"),
    [
        ({"PYTHON_VERSION": "3.11.9"}, (3, 11, 9)),
        ({"PYTHON_VERSION": "newest", "steps": ("RUN apt-get install -y python3.10",)}, (3, 10)),
        ({"steps": ("|1 PYTHON_VERSION=3.8 /bin/sh -c make",)}, (3, 8)),
        ({"steps": ("ARG PYTHON_VERSION=3.11", "RUN apt-get install -y python3.13-venv")}, (3, 11)),
        ({"steps": ("RUN apt-get install -y python3 python3-pip",)}, ()),
        ({"steps": ("COPY /opt/conda /opt/conda",)}, ()),
        ({"PATH": "/opt/conda/bin:/usr/bin"}, ()),
        ({"PYTORCH_VERSION": "2.13.0"}, ()),
        ({"steps": ("RUN apt-get install -y pythonic",)}, None),
        ({}, None),
    ],
)
def test_python_is_found_where_it_is_spoken_of(given: dict[str, Any], python: tuple[int, ...] | None) -> None:
    """Its version from the variable of the official images, else from what was done; without a version it is likely."""
    assert contents(**given).python == python


@pytest.mark.parametrize(
    ("given", "cuda"),
    [
        ({"CUDA_VERSION": "13.0.2", "tag": "cuda12.6"}, (13, 0)),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=12.8 brand=tesla,driver>=535"}, (12, 8)),
        ({"tag": "2.13.0-cuda13.0-cudnn9-runtime"}, (13, 0)),
        ({"tag": "2.13-cu126"}, (12, 6)),
        ({"steps": ("RUN pip install --index-url https://x.example/whl/cu128 torch",)}, (12, 8)),
        ({"CUDA_VERSION": "none"}, None),
        ({"tag": "accu128000"}, None),
    ],
)
def test_cuda_is_found_where_it_is_spoken_of(given: dict[str, Any], cuda: tuple[int, ...] | None) -> None:
    """Variables before the tag, the tag before what was done."""
    assert contents(**given).cuda == cuda


def test_the_usual_image_is_good() -> None:
    """One with Python, pip, a shell and the CUDA that is looked for has nothing said against it."""
    assert judge(FACTS, AROUND) == []
    assert contents_of(FACTS) == ImageContents((3, 12, 3), True, (13, 0), None, True)


@pytest.mark.parametrize(
    ("changed", "severity", "where", "words"),
    [
        ({"platforms": (ARM64,)}, Severity.REFUSED, "", "built for linux/arm64; rented machines need linux/amd64"),
        ({"reference": parse_image("team/node")}, Severity.WARNING, "", "no fixed version"),
        ({"environment": {"PYTHON_VERSION": "3.8.1"}}, Severity.REFUSED, "", "its Python is 3.8.1"),
        ({"environment": {}}, Severity.WARNING, "", "nothing in it speaks of Python"),
        ({"steps": ("pip install x",)}, Severity.WARNING, "", "speaks of a shell"),
        ({"steps": ("RUN /bin/sh -c true",)}, Severity.WARNING, "modal", "speaks of pip"),
        (
            {"entrypoint": ("/opt/serve",)},
            Severity.WARNING,
            "modal",
            "its entry point (/opt/serve) must run its arguments",
        ),
        ({"user": "1000:1000"}, Severity.WARNING, "", "it runs as 1000:1000"),
        (
            {"environment": {"PYTHON_VERSION": "3.12.3", "CUDA_VERSION": "14.1"}},
            Severity.WARNING,
            "vast",
            "CUDA is 14.1",
        ),
        ({"download_bytes": 15_000_000_000}, Severity.REFUSED, "vast", "600 s of download at 200 Mbit/s"),
        ({"download_bytes": 7_500_000_000}, Severity.WARNING, "vast", "leave little of the 600 s"),
    ],
)
def test_what_goes_wrong_is_said_and_where(changed: dict[str, Any], severity: Severity, where: str, words: str) -> None:
    """One thing is wrong: one finding, with the provider that it concerns."""
    (found,) = judge(replace(FACTS, **changed), AROUND)
    assert (found.severity, found.where) == (severity, where)
    assert words in found.text


@pytest.mark.parametrize("user", ["", "0", "root", "root:root", "0:0"])
def test_root_has_many_names(user: str) -> None:
    """None of them is warned of."""
    assert judge(replace(FACTS, user=user), AROUND) == []


def test_the_worst_comes_first() -> None:
    """A refusal before warnings, whatever they concern."""
    found = judge(replace(FACTS, user="me", entrypoint=("x",), download_bytes=10**12), AROUND)
    assert [one.severity for one in found] == [Severity.REFUSED, Severity.WARNING, Severity.WARNING]


def test_the_download_is_told_for_a_line() -> None:
    """Bits and bytes, megabits of a million."""
    assert download_s(FACTS, 200) == 160.0
    assert download_s(FACTS, 1000) == 32.0

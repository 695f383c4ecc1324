"""One card has many names: what means the same compares as the same, and what nobody knows is never compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.gpu_names import family_of, is_as_promised

# Our name, as providers of ours list it, and the names of nvidia-smi that are that card.
SAME = [
    ("A100", "NVIDIA A100-SXM4-40GB"),
    ("A100", "NVIDIA A100-SXM4-80GB"),
    ("A100", "NVIDIA A100 80GB PCIe"),
    ("A100", "NVIDIA A100-PCIE-40GB"),
    ("A100", "NVIDIA A100X"),
    ("H100", "NVIDIA H100 80GB HBM3"),
    ("H100", "NVIDIA H100 PCIe"),
    ("H100", "NVIDIA H100 NVL"),
    ("H200", "NVIDIA H200"),
    ("H200", "NVIDIA H200 NVL"),
    ("B200", "NVIDIA B200"),
    ("GH200", "NVIDIA GH200 480GB"),
    ("T4", "Tesla T4"),
    ("V100", "Tesla V100-SXM2-16GB"),
    ("L4", "NVIDIA L4"),
    ("L40", "NVIDIA L40"),
    ("L40S", "NVIDIA L40S"),
    ("A10", "NVIDIA A10"),
    ("A10", "NVIDIA A10G"),
    ("A6000", "NVIDIA RTX A6000"),
    ("RTXA6000", "NVIDIA RTX A6000"),
    ("RTX6000", "Quadro RTX 6000"),
    ("RTX6000Ada", "NVIDIA RTX 6000 Ada Generation"),
    ("RTX4090", "NVIDIA GeForce RTX 4090"),
    ("RTX4090D", "NVIDIA GeForce RTX 4090 D"),
    ("RTX3080Ti", "NVIDIA GeForce RTX 3080 Ti"),
    ("RTX4070STi", "NVIDIA GeForce RTX 4070"),  # not told apart by name; memory does that
    ("RTXPRO6000WS", "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
    ("H100", "NVIDIA H200"),  # a better card in place of the ordered one
]
OTHER = [
    ("A100", "NVIDIA A10"),
    ("A10", "NVIDIA A100-SXM4-40GB"),
    ("A100", "NVIDIA H100 80GB HBM3"),
    ("H200", "NVIDIA H100 80GB HBM3"),
    ("L40S", "NVIDIA L40"),
    ("L40", "NVIDIA L4"),
    ("L4", "NVIDIA L40"),
    ("RTX4090", "NVIDIA GeForce RTX 3090"),
    ("RTX4090", "NVIDIA GeForce RTX 4090 Laptop GPU"),
    ("RTX4090", "NVIDIA GeForce RTX 4090 D"),
    ("RTX3090Ti", "NVIDIA GeForce RTX 3090"),
    ("RTX6000Ada", "Quadro RTX 6000"),
    ("A6000", "NVIDIA RTX 6000 Ada Generation"),
    ("T4", "NVIDIA GeForce GTX 1080"),
]


@pytest.mark.parametrize(("promised", "found"), SAME)
def test_a_card_is_known_by_all_its_names(promised: str, found: str) -> None:
    """Form, maker and memory are no part of what it is."""
    assert is_as_promised(promised, found)


@pytest.mark.parametrize(("promised", "found"), OTHER)
def test_another_card_is_told_from_it(promised: str, found: str) -> None:
    """Also where one name begins with the other."""
    assert family_of(promised) != family_of(found)
    assert not is_as_promised(promised, found)


@pytest.mark.parametrize("found", ["", "NVIDIA Thing 9000", "NVIDIA A40-48Q", "AMD Instinct MI300X", "Graphics Device"])
def test_a_name_that_nobody_knows_is_not_compared(found: str) -> None:
    """New cards come, and shares of cards: what they hold decides, not what they are called."""
    assert family_of(found) is None
    assert is_as_promised("A100", found)
    assert is_as_promised(found, "NVIDIA A100-SXM4-40GB")


@given(st.text(max_size=400))
def test_any_text_has_a_family_or_none(text: str) -> None:
    """It comes from a machine: whatever it is, it is itself."""
    family = family_of(text)
    assert family is None or family_of(family) == family
    assert is_as_promised(text, text)


@given(st.sampled_from([found for _, found in SAME]), st.sampled_from(["NVIDIA ", "nvidia ", ""]), st.booleans())
def test_writing_changes_nothing(found: str, maker: str, dashes: bool) -> None:
    """Letters, dashes and the maker in front."""
    plain = found.removeprefix("NVIDIA ")
    other = maker + (plain.replace(" ", "-") if dashes else plain)
    assert family_of(other.upper()) == family_of(other.lower()) == family_of(found)

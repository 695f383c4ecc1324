"""What checks find: the worst of it, and no secret in any of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.model.finding import Verdict, blotted, doubtful, good, without_secrets, worst, wrong

_LETTERS = st.text("abcxyz0129", min_size=4, max_size=20)


@given(st.lists(_LETTERS, min_size=1, max_size=5), st.lists(st.text("-. ", max_size=5), min_size=6, max_size=6))
def test_no_secret_survives(secrets: list[str], between: list[str]) -> None:
    """Wherever it stands, how often, and whatever is around it."""
    text = between[-1].join(f"{gap}{secret}" for gap, secret in zip(between, secrets, strict=False)) + secrets[0]
    pieces = blotted(text, secrets).split("[hidden]")
    assert [(one, piece) for one in secrets for piece in pieces if one in piece] == []


def test_one_secret_inside_another_leaves_nothing_of_the_longer_one() -> None:
    """The longer goes first."""
    assert blotted("key abcdefgh!", ["abcd", "abcdefgh"]) == "key [hidden]!"


def test_a_word_of_three_letters_is_no_secret() -> None:
    """It would be found in every sentence."""
    assert blotted("a key", ["key", "a"]) == "a key"


def test_a_line_is_one_line() -> None:
    """What a server says cannot steer a terminal."""
    assert blotted("x\x1b[2J\ny", []) == "x [2J y"


def test_message_and_fix_are_both_cleaned() -> None:
    """A fix may quote what is wrong."""
    found = without_secrets(wrong("a", "b", "not secret1", "drop secret1"), ["secret1"])
    assert (found.message, found.fix) == ("not [hidden]", "drop [hidden]")


def test_the_worst_counts() -> None:
    """Nothing at all is well."""
    assert worst([]) is Verdict.OK
    assert worst([good("a", "x"), doubtful("b", "c", "d", "e")]) is Verdict.WARN
    assert worst([wrong("a", "b", "c", "d"), good("a", "x")]) is Verdict.FAIL

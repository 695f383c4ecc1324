"""Signed URLs: one spelling, and nothing in it can be varied."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.errors import Forbidden, InvalidInput
from app.storage import signing
from app.storage.signing import Grant, check_signing_key, signed_url, verify

KEY = b"k" * 32
BASE = "http://127.0.0.1:7701"
_sha256 = st.text("0123456789abcdef", min_size=64, max_size=64)
_segment = st.text("abcXYZ019_-", min_size=1, max_size=12)


@st.composite
def _grants(draw: st.DrawFn) -> Grant:
    sha256 = draw(_sha256)
    folders = draw(st.lists(_segment, max_size=4))
    key = "/".join([*folders, sha256])
    expires_ms = draw(st.integers(1, 10**15))
    if draw(st.booleans()):
        return Grant("GET", key, expires_ms)
    return Grant("PUT", key, expires_ms, sha256, draw(st.integers(0, 10**15)))


def _parts(url: str) -> tuple[str, str]:
    path, query = url.removeprefix(BASE + signing.URL_PATH).split("?")
    return path, query


def _verify(url: str, method: str, now_ms: int = 0) -> Grant:
    key, query = _parts(url)
    return verify(method, key, query, signing_key=KEY, now_ms=now_ms)


@given(_grants())
def test_a_url_says_exactly_what_was_granted(grant: Grant) -> None:
    """Signing and verifying a grant gives the grant back, until the millisecond it expires."""
    url = signed_url(BASE, grant, KEY)
    assert _verify(url, grant.method, grant.expires_ms - 1) == grant
    with pytest.raises(Forbidden, match="expired") as refused:
        _verify(url, grant.method, grant.expires_ms)
    assert refused.value.error_code == signing.EXPIRED


@given(_grants(), st.data())
def test_any_changed_character_invalidates(grant: Grant, data: st.DataObject) -> None:
    """Replacing, inserting or removing any one character of key or query is refused."""
    url = signed_url(BASE, grant, KEY)
    start = len(BASE + signing.URL_PATH)
    at = data.draw(st.integers(start, len(url) - 1))
    new = data.draw(st.sampled_from(["", *"0123456789abcdefgPUTGET&=-_/%+ \n"]))
    end = at + data.draw(st.integers(0, 1))
    changed = url[:at] + new + url[end:]
    assume(changed != url and changed.count("?") == 1)
    with pytest.raises((Forbidden, InvalidInput)):
        _verify(changed, grant.method)


@given(_grants(), _grants())
def test_a_signature_fits_no_other_grant(one: Grant, other: Grant) -> None:
    """The signature of one grant, put on another, is wrong."""
    assume(one != other)
    signature = signed_url(BASE, one, KEY).rsplit("=", 1)[1]
    unsigned = signed_url(BASE, other, KEY).rsplit("=", 1)[0]
    with pytest.raises(Forbidden) as refused:
        _verify(f"{unsigned}={signature}", other.method)
    assert refused.value.error_code == signing.WRONG_SIGNATURE


@given(_grants(), st.binary(min_size=32, max_size=64))
def test_another_key_makes_another_signature(grant: Grant, other_key: bytes) -> None:
    """A URL signed with another key is refused."""
    assume(other_key.ljust(64, b"\0") != KEY.ljust(64, b"\0"))  # HMAC pads keys with zeros
    with pytest.raises(Forbidden) as refused:
        _verify(signed_url(BASE, grant, other_key), grant.method)
    assert refused.value.error_code == signing.WRONG_SIGNATURE


@pytest.mark.parametrize(
    ("signed_for", "used_for", "allowed"),
    [
        ("GET", "GET", True),
        ("GET", "HEAD", True),
        ("PUT", "PUT", True),
        ("GET", "PUT", False),
        ("PUT", "GET", False),
        ("PUT", "HEAD", False),
        ("GET", "DELETE", False),
    ],
)
def test_a_url_is_good_for_its_method_alone(signed_for: str, used_for: str, allowed: bool) -> None:
    """GET covers HEAD; nothing else crosses over, and the refusal names both methods."""
    sha256 = "ab" * 32
    grant = Grant("GET", sha256, 5) if signed_for == "GET" else Grant("PUT", sha256, 5, sha256, 1)
    url = signed_url(BASE, grant, KEY)
    if allowed:
        assert _verify(url, used_for) == grant
    else:
        with pytest.raises(Forbidden, match=f"for {signed_for}, not for {used_for}") as refused:
            _verify(url, used_for)
        assert refused.value.error_code == signing.WRONG_METHOD


@pytest.mark.parametrize("query", ["", "a=b", "method=GET", "method=GET&expires=5", "method=GET&expires=5&signature=x"])
def test_a_query_of_another_shape_is_malformed(query: str) -> None:
    """What is no signed URL at all is told apart from a wrong signature."""
    with pytest.raises(Forbidden) as refused:
        verify("GET", "ab" * 32, query, signing_key=KEY, now_ms=0)
    assert refused.value.error_code == signing.MALFORMED


def test_the_same_grant_in_other_words_is_refused() -> None:
    """Reordered, repeated, added or differently written parameters are refused although they mean the same."""
    sha256 = "ab" * 32
    key, query = _parts(signed_url(BASE, Grant("PUT", sha256, 77, sha256, 5), KEY))
    method, sha, size, expires, signature = query.split("&")
    for words in (
        (sha, method, size, expires, signature),
        (method, sha, size, expires, signature, "x=1"),
        (method, sha, size, size, expires, signature),
        (method, sha, "size=05", expires, signature),
        (method, sha, "size=+5", expires, signature),
        (method, sha.upper(), size, expires, signature),
    ):
        with pytest.raises(Forbidden):
            verify("PUT", key, "&".join(words), signing_key=KEY, now_ms=0)


def test_a_short_signing_key_is_refused_with_its_setting_named() -> None:
    """A key that can be guessed is refused at start, and the message says which variable to set."""
    with pytest.raises(InvalidInput, match="at least 32") as refused:
        check_signing_key("short")
    assert refused.value.param == "ALLPASS_OBJECTS_SIGNING_KEY"

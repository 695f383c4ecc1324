"""What an address alone says."""

from __future__ import annotations

import pytest

from app.core.addresses import judge_addresses

REAL = ["vast"]


def code(url: str, real: list[str] = REAL, *, private: bool = False) -> str:
    (found,) = judge_addresses({"ALLPASS_PUBLIC_URL": url}, real, private=private)
    assert found.code == "ok" or (found.fix and "ALLPASS_PUBLIC_URL" in found.message + found.fix)
    return found.code


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://gpu.example.com", "ok"),
        ("http://gpu.example.com", "address_not_encrypted"),
        ("http://127.0.0.1:7700", "address_private"),
        ("https://10.0.0.5", "address_private"),
        ("https://nas.local", "address_private"),
        ("https://localhost", "address_private"),
        ("ftp://gpu.example.com", "address_not_http"),
        ("gpu.example.com", "address_not_http"),
        ("https://ada:lovelace@gpu.example.com", "address_has_password"),
        ("https://[::1]:7700", "address_private"),
        ("https://[broken", "address_private"),
    ],
)
def test_machines_of_companies_need_a_public_and_encrypted_address(url: str, expected: str) -> None:
    """Each mistake has a code of its own."""
    assert code(url) == expected


def test_a_private_network_is_right_where_the_machines_are_in_it() -> None:
    """A doubt stays where nothing is encrypted; across the internet it stays an error."""
    assert code("https://10.0.0.5", private=True) == "ok"
    assert code("http://10.0.0.5", private=True) == "address_not_encrypted"
    assert code("http://gpu.example.com", private=True) == "address_not_encrypted"


def test_without_a_company_any_address_will_do() -> None:
    """Emulated machines are here. A password is never right."""
    assert code("http://127.0.0.1:7700", []) == "ok"
    assert code("http://a:b@127.0.0.1:7700", []) == "address_has_password"


def test_a_password_is_never_repeated() -> None:
    """The finding names the setting alone."""
    (found,) = judge_addresses({"X": "https://ada:lovelace@gpu.example.com"}, REAL, private=False)
    assert "lovelace" not in found.message + found.fix

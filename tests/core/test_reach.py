"""Which addresses a machine elsewhere can reach, told from the address alone."""

from __future__ import annotations

import pytest

from app.core.reach import is_public


@pytest.mark.parametrize(
    "url",
    [
        "https://allpass.example.com",
        "https://allpass.example.com.:8443/api",
        "http://8.8.8.8:7700",
        "http://[2606:4700::1111]:7700",
        "https://xn--bcher-kva.example",
        "https://user:word@console.vast.ai/",
    ],
)
def test_an_address_of_the_internet_is_public(url: str) -> None:
    """A name with a dot, or an address that is routed."""
    assert is_public(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:7700",
        "http://localhost:7700",
        "http://LOCALHOST.:7700",
        "http://api.localhost",
        "http://[::1]:7700",
        "http://[::ffff:127.0.0.1]",
        "http://[fe80::1%25eth0]",
        "http://[fd12::1]",
        "http://0.0.0.0:7700",
        "http://10.1.2.3",
        "http://172.16.0.9",
        "http://192.168.1.5:7700",
        "http://169.254.169.254",
        "http://100.64.0.7",
        "http://127.1",
        "http://2130706433",
        "http://0x7f.1",
        "http://api:7700",
        "http://allpass.internal",
        "http://printer.local",
        "http://box.home.arpa",
        "http://224.0.0.1",
        "http://[::1",
        "http://.com",
        "http://",
        "",
        "not a url",
    ],
)
def test_an_address_of_this_host_or_a_private_network_is_not(url: str) -> None:
    """In any spelling; and what leads nowhere is not public either."""
    assert not is_public(url)

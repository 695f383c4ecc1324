"""Whether machines that are rented elsewhere can reach an address, by what the address itself says."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

# Names that no public name server answers for.
_PRIVATE_ENDINGS = ("localhost", "local", "internal", "lan", "localdomain", "intranet", "corp", "home", "home.arpa")
_LIKE_A_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)\Z")  # 127.1, 2130706433: addresses in old spellings


def is_public(url: str) -> bool:
    """Whether this URL may lead somewhere from any place of the internet. No name is looked up."""
    host = _host_of(url).rstrip(".").lower()
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return _is_public_name(host)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_global and not address.is_multicast


def _is_public_name(host: str) -> bool:
    first, _, rest = host.partition(".")
    if not first or not rest or _LIKE_A_NUMBER.match(host.rpartition(".")[2]):
        return False
    return not any(host.endswith(f".{ending}") for ending in _PRIVATE_ENDINGS)


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # brackets that hold no address
        return ""

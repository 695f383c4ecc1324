"""What an address alone says: whether machines elsewhere may reach it, and whether that way is encrypted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.model.finding import Finding, doubtful, good, wrong
from app.core.reach import is_public


def judge_addresses(addresses: Mapping[str, str], real: Sequence[str], *, private: bool) -> list[Finding]:
    """One finding for each setting. `real`: the companies whose machines have to get there; `private`: those machines
    are in the network of the service."""
    return [_judge(setting, url, real, private=private) for setting, url in addresses.items()]


def _judge(setting: str, url: str, real: Sequence[str], *, private: bool) -> Finding:
    if not real and "@" not in url:
        return good("address", f"{setting} is {url}; no machine of a company has to reach it")
    return _malformed(setting, url) or _reached_by(", ".join(real), setting, url, private=private)


def _malformed(setting: str, url: str) -> Finding | None:
    if "@" in url:
        fix = f"take the user and password out of {setting}; signed addresses need none"
        return wrong("address", "address_has_password", f"{setting} holds a user or a password", fix)
    if not url.startswith(("https://", "http://")):
        fix = f"set {setting} to one that begins with https://"
        return wrong("address", "address_not_http", f"{setting} is {url}, which is no web address", fix)
    return None


def _reached_by(who: str, setting: str, url: str, *, private: bool) -> Finding:
    if not is_public(url) and not private:
        return wrong(
            "address",
            "address_private",
            f"{setting} is {url}: this host or a private network, which machines of {who} cannot reach",
            f"set {setting} to an address that the internet reaches (docs/guides/first-gpu.md)",
        )
    if url.startswith("http://") and is_public(url):
        return wrong(
            "address",
            "address_not_encrypted",
            f"{setting} is {url}: tokens, code and checkpoints would cross the internet in the clear",
            f"put TLS in front of it, and set {setting} to the https:// address",
        )
    if url.startswith("http://"):
        fix = "keep that network to yourself, or use https://"
        return doubtful("address", "address_not_encrypted", f"{setting} is {url}, without encryption", fix)
    return good("address", f"{setting} is {url}")

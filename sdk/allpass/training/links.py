"""Links that a script tells of: to its run in a tracker, to a page of its own. Whoever may see the job is shown them,
so they are nothing but an address: no characters that steer a terminal or end an attribute, no name or password."""

from __future__ import annotations

import re

LONGEST_URL = 2000
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
URL = re.compile(r"https?://[A-Za-z0-9.\-_~%:\[\]]+(?:[/?#][!#-;=?-\[\]_a-z~]*)?")


def is_link(name: object, url: object) -> bool:
    """Whether both are what can be shown to others."""
    return (
        isinstance(name, str)
        and isinstance(url, str)
        and len(url) <= LONGEST_URL
        and NAME.fullmatch(name) is not None
        and URL.fullmatch(url) is not None
    )

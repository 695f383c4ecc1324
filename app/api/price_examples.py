"""Examples of price lists, as the API reference shows them."""

from __future__ import annotations

from typing import Final

PRICE_LIST: Final = {
    "as_of": "2026-05-07",
    "oldest": "2026-11-20",
    "is_old": False,
    "prices": [
        {
            "name": "H100",
            "published": 3_949_200,
            "setting": None,
            "own": 3_650_000,
            "set_at": "2026-11-20T09:30:00Z",
            "set_by": "key_01M7XQPVE2A96009XYYX",
            "used": 3_650_000,
            "source": "owner",
            "as_of": "2026-11-20",
            "is_old": False,
        },
    ],
}

REFRESHED: Final = {
    "name": "modal",
    "code": None,
    "message": "its offers are as it lists them now",
    "offers": 38,
    "took_ms": 212,
    "price_list": PRICE_LIST,
}

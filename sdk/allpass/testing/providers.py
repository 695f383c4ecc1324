"""The exam that every provider sits. Needs `pip install allpass-server pytest`; the guide is write-a-provider.md.

from allpass.testing.providers import ProviderExam

class TestShed(ProviderExam):
    def open_harness(self):
        return shed_harness()
"""

from __future__ import annotations

import sys

try:
    import pytest

    if "providers.conformance.suite" not in sys.modules:  # so that a failure shows what was compared
        pytest.register_assert_rewrite("providers.conformance.suite")

    from providers.conformance.exam import ProviderExam
    from providers.conformance.harness import TROUBLE_RETRY_AFTER_MS, BillLine, Harness, Trouble, Ways
    from providers.conformance.suite import (
        ProviderConformance,
        assert_billed,
        assert_refused,
        cheapest,
        new_label,
        rent,
        request_for,
        until_status,
    )
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in {"pytest", "providers", "app"}:
        raise
    raise ModuleNotFoundError(
        f"{error.name} is missing: the exam needs pip install allpass-server pytest", name=error.name
    ) from None

__all__ = [
    "TROUBLE_RETRY_AFTER_MS",
    "BillLine",
    "Harness",
    "ProviderConformance",
    "ProviderExam",
    "Trouble",
    "Ways",
    "assert_billed",
    "assert_refused",
    "cheapest",
    "new_label",
    "rent",
    "request_for",
    "until_status",
]

"""Writes tests/not_quick.txt from the report of a run, whole or quick: which files `./allpass test quick` leaves out.

    ./allpass test quick --junitxml=report.xml
    .venv/bin/python scripts/quick_tests.py report.xml [another.xml ...]

Files stay in as long as all of them together take `SECONDS` of work: the shortest first, for they hold the most tests
in that time. One that is listed and that the report does not know stays listed. A new file is quick until it is
measured, but for those that start whole stacks, which never are (`tests/conftest.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = ROOT / "tests" / "not_quick.txt"
SECONDS = 400.0  # as four processes measure it that share two cores; they need as long again to start and to collect


def seconds_by_file(report: Path) -> dict[str, float]:
    """What the tests of each file took, set-up and all. Raises SystemExit for what is no report of pytest's."""
    found: defaultdict[str, float] = defaultdict(float)
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))  # noqa: S314 - written by our own run
    except (OSError, ElementTree.ParseError) as error:
        raise SystemExit(f"error: {report} is no report of pytest's --junitxml: {error}") from None
    for case in cases:
        file = file_of(case.get("classname") or "")
        if file is not None:
            found[file] += float(case.get("time", 0))
    return dict(found)


def file_of(classname: str) -> str | None:
    """`tests.core.test_money.TestSums` is of tests/core/test_money.py; None where there is no such file any more."""
    parts = [part for part in classname.split(".") if part]
    for length in range(len(parts), 0, -1):
        path = Path(*parts[:length]).with_suffix(".py")
        if (ROOT / path).is_file():
            return path.as_posix()
    return None


def left_out(seconds: Mapping[str, float], room_s: float) -> list[str]:
    """Files for which there is no room once all shorter ones are in."""
    found = []
    for file, taken_s in sorted(seconds.items(), key=lambda item: (item[1], item[0])):
        room_s -= taken_s
        if room_s < 0:
            found.append(file)
    return sorted(found)


def listed_before(seconds: Mapping[str, float]) -> set[str]:
    """Files that are there, and that a quick run left out, which does not measure them."""
    listed = LEFT_OUT.read_text(encoding="utf-8").splitlines()
    return {file for file in listed if file not in seconds and (ROOT / file).is_file()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path, nargs="+", help="of one run, or of its parts")
    seconds: dict[str, float] = {}
    for report in parser.parse_args().reports:
        seconds |= seconds_by_file(report)
    if not seconds:
        raise SystemExit("error: the reports name no test of this checkout")
    slow = sorted({*left_out(seconds, SECONDS), *listed_before(seconds)})
    LEFT_OUT.write_text("".join(f"{file}\n" for file in slow))
    kept = [taken_s for file, taken_s in seconds.items() if file not in set(slow)]
    told = f"{len(kept)} of {len(seconds)} measured files are quick"
    kept_s = sum(kept)
    sys.stdout.write(f"{told}: {kept_s:.0f} s of {sum(seconds.values()):.0f} s\n")


if __name__ == "__main__":
    main()

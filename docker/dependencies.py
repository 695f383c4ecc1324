"""Print the dependencies that pyproject files name, one a line: what an image installs before the code is there."""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path

_NAME = re.compile(r"^[A-Za-z0-9._-]+")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--without", nargs="*", default=[], help="packages to leave out")
    arguments = parser.parse_args()
    projects = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in arguments.files]
    left_out = {*arguments.without, *(project["name"] for project in projects)}
    for line in sorted({line for project in projects for line in project["dependencies"]}):
        name = _NAME.match(line)
        if name is None or name[0] not in left_out:
            print(line)


if __name__ == "__main__":
    main()

#!/bin/sh
# Writes constraints.txt: the newest versions that fit pyproject.toml and work together on Python 3.11.
# torch is pinned without its build tag, so that both CPU and CUDA builds satisfy it.
set -eu
cd "$(dirname -- "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
grep -v '"allpass==' pyproject.toml >"$work/pyproject.toml"   # our own SDK comes from the tree
UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}" .venv/bin/python -m uv pip compile --quiet \
    "$work/pyproject.toml" sdk/pyproject.toml --extra dev --extra training --python-version 3.11 \
    --no-header --no-annotate --no-emit-index-url --no-emit-find-links -o "$work/pins.txt" >/dev/null
{
    echo "# Exact versions that were tested together. Made by scripts/pin.sh; never edited by hand."
    sed 's/+cpu$//' "$work/pins.txt"
} >constraints.txt

# What the clients need besides (tests/clients/clients.toml), with all of the above as it is.
.venv/bin/python scripts/clients.py --pins >"$work/clients.in"
UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}" .venv/bin/python -m uv pip compile --quiet \
    "$work/clients.in" --constraint constraints.txt --python-version 3.11 \
    --no-header --no-annotate --no-emit-index-url --no-emit-find-links -o "$work/clients.txt" >/dev/null
{
    echo "# What the clients of tests/clients need besides constraints.txt. Made by scripts/pin.sh; never edited by hand."
    sed 's/+cpu$//' "$work/clients.txt" | grep -vxF -f constraints.txt
} >constraints-clients.txt

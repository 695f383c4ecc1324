"""The house in numbers: `python scripts/house.py [FOLDER]`. Standard library only, and it imports nothing of ours."""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import Counter
from pathlib import Path

FOLDERS = ("app", "workers", "providers", "sdk/allpass")


def trees_of(root: Path) -> dict[Path, ast.Module]:
    paths = (path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    return {path.relative_to(root): ast.parse(path.read_text()) for path in paths}


def main(root: Path) -> None:
    trees = trees_of(root)
    lines = {path: len((root / path).read_text().splitlines()) for path in trees}
    print(f"files {len(trees)}, lines {sum(lines.values())}, longest file {max(lines.values())}")
    print(f"files of app/services and app/db that lie flat: {flat(trees, 'services')}, {flat(trees, 'db')}")
    spans = sorted(span for tree in trees.values() for span in function_lines(tree))
    print(f"functions {len(spans)}, median {statistics.median(spans):.0f} lines, P90 {spans[len(spans) * 9 // 10]}")
    importers = used_by(trees)
    services = [name for name in importers if name.startswith("app.services.")]
    alone = sum(importers[name] == 1 for name in services)
    print(f"modules of app.services that others import: {len(services)}, by a single one: {alone}")
    print(f"class names with more than one class: {shared_names(trees)}")
    verbs = Counter(verb for path, tree in trees.items() if path.parts[:2] == ("app", "db") for verb in verbs_of(tree))
    print(f"verbs of functions that write a row: {len(verbs)} ({', '.join(sorted(verbs))})")
    print(f"imports in a circle: {circles(trees) or 'none'}")


def flat(trees: dict[Path, ast.Module], package: str) -> int:
    return sum(path.parent == Path("app") / package and path.name != "__init__.py" for path in trees)


def function_lines(tree: ast.Module) -> list[int]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in ast.walk(tree) if isinstance(node, kinds)]


def module_of(path: Path) -> str:
    parts = path.with_suffix("").parts[path.parts[0] == "sdk" :]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.Module, known: set[str]) -> set[str]:
    """Modules of ours that are imported as the module is loaded."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known


def used_by(trees: dict[Path, ast.Module]) -> Counter[str]:
    known = {module_of(path) for path in trees if path.name != "__init__.py"}
    return Counter(name for tree in trees.values() for name in imports_of(tree, known))


def shared_names(trees: dict[Path, ast.Module]) -> int:
    classes = Counter(
        node.name for path, tree in trees.items() for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and path.parts[0] != "sdk"
    )  # fmt: skip
    return sum(count > 1 for count in classes.values())


def verbs_of(tree: ast.Module) -> list[str]:
    verbs = "add|set|delete|clear|keep|note|record|put|write|store|save|forget|drop|remove|mark|count"
    names = (node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return [match.group(1) for name in names if (match := re.match(rf"({verbs})_", name))]


def circles(trees: dict[Path, ast.Module]) -> list[str]:
    """Modules that import each other, directly or through others, as they are loaded (Tarjan's components)."""
    known = {module_of(path) for path in trees if path.name != "__init__.py"}
    edges = {module_of(path): imports_of(tree, known) for path, tree in trees.items() if path.name != "__init__.py"}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[str] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in edges[name] - {name}:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            circle = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(circle) > 1:
                found.append(" ".join(sorted(circle)))

    sys.setrecursionlimit(10_000)
    for name in sorted(edges):
        if name not in index:
            visit(name)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())

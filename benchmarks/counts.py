"""How large the package is and how it is built, in numbers: `python -m benchmarks.counts`."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedweave"
Source = tuple[str, ast.Module]


def sources(folder: Path) -> list[Source]:
    """The text and the tree of every module below `folder`."""
    texts = [file.read_text() for file in sorted(folder.rglob("*.py"))]
    return [(text, ast.parse(text)) for text in texts]


def lines(found: list[Source], pattern: str) -> int:
    """In how many lines `pattern` is, imports aside."""
    import_ = re.compile(r"\s*(?:from|import)\b")
    return sum(
        bool(re.search(pattern, line)) for text, _ in found for line in text.splitlines() if not import_.match(line)
    )


def late_imports(found: list[Source]) -> int:
    """How many imports stand in functions."""

    def inside(tree: ast.Module) -> Iterator[ast.stmt]:
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                yield from (node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom))

    return sum(len({id(node) for node in inside(tree)}) for _, tree in found)


def members(found: list[Source], name: str) -> int:
    """How many public members the class `name` has."""
    classes = (node for _, tree in found for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    body = max((one.body for one in classes), key=len)
    named = (getattr(node, "name", None) or getattr(getattr(node, "target", None), "id", "_") for node in body)
    return sum(not one.startswith("_") for one in named)


def floors(rooms: dict[str, set[str]]) -> int:
    """How many floors the rooms of the package stand on, each room above all that it imports."""
    height: dict[str, int] = {}
    while left := rooms.keys() - height.keys():
        free = {room for room in left if rooms[room] <= height.keys()}
        height |= {room: 1 + max((height[other] for other in rooms[room]), default=0) for room in free}
    return max(height.values())


def rooms() -> dict[str, set[str]]:
    """{room: the rooms that its modules import}."""
    found: dict[str, set[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        room, tree = file.relative_to(PACKAGE).parts[0], ast.parse(file.read_text())
        modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        others = {name.split(".")[1] for name in modules if name.startswith("fedweave.")}
        found.setdefault(room.removesuffix(".py"), set()).update(others)
    return {room: others - {room} for room, others in found.items()}


def main() -> None:
    """Print the counts."""
    package, tests = sources(PACKAGE), sources(ROOT / "tests")
    count: Callable[[list[Source]], int] = lambda found: sum(text.count("\n") for text, _ in found)  # noqa: E731
    for what, number in {
        "modules of the package": len(package),
        "lines of the package": count(package),
        "lines of tests": count(tests),
        "lines that say Any": lines(package, r"\bAny\b"),
        "lines with getattr or hasattr": lines(package, r"\b(?:getattr|hasattr)\("),
        "imports in functions": late_imports(package),
        "members of Part": members(package, "Part"),
        "modules at the top level": len(list(PACKAGE.glob("*.py"))),
        "floors of rooms": floors(rooms()),
        "pytest.raises that match words": lines(tests, r"pytest\.raises\(.*match="),
    }.items():
        print(f"{number:>7,}  {what}")


if __name__ == "__main__":
    main()

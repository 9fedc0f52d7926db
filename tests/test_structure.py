"""Rules that keep the package easy to find one's way in, checked on its source."""

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "fedweave"
FILES = sorted(PACKAGE.rglob("*.py"))

# The rings of ARCHITECTURE.md from the inside out, and the layers of each. A part imports only parts of layers before
# its own; those of one layer do not know each other.
RINGS = {
    "the library": (
        ("errors",),
        ("ops",),
        ("core",),
        ("learn", "metrics", "privacy", "datasets"),
        ("sampling", "partition", "incentives"),
        ("models",),
        ("algorithms",),
        ("engines",),
    ),
    "an experiment": (("experiment",), ("contract",)),
    "what reads a run": (("apply", "accounts"), ("reports",), ("export",), ("python",), ("sweeps",), ("papers",)),
    "between sites": (("sites",),),
    "commands": (("cli",), ("__main__", "")),
}
LAYERS = tuple(layer for ring in RINGS.values() for layer in ring)
HEIGHT = {part: height for height, layer in enumerate(LAYERS) for part in layer}
# Classes that share a name: parts and mechanisms are named in ledgers and random keys.
TWINS = {"Part", "SecureSum"}

FORBIDDEN = {
    "pickle": (
        r"\b(?:import|from) (?:c?pickle|dill|cloudpickle|joblib|marshal|shelve)\b",
        r"\btorch\.(?:load|save)\(|allow_pickle=True",
    ),
    "a global generator": (
        r"\b(?:torch|cuda)\.(?:manual_seed|seed|set_rng_state)\(|^\s*(?:import|from) random\b",
        r"\btorch\.(?:rand|randn|randint|randperm|bernoulli|multinomial)\(|\bnn\.init\.|F\.dropout\(|nn\.Dropout",
        r"\bnp\.random\.(?!default_rng|Generator|SeedSequence)\w+",
    ),
    "print": (r"^\s*print\(",),
    "assert": (r"^\s*assert\b",),
    "an address for a name": (r"(?<![\w.])id\(", r"data_ptr|_cdata\b", r"\b_version\b(?!\()"),
}


def name_of(file: Path) -> str:
    return str(file.relative_to(PACKAGE.parent).with_suffix("")).replace("/", ".").removesuffix(".__init__")


MODULES = {name_of(file): file for file in FILES}


@cache
def trees() -> dict[str, ast.Module]:
    """{module: its code}; not read where these tests are only collected."""
    return {module: ast.parse(file.read_text()) for module, file in MODULES.items()}


def part_of(module: str) -> str:
    return [*module.split("."), ""][1]


def imports(module: str, tree: ast.AST) -> Iterator[str]:
    """Absolute names of all modules that `module` imports, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively; name the package"
            base = node.module or ""
            yield from (f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names)


@cache
def all_imports() -> dict[str, set[str]]:
    """{module: what it imports}."""
    return {module: set(imports(module, tree)) for module, tree in trees().items()}


def test_dependencies_point_one_way() -> None:
    wrong = [
        f"{module} imports {other}"
        for module, others in all_imports().items()
        for other in others
        if other.startswith("fedweave.") and part_of(other) != part_of(module)
        if HEIGHT[part_of(other)] >= HEIGHT[part_of(module)]
    ]
    assert not wrong


def test_sites_know_no_report() -> None:
    """What a site writes of itself is an account; pages and figures of runs are read elsewhere."""
    for module, others in all_imports().items():
        if part_of(module) == "sites":
            assert not [other for other in others if part_of(other) in ("reports", "sweeps", "papers")], module


def test_every_part_has_a_layer() -> None:
    assert {part_of(module) for module in MODULES} <= HEIGHT.keys()


def test_no_module_imports_itself_in_a_circle() -> None:
    inside = {
        module: {other for other in others if other in MODULES and other != module}
        for module, others in all_imports().items()
    }
    while free := [module for module, others in inside.items() if not others]:
        inside = {module: others - set(free) for module, others in inside.items() if module not in free}
    assert not inside, f"among {sorted(inside)}"


def test_algorithms_know_no_engine_and_engines_no_algorithm() -> None:
    for module, others in all_imports().items():
        if part_of(module) in ("algorithms", "core", "models"):
            assert not [other for other in others if part_of(other) == "engines" and other.startswith("fedweave")], (
                module
            )
        if module == "fedweave.engines.simulation":
            assert not [other for other in others if other.startswith("fedweave.algorithms")], module


def test_no_other_room_knows_a_paper() -> None:
    """Removing a paper's file or folder and the lines of `algorithms` that register it removes it: others of that room
    that build on it, and its tables and figures, aside."""
    family = ["declarations", "deployment", "fedavg", "participation", "parts", "preset"]
    family += ["local", "score_sums", "scoring", "trials", "vertical"]
    shared = tuple(f"fedweave.algorithms.{name}" for name in family)
    wrong = [
        f"{module} imports {other}"
        for module, others in all_imports().items()
        if not module.startswith(("fedweave.algorithms", "fedweave.papers."))
        for other in others
        if other.startswith("fedweave.algorithms.") and not other.startswith(shared)
    ]
    assert wrong == []


@pytest.mark.parametrize("paper", ["fairgraphfl", "fedgcn", "fairgfl", "fedpub", "fedstar"])
def test_a_paper_can_be_removed(paper: str) -> None:
    """Only the registry imports it, whose lines go with it."""
    own = f"fedweave.algorithms.{paper}"
    users = {
        module for module, others in all_imports().items() for other in others if f"{other}.".startswith(f"{own}.")
    }
    assert {module for module in users if not f"{module}.".startswith(f"{own}.")} == {"fedweave.algorithms"}


def test_no_class_has_another_ones_name() -> None:
    names = Counter(node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert {name for name, count in names.items() if count > 1} == TWINS


@pytest.mark.parametrize("package", ["algorithms", "datasets", "models", "partition"])
def test_the_public_interface_is_documented(package: str) -> None:
    module = import_module(f"fedweave.{package}")
    public = {name: getattr(module, name) for name in module.__all__}
    silent = [name for name, value in public.items() if callable(value) and not inspect.getdoc(value)]
    assert silent == (["ModuleKind"] if package == "models" else [])  # which shows its module's own


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_package_never_uses(what: str) -> None:
    pattern = re.compile("|".join(FORBIDDEN[what]), re.MULTILINE)
    allowed = {
        "an address for a name": ("ops/identity.py",),
        "print": ("cli/__init__.py", "reports/terminal.py"),
        "a global generator": ("engines/batches.py",),  # looks whether a step draws from one
    }.get(what, ())
    found = [
        f"{file.relative_to(PACKAGE)}: {match.group().strip()}"
        for file in FILES
        if not str(file.relative_to(PACKAGE)).endswith(allowed or ("\0",))
        for match in pattern.finditer(file.read_text())
    ]
    assert not found


def test_no_file_names_a_folder_of_some_machine() -> None:
    local = re.compile(r"['\"](?:/home/|/root/|/Users/|[A-Z]:\\\\)")
    assert not [file.name for file in FILES if local.search(file.read_text())]

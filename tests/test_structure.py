"""Rules that keep the package easy to find one's way in, checked on its source."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "fedweave"
FILES = sorted(PACKAGE.rglob("*.py"))

# A part imports only parts of the layers before its own; those of one layer do not know each other.
LAYERS = (
    ("errors",),
    ("ops",),
    ("core",),
    ("learn", "metrics", "privacy", "datasets"),
    ("sampling", "partition", "incentives"),
    ("models",),
    ("algorithms",),
    ("engines",),
    ("experiment",),
    ("report", "contract"),
    ("payments", "export"),
    ("papers", "python"),
    ("sweep",),
    ("deploy",),
    ("cli",),
    ("__main__", ""),
)
HEIGHT = {part: height for height, layer in enumerate(LAYERS) for part in layer}
MOST_LINES = 270  # of code, docstrings and comments aside
MOST_FUNCTION_LINES = 45

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


def code_lines(tree: ast.AST) -> int:
    """Lines that hold code: no blanks, comments or docstrings."""
    named = (ast.Module, ast.ClassDef, ast.FunctionDef)
    wordy = [node.body[0] for node in ast.walk(tree) if isinstance(node, named) and ast.get_docstring(node) is not None]
    skipped = {id(part) for statement in wordy for part in ast.walk(statement)}
    kinds = (ast.expr, ast.stmt, ast.arg, ast.alias)
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds) and id(node) not in skipped]
    return len({line for node in nodes for line in (node.lineno, node.end_lineno)})


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def body_lines(function: ast.FunctionDef) -> int:
    body = function.body
    first = body[1:] if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) else body
    return (function.end_lineno or 0) - first[0].lineno + 1 if first else 0


def test_dependencies_point_one_way() -> None:
    wrong = [
        f"{module} imports {other}"
        for module, others in all_imports().items()
        for other in others
        if other.startswith("fedweave.") and part_of(other) != part_of(module)
        if HEIGHT[part_of(other)] >= HEIGHT[part_of(module)]
    ]
    assert not wrong


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


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("typer", {"cli"}),
        ("rich", {"cli", "experiment.build", "report", "papers", "sweep", "deploy.sites"}),
        ("nvflare", {"deploy.flare"}),
        ("pydantic", {"core.settings", "experiment.config", "deploy.flare"}),
        ("torch_geometric", {"datasets.download", "export.pyg"}),
        ("cryptography", {"privacy.aggregation", "privacy.intersection", "deploy.sites"}),
        ("Crypto", {"privacy.aggregation"}),
    ],
)  # fmt: skip
def test_a_library_stays_where_it_belongs(library: str, allowed: set[str]) -> None:
    places = tuple(f"fedweave.{place}" for place in allowed)
    users = [
        module for module, others in all_imports().items() if any(other.split(".")[0] == library for other in others)
    ]
    assert [module for module in users if not f"{module}.".startswith(tuple(f"{place}." for place in places))] == []


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
    family = ["deployment", "fedavg", "participation", "parts", "preset", "score_sums", "scoring", "vertical"]
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


def test_public_names_have_docstrings() -> None:
    def public(node: ast.AST, prefix: str) -> Iterator[str]:
        if not ast.get_docstring(node):  # type: ignore[arg-type]
            yield prefix
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef) and not child.name.startswith("_"):
                if isinstance(child, ast.ClassDef):
                    yield from public(child, f"{prefix}.{child.name}")
                elif not ast.get_docstring(child):
                    yield f"{prefix}.{child.name}"

    assert [name for module, tree in trees().items() if tree.body for name in public(tree, module)] == []


def test_modules_and_functions_stay_short() -> None:
    long = {module: lines for module, tree in trees().items() if (lines := code_lines(tree)) > MOST_LINES}
    long |= {
        f"{module}.{function.name}": lines
        for module, tree in trees().items()
        for function in functions(tree)
        if (lines := body_lines(function)) > MOST_FUNCTION_LINES
    }
    assert not long


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_package_never_uses(what: str) -> None:
    pattern = re.compile("|".join(FORBIDDEN[what]), re.MULTILINE)
    allowed = {
        "an address for a name": ("ops/tape.py",),
        "print": ("cli/__init__.py", "report/terminal.py"),
        "a global generator": ("engines/vectorized.py",),  # looks whether a step draws from one
        "pickle": (
            "cli/export.py",
            "export/pyg.py",
        ),  # writes what was asked for, and reads weights only, elsewhere
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

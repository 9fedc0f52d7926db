"""What `pip install fedweave` brings, without an extra, is enough for the commands of a first hour."""

import importlib.metadata as metadata
import subprocess
import sys
from pathlib import Path

from tests.test_licences import installed
from tests.test_structure import RINGS

ROOT = Path(__file__).parents[1]

# A process in which modules of the packages in its first argument are missing.
MISSING = """
import sys

missing = set(sys.argv[1].split(","))


class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing or ".".join(name.split(".")[:2]) in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NotInstalled())
"""
COMMANDS = """
from fedweave.cli import main

run = "run digits.toml --set rounds=2 --set partition.clients=3 --out run"
lines = (run, "check digits.toml", "report run -o page.html", "predict run", "ledger run", "list engines")
for line in lines:
    sys.argv = ["fedweave", *line.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, f"{line} exits with {end.code}"
"""


LIBRARY = """
from importlib import import_module
from pathlib import Path

for part in sys.argv[2].split(","):
    folder = Path("src/fedweave") / part
    for file in sorted(folder.rglob("*.py")) or [folder.with_suffix(".py")]:
        name = ".".join(file.relative_to("src").with_suffix("").parts).removesuffix(".__init__")
        import_module(name)
"""


def optional_packages() -> set[str]:
    """Modules of installed packages that only an extra brings."""
    plain: dict[str, metadata.Distribution] = {}
    installed("fedweave", (), plain)
    owners = metadata.packages_distributions()
    needed = {name.lower().replace("_", "-").replace(".", "-") for name in plain} | {"fedweave"}
    missing = {
        module
        for module, packages in owners.items()
        if module not in sys.stdlib_module_names
        and not {name.lower().replace("_", "-").replace(".", "-") for name in packages} & needed
    }
    assert {"matplotlib", "reportlab", "rdkit", "nvflare"} & {*owners} <= missing
    assert not {"torch", "scipy", "fedweave"} & missing
    return missing


def test_the_library_is_whole_without_what_stands_on_it() -> None:
    """Ring 1 of ARCHITECTURE.md: every module imports where neither an extra nor an outer ring is there."""
    library, *outer_rings = [[part for layer in ring for part in layer] for ring in RINGS.values()]
    outer = {f"fedweave.{part}" for ring in outer_rings for part in ring if part}
    names = [",".join(sorted(optional_packages() | outer)), ",".join(library)]
    process = subprocess.run(
        [sys.executable, "-c", MISSING + LIBRARY, *names], cwd=ROOT, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr[-2000:]


def test_a_first_hour_needs_no_extra(tmp_path: Path) -> None:
    """Modules of packages that only extras bring cannot be imported here."""
    missing = optional_packages()
    (tmp_path / "digits.toml").write_text((Path(__file__).parents[1] / "experiments/digits.toml").read_text())
    ended = subprocess.run(
        [sys.executable, "-c", MISSING + COMMANDS, ",".join(sorted(missing))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert (tmp_path / "page.html").exists()

"""What `pip install fedweave` brings, without an extra, is enough for the commands of a first hour."""

import importlib.metadata as metadata
import subprocess
import sys
from pathlib import Path

from tests.test_licences import installed

COMMANDS = """
import sys

missing = set(sys.argv[1].split(","))


class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NotInstalled())
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


def test_a_first_hour_needs_no_extra(tmp_path: Path) -> None:
    """Modules of packages that only extras bring cannot be imported here."""
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
    (tmp_path / "digits.toml").write_text((Path(__file__).parents[1] / "experiments/digits.toml").read_text())
    ended = subprocess.run(
        [sys.executable, "-c", COMMANDS, ",".join(sorted(missing))], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert (tmp_path / "page.html").exists()

"""What users and other programs rely on, as it was frozen: numbers, commands, settings, files.

`tests/test_frozen.py` compares; names may be added, none may go or change. After a change that is meant:

    python -m tests.frozen          # writes tests/frozen/*.json
"""

import dataclasses
import hashlib
import importlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
import torch
import typer

import fedweave
from benchmarks.fingerprints import fingerprint
from fedweave.algorithms import ALGORITHMS, PARTS
from fedweave.cli import COMMANDS

SITES = (
    ("fedweave.deploy.flare.sitefile", ("SiteData", "Rules")),
    ("fedweave.deploy.flare.folder", ("About", "ServersMachine")),
    (
        "fedweave.deploy.flare.requests",
        ("Version", "Join", "Blind", "Settle", "Received", "Sum", "Agree", "Open", "Add"),
    ),
)
FOLDER = Path(__file__).parent / "frozen"


def processor() -> str:
    """A digest of some kernels' results: where it is equal, all bits are to be equal."""
    x = torch.linspace(-3, 3, 96 * 96).reshape(96, 96)
    parts = [x @ x.mT, x.exp(), x.sigmoid(), (x.abs() + 1).log(), x.softmax(1), x.erfinv().nan_to_num(), x.sum(0)]
    parts += [x.double() @ x.double(), (x.double().abs() + 1).log(), torch.linalg.vector_norm(x)]
    return hashlib.sha256(b"".join(part.contiguous().numpy().tobytes() for part in parts)).hexdigest()[:16]


def algorithms() -> dict[str, Any]:
    """{algorithm: the fingerprint of a short run, seed 0}, and of which processor."""
    torch.set_num_threads(1)
    return {"processor": processor(), "fingerprints": {name: fingerprint(name, 0) for name in sorted(ALGORITHMS)}}


def commands() -> dict[str, list[str]]:
    """{command: its options and arguments}."""
    found: dict[str, list[str]] = {}

    def walk(name: str, command: click.Command) -> None:
        if isinstance(command, click.Group):
            for below, each in command.commands.items():
                walk(f"{name} {below}", each)
        else:
            options = {text for one in command.params for text in (*one.opts, *one.secondary_opts)}
            found[name] = sorted(options)

    for name, (module, _) in COMMANDS.items():
        function = getattr(importlib.import_module(f"fedweave.cli.{module}"), name + "_" * (name == "list"))
        if not isinstance(function, typer.Typer):
            app = typer.Typer(add_completion=False)
            app.command(name)(function)
            function = app
        walk(name, typer.main.get_command(function))
    return found


def settings() -> dict[str, dict[str, str]]:
    """{"algorithms.fedavg": {setting: its default}} of all plug-ins and parts."""
    from fedweave.experiment.config.plugins import REGISTRIES

    found: dict[str, dict[str, str]] = {}
    for section, (module, attribute, *_) in REGISTRIES.items():
        for name, kind in getattr(importlib.import_module(module), attribute).items():
            found[f"{section}.{name}"] = _parameters(kind)
    return found | {f"parts.{name}": _parameters(kind) for name, kind in PARTS.items()}


def _parameters(kind: Any) -> dict[str, str]:
    from fedweave.experiment.config.plugins import own_parameters

    return {
        name: "required" if one.default is dataclasses.MISSING else repr(one.default)
        for name, one in own_parameters(kind).items()
    }


def run_files() -> dict[str, Any]:
    """The files of a run, the columns of its tables, and the names in its summary."""
    document = {"data": {"name": "digits"}, "partition": {"name": "random", "clients": 3}, "model": {"name": "gcn"}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run")
        fedweave.run({**document, "algorithm": {"name": "fedavg"}, "rounds": 2}, out=path)
        summary = json.loads((path / "summary.json").read_text())
        tables = {
            file.name: {str(f.name): str(f.type) for f in pq.read_schema(file)} for file in path.glob("*.parquet")
        }
        files = sorted(
            str(file.relative_to(path)) for file in path.rglob("*") if file.is_file() and file.suffix != ".lock"
        )
    return {"files": files, "tables": tables, "summary": sorted(summary), "metrics": sorted(summary["metrics"])}


def sites() -> dict[str, list[str]]:
    """The fields of site.toml and of what passes between a server and sites."""
    found = {}
    for module, names in SITES:
        for name in names:
            kind = getattr(importlib.import_module(module), name)
            found[name] = sorted(field.name for field in dataclasses.fields(kind))
    return found


SNAPSHOTS: dict[str, Callable[[], Any]] = {
    "algorithms": algorithms,
    "commands": commands,
    "settings": settings,
    "run_files": run_files,
    "sites": sites,
}


def frozen(name: str) -> Any:
    """The snapshot of this name as it is kept."""
    return json.loads((FOLDER / f"{name}.json").read_text())


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, snapshot in SNAPSHOTS.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(snapshot(), indent=1, sort_keys=True) + "\n")

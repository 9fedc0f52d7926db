"""Files of plug-ins are part of what a run was begun with."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.core import plugins
from fedweave.experiment.config import read, to_toml
from fedweave.python.training import load_run
from fedweave.sites.operation.experiments import for_sites
from fedweave.sites.operation.project import Project
from tests.refusals import check_facts, refusal

MODEL = """
from dataclasses import dataclass
from fedweave.models import GCN

@dataclass(frozen=True)
class Net(GCN):
    hidden: int = {width}
"""
ALGORITHM = """
from dataclasses import dataclass
from fedweave.algorithms.preset import preset

@preset
@dataclass(frozen=True)
class Own:
    lr: float = 0.02

    def parts(self):
        return ()
"""
CONFIG = """
rounds = 2
[data]
name = "digits"
[partition]
name = "random"
clients = 2
[algorithm]
name = "fedavg"
local_steps = 1
"""


def fedweave(*words: str, code: int = 0) -> str:
    """What a command says in a process of its own, which has run no file of a plug-in yet."""
    plugins._module.cache_clear()
    result = CliRunner().invoke(app, [*words])
    assert result.exit_code == code, (result.output, result.exception)
    return result.output + (str(result.exception) if result.exception else "")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a model, which is changed once a run was begun."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDWEAVE_FILES", str(tmp_path / "net.py"))
    Path("net.py").write_text(MODEL.format(width=8))
    Path("config.toml").write_text(CONFIG + f'[model]\nname = "{tmp_path}/net.py:Net"\n')
    return tmp_path / "net.py"


def test_a_run_whose_code_has_changed_is_not_continued_nor_used(own: Path) -> None:
    fedweave("run", "config.toml", "--out", "run", "--quiet")
    fedweave("predict", "run")
    own.write_text(MODEL.format(width=8) + "# another model, for all that anybody knows\n")
    for words in (
        ("run", "config.toml", "--out", "run", "--resume", "--set", "rounds=3"),
        ("predict", "run", "-o", "more.csv"),
    ):
        said = fedweave(*words, code=2)
        check_facts(said, "net.py")
    fedweave("run", "config.toml", "--out", "run", "--overwrite", "--quiet")
    fedweave("predict", "run")


def test_nor_is_the_joint_model_of_a_run_between_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own.py"
    monkeypatch.setenv("FEDWEAVE_FILES", str(own))
    own.write_text(ALGORITHM)
    Path("config.toml").write_text(CONFIG.replace('"fedavg"', f'"{own}:Own"'))
    fedweave("run", "config.toml", "--out", "run", "--quiet")
    Path("run/config.toml").write_text(to_toml(for_sites(read(Path("run/config.toml"))[0].plain()).plain()))
    Path("run/run.json").write_text('{"run": "r1"}')
    fedweave("export", "run", "--out", "first")
    own.write_text(ALGORITHM + "# edited\n")
    for words in (("export", "run", "--out", "second"), ("sites", "predict", "run", "--sites", str(members(tmp_path)))):
        said = fedweave(*words, code=2)
        check_facts(said, "own.py")
    with refusal("user.changed", "begun: own.py"):
        load_run("run").weights()


def members(root: Path) -> Path:
    """A project's folder, of which no process runs."""
    (root / "bank").mkdir(exist_ok=True)
    Project(("a", "b"), "localhost", 1).save(root / "bank")
    return root / "bank"


def test_a_sweep_mixes_no_runs_of_changed_code(own: Path) -> None:
    fedweave("sweep", "config.toml", "--seeds", "0", "--out", "swept")
    fedweave("sweep", "config.toml", "--seeds", "0", "--out", "swept")
    own.write_text(MODEL.format(width=8) + "# changed\n")
    said = fedweave("sweep", "config.toml", "--seeds", "0-1", "--out", "swept", code=2)
    check_facts(said, "net.py of 1", "--overwrite")


def test_what_commands_wrote_of_a_run_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text(CONFIG)
    fedweave("run", "config.toml", "--out", "run", "--quiet")
    fedweave("export", "run")
    fedweave("predict", "run")
    fedweave("run", "config.toml", "--out", "run", "--overwrite", "--quiet")
    assert not any(Path("run", name).exists() for name in ("export", "predictions.parquet"))
    fedweave("export", "run")
    fedweave("contributions", "run", "--rounds", "all")
    fedweave("run", "config.toml", "--out", "run", "--resume", "--set", "rounds=3", "--quiet")
    assert not Path("run/contributions.parquet").exists(), "it was of two rounds"
    check_facts(Path("run/export/README.md").read_text(), "2 rounds")

"""Sweeps: every combination once, finished runs used again, one table and one page at the end."""

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.errors import ConfigError, command_line
from fedweave.experiment.runs import run as runs
from fedweave.reports import terminal
from fedweave.sweeps import scheduler
from fedweave.sweeps.plan import plan_runs
from fedweave.sweeps.results import failure_sentences
from fedweave.sweeps.runs import PlannedRun
from tests import commands
from tests.refusals import check_facts

SMALL = """
rounds = 2
[data]
name = "synthetic"
nodes = 60
classes = 2
features = 4
[partition]
clients = 2
[model]
hidden = 3
[algorithm]
local_steps = 1
[engine]
threads = 1
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


def test_every_combination_that_an_algorithm_takes_is_planned_once(config: Path, tmp_path: Path) -> None:
    found, notes = plan_runs(
        config, tmp_path, "0-1,1", "fedavg,fedprox", ["rounds=3"], ["algorithm.mu=.01,1", "model.hidden=3,4"]
    )
    told = [
        (run.config.general.seed, run.config.algorithm.name, run.config.algorithm.values.get("mu"), hidden)
        for run in found
        for hidden in [run.config.model.values["hidden"]]
    ]
    one = [("fedavg", None, 3), ("fedavg", None, 4)]
    one += [("fedprox", mu, hidden) for mu in (0.01, 1.0) for hidden in (3, 4)]
    assert told == [(seed, *rest) for seed in (0, 1) for rest in one]
    assert len({run.name for run in found}) == len(found)
    assert {run.config.general.rounds for run in found} == {3}
    assert notes == []


def test_settings_are_for_the_algorithms_that_have_them_and_the_others_are_named(config: Path, tmp_path: Path) -> None:
    found, notes = plan_runs(config, tmp_path, "0", "fedavg,fedprox", ["algorithm.mu=.5", "algorithm.lr=.2"], [])
    assert [run.config.algorithm.values.get("mu") for run in found] == [None, 0.5]
    assert {run.config.algorithm.values["lr"] for run in found} == {0.2}
    assert notes == ["fedavg does not take algorithm.mu=.5 of settings."]


def test_an_algorithm_may_have_values_of_its_own(config: Path, tmp_path: Path) -> None:
    grid = ["algorithm.lr=.01,.03", "scaffold:algorithm.lr=.1,.3,.5", "fedprox:algorithm.mu=1"]
    found, _ = plan_runs(config, tmp_path, "0", "fedavg,fedprox,scaffold", [], grid)
    values = [run.config.algorithm for run in found]
    assert [(one.name, one.values["lr"], one.values.get("mu")) for one in values] == [
        *(("fedavg", lr, None) for lr in (0.01, 0.03)),
        *(("fedprox", lr, 1.0) for lr in (0.01, 0.03)),
        *(("scaffold", lr, None) for lr in (0.1, 0.3, 0.5)),
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seeds": "4-0"}, "--seeds 4-0: write seeds such as 0-4"),
        ({"seeds": "a"}, "--seeds a"),
        ({"grid": ["algorithm.lr"]}, "write section.key=value,value"),
        ({"grid": ["algorithm.moon=1"]}, "no algorithm has the setting 'moon'"),
        ({"grid": ["model.hidden=3,x"]}, "model.hidden"),
        ({"grid": ["scaffold:algorithm.lr=1,2"]}, "scaffold is not among.*fedavg"),
        ({"grid": ["fedavg:algorithm.mu=1,2"]}, "fedavg has no such setting"),
        ({"grid": ["fedavgg:algorithm.lr=1,2"]}, "Did you mean 'fedavg"),
        ({"grid": ["fedavg:seed=1,2"]}, "give the seeds"),
        ({"settings": ["algorithm.moon=1"]}, "--set algorithm.moon: no algorithm has the setting 'moon'"),
        ({"algorithms": "fedavg,fedego"}, "fedego: ego-graphs of 2 hops need a model"),
        ({"algorithms": "fedavg,fedavgg"}, "Did you mean 'fedavg"),
        ({"settings": ["algorithm.lr=.01,.02"]}, "--grid algorithm.lr=.01,.02"),
        ({"settings": ["seed=7"]}, "seed=7: give the seeds of a sweep as --seeds"),
        ({"grid": ["seed=5,6"]}, "seed=5,6: give the seeds of a sweep as --seeds"),
    ],
)
def test_mistakes_are_named_before_anything_runs(options: dict[str, object], said: str, config: Path) -> None:
    given = {"seeds": "0", "algorithms": "", "settings": [], "grid": []} | options
    with pytest.raises(ConfigError, match=said), command_line():
        plan_runs(config, config.parent, **given)


HALVED = """
from dataclasses import dataclass

from fedweave.algorithms.parts import Part
from fedweave.algorithms.preset import preset


@preset
@dataclass(frozen=True)
class Halved:
    share_of: float = 0.5

    def parts(self):
        return ()
"""


def in_process(made: list[PlannedRun], jobs: int, watch: object) -> dict[str, str]:
    """What the worker processes do, without the seconds that these take to start; one kind of run fails."""
    failed = {}
    for one in made:
        watch.begin(one)
        why = "out of luck" if one.config.algorithm.name == "ditto" else ""
        if why:
            failed[one.name] = why
        else:
            how = {"overwrite": True} if one.outdated else {"resume": True}
            runs.run(one.config, one.directory, terminal.Terminal(terminal.screen(quiet=True)), **how)
        watch.end(one, 0.1, why)
    return failed


def test_a_sweep_ends_in_one_table_and_one_page_and_goes_on_where_it_was(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "execute", in_process)
    words = ["sweep", str(config), "--out", str(tmp_path / "out"), "--seeds", "0-1"]
    first = commands.run(*words, "--algorithms", "fedavg")
    check_facts(first, "2 runs, 0 of them")
    more = CliRunner().invoke(app, [*words, "--algorithms", "fedavg,local,ditto"])
    assert (more.exit_code, "6 runs, 2 of them done already" in more.stdout) == (1, True)
    check_facts(more.stderr, "out of luck")
    summaries = [json.loads(path.read_text()) for path in sorted((tmp_path / "out/runs").glob("*/summary.json"))]
    assert [one["algorithm"] for one in summaries] == ["fedavg", "fedavg", "local", "local"]
    mean = sum(one["metrics"]["global/accuracy"] for one in summaries[:2]) / 2
    lines = (tmp_path / "out/sweep.md").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("| fedavg")]
    assert line.split(" | ")[1] == "2"
    check_facts(line, f"{mean:.4f} ±")
    page = (tmp_path / "out/report.html").read_text()
    check_facts(page, 'id="differences"')
    assert [line for line in lines if line.startswith("- ditto-") and line.endswith("failed: out of luck")]
    check_facts(" ".join(lines), "2 failed runs")
    assert page.count("failed: out of luck") == 2


def test_a_run_that_failed_is_told_with_its_values_of_the_grid(config: Path) -> None:
    grid = ["algorithm.lr=1e30,0.1", "model.hidden=8"]
    made, _ = plan_runs(config, config.parent, "0", "", [], grid)
    [said] = failure_sentences(made, {made[0].name: "training diverged."}, grid)
    assert said == f"{made[0].name} (algorithm.lr = 1e+30, model.hidden = 8) failed: training diverged."


def test_runs_of_tables_that_have_changed_are_not_mixed_with_new_ones(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "execute", in_process)
    rows = "".join(f"{at},{at % 2},{at}.5\n" for at in range(24))
    (tmp_path / "nodes.csv").write_text(f"id,label,f\n{rows}")
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n2,3\n")
    own = SMALL.replace('name = "synthetic"\nnodes = 60\nclasses = 2\nfeatures = 4', 'name = "folder"')
    config.write_text(own.replace('"folder"', f'"folder"\npath = "{tmp_path}"'))
    words = ["sweep", str(config), "--out", str(tmp_path / "out"), "--seeds"]
    commands.run(*words, "0")
    commands.run(*words, "0")
    (tmp_path / "nodes.csv").write_text(f"id,label,f\n{rows.replace('7.5', '8.5')}")
    changed = commands.run(*words, "0-1", code=2)
    check_facts(changed, "features", "1 run")
    assert len(list((tmp_path / "out/runs").glob("*/summary.json"))) == 1
    check_facts(CliRunner().invoke(app, [*words, "0-1", "--overwrite"]).stdout, "2 runs, 0 of them")
    commands.run(*words, "0-1")


def test_after_an_edit_of_a_plug_in_its_runs_alone_are_done_anew(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --overwrite they are named; the finished baselines stay as they are."""
    monkeypatch.setattr(scheduler, "execute", in_process)
    file = tmp_path / "halved.py"
    file.write_text(HALVED)
    words = ["sweep", str(config), "--out", str(tmp_path / "out"), "--seeds", "0-1"]
    words += ["--algorithms", f"fedavg,{file}:Halved"]
    commands.run(*words)
    made = {path.parent.name: path.stat().st_mtime_ns for path in (tmp_path / "out/runs").glob("*/summary.json")}
    file.write_text(HALVED.replace("0.5", "0.25"))
    refused = CliRunner().invoke(app, words)
    said = " ".join(refused.stderr.split())
    assert (refused.exit_code, "halved.py of 2 runs has changed" in said, "2 of them done" in said) == (2, True, True)
    again = commands.run(*words, "--overwrite")
    check_facts(again, "4 runs, 2 of them")
    now = {path.parent.name: path.stat().st_mtime_ns for path in (tmp_path / "out/runs").glob("*/summary.json")}
    assert now.keys() == made.keys()
    assert {name.split("-")[0] for name in now if now[name] != made[name]} == {"Halved"}
    check_facts(CliRunner().invoke(app, [*words, "--overwrite"]).stdout, "4 runs, 4 of them")


def test_help_and_names_are_shown_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    """No word in brackets is taken for a style, and no ":A" for a picture."""
    import fedweave.cli as cli
    from fedweave.cli.options import say, without_markup

    listed = typer.main.get_command(app)
    for name in cli.COMMANDS:
        command = listed.get_command(None, name)
        told = [command.help, *(getattr(option, "help", "") for option in command.params)]
        assert not [text for text in told if re.search(r"\[[a-z]", text or "")], name
    terminal.screen().print("contract variants.py:A")
    say(without_markup("error of variants.py:A"))
    shown = capsys.readouterr()
    assert ("variants.py:A" in shown.out, "variants.py:A" in shown.err) == (True, True)

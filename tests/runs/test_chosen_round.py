"""The round that validation chose is the result that everything uses; without validation examples, the last one is."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import fedweave
from fedweave.apply.embeddings import embeddings
from fedweave.apply.run_predictions import predictions
from fedweave.cli import app
from fedweave.core.tree import leaves
from fedweave.experiment.config import EvaluationSettings, resolve, to_toml
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT, SUMMARY
from fedweave.experiment.runs.reading import read_run
from fedweave.experiment.runs.resuming import Interrupted
from fedweave.experiment.runs.run import run
from fedweave.experiment.runs.trained import saved_round
from fedweave.experiment.runs.warm import Earlier
from fedweave.export.card import card
from fedweave.export.source import source
from fedweave.metrics.selection import of_result
from fedweave.python.training import Silent
from fedweave.reports.html import render
from fedweave.reports.terminal import show_result
from fedweave.reports.verdict import verdict_of
from tests.refusals import check_facts, refusal
from tests.runs.test_best_round import config as best_config
from tests.runs.test_best_round import means
from tests.runs.test_early_stopping import config
from tests.runs.test_runs import Quiet, send


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stops early, so that its best round is before its last."""
    directory = tmp_path_factory.mktemp("stopped") / "run"
    run(config(), directory, Silent())
    return directory


def summary_of(directory: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((directory / SUMMARY).read_text())
    return summary


def test_the_summary_names_the_round_and_has_all_its_numbers(stopped: Path) -> None:
    """They are the numbers of a run that ends with that round."""
    summary = summary_of(stopped)
    chosen = summary["chosen_round"]
    assert chosen == summary["metrics"]["best_val/round"] < summary["rounds"]
    last = summary["metrics"]
    result = of_result(summary)
    assert result["local/accuracy"] == last["best_val/local/accuracy"] != last["local/accuracy"]
    rows = read_run(stopped).metrics.to_pandas()
    rows = rows[(rows["round"] == chosen) & (rows["split"] == "test")]
    for name in ("auc", "accuracy", "loss"):
        values = rows[(rows["metric"] == name) & (rows["client"] != "global")]["value"]
        assert result[f"local/{name}"] == pytest.approx(values.mean(), abs=1e-12)
        value = rows[(rows["metric"] == name) & (rows["client"] == "global")]["value"]
        assert result[f"global/{name}"] == pytest.approx(float(value.iloc[0]), abs=1e-12)
    assert "pooled/auc" in result
    assert "fairness/worst_accuracy" in result


def test_predictions_and_exports_are_of_it(stopped: Path) -> None:
    metrics = summary_of(stopped)["metrics"]
    assert means(stopped, "chosen") == pytest.approx(metrics["best_val/local/accuracy"], abs=1e-12)
    assert means(stopped, "last") == pytest.approx(metrics["local/accuracy"], abs=1e-12)
    assert predictions(stopped).equals(predictions(stopped, when="best"))
    found = source(stopped, None, None)
    assert found.when == "best"
    checkpoint = Checkpoint.load(stopped / CHECKPOINT)
    torch.testing.assert_close(found.weights, source(stopped, None, None, when="best").weights)
    weights = dict(leaves(fedweave.load_run(stopped).weights()))
    for path, leaf in leaves(checkpoint.best["state"]["w"]):
        assert np.array_equal(weights[path], leaf)
    differs = [not np.array_equal(weights[path], leaf) for path, leaf in leaves(checkpoint.state["w"])]
    assert any(differs)  # the last round's are others


def test_models_of_clients_own_training_are_of_the_last_round(stopped: Path) -> None:
    assert saved_round(stopped, "chosen") == "best"
    assert saved_round(stopped, "chosen", "trained") == "last"
    assert saved_round(stopped, "last") == "last"
    table = predictions(stopped, model="trained")
    assert table.equals(predictions(stopped, model="trained", when="last"))
    with refusal("user.no-model", f"round {summary_of(stopped)['chosen_round']}"):
        predictions(stopped, model="trained", when="best")


@pytest.mark.parametrize("command", ["predict", "embed", "export"])
def test_commands_name_the_round_of_the_model(stopped: Path, tmp_path: Path, command: str) -> None:
    summary = summary_of(stopped)
    words = {"chosen": f"chosen round {summary['chosen_round']}", "last": f"last round {summary['rounds']}"}
    for when, word in words.items():
        out = tmp_path / (when if command == "export" else f"{when}.csv")
        said = CliRunner().invoke(app, [command, str(stopped), "--round", when, "--out", str(out)])
        check_facts(said.output, f"({word})")


def test_terminal_and_page_show_it_with_the_last_round_beside_it(stopped: Path) -> None:
    summary = summary_of(stopped)
    metrics, chosen, last = summary["metrics"], summary["chosen_round"], summary["rounds"]
    console = Console(record=True, width=160)
    show_result(console, summary, stopped)
    text = console.export_text()
    check_facts(text, f"round {chosen}", f"{metrics['best_val/local/accuracy']:.3f}", f"{last}")
    check_facts(text, f"last round {last}", f"{metrics['local/accuracy']:.3f}")
    check_facts(text, f"{metrics['best_val/fairness/worst_accuracy']:.3f} client-")
    page = render([read_run(stopped)])
    check_facts(page, f"round {chosen}", f"{metrics['best_val/local/accuracy']:.3f}")
    check_facts(page, "last round", f"{metrics['local/accuracy']:.3f}")
    assert f"{metrics['best_val/local/accuracy']:.4g}" in repr(fedweave.load_run(stopped))


def test_readers_of_runs_get_its_values_of_each_client(stopped: Path) -> None:
    one = read_run(stopped)
    rows = one.metrics.to_pandas()
    rows = rows[(rows["split"] == "test") & (rows["metric"] == "accuracy") & (rows["client"] != "global")]
    expected = rows[rows["round"] == summary_of(stopped)["chosen_round"]].set_index("client")["value"].to_dict()
    assert one.clients("accuracy") == expected
    assert one.last_metrics["local/accuracy"] == summary_of(stopped)["metrics"]["local/accuracy"]
    words = card(one, source(stopped, None, None, when="last"), None, "")
    check_facts(words, f"{summary_of(stopped)['metrics']['local/accuracy']:.4f}")


def test_a_resumed_run_gives_the_same(stopped: Path, tmp_path: Path) -> None:
    chosen = summary_of(stopped)["chosen_round"]
    with pytest.raises(Interrupted):  # two rounds later, so that the checkpoint has both
        run(config(), tmp_path / "run", Quiet(**{f"r{chosen + 2}": [send(signal.SIGINT)]}))
    run(config(), tmp_path / "run", Silent(), resume=True)
    first, second = summary_of(stopped), summary_of(tmp_path / "run")
    assert first["metrics"] == second["metrics"]
    assert first["chosen_round"] == second["chosen_round"]
    assert predictions(stopped).equals(predictions(tmp_path / "run"))


def test_without_validation_examples_the_last_round_is_the_result(tmp_path: Path) -> None:
    without = config(rounds=4, patience=0).plain()
    without["partition"] |= {"train": 0.5, "val": 0.0, "test": 0.5}
    run(resolve(without), tmp_path / "run", Silent())
    summary = summary_of(tmp_path / "run")
    assert "chosen_round" not in summary
    assert of_result(summary) is summary["metrics"]
    assert means(tmp_path / "run", "chosen") == pytest.approx(summary["metrics"]["local/accuracy"], abs=1e-12)
    assert source(tmp_path / "run", None, None).when == "last"


@pytest.mark.parametrize("name", ["fedavg", "ditto"])
def test_without_patience_every_command_takes_the_chosen_round(name: str, tmp_path: Path) -> None:
    """Figures, predictions, exports and runs that begin from this one are of one round, for a global model and for
    members' own; whatever is shown equals what is measured again with the models."""
    directory = tmp_path / "run"
    run(replace(best_config(name), evaluation=EvaluationSettings(alone=True)), directory, Silent())
    summary = summary_of(directory)
    metrics, chosen = of_result(summary), summary["chosen_round"]
    assert chosen == summary["metrics"]["best_val/round"] < summary["rounds"]
    assert means(directory, "chosen") == pytest.approx(metrics["local/accuracy"], abs=1e-12)
    assert metrics["local/accuracy"] != summary["metrics"]["local/accuracy"]
    saved = fedweave.load_run(directory)
    own = saved.measure(lambda y, p: float((p.argmax(1) == y).mean()))
    assert own.local == pytest.approx(metrics["local/accuracy"], abs=1e-12)
    scores = embeddings(directory, None, None, None, "chosen", 0).table
    assert scores.equals(embeddings(directory, None, None, None, "best", 0).table)
    verdict = verdict_of(summary, read_run(directory).metrics)
    assert verdict is not None
    assert verdict.joint == metrics["local/accuracy"]
    assert verdict.round == chosen
    client = None if name == "fedavg" else saved.partition["client"][0].as_py()
    assert source(directory, None, client).when == "best"
    assert f"round {chosen}" in card(read_run(directory), source(directory, None, client), client, "")
    weights = Earlier.read(directory).weights
    best = Checkpoint.load(directory / CHECKPOINT).best["state"]["w"]
    assert all(torch.equal(weights[path], leaf) for path, leaf in leaves(best))


def test_a_killed_run_without_patience_ends_with_the_same_chosen_round(tmp_path: Path) -> None:
    """A process that is killed after the chosen round, and one that is not, have the same result and models."""
    file = tmp_path / "run.toml"
    file.write_text(to_toml(best_config("fedavg").plain()))
    whole = run(best_config("fedavg"), tmp_path / "whole", Silent())
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from fedweave.experiment.config import read; from fedweave.experiment.runs.run import running\n"
        "from fedweave.python.training import Silent\n"
        "rounds = running(read(Path(sys.argv[1]))[0], Path(sys.argv[2]), Silent())\n"
        "any(step.round == 5 for step in rounds)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, file, tmp_path / "killed"], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert Checkpoint.load(tmp_path / "killed" / CHECKPOINT).best["round"] == whole["chosen_round"]
    resumed = run(best_config("fedavg"), tmp_path / "killed", Silent(), resume=True)
    assert resumed["chosen_round"] == whole["chosen_round"]
    assert resumed["metrics"] == whole["metrics"]
    assert predictions(tmp_path / "killed").equals(predictions(tmp_path / "whole"))

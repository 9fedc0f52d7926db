"""What the terminal shows of a run's result."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from fedweave.experiment.config import dumps, resolve
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import METRICS
from fedweave.metrics.measured import METRICS_SCHEMA
from fedweave.reports import terminal
from tests import commands
from tests.refusals import check_facts

SUMMARY: dict[str, Any] = {
    "rounds": 30,
    "seconds": 12.0,
    "seconds_per_round": 0.4,
    "peak_rss_mb": 475.2,
    "bytes_up": 629_800,
    "bytes_down": 1_200_000,
    "metrics": {
        "global/accuracy": 0.5575,
        "local/accuracy": 0.5541,
        "local/auc": None,
        "trained/accuracy": 0.6012,
        "best_val/round": 27,
        "best_val/val/accuracy": 0.57,
        "best_val/global/accuracy": 0.5612,
        "best_val/local/accuracy": 0.5601,
        "best_val/trained/accuracy": 0.6101,
        "fairness/loss_variance": 0.0048,
    },
}


CHOSEN = SUMMARY | {"chosen_round": 27}


def result(summary: dict[str, Any] = SUMMARY, directory: Path = Path("runs/one"), **options: bool) -> list[list[str]]:
    """The lines that are shown, as cells."""
    console = Console(width=80, file=io.StringIO(), record=True)
    terminal.show_result(console, summary, directory, **options)
    lines = console.export_text().splitlines()
    sentences = [line for line in lines if line.rstrip().endswith(".")]  # each on one line, which a terminal wraps
    rest = [line for line in lines if line not in sentences and str(directory) not in line]
    assert max(len(line.rstrip()) for line in rest) <= 80
    return [re.split(r"  +", line.strip()) for line in lines if line.strip()]


def test_the_result_comes_first_and_fits_into_80_columns() -> None:
    shown = result(CHOSEN)
    assert shown[0] == ["test, chosen round 27", "all examples", "member mean", "worst member"]
    assert shown[2:4] == [["accuracy", "0.561", "0.560"], ["last round 30", "0.557", "0.554"]]
    assert [" ".join(line) for line in shown[4:]] == [
        "chosen round 27, by member mean validation accuracy",
        "cost 30 rounds in 12.0 s (0.4 s each), 475 MB at peak",
        "traffic clients sent 629.8 kB, received 1.2 MB",
        "privacy no noise was added to what members sent",
        "files runs/one",
        "next fedweave report runs/one a page to read",
        "fedweave ledger runs/one what left each member",
    ]


def test_all_metrics_are_shown_where_they_are_asked_for() -> None:
    shown = result(verbose=True)
    at = next(at for at, line in enumerate(shown) if line[:4] == ["accuracy", "0.5575", "0.5541", "0.6012"])
    assert ["loss_variance", "0.0048"] in [line[-2:] for line in shown]
    assert shown[at + 1][:4] == ["auc", "-", "-", "-"]
    assert ["accuracy", "0.5612", "0.5601", "0.6101"] in result(CHOSEN, verbose=True)


def test_the_worst_member_is_named_by_the_runs_files(tmp_path: Path) -> None:
    rows = [(1, "a", "test", "accuracy", 0.1), (2, "a", "test", "accuracy", 0.7), (2, "b", "test", "accuracy", 0.4)]
    columns = dict(zip(METRICS_SCHEMA.names, zip(*rows, strict=True), strict=True))
    pq.write_table(pa.table({name: list(own) for name, own in columns.items()}, METRICS_SCHEMA), tmp_path / METRICS)
    metrics = SUMMARY["metrics"] | {"fairness/worst_accuracy": 0.4}
    assert result(SUMMARY | {"metrics": metrics}, tmp_path)[2] == ["accuracy", "0.557", "0.554", "0.400 b"]
    assert result(SUMMARY | {"metrics": metrics})[2] == ["accuracy", "0.557", "0.554", "0.400"]


def test_the_worst_member_is_that_of_the_page_in_the_metric_of_its_row(tmp_path: Path) -> None:
    """By RMSE; in units of each member's own deviation another one is."""
    rows = [(2, "a", "test", "rmse", 3.0), (2, "b", "test", "rmse", 1.0)]
    rows += [(2, "a", "test", "nrmse", 0.2), (2, "b", "test", "nrmse", 0.9), (2, "global", "test", "rmse", 4.0)]
    columns = dict(zip(METRICS_SCHEMA.names, zip(*rows, strict=True), strict=True))
    pq.write_table(pa.table({name: list(own) for name, own in columns.items()}, METRICS_SCHEMA), tmp_path / METRICS)
    metrics = {"judged/rmse": -1.0, "global/rmse": 2.0, "local/rmse": 2.0, "fairness/worst_nrmse": 0.9}
    assert result(SUMMARY | {"metrics": metrics}, tmp_path)[2] == ["RMSE", "2.000", "2.000", "3.000 a"]


def test_references_stand_below_what_they_are_compared_with() -> None:
    metrics = SUMMARY["metrics"] | {"global/majority": 0.4, "shelf/local/accuracy": 0.3, "privacy": []}
    shown = result(SUMMARY | {"metrics": metrics, "privacy": [{"epsilon": 1.25}]})
    assert shown[3:5] == [["the most frequent class", "0.400", "-"], ["shelf", "0.300"]]
    assert ["privacy", "ε up to 1.25"] in shown


def test_a_model_below_the_constant_prediction_is_loud() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    metrics = SUMMARY["metrics"] | {"global/majority": 0.6, "global/classes_predicted": 2.0}
    terminal.show_result(console, SUMMARY | {"metrics": metrics}, Path("runs/one"))
    check_facts(console.export_text(), "0.557", "0.600")


def test_an_accuracy_is_told_with_the_round_that_it_is_of() -> None:
    shown = io.StringIO()
    watch = terminal.Terminal(Console(width=160, file=shown))
    watch.begin(resolve({"rounds": 4, "data": {"name": "digits"}}), None, Path("run"), 0)
    for number, summary in ((1, {}), (2, {"global/accuracy": 0.5}), (3, {}), (4, {"global/accuracy": 0.75})):
        watch.step(Checkpoint(number, float(number), summary=summary))
    assert shown.getvalue().splitlines() == [
        "round 1/4  1 s/round",
        "round 2/4  1 s/round, accuracy 0.5000 all examples",
        "round 3/4  1 s/round, accuracy after round 2: 0.5000 all examples",
        "round 4/4  1 s/round, accuracy 0.7500 all examples",
    ]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"bytes_peer": 2_000}, "sent 2.0 kB to each other"),
        ({"bytes_evaluation": 900_000}, "received 1.2 MB (900.0 kB of both for evaluation)"),
        ({"bytes_evaluation": 900_000, "bytes_peer": 2_000}, "2.0 kB to each other (900.0 kB of all three for"),
    ],
)
def test_traffic_between_clients_and_for_evaluation_is_said_where_there_is_any(more: Any, words: str) -> None:
    shown = io.StringIO()
    terminal.show_result(Console(width=160, file=shown), SUMMARY | more, Path("runs/one"))
    assert words in shown.getvalue()


def test_gaps_say_which_groups_they_compare_and_whom_they_leave_out() -> None:
    shown = io.StringIO()
    gaps = {"groups/global/sp": 0.38}
    undefined = dict.fromkeys(("sp", "eo", "equalised_odds", "tradeoff_accuracy", "tradeoff_auc"), 2.0)
    gaps |= {f"groups/median/{name}_undefined": count for name, count in undefined.items()}
    told = SUMMARY | {"metrics": SUMMARY["metrics"] | gaps, "groups": ["North", "Other", "north"]}
    terminal.show_result(Console(width=80, file=shown), told, Path("runs/one"))
    said = "Group 0 is “North”, group 1 is “Other”. Gaps compare these two: people of “north” are in none."
    assert said in shown.getvalue()


def test_each_number_is_shown_once_below_its_own_metric() -> None:
    links = {
        "judged/auc": -1.0,
        "global/auc": 0.71,
        "local/auc": 0.72,
        "pooled/auc": 0.73,
        "shelf/local/auc": 0.6,
        "reference/common_neighbors/auc": 0.65,
        "crossing/auc": 0.66,
        "crossing/average_precision": 0.67,
        "global/average_precision": 0.68,
        "pooled/average_precision": 0.69,
    }
    lines = [" ".join(line) for line in result(SUMMARY | {"metrics": links})]
    first = lines.index("AUC 0.710 0.720")
    assert lines[first + 1] == "members ranked together 0.730"
    assert lines[lines.index("average precision 0.680 -") + 1] == "members ranked together 0.690"
    assert len([line for line in lines if line.startswith("AUC, links between members")]) == 1
    assert len([line for line in lines if line.startswith("average precision, links")]) == 1


@pytest.mark.parametrize(("partition", "heading"), [("random", "all examples"), ("louvain", "global test set (")])
def test_a_run_says_what_its_global_numbers_are_of(tmp_path: Path, partition: str, heading: str) -> None:
    more = {"holdout": True} if partition == "louvain" else {}
    document = {
        "rounds": 1,
        "data": {"name": "synthetic", "nodes": 120, "classes": 2, "features": 4},
        "partition": {"name": partition, "clients": 2} | more,
        "model": {"name": "gcn", "hidden": 4},
        "algorithm": {"name": "fedavg"},
    }
    (tmp_path / "e.toml").write_text(dumps(document))
    assert heading in commands.run("run", tmp_path / "e.toml", "--out", tmp_path / "run")
    assert ("global_test" in json.loads((tmp_path / "run/summary.json").read_text())) == (partition == "louvain")

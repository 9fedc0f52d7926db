"""What the terminal shows of a run's result and ledger."""

import io
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from rich.console import Console

from fedweave.core.federation import Sends, StepInfo
from fedweave.core.ledger import SCHEMA, Ledger
from fedweave.core.mechanism import Clipped, Gaussian
from fedweave.report import terminal
from fedweave.runs.checkpoint import Checkpoint

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


def test_result_stands_side_by_side_in_80_columns() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    terminal.show_result(console, SUMMARY, Path("runs/one"))
    shown = [re.split(r"  +", line.strip()) for line in console.export_text().splitlines() if line.strip()]
    assert shown[0] == ["test split", "global", "local", "trained", "fairness"]
    assert shown[2:5] == [
        ["accuracy", "0.5575", "0.5541", "0.6012", "loss_variance", "0.0048"],
        ["auc", "-", "-", "-"],
        ["accuracy, best val", "0.5612", "0.5601", "0.6101"],
    ]
    assert [" ".join(line) for line in shown[5:]] == [
        "best mean validation accuracy after round 27",
        "30 rounds in 12.0 s (0.4 s each), 475 MB at peak",
        "clients sent 629.8 kB, received 1.2 MB",
        "files: runs/one",
    ]


def test_a_model_below_the_constant_prediction_is_loud() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    metrics = SUMMARY["metrics"] | {"global/majority": 0.6, "global/classes_predicted": 2.0}
    terminal.show_result(console, SUMMARY | {"metrics": metrics}, Path("runs/one"))
    assert "note: the accuracy on all test examples, 0.557, is below 0.600" in console.export_text()


def test_an_accuracy_is_told_with_the_round_that_it_is_of() -> None:
    shown = io.StringIO()
    watch = terminal.Terminal(Console(width=160, file=shown))
    watch._rounds = 4
    for number, summary in ((1, {}), (2, {"global/accuracy": 0.5}), (3, {}), (4, {"global/accuracy": 0.75})):
        watch.step(Checkpoint(number, float(number), summary=summary))
    assert shown.getvalue().splitlines() == [
        "round 1/4  1 s/round",
        "round 2/4  1 s/round, accuracy global 0.5000",
        "round 3/4  1 s/round, accuracy after round 2 global 0.5000",
        "round 4/4  1 s/round, accuracy global 0.7500",
    ]


def test_ledger_adds_up_messages_of_equal_kind() -> None:
    def row(round: int, client: str, direction: str, key: str, size: int, reveals: str) -> tuple[Any, ...]:
        to = "b" if direction == "peer" else None
        return (round, 0, "Alg.train", client, direction, key, "[2] float32", size, "none", reveals, 0.0, to, None)

    rows = [
        row(1, "a", "up", "w", 1000, "weights"),
        row(2, "a", "up", "w", 1000, "weights"),
        row(2, "b", "up", "w", 1000, "weights"),
        row(1, "a", "up", "n", 8, "training nodes"),
        row(1, "a", "down", "w", 500, ""),
        row(1, "a", "peer", "w", 300, "weights"),
    ]
    table = pa.table(
        [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)], SCHEMA
    )
    shown = io.StringIO()
    terminal.show_ledger(Console(width=200, file=shown), table)
    lines = [re.split(r"  +", line.strip()) for line in shown.getvalue().splitlines()]
    assert [line for line in lines if line[0] in ("up", "down", "peer")] == [
        ["up", "Alg.train", "w", "[2] float32", "none", "weights", "2", "3", "3.0 kB"],
        ["up", "Alg.train", "n", "[2] float32", "none", "training nodes", "1", "1", "8 bytes"],
        ["peer", "Alg.train", "w", "[2] float32", "none", "weights", "1", "1", "300 bytes"],
        ["down", "Alg.train", "w", "[2] float32", "none", "1", "1", "500 bytes"],
    ]
    assert ["in all: 3.0 kB left clients, 500 bytes reached them, 300 bytes passed between them"] in lines


def test_what_passed_between_clients_is_said_where_anything_did() -> None:
    shown = io.StringIO()
    terminal.show_result(Console(width=80, file=shown), SUMMARY | {"bytes_peer": 2_000}, Path("runs/one"))
    assert "clients sent 629.8 kB, received 1.2 MB, sent 2.0 kB to each other" in shown.getvalue()


def test_what_noise_bounds_stands_below_the_ledger() -> None:
    """Two releases with μ = 1/2 have ε = 2.943 at δ = 1e-5 (see `tests/algorithms/test_glasu_privacy.py`)."""
    ledger, shown = Ledger(), io.StringIO()
    info = StepInfo.of({"h": Sends("rows", (Clipped(1.0), Gaussian(4.0, 2.0, "row")))})
    for call in range(2):
        ledger.record(1, call, "Alg.infer", ("a", "b"), "up", {"h": torch.zeros(2)}, 0.0, info)
    terminal.show_ledger(Console(width=200, file=shown), ledger.table())
    said = "Differential privacy of what was noised, per row: ε = 2.943 at δ = 1e-05 after 2 messages."
    assert shown.getvalue().splitlines()[-1] == said

"""What is read of a finished run for a cell."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedweave.config import Document
from fedweave.reproduce.paper import Quantity
from fedweave.runs.files import LEDGER, SUMMARY, damaged, read, read_table

MB = 2**20  # bytes; FedEgo's Table 9 counts so: 2 · 367,104 floats · 5 clients · 200 rounds are its 2,801 "MB"
EVALUATION = ".score"  # how the names of the steps end that only evaluate


def accuracy(split: str) -> Quantity:
    """Accuracy, which is micro-F1, on the "local" or "global" test, 0..1."""
    return Quantity("F1", lambda run: _summary(run)["metrics"].get(f"{split}/accuracy"))


def minutes() -> Quantity:
    """Time that the whole run took on the machine at hand, with evaluation."""
    return Quantity("min", lambda run: _summary(run)["seconds"] / 60, digits=3)


def megabytes(keys: tuple[str, ...], expected: Callable[[Document], float] | None = None) -> Quantity:
    """What training sent under `keys` (the first part of a key's path), up and down over all clients and rounds, in
    2^20 bytes; evaluation and the framing of messages are not counted."""
    return Quantity("MB", lambda run: _sent(run, keys) / MB, expected, digits=1)


def _sent(run: Path, keys: tuple[str, ...]) -> int:
    plain = pa.schema([("step", pa.string()), ("key", pa.string()), ("bytes", pa.int64())])
    ledger = read_table(run, LEDGER).select(plain.names).cast(plain)
    sums = ledger.group_by(["step", "key"]).aggregate([("bytes", "sum")]).to_pylist()
    trained = [row for row in sums if not row["step"].endswith(EVALUATION)]
    return sum(row["bytes_sum"] for row in trained if row["key"].split("/")[0] in keys)


def _summary(run: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(read(run / SUMMARY))
        found["metrics"].keys()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(run / SUMMARY, f"{type(error).__name__} {error}") from error
    return found

"""The lenders' models, trained in three ways, and what is known of each afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.algorithm import Evaluation
from fedweave.core.graph import TEST, TRAIN
from fedweave.core.types import FRAMING
from fedweave.experiment import config
from fedweave.experiment.build import build
from fedweave.experiment.rounds import measure, train
from fedweave.metrics import groups
from fedweave.metrics.groups import noise_floor

EXPERIMENT = Path(__file__).with_name("lenders.toml")
SCORES = ("accuracy", "auc")
JUDGED = ("own", "trained")  # keys of what is asked for to judge the models


@dataclass(frozen=True)
class Sent:
    """What one key of the lenders' messages carried: the ledger's words, in how many messages, and how many bytes."""

    key: str
    reveals: str
    judged: bool  # asked for to judge the model, not to train it
    messages: int
    bytes: int


@dataclass(frozen=True)
class Outcome:
    """One way of training, judged on customers whom no model learned from.

    scores:    {"accuracy", "auc"}: float64 [lenders].
    counts:    float64 [lenders, 2, 2, 2], customers by group, outcome (1: paid) and prediction (1: will pay).
    known:     int64 [lenders], customers with known outcome. customers: int64 [lenders], in all.
    sent:      what left the lenders. rounds: of training.
    """

    scores: dict[str, np.ndarray]
    counts: np.ndarray
    known: np.ndarray
    customers: np.ndarray
    sent: tuple[Sent, ...]
    rounds: int

    @property
    def pooled(self) -> np.ndarray:
        """The counts of all lenders' customers, [2, 2, 2]."""
        return self.counts.sum(0)

    @property
    def payers(self) -> np.ndarray:
        """Share of each lender's customers who paid, [lenders]."""
        outcomes = self.counts.sum((1, 3))
        return outcomes[:, 1] / outcomes.sum(1)

    @property
    def approved(self) -> np.ndarray:
        """Share of each group's customers whom the model trusts to pay, [2]."""
        return self.pooled[..., 1].sum(-1) / self.pooled.sum((-1, -2))

    @property
    def approved_payers(self) -> np.ndarray:
        """The same among those who did pay, [2]."""
        return self.pooled[:, 1, 1] / self.pooled[:, 1].sum(-1)

    @property
    def approval(self) -> float:
        """Share of all customers whom the model trusts."""
        return float(self.pooled[..., 1].sum() / self.pooled.sum())

    @property
    def refused_defaults(self) -> float:
        """Share of those who did not pay whom the model does not trust."""
        bad = self.pooled[:, 0].sum(0)
        return float(bad[0] / bad.sum())

    @property
    def total(self) -> int:
        """Bytes that left all lenders while training, without what was asked to judge the models."""
        return sum(it.bytes for it in self.sent if not it.judged)

    @property
    def bad_rate(self) -> float:
        """Share of those trusted who did not pay; NaN if nobody is."""
        trusted = self.pooled.sum(0)[:, 1]
        return float(trusted[0] / trusted.sum()) if trusted.sum() else float("nan")

    @property
    def gaps(self) -> dict[str, float]:
        """{"sp", "eo", "sp_floor", "eo_floor", …}, see `metrics.group_fairness`, `between_groups.noise_floor`."""
        pairs = {"groups": self.pooled}
        return {name: float(value) for name, value in (groups.values(pairs) | noise_floor(pairs)).items()}

    @property
    def auc_error(self) -> np.ndarray:
        """Standard error of each lender's AUC, [lenders] (Hanley and McNeil 1982, eq. 1)."""
        auc = self.scores["auc"]
        bad, good = self.counts.sum((1, 3)).T
        first, second = auc / (2 - auc), 2 * auc**2 / (1 + auc)
        variance = auc * (1 - auc) + (good - 1) * (first - auc**2) + (bad - 1) * (second - auc**2)
        return np.sqrt(variance / (good * bad))


def trained(algorithm: str, settings: Sequence[str] = ()) -> Outcome:
    """Train the lenders' models by `algorithm` and stop where they are best on customers kept for that (validation):
    all at the round with the best mean AUC, or each at its own where nothing is shared.

    settings: "section.key=value", before those of `EXPERIMENT`.

    Raises:
        DataError: the data is not at hand; names the places and what to put there.
        ConfigError: a setting is not valid.
    """
    resolved, _ = config.read(EXPERIMENT, list(settings), algorithm)
    general, made = resolved.general, build(resolved)
    looks = [
        _judged(result.round, made.algorithm.evaluate(result.state, made.fed))
        for result in train(made.algorithm, made.fed, general.rounds, eval_every=0)
        if result.round % general.eval_every == 0
    ]
    found = {name: np.stack([look[name] for look in looks]) for name in looks[0]}
    best = np.nan_to_num(found["val"])
    at = best.argmax(0) if algorithm == "local" else np.full(best.shape[1], best.mean(1).argmax())
    lenders = np.arange(best.shape[1])
    parts = made.partition.parts
    return Outcome(
        scores={name: found[name][at, lenders] for name in SCORES},
        counts=found["counts"][at, lenders],
        known=np.array([part.masks[TRAIN].sum() for part in parts]),
        customers=np.array([len(part.nodes) for part in parts]),
        sent=_sent(made.fed.ledger.table()),
        rounds=general.rounds,
    )


def _judged(round: int, evaluation: Evaluation) -> dict[str, np.ndarray]:
    """{"val": AUC on the customers kept to stop by [lenders], "accuracy", "auc", "counts": as in `Outcome`}."""
    clients = evaluation.clients
    rows = {
        (row["client"], row["split"], row["metric"]): row["value"] for row in measure(round, evaluation)[0].to_pylist()
    }
    read = {"val": ("val", "auc")} | {name: ("test", name) for name in SCORES}
    found = {name: np.array([rows.get((it, *key), np.nan) for it in clients.clients]) for name, key in read.items()}
    return found | {"counts": clients.stack("own/groups").double().numpy()[:, TEST]}


def _sent(ledger: pa.Table) -> tuple[Sent, ...]:
    """What went up: while training, by the first part of its key, and to judge the model."""
    words = pa.table(
        {name: ledger[name].cast(pa.string()) for name in ("direction", "step", "key", "reveals", "client")}
    )
    rows = words.append_column("bytes", ledger["bytes"]).append_column("call", ledger["call"])
    rows = rows.append_column("round", ledger["round"])
    found: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
    for row in rows.filter((pc.field("direction") == "up") & (pc.field("key") != FRAMING)).to_pylist():
        key = row["key"].split("/")[0]
        if row["reveals"]:
            found.setdefault((key, row["reveals"], key in JUDGED), []).append(row)
    return tuple(
        Sent(*what, len({(row["round"], row["call"], row["client"]) for row in of}), sum(row["bytes"] for row in of))
        for what, of in found.items()
    )

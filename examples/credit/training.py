"""The lenders' models, trained in three ways, and the results of each."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedweave.core.algorithm import Evaluation
from fedweave.core.graph import TEST, TRAIN
from fedweave.core.types import FRAMING
from fedweave.experiment import config
from fedweave.experiment.build import build
from fedweave.experiment.rounds import measure, train
from fedweave.metrics import groups

EXPERIMENT = Path(__file__).with_name("lenders.toml")
SCORES = ("accuracy", "auc")
EVALUATION_KEYS = ("own", "trained")  # of messages that evaluate the models


@dataclass(frozen=True)
class Sent:
    """One key of the lenders' messages: what it reveals, by the ledger, in how many messages, and how many bytes."""

    key: str
    reveals: str
    judged: bool  # sent to evaluate the model, not to train it
    messages: int
    bytes: int


@dataclass(frozen=True)
class Outcome:
    """One way of training, evaluated on customers whom no model learned from.

    scores:    {"accuracy", "auc"}: float64 [lenders].
    counts:    float64 [lenders, 2, 2, 2], customers by group, outcome (1: paid) and prediction (1: will pay).
    known:     int64 [lenders], customers to train on. customers: int64 [lenders], in all.
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
        """Bytes that left all lenders in training, without those that evaluate the models."""
        return sum(it.bytes for it in self.sent if not it.judged)

    @property
    def bad_rate(self) -> float:
        """Share of the trusted customers who did not pay; NaN without trusted customers."""
        trusted = self.pooled.sum(0)[:, 1]
        return float(trusted[0] / trusted.sum()) if trusted.sum() else float("nan")

    @property
    def gaps(self) -> dict[str, float]:
        """{"sp", "eo", "sp_floor", "eo_floor", …}, see `groups.values` and `groups.noise_floor` in `metrics`."""
        pairs = {"groups": self.pooled}
        return {name: float(value) for name, value in (groups.values(pairs) | groups.noise_floor(pairs)).items()}

    @property
    def auc_error(self) -> np.ndarray:
        """Standard error of each lender's AUC, [lenders] (Hanley and McNeil 1982, eq. 1)."""
        auc = self.scores["auc"]
        bad, good = self.counts.sum((1, 3)).T
        first, second = auc / (2 - auc), 2 * auc**2 / (1 + auc)
        variance = auc * (1 - auc) + (good - 1) * (first - auc**2) + (bad - 1) * (second - auc**2)
        return np.sqrt(variance / (good * bad))


def train_lenders(algorithm: str, settings: Sequence[str] = ()) -> Outcome:
    """Train the lenders' models by `algorithm` and take those that are best on validation customers: of the round with
    the best mean AUC, or of each lender's best round where nothing is shared.

    settings: "section.key=value", before those of `EXPERIMENT`.

    Raises:
        DataError: the data is not there; the message has the places and what to put there.
        ConfigError: a setting is not valid.
    """
    resolved, _ = config.read(EXPERIMENT, list(settings), algorithm)
    general, built = resolved.general, build(resolved)
    evaluations = []
    for result in train(built.algorithm, built.fed, general.rounds, eval_every=0):
        if result.round % general.eval_every == 0:
            evaluations.append(_scores(result.round, built.algorithm.evaluate(result.state, built.fed)))
    curves = {name: np.stack([scores[name] for scores in evaluations]) for name in evaluations[0]}
    val = np.nan_to_num(curves["val"])  # [evaluations, lenders]
    best = val.argmax(0) if algorithm == "local" else np.full(val.shape[1], val.mean(1).argmax())
    lenders = np.arange(val.shape[1])
    parts = built.partition.parts
    return Outcome(
        scores={name: curves[name][best, lenders] for name in SCORES},
        counts=curves["counts"][best, lenders],
        known=np.array([part.masks[TRAIN].sum() for part in parts]),
        customers=np.array([len(part.nodes) for part in parts]),
        sent=_sent(built.fed.ledger.table()),
        rounds=general.rounds,
    )


def _scores(round: int, evaluation: Evaluation) -> dict[str, np.ndarray]:
    """{"val": AUC on validation customers [lenders], "accuracy", "auc", "counts": as in `Outcome`}."""
    clients = evaluation.clients
    rows: dict[tuple[str, str, str], float] = {}
    for row in measure(round, evaluation)[0].to_pylist():
        rows[row["client"], row["split"], row["metric"]] = row["value"]
    result = {"val": np.array([rows.get((client, "val", "auc"), np.nan) for client in clients.clients])}
    for name in SCORES:
        result[name] = np.array([rows.get((client, "test", name), np.nan) for client in clients.clients])
    return result | {"counts": clients.stack("own/groups").double().numpy()[:, TEST]}


def _sent(ledger: pa.Table) -> tuple[Sent, ...]:
    """What the lenders sent, by the first part of its key."""
    names = ("direction", "key", "reveals", "client", "round", "call", "bytes")
    messages: dict[tuple[str, str], set[tuple[int, int, str]]] = {}
    sizes = Counter[tuple[str, str]]()
    for row in ledger.select(names).to_pylist():
        if row["direction"] == "up" and row["key"] != FRAMING and row["reveals"]:
            kind = row["key"].split("/")[0], row["reveals"]
            messages.setdefault(kind, set()).add((row["round"], row["call"], row["client"]))
            sizes[kind] += row["bytes"]
    result = []
    for (key, reveals), of_kind in messages.items():
        result.append(Sent(key, reveals, key in EVALUATION_KEYS, len(of_kind), sizes[key, reveals]))
    return tuple(result)

"""The one training loop: rounds, evaluation, and what is measured."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fedweave.core import purposes
from fedweave.core.algorithm import Algorithm, Evaluation, capabilities, check_rounds
from fedweave.core.graph import SPLITS, TEST, TRAIN
from fedweave.core.tree import Tree, leaves
from fedweave.errors import FedweaveError, UserError
from fedweave.metrics import between_groups, reference
from fedweave.metrics.classification import values
from fedweave.metrics.client_fairness import client_fairness
from fedweave.metrics.personal import personal

METRICS_SCHEMA = pa.schema(
    [
        ("round", pa.int32()),
        ("client", pa.string()),
        ("split", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
    ]
)
GLOBAL = "global"
SERVER = "server"
BEST = "best_val"
VALIDATION = f"{BEST}/val/accuracy"
FAIREST = "best_fair"
COARSE = "scores/coarse"  # how many clients' scores left rounded, and without what is counted by class
TRAINING = "fairness/train_"
SELECTION = f"{between_groups.MEASURED}/selection/"
_OF_FAIREST = ("global/accuracy", "global/auc", "global/classes_predicted", "local/accuracy", "local/auc")


class Summary(dict[str, float]):
    """What one evaluation measured; empty in a round without one, where asking for a number is an error."""

    def __init__(self, round: int, measured: Mapping[str, float] | None = None) -> None:
        super().__init__(measured or {})
        self.round = round

    def __missing__(self, name: str) -> float:
        """Refuse a number that was not measured."""
        why = f"it has {', '.join(self)}" if self else "this round was not evaluated (eval_every)"
        raise KeyError(f"{name!r} is not in the summary of round {self.round}: {why}")


@dataclass
class RoundResult:
    """What one round left.

    round:   rounds done. state: the server's state after it.
    metrics: rows measured after it (`METRICS_SCHEMA`), or None: those of an evaluation, and what the server knows of
             each client, whose split is "server".
    summary: "global/accuracy", "local/accuracy", "trained/accuracy", "fairness/…" of this round's evaluation, test
             split, "best_val/…" (see `best_validated`) and, where the data has a sensitive attribute, "groups/…" (see
             `metrics.between_groups`) and "best_fair/…" (see `fairest`); empty in a round without evaluation.
    """

    round: int
    state: Tree
    metrics: pa.Table | None = None
    summary: dict[str, float] = field(default_factory=dict)

    @property
    def evaluated(self) -> bool:
        """Whether the summary has this round's evaluation."""
        return bool(self.summary)

    def of_clients(self, metric: str, split: str = "test") -> dict[str, float]:
        """{client: value} of `metric` on each client's `split`, or of what the server knows of it (split "server");
        clients where it is not defined are left out.

        Raises:
            KeyError: this round has no such number.
        """
        rows = () if self.metrics is None else self.metrics.to_pylist()
        known = [row for row in rows if row["split"] == split and row["client"] != GLOBAL]
        found = {row["client"]: row["value"] for row in known if row["metric"] == metric}
        if not found:
            there = ", ".join(dict.fromkeys(row["metric"] for row in known)) or "nothing"
            raise KeyError(f"round {self.round} has no {metric!r} of clients in split {split!r}; there it has {there}")
        return found


def train(
    algorithm: Algorithm,
    fed: Any,
    rounds: int,
    eval_every: int = 1,
    resume: tuple[int, Tree] | None = None,
    summary: Mapping[str, float] | None = None,
    fair_margin: float = 0.0,
) -> Iterator[RoundResult]:
    """Run `rounds` rounds of `algorithm` on `fed`, evaluating every `eval_every` (0: never) and at the end.

    resume: (rounds done, server state) of a checkpoint; the engine must have been restored too. summary: the
    checkpoint's, for its best rounds. fair_margin: see `fairest`.
    """
    if rounds < 1 or eval_every < 0:
        raise UserError(
            f"rounds is {rounds} and eval_every {eval_every}; rounds must be at least 1, eval_every at least 0."
        )
    check_rounds(algorithm, rounds)
    done, state = resume or (0, None)
    if state is None:
        fed.ledger.purpose = purposes.SETUP
        fed.begin(0)
        state = algorithm.init(fed)
    before: dict[str, float] = dict(summary or {})
    for number in range(done + 1, rounds + 1):
        fed.ledger.purpose = purposes.TRAINING
        fed.begin(number)
        state = algorithm.round(state, fed)
        metrics, found = of_server(number, algorithm, state, fed), Summary(number)
        if number == rounds or (eval_every and number % eval_every == 0):
            fed.ledger.purpose = purposes.EVALUATION
            rows, measured = measure(number, algorithm.evaluate(state, fed))
            best = best_validated(number, rows, measured, before)
            best |= fairest(number, rows, measured, before, fair_margin)
            before = measured | best
            found = Summary(number, before)
            metrics = pa.concat_tables([rows, *([metrics] if metrics else [])])
            _refuse_divergence(number, state)
        yield RoundResult(number, state, metrics, found)


def of_server(round: int, algorithm: Algorithm, state: Tree, fed: Any) -> pa.Table | None:
    """Rows of what the server knows of each client after a round; None if there is nothing."""
    if not capabilities(algorithm).measures or not (found := algorithm.measures(state, fed)):  # type: ignore[attr-defined]
        return None
    known = [
        (round, client, SERVER, name, value)
        for name, of_clients in found.items()
        for client, value in zip(fed.clients, of_clients.tolist(), strict=True)
        if not math.isnan(value)
    ]
    return pa.table([pa.array(column) for column in zip(*known, strict=True)], METRICS_SCHEMA) if known else None


def _refuse_divergence(round: int, state: Tree) -> None:
    for path, leaf in leaves(state):
        if isinstance(leaf, torch.Tensor) and not leaf.isfinite().all():
            raise FedweaveError(
                f"training diverged: after round {round} {path!r} holds numbers that are not finite. "
                "Lower algorithm.lr, or bound the updates (algorithm.parts = [{name = 'clip', norm = 1.0}])."
            )


def measure(round: int, evaluation: Evaluation) -> tuple[pa.Table, dict[str, float]]:
    """Turn an evaluation's pairs into rows and the summary of the test split.

    "local" is the mean over clients of their own test examples, "trained" the same of the models that their own
    training left. "global" is the global test set (the mean over clients where each has its own model) or, without one,
    all clients' test examples pooled. "…/majority" is the accuracy of always predicting the most frequent class of the
    training examples, for "local" of the client's own. "scores/coarse" counts the clients, if there are any, whose
    losses and hits are rounded, and who are in no metric by class.
    """
    replies = evaluation.clients
    pairs, judged = _pairs(replies, "own"), _pairs(replies, "global_test")
    own, of_groups = _measured(pairs, _majority(pairs))
    everyone = {name: pair.sum(0) for name, pair in pairs.items()}
    common = _majority(everyone)
    pooled, groups = _outside(evaluation.server, judged, common) or _measured(everyone, common)
    after = {f"trained/{name}": value for name, value in values(_pairs(replies, "trained")).items()}
    fairness, _ = client_fairness(
        own["loss"][:, TEST], own["accuracy"][:, TEST], own["loss"][:, TRAIN], replies.clients
    )
    summary = {f"global/{name}": float(value[2]) for name, value in pooled.items()}
    summary |= {f"local/{name}": _mean(value[:, 2]) for name, value in own.items()}
    summary |= {name: _mean(value[:, 2]) for name, value in after.items()} | fairness
    summary |= between_groups.summarised(of_groups, groups)
    single = {("train" if name.startswith(TRAINING) else "test", name): value for name, value in fairness.items()}
    single |= {("val", SELECTION + name): value for name, value in between_groups.selection(pairs).items()}
    each = {("train", name): value for name, value in _pairs(replies, "measures").items()}
    each |= {("test", name): value for name, value in personal(judged).items()}
    if (coarse := _coarse(pairs)).any():
        summary[COARSE], each["test", COARSE] = float(coarse.sum()), np.where(coarse, 1.0, math.nan)
    rows = _rows(round, replies.clients, own | of_groups | after, pooled | groups, single, each)
    return rows, {k: v for k, v in summary.items() if not math.isnan(v)}


def best_validated(
    round: int, metrics: pa.Table, summary: Mapping[str, float], before: Mapping[str, float]
) -> dict[str, float]:
    """The test accuracies "best_val/global/accuracy", "best_val/local/…" and "best_val/trained/…" of the round
    "best_val/round" with the best mean over clients of the validation accuracy, "best_val/val/accuracy"; of equal ones
    the first. Empty without validation examples.

    metrics, summary: of this round's evaluation. before: what the summary of the evaluation before said.
    """
    own = pc.and_(pc.equal(metrics["metric"], "accuracy"), pc.not_equal(metrics["client"], GLOBAL))
    found = pc.mean(metrics.filter(pc.and_(own, pc.equal(metrics["split"], "val")))["value"]).as_py()
    if found is None or found <= before.get(VALIDATION, -math.inf):
        return {name: value for name, value in before.items() if name.startswith(f"{BEST}/")}
    test = {
        name: summary[name] for name in ("global/accuracy", "local/accuracy", "trained/accuracy") if name in summary
    }
    return {f"{BEST}/round": round, VALIDATION: found} | {f"{BEST}/{name}": v for name, v in test.items()}


def fairest(
    round: int, metrics: pa.Table, summary: Mapping[str, float], before: Mapping[str, float], margin: float = 0.0
) -> dict[str, float]:
    """The test accuracies, AUC and "best_fair/groups/…" of the round "best_fair/round" with the lowest
    "best_fair/val/gaps", SP + EO of all clients' validation examples together, among those whose "best_fair/val/
    accuracy" there lies more than `margin`, "best_fair/val/margin", above "best_fair/val/constant", that of the better
    constant prediction; of the round with the best such accuracy while there is none (see
    `between_groups.fairer`). Empty without groups.

    metrics, summary, before: as in `best_validated`.
    """
    chosen = metrics.filter(pc.starts_with(metrics["metric"], SELECTION)).select(["metric", "value"]).to_pylist()
    found = {"gaps": math.nan} | {row["metric"].removeprefix(SELECTION): row["value"] for row in chosen}
    last = {name: before.get(f"{FAIREST}/val/{name}", math.nan) for name in between_groups.SELECTION}
    first = f"{FAIREST}/round" not in before
    if "accuracy" not in found or not (first or between_groups.fairer(found, last, margin)):
        return {name: value for name, value in before.items() if name.startswith(f"{FAIREST}/")}
    test = {name: value for name, value in summary.items() if name in _OF_FAIREST or name.startswith("groups/")}
    found["margin"] = margin
    val = {f"{FAIREST}/val/{name}": value for name, value in found.items() if not math.isnan(value)}
    return {f"{FAIREST}/round": round} | val | {f"{FAIREST}/{name}": value for name, value in test.items()}


def _pairs(replies: Any, key: str) -> dict[str, np.ndarray]:
    names = [path for path, _ in leaves(replies[replies.clients[0]]) if path.startswith(f"{key}/")]
    return {name.removeprefix(f"{key}/"): replies.stack(name).numpy() for name in names}


Measured = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]


def _coarse(pairs: dict[str, np.ndarray]) -> np.ndarray:
    """Whether each client tells how many of its examples are classified right, and of no class how many."""
    examples, of_classes = pairs["accuracy"][:, :, 1].sum(-1), pairs["f1"][:, :, 1].sum((-1, -2))
    return (examples > 0) & (of_classes == 0)


def _majority(pairs: dict[str, np.ndarray]) -> np.ndarray | None:
    """The most frequent class of training; None where classes were not counted."""
    return reference.majority_classes(pairs["classes"]) if "classes" in pairs else None


def _measured(pairs: dict[str, np.ndarray], majority: np.ndarray | None) -> Measured:
    """The metrics of all people, with those of always predicting the class `majority`, and those that compare groups of
    them."""
    found = values(pairs)
    if majority is not None and "classes" in pairs:
        found |= reference.references(pairs["classes"], majority)
    return found, between_groups.measures(pairs, found.get("accuracy"), found.get("auc"))


def _outside(server: Tree | None, judged: dict[str, np.ndarray], majority: np.ndarray | None) -> Measured | None:
    """On the global test: of the server's model, or the mean over clients' own, whose pairs are `judged`."""
    if server is not None:
        return _measured({name: pair.numpy() for name, pair in server.items()}, majority)
    if not judged:
        return None
    plain, groups = (
        {name: np.apply_along_axis(_mean, 0, value) for name, value in found.items()}
        for found in _measured(judged, majority)
    )
    return plain, groups


def _mean(of_clients: np.ndarray) -> float:
    defined = of_clients[~np.isnan(of_clients)]
    return float(defined.mean()) if len(defined) else math.nan


def _rows(
    round: int,
    clients: tuple[str, ...],
    own: dict[str, np.ndarray],
    pooled: dict[str, np.ndarray],
    single: dict[tuple[str, str], float],
    each: dict[tuple[str, str], np.ndarray],
) -> pa.Table:
    """Long rows: every client and "global", every split, every metric that is defined there; and by (split, metric),
    those of "global" alone, `single`, and those of `each` client alone."""
    numbers = [*(value.reshape(-1) for value in own.values()), *pooled.values(), np.array([*single.values()], float)]
    flat = np.concatenate([*numbers, *each.values()])
    rounds = pa.array(np.full(len(flat), round, np.int32))
    labels = _labels(clients, tuple(own), tuple(pooled), tuple(single), tuple(each))
    table = pa.table([rounds, *labels, flat], METRICS_SCHEMA)
    undefined = np.isnan(flat)
    return table.take(np.flatnonzero(~undefined)) if undefined.any() else table


@lru_cache(maxsize=8)
def _labels(
    clients: tuple[str, ...],
    own: tuple[str, ...],
    pooled: tuple[str, ...],
    single: tuple[tuple[str, str], ...],
    each: tuple[tuple[str, str], ...],
) -> tuple[pa.Array, ...]:
    """The columns client, split and metric, which are the same in every round."""
    rows = [(client, split, name) for name in own for client in clients for split in SPLITS]
    rows += [(GLOBAL, split, name) for name in pooled for split in SPLITS]
    rows += [(GLOBAL, *own) for own in single]
    rows += [(client, *own) for own in each for client in clients]
    return tuple(pa.array(column) for column in zip(*rows, strict=True))

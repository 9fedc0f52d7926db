"""The result of an evaluation, as rows of metrics.parquet and as the summary of a round."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.algorithm import Evaluation
from fedweave.core.graph import SPLITS, TEST, VAL
from fedweave.core.replies import Replies, on_host
from fedweave.core.tree import Tree, leaves
from fedweave.errors import FedweaveError, diverged_message
from fedweave.metrics import groups
from fedweave.metrics.classification import mean_values
from fedweave.metrics.kinds import (
    Classes,
    Measured,
    clients_with_pairs,
    kind_by,
    mean,
    previous_selection,
    within,
)
from fedweave.metrics.selection import (
    CROSSING,
    Judging,
    positive_of,
    selection_metric_of,
)

METRICS_SCHEMA = pa.schema(
    [
        ("round", pa.int32()),
        ("client", pa.string()),
        ("split", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
    ]
)
GLOBAL = "global"  # stands for a client: all examples together
UNCOUNTED = "scores/uncounted"
ROUNDED_SCORES = "scores/coarse"  # number of clients that sent only hits, or no losses where others did
SAMPLED, OF = "scores/sampled", "scores/clients"  # number of clients that the server asked, and of all clients
MISSING = "scores/missing"  # number of clients that the server asked for scores and that sent none
_KINDS, _SERVER = ("own/", "global_test/", "trained/", "measures/", f"{CROSSING}/"), "server/"
TRAINING = "fairness/train_"
SELECTION = f"{groups.MEASURED}/selection/"


class Measurement(NamedTuple):
    """The result of an evaluation: rows of `METRICS_SCHEMA`, the summary of the test split and, on validation examples,
    the mean over clients of the selection metric, if a client has it, and `groups.selection`."""

    rows: pa.Table
    summary: dict[str, float]
    validated: float | None
    selection: dict[str, float]


def measure(
    round: int,
    evaluation: Evaluation,
    judging: Judging | None = None,
    before: Mapping[str, float] | None = None,
    last: bool = False,
) -> Measurement:
    """Turn an evaluation's pairs into rows and the summary of the test split.

    "local" is the mean over clients of their own test examples, and "trained" this mean for the models that clients
    have right after local training. "global" is the global test set (the mean over clients where each has its own
    model) or, without one, all clients' test examples pooled. "…/majority" is the accuracy of always predicting the
    most frequent class of the training examples; in "local", of the client's own. Some clients with test examples may
    have no training examples: "local/matched_accuracy" is then the mean over the others, as "local/majority" is.

    "within/auc" compares only examples of the same client, also where "global" does not; "within/members" counts the
    clients with both positives and negatives, over which it and "local/auc" are means. "crossing/…" covers all clients'
    links to other clients' nodes, which are in no other metric. If the server knows only sums of scores
    (`Evaluation.total`), there are no metrics of single clients.

    Further entries, each left out where it does not apply:

    "scores/coarse":    clients in no metric by class (their hits are rounded, or of randomized labels), or in no loss.
    "scores/missing":   clients that sent no scores.
    "scores/rarest":    the share of the rarest class of the training examples, where it is small (`reference.rarest`).
    "scores/diverged":  a mean loss on a split's examples that is too large for a model that learns.
    "scores/uncounted": the share of the examples that are in no histogram.
    "positives/test", "positives/val":   the number of examples of the positive class; like the next two lines, where a
                        metric of that class selects and clients send their counts.
    "positives/test_fewest", "positives/val_fewest": the number at the client with the fewest.
    "positives/alerts", "positives/alerts_within":   a hundredth of all test examples, and of each client's own.
    "fairness/undefined_<metric>":       clients where the metric is not defined.

    judging: how the selection metric is chosen; the entry "judged/…" (`judging.Judging.verdict`) names it. before: the
    summary of the evaluation before, which has chosen it already. last: whether to add "per_class/…", on the examples
    of "global".

    Raises:
        FedweaveError: a client's loss is not finite; names the client.
    """
    replies = evaluation.clients
    scores, server = _scores(replies, evaluation.server)
    pairs, global_test_pairs = _pairs(scores, "own"), _pairs(scores, "global_test")
    _check_finite(round, pairs.get("loss"), replies.clients)
    summed = {} if evaluation.total is None else on_host(dict(leaves(evaluation.total)))
    everyone = {name: pair.sum(0) for name, pair in pairs.items()}
    everyone |= {name: pair for name, pair in summed.items() if "/" not in name and pair.any()}
    judging = judging or Judging()
    kind = kind_by(everyone or (global_test_pairs if server is None else server))
    by = previous_selection(before or {}) or kind.verdict(everyone, judging)
    positive = positive_class(judging, by)
    per_client, of_groups = kind.measure(pairs, kind.constant(pairs), positive) if pairs else ({}, {})
    common = kind.constant(everyone)
    means = mean_values(_pairs(summed, "mean"), positive)
    outside = _outside(kind, server, global_test_pairs, common, positive)
    pooled, group_metrics = outside or kind.measure(everyone, common, positive)
    crossing = kind.values(_pairs(scores, CROSSING), 1)
    across = kind.values({name: pair.sum(0) for name, pair in _pairs(scores, CROSSING).items()}, 1)
    after = {f"trained/{name}": value for name, value in kind.values(_pairs(scores, "trained")).items()}
    fairness = kind.between(per_client, selection_metric_of(by), replies.clients) if per_client else {}
    whole = within(kind, clients_with_pairs(kind, per_client, summed), everyone, positive)
    summary = {f"global/{name}": float(value[2]) for name, value in pooled.items()}
    summary |= {name: float(value[TEST]) for name, value in whole.items()}
    summary |= {f"local/{name}": mean(value[:, 2]) for name, value in per_client.items()}
    summary |= {f"local/{name}": float(value[TEST]) for name, value in means.items()}
    summary |= kind.accuracy_with_majority(per_client)
    summary |= {name: mean(value[:, 2]) for name, value in after.items()}
    summary |= fairness
    summary |= {f"{CROSSING}/{name}": float(value[TEST]) for name, value in across.items()}
    summary |= groups.summary_of(of_groups, group_metrics)
    chosen = groups.selection(everyone, selection_metric_of(by), positive)
    single = {("train" if name.startswith(TRAINING) else "test", name): value for name, value in fairness.items()}
    single |= {("val", SELECTION + name): value for name, value in chosen.items()}
    warnings = kind.warnings(everyone, after.get("trained/loss"))
    single |= {("train", name): value for name, value in warnings.items()}
    counts = kind.positive_counts(pairs, by, positive)
    counts |= _of_each(kind, evaluation.server, global_test_pairs, everyone) if last else {}
    single |= {("test", name): value for name, value in counts.items()}
    single |= {("train", name): value for name, value in by.items()}
    summary |= counts | warnings | by
    each = {("train", name): value for name, value in _pairs(scores, "measures").items()}
    each |= {("test", name): value for name, value in kind.personal(global_test_pairs).items()}
    uncounted = kind.uncounted_share(summed)
    if uncounted > 0:
        summary[UNCOUNTED] = uncounted
    coarse = kind.coarse(pairs) if pairs else np.zeros(0, bool)
    if coarse.any():
        summary[ROUNDED_SCORES] = float(coarse.sum())
        each["test", ROUNDED_SCORES] = np.where(coarse, 1.0, math.nan)
    if replies.missing:
        summary[MISSING] = float(len(replies.missing))
    whole |= {f"local/{name}": value for name, value in means.items()}
    whole |= {f"{CROSSING}/{name}": value for name, value in across.items()}
    after |= {f"{CROSSING}/{name}": value for name, value in crossing.items()}
    rows = _rows(round, replies.clients, per_client | of_groups | after, pooled | group_metrics | whole, single, each)
    defined = {name: value for name, value in summary.items() if not math.isnan(value)}
    selection = {name: value for name, value in chosen.items() if not math.isnan(value)}
    return Measurement(rows, defined, _validation_mean(per_client, means, selection_metric_of(by)), selection)


def _validation_mean(per_client: Mapping[str, np.ndarray], mean: Mapping[str, np.ndarray], metric: str) -> float | None:
    """The mean over clients of a metric on validation examples; `mean` has it where single clients' is unknown."""
    each = [metrics[metric][..., VAL].reshape(-1) for metrics in (per_client, mean) if metric in metrics]
    known = np.concatenate([np.zeros(0), *each])
    value: float | None = pc.mean(pa.array(known[~np.isnan(known)])).as_py()
    return value


def _check_finite(round: int, losses: np.ndarray | None, clients: Sequence[str]) -> None:
    """Raise an error if losses [P, 3, 2] are not finite: such models have diverged, and the server may not see them."""
    if losses is not None and not np.isfinite(losses).all():
        diverged = [client for client, loss in zip(clients, losses, strict=True) if not np.isfinite(loss).all()]
        raise FedweaveError(
            diverged_message(f"after round {round} the model of {', '.join(diverged)}"), code="diverged"
        )


def positive_class(judging: Judging, summary: Mapping[str, float]) -> int:
    """The class that metrics of one class describe; summary: with the entry "judged/…"."""
    known = positive_of(summary)
    return judging.positive if isinstance(judging.positive, int) else 1 if known is None else known


def _of_each(
    kind: Classes, server: Tree | None, client_pairs: dict[str, np.ndarray], everyone: dict[str, np.ndarray]
) -> dict[str, float]:
    """Metrics of each class, or target, on the test examples of "global"; clients' own models are added up."""
    pairs = {name: pair.cpu().numpy() for name, pair in server.items()} if server is not None else everyone
    if server is None and client_pairs:
        pairs = {name: pair.sum(0) for name, pair in client_pairs.items()}
    of_test = {name: pair[TEST] for name, pair in pairs.items()}
    return {f"{kind.each}/{name}": value for name, value in kind.of_each(of_test).items()}


def _scores(replies: Replies, server: Tree | None) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
    """What clients replied, {path: [P, …]}, and the server's own scores, on the host. This is the one place of a round
    that waits for a device. In memory clients follow each other, so that NumPy passes over all at once."""
    paths = [path for path in replies.readable if path.startswith(_KINDS)]
    client_leaves = {path: replies.stack(path).movedim(0, -1) for path in paths}
    server_leaves = {} if server is None else {f"{_SERVER}{path}": leaf for path, leaf in leaves(server)}
    host = on_host(client_leaves | server_leaves)
    mine = {path.removeprefix(_SERVER): host[path] for path in server_leaves}
    clients = {path: host[path].transpose(-1, *range(host[path].ndim - 1)) for path in client_leaves}
    return clients, None if server is None else mine


def _pairs(scores: Mapping[str, np.ndarray], key: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(f"{key}/"): leaf for name, leaf in scores.items() if name.startswith(f"{key}/")}


def _outside(
    kind: Classes,
    server: dict[str, np.ndarray] | None,
    client_pairs: dict[str, np.ndarray],
    constant: np.ndarray | None,
    positive: int,
) -> Measured | None:
    """Metrics on the global test set: of the server's model, or the mean over clients' own, by `client_pairs`."""
    if server is not None:
        return kind.measure(server, constant, positive)
    if not client_pairs:
        return None
    plain, group_metrics = kind.measure(client_pairs, constant, positive)
    return (
        {name: np.apply_along_axis(mean, 0, value) for name, value in plain.items()},
        {name: np.apply_along_axis(mean, 0, value) for name, value in group_metrics.items()},
    )


def _rows(
    round: int,
    clients: tuple[str, ...],
    per_client: dict[str, np.ndarray],
    pooled: dict[str, np.ndarray],
    single: dict[tuple[str, str], float],
    each: dict[tuple[str, str], np.ndarray],
) -> pa.Table:
    """Long rows: every client and "global", every split, every metric that is defined there; and by (split, metric),
    the `single` values that only "global" has and the values that only `each` client has."""
    others = [*pooled.values(), np.array([*single.values()], float), *each.values()]
    first = len(per_client) * len(clients) * len(SPLITS)
    flat = np.empty(first + sum(map(len, others)))
    if per_client:
        np.concatenate([*per_client.values()], out=flat[:first].reshape(-1, len(SPLITS)))
    np.concatenate(others, out=flat[first:])
    defined = ~np.isnan(flat)
    values = flat if defined.all() else flat[defined]
    labels = _labels(
        clients, tuple(per_client), tuple(pooled), tuple(single), tuple(each), np.packbits(defined).tobytes()
    )
    number = pa.array(np.full(len(values), round, np.int32))
    return pa.Table.from_arrays([number, *labels, pa.array(values)], schema=METRICS_SCHEMA)


def of_splits(round: int, metrics: Mapping[str, np.ndarray]) -> pa.Table:
    """Rows of metrics of all examples together: {metric: float64 [3]}, for every split where it is defined."""
    rows = [
        (round, GLOBAL, split, name, float(value))
        for name, each in metrics.items()
        for split, value in zip(SPLITS, each, strict=True)
        if not math.isnan(value)
    ]
    columns = zip(*rows, strict=True) if rows else ((),) * len(METRICS_SCHEMA)
    return pa.table(
        [pa.array(column, kind.type) for column, kind in zip(columns, METRICS_SCHEMA, strict=True)], METRICS_SCHEMA
    )


@lru_cache(maxsize=2)
def _labels(
    clients: tuple[str, ...],
    per_client: tuple[str, ...],
    pooled: tuple[str, ...],
    single: tuple[tuple[str, str], ...],
    each: tuple[tuple[str, str], ...],
    defined: bytes,
) -> tuple[pa.Array, ...]:
    """The columns client, split and metric of the rows that are `defined`, as bits; cached, as they rarely change."""
    count, three = len(clients), len(SPLITS)
    everyone = np.arange(count)
    metrics = [*per_client, *pooled, *(name for _, name in single), *(name for _, name in each)]
    often = [*[count * three] * len(per_client), *[three] * len(pooled), *[1] * len(single), *[count] * len(each)]
    whose = [np.tile(everyone.repeat(three), len(per_client)), np.full(three * len(pooled) + len(single), count)]
    single_splits = np.array([SPLITS.index(split) for split, _ in single], np.int64)
    each_splits = np.array([SPLITS.index(split) for split, _ in each], np.int64)
    which = np.concatenate(
        [np.tile(np.arange(three), count * len(per_client) + len(pooled)), single_splits, each_splits.repeat(count)]
    )
    columns: tuple[tuple[Sequence[str], np.ndarray], ...] = (
        ((*clients, GLOBAL), np.concatenate([*whose, np.tile(everyone, len(each))])),
        (SPLITS, which),
        (metrics, np.arange(len(metrics)).repeat(often)),
    )
    mask = np.unpackbits(np.frombuffer(defined, np.uint8), count=len(which)).astype(np.bool_)
    return tuple(pa.array(names, pa.string()).take(pa.array(at[mask], pa.int64())) for names, at in columns)

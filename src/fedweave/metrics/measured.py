"""The result of an evaluation, as rows of metrics.parquet and as the summary of a round."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

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
from fedweave.metrics.kinds import Classes, kind_by, mean
from fedweave.metrics.selection import CROSSING, Judging, positive_class, selection_entries, selection_metric_of

METRICS_SCHEMA = pa.schema(
    [
        ("round", pa.int32()),
        ("client", pa.string()),
        ("split", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
    ]
)
MetricRow: TypeAlias = tuple[int, str, str, str, float]  # round, client, split, metric, value
GLOBAL = "global"  # stands for a client: all examples together
UNCOUNTED = "scores/uncounted"
ROUNDED_SCORES = "scores/coarse"  # number of clients that sent only hits, or no losses where others did
SAMPLED, OF = "scores/sampled", "scores/clients"  # number of clients that the server asked, and of all clients
MISSING = "scores/missing"  # number of clients that the server asked for scores and that sent none
DIVERGED_CLIENT = "diverged"  # in a row of a client whose loss is not finite, where it is left out
_KINDS, _SERVER = ("own/", "global_test/", "trained/", "measures/", f"{CROSSING}/"), "server/"
TRAINING = "fairness/train_"
SELECTION = f"{groups.MEASURED}/selection/"


class Measurement(NamedTuple):
    """The result of an evaluation: rows of `METRICS_SCHEMA`, the summary of the test split and, on validation examples,
    the mean over clients of the selection metric, if a client has it, and `groups.selection`. each: "per_class/…" or
    "per_target/…", on the test examples of "global"."""

    rows: pa.Table
    summary: dict[str, float]
    validated: float | None
    selection: dict[str, float]
    each: dict[str, float]


def measure(
    round: int,
    evaluation: Evaluation,
    judging: Judging | None = None,
    before: Mapping[str, float] | None = None,
    last: bool = False,
    skip_diverged: bool = False,
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
    summary of the evaluation before, which has chosen it already. last: whether `each` is also in rows and summary.
    skip_diverged: leave out clients whose loss is not finite, each with a row "diverged", instead of an error.

    Raises:
        FedweaveError: a client's loss is not finite or, with `skip_diverged`, every client's; names the clients.
    """
    judging, replies = judging or Judging(), evaluation.clients
    # 1. pairs: of each client, of clients' own models on the global test set, sums over clients, of all together
    scores, server = _scores(replies, evaluation.server)
    pairs, global_test_pairs = _pairs(scores, "own"), _pairs(scores, "global_test")
    losses = pairs.get("loss")  # [P, 3, 2]
    if losses is not None and not np.isfinite(losses).all():  # the server may not see such models
        diverged = [client for client, loss in zip(replies.clients, losses, strict=True) if not np.isfinite(loss).all()]
        if skip_diverged and len(diverged) < len(replies):
            others = {client: replies[client] for client in replies.clients if client not in diverged}
            finite = evaluation._replace(clients=Replies.of(others, replies.missing))
            measurement = measure(round, finite, judging, before, last)
            marks = table_of([(round, client, "train", DIVERGED_CLIENT, 1.0) for client in diverged])
            return measurement._replace(rows=pa.concat_tables([measurement.rows, marks]))
        message = diverged_message(f"after round {round} the model of {', '.join(diverged)}")
        raise FedweaveError(message, code="diverged")
    summed = {} if evaluation.total is None else on_host(dict(leaves(evaluation.total)))
    everyone = {name: pair.sum(0) for name, pair in pairs.items()}
    everyone |= {name: pair for name, pair in summed.items() if "/" not in name and pair.any()}
    kind = kind_by(everyone or (global_test_pairs if server is None else server))

    # 2. the selection metric: the one of the evaluation before, or chosen by this one
    by = selection_entries(before or {}) or kind.verdict(everyone, judging)
    metric, positive = selection_metric_of(by), positive_class(judging, by)

    # 3. metrics: of each client, "global", pairs within clients, links between clients, models after local training
    per_client, of_groups = kind.measure(pairs, kind.constant(pairs), positive) if pairs else ({}, {})
    means = mean_values(_pairs(summed, "mean"), positive)
    constant = kind.constant(everyone)
    if server is not None:
        pooled, group_metrics = kind.measure(server, constant, positive)
    elif global_test_pairs:
        pooled, group_metrics = kind.measure(global_test_pairs, constant, positive)  # [P, 3] of clients' own models
        pooled = {name: np.apply_along_axis(mean, 0, value) for name, value in pooled.items()}  # [3]
        group_metrics = {name: np.apply_along_axis(mean, 0, value) for name, value in group_metrics.items()}
    else:
        pooled, group_metrics = kind.measure(everyone, constant, positive)
    within = _within(kind, per_client, everyone, summed, positive)
    crossing_pairs = _pairs(scores, CROSSING)
    crossing = kind.values(crossing_pairs, 1)
    crossing_pooled = kind.values({name: pair.sum(0) for name, pair in crossing_pairs.items()}, 1)
    trained = {f"trained/{name}": value for name, value in kind.values(_pairs(scores, "trained")).items()}
    fairness = kind.between(per_client, metric, replies.clients) if per_client else {}
    selection = groups.selection(everyone, metric, positive)
    warnings = kind.warnings(everyone, trained.get("trained/loss"))
    counts = kind.positive_counts(pairs, by, positive)
    # metrics of each class, or target, on the test examples of "global"
    tested = everyone if server is None else server
    if server is None and global_test_pairs:
        tested = {name: pair.sum(0) for name, pair in global_test_pairs.items()}
    of_each = kind.of_each({name: pair[TEST] for name, pair in tested.items()})
    each = {f"{kind.each}/{name}": value for name, value in of_each.items() if not math.isnan(value)}
    if last:
        counts |= each

    # 4. the summary of the test split
    summary = {f"global/{name}": float(value[TEST]) for name, value in pooled.items()}
    summary |= {name: float(value[TEST]) for name, value in within.items()}
    summary |= {f"local/{name}": mean(value[:, TEST]) for name, value in per_client.items()}
    summary |= {f"local/{name}": float(value[TEST]) for name, value in means.items()}
    if "majority" in per_client:  # some clients with test examples may have no training examples
        accuracy, no_majority = per_client["accuracy"][:, TEST], np.isnan(per_client["majority"][:, TEST])
        if (no_majority & ~np.isnan(accuracy)).any():
            summary["local/matched_accuracy"] = mean(accuracy[~no_majority])
    summary |= {name: mean(value[:, TEST]) for name, value in trained.items()}
    summary |= fairness
    summary |= {f"{CROSSING}/{name}": float(value[TEST]) for name, value in crossing_pooled.items()}
    summary |= groups.summary_of(of_groups, group_metrics)
    summary |= counts | warnings | by
    uncounted = kind.uncounted_share(summed)
    if uncounted > 0:
        summary[UNCOUNTED] = uncounted
    coarse = kind.coarse(pairs) if pairs else np.zeros(0, bool)
    if coarse.any():
        summary[ROUNDED_SCORES] = float(coarse.sum())
    if replies.missing:
        summary[MISSING] = float(len(replies.missing))

    # 5. rows: of clients and "global" on all splits; (split, metric) only of "global"; and only of each client
    by_client = per_client | of_groups | trained | {f"{CROSSING}/{name}": value for name, value in crossing.items()}
    of_global = pooled | group_metrics | within
    of_global |= {f"local/{name}": value for name, value in means.items()}
    of_global |= {f"{CROSSING}/{name}": value for name, value in crossing_pooled.items()}
    single = {("train" if name.startswith(TRAINING) else "test", name): value for name, value in fairness.items()}
    single |= {("val", SELECTION + name): value for name, value in selection.items()}
    single |= {("train", name): value for name, value in warnings.items()}
    single |= {("test", name): value for name, value in counts.items()}
    single |= {("train", name): value for name, value in by.items()}
    each_client = {("train", name): value for name, value in _pairs(scores, "measures").items()}
    each_client |= {("test", name): value for name, value in kind.personal(global_test_pairs).items()}
    if coarse.any():
        each_client["test", ROUNDED_SCORES] = np.where(coarse, 1.0, math.nan)
    rows = _rows(round, replies.clients, by_client, of_global, single, each_client)

    # 6. the mean over clients of the selection metric on validation examples, also where only sums are known
    known = [metrics[metric][..., VAL].reshape(-1) for metrics in (per_client, means) if metric in metrics]
    validation = np.concatenate([np.zeros(0), *known])
    validated: float | None = pc.mean(pa.array(validation[~np.isnan(validation)])).as_py()
    defined = {name: value for name, value in summary.items() if not math.isnan(value)}
    known_selection = {name: value for name, value in selection.items() if not math.isnan(value)}
    return Measurement(rows, defined, validated, known_selection, each)


def _within(
    kind: Classes,
    per_client: Mapping[str, np.ndarray],
    everyone: Mapping[str, np.ndarray],
    summed: Mapping[str, np.ndarray],
    positive: int,
) -> dict[str, np.ndarray]:
    """Metrics of order over pairs of examples of the same client, float64 [3], and how many clients have such pairs, as
    far as the server knows."""
    first, *_ = kind.ordering
    if first not in everyone:
        return {}
    if summed:
        members = summed[f"mean/{first}"][:, 1]
    else:
        members = (~np.isnan(per_client.get(first, np.full((1, 3), math.nan)))).sum(0).astype(np.float64)
    metrics = kind.values(
        {name: everyone[name] for name in (*kind.ordering, *kind.always) if name in everyone}, positive
    )
    within = {f"within/{name}": metrics[name] for name in kind.ordering if name in metrics}
    return within | {"within/members": np.where(members > 0, members, math.nan)}


def _scores(replies: Replies, server: Tree | None) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
    """What clients replied, {path: [P, …]}, and the server's own scores, on the host. This is the one place of a round
    that waits for a device. In memory clients follow each other, so that NumPy passes over all at once."""
    paths = [path for path in replies.readable if path.startswith(_KINDS)]
    client_leaves = {path: replies.stack(path).movedim(0, -1) for path in paths}
    server_leaves = {} if server is None else {f"{_SERVER}{path}": leaf for path, leaf in leaves(server)}
    host = on_host(client_leaves | server_leaves)
    clients = {path: host[path].transpose(-1, *range(host[path].ndim - 1)) for path in client_leaves}
    if server is None:
        return clients, None
    return clients, {path.removeprefix(_SERVER): host[path] for path in server_leaves}


def _pairs(scores: Mapping[str, np.ndarray], key: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(f"{key}/"): leaf for name, leaf in scores.items() if name.startswith(f"{key}/")}


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
    rest = [*pooled.values(), np.array([*single.values()], float), *each.values()]
    first = len(per_client) * len(clients) * len(SPLITS)
    flat = np.empty(first + sum(map(len, rest)))
    if per_client:
        np.concatenate([*per_client.values()], out=flat[:first].reshape(-1, len(SPLITS)))
    np.concatenate(rest, out=flat[first:])
    defined = ~np.isnan(flat)
    values = flat if defined.all() else flat[defined]
    labels = _labels(
        clients, tuple(per_client), tuple(pooled), tuple(single), tuple(each), np.packbits(defined).tobytes()
    )
    number = pa.array(np.full(len(values), round, np.int32))
    return pa.Table.from_arrays([number, *labels, pa.array(values)], schema=METRICS_SCHEMA)


def of_splits(round: int, metrics: Mapping[str, np.ndarray]) -> pa.Table:
    """Rows of metrics of all examples together: {metric: float64 [3]}, for every split where it is defined."""
    rows = list[MetricRow]()
    for name, values in metrics.items():
        for split, value in zip(SPLITS, values, strict=True):
            if not math.isnan(value):
                rows.append((round, GLOBAL, split, name, float(value)))
    return table_of(rows)


def of_tests(round: int, metrics: Mapping[str, float]) -> pa.Table:
    """Rows of metrics of all examples together, on test examples, where they are defined."""
    return of_splits(round, {name: np.array([math.nan, math.nan, value]) for name, value in metrics.items()})


def table_of(rows: Iterable[MetricRow]) -> pa.Table:
    """A table of `METRICS_SCHEMA`."""
    return pa.Table.from_pylist([dict(zip(METRICS_SCHEMA.names, row, strict=True)) for row in rows], METRICS_SCHEMA)


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
    # for each row the numbers of its client, where "global" comes last, of its split and of its metric
    count, three = len(clients), len(SPLITS)
    client_numbers = [
        np.tile(np.arange(count).repeat(three), len(per_client)),
        np.full(three * len(pooled) + len(single), count),
        np.tile(np.arange(count), len(each)),
    ]
    split_numbers = [
        np.tile(np.arange(three), count * len(per_client) + len(pooled)),
        np.array([SPLITS.index(split) for split, _ in single], np.int64),
        np.array([SPLITS.index(split) for split, _ in each], np.int64).repeat(count),
    ]
    metrics = [*per_client, *pooled, *(name for _, name in single), *(name for _, name in each)]
    rows = [*[count * three] * len(per_client), *[three] * len(pooled), *[1] * len(single), *[count] * len(each)]
    columns: tuple[tuple[Sequence[str], np.ndarray], ...] = (
        ((*clients, GLOBAL), np.concatenate(client_numbers)),
        (SPLITS, np.concatenate(split_numbers)),
        (metrics, np.arange(len(metrics)).repeat(rows)),
    )
    mask = np.unpackbits(np.frombuffer(defined, np.uint8), count=sum(rows)).astype(np.bool_)
    return tuple(pa.array(names, pa.string()).take(pa.array(at[mask], pa.int64())) for names, at in columns)

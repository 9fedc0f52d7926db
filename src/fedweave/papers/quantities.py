"""The numbers that cells read from finished runs."""

import math
import statistics
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from scipy.stats import mannwhitneyu, spearmanr

from fedweave.algorithms import ALGORITHMS
from fedweave.core import random
from fedweave.core.algorithm import capabilities
from fedweave.core.types import Record
from fedweave.errors import FedweaveError, UserError
from fedweave.experiment.config import Document
from fedweave.experiment.runs.files import LEDGER, METRICS, SUMMARY, read_summary, read_table, write_table
from fedweave.metrics.client_fairness import pearson, per_group
from fedweave.metrics.measured import FAIREST, GLOBAL
from fedweave.papers.paper import Quantity
from fedweave.partition.overlap import Overlap
from fedweave.privacy.attacks import majority_accuracy, repeated_queries
from fedweave.privacy.mechanisms import flip_probability
from fedweave.reports.reading import Run, means, read_run, values_of

# steps in a ledger that only evaluate; a preset has FedAvg's names
EVALUATION = frozenset(
    f"{kind.__name__}.{step}"
    for kind in ALGORITHMS.values()
    if isinstance(kind, type)
    for step in capabilities(kind).evaluation
)


class Duration(NamedTuple):
    """`seconds` that the steps of all clients took in one process, one after the other, and the number of `exchanges`.

    An exchange is a call of a step on all clients: each client gets a message and answers it.
    """

    seconds: float
    exchanges: int

    def delayed(self, delay: float) -> float:
        """Seconds with `delay` seconds more per exchange, as if all clients' messages traveled at once."""
        return self.seconds + delay * self.exchanges


def duration(ledger: pa.Table, last_round: int | None = None) -> Duration:
    """Of the training rounds 1, …, `last_round` (None: all) in `ledger` (`ledger_columns.SCHEMA`); evaluation is not
    counted, nor what the server computes between the calls."""
    last = pc.max(ledger["round"]).as_py() if last_round is None else last_round
    rounds, steps = ledger["round"], ledger["step"].cast(pa.string())
    training = pc.invert(pc.is_in(steps, pa.array(sorted(EVALUATION))))
    counted = pc.and_(training, pc.and_(pc.greater(rounds, 0), pc.less_equal(rounds, last or 0)))
    calls = ledger.filter(counted).group_by(["round", "call"]).aggregate([("seconds", "sum")])
    return Duration(pc.sum(calls["seconds_sum"]).as_py() or 0.0, len(calls))


MB = 2**20  # bytes; FedEgo's Table 9 counts so: 734,208 floats · 5 clients · 200 rounds are its 2,801 "MB"
NOT_REACHED = "not reached"


def accuracy(split: str, best: bool = False) -> Quantity:
    """Accuracy, which is micro-F1, on the "local" or "global" test, 0..1; with `best` also the best round's
    accuracy."""
    highest, name = partial(best_on_test, split) if best else None, f"{split}/accuracy"
    return Quantity(
        "F1", lambda run: summary(run)["metrics"].get(name), best=highest, curve=lambda run: evaluated(name, run)
    )


def mean_accuracy() -> Quantity:
    """Mean over the clients of the final model's test accuracy, in per cent, and also for the best round."""

    def value(run: Path) -> float | None:
        share = accuracy("local").read(run)
        return None if share is None else 100 * share

    return Quantity("%", value, digits=1, best=lambda run: 100 * best_on_test("local", run))


def client_accuracy(client: int) -> Quantity:
    """The test accuracy of one client in per cent, by its place among the clients' sorted names."""

    def values(run: Path) -> list[float]:
        table = _test_accuracy(run, "local")
        names = sorted(set(table["client"].to_pylist()))
        rows = table.filter(pc.equal(table["client"], names[client])).sort_by("round")
        return [100 * value for value in rows["value"].to_pylist()]

    return Quantity("%", lambda run: values(run)[-1], digits=1, best=lambda run: max(values(run)))


def best_on_test(split: str, run: Path) -> float:
    """The highest accuracy on the "local" (mean over clients) or "global" test among the evaluated rounds.

    A maximum over the test set is comparable with papers that print such maxima; never choose by it.
    """
    return max(means(_test_accuracy(run, split)).values())


def _test_accuracy(run: Path, split: str) -> pa.Table:
    """The rows of each evaluation's test accuracy: of every client, or the "global" one."""
    return values_of(read_table(run, METRICS), "accuracy", "test", split == GLOBAL)


def curve(run: Path) -> dict[int, float]:
    """{round: mean over the clients of the test accuracy in per cent}, for the evaluated rounds."""
    means = read_run(run).curve("accuracy", "test", False)
    return {number: round(100 * value, 9) for number, value in means.items()}  # 100 * 0.57 < 57


def accuracy_reached(percent: float) -> Quantity:
    """The first `curve` value of at least `percent`."""

    def value(run: Path) -> float | None:
        first = _reached(run, percent)
        return None if first is None else curve(run)[first]

    return Quantity("%", value, digits=1, absent=NOT_REACHED)


def seconds(delay: float = 0.0) -> Quantity:
    """Time of training, with `delay` seconds per exchange (see `duration`)."""
    return Quantity("s", lambda run: _duration(run, None, delay), digits=1)


def seconds_to(percent: float, delay: float = 0.0) -> Quantity:
    """Time of training until the first evaluation with at least `percent`."""

    def value(run: Path) -> float | None:
        first = _reached(run, percent)
        return None if first is None else _duration(run, first, delay)

    return Quantity("s", value, digits=1, absent=NOT_REACHED)


def saving(delay: float = 0.0) -> Quantity:
    """The training time that the run saved against its baseline, in per cent of the baseline's."""

    def value(run: Path, baseline: Path) -> float:
        return 100 * (1 - _duration(run, None, delay) / _duration(baseline, None, delay))

    return Quantity("%", value, digits=1)


def minutes() -> Quantity:
    """Time that the whole run took on the machine at hand, with evaluation."""
    return Quantity("min", lambda run: summary(run)["seconds"] / 60, digits=3)


def megabytes(keys: tuple[str, ...], expected: Callable[[Document], float] | None = None, way: str = "") -> Quantity:
    """What training sent under `keys` (the first component of a key), "up", "down" or both, in 2^20 bytes.

    It sums over all clients and rounds, without evaluation and the framing of messages.
    """
    return Quantity("MB", lambda run: sent(run, keys, way) / MB, expected, digits=1)


def summarized(name: str, unit: str, digits: int = 4, earlier: str = "") -> Quantity:
    """An entry `name` of the summary's metrics (`rounds.RoundResult`); older runs have it under the name `earlier`."""

    def value(run: Path) -> float | None:
        metrics = summary(run)["metrics"]
        result: float | None = metrics.get(name, metrics.get(earlier))
        return result

    return Quantity(unit, value, digits=digits, curve=lambda run: evaluated(name, run) or evaluated(earlier, run))


def evaluated(name: str, run: Path) -> dict[int, float]:
    """{round: value} of an entry of the summary's metrics in the evaluated rounds.

    Entries are over all test examples together ("global/…"), means over clients ("local/…"), or fairness between
    clients ("fairness/…").
    """
    split, _, metric = name.partition("/")
    rows = read_table(run, METRICS)
    if split in (GLOBAL, "local"):
        return means(values_of(rows, metric, "test", split == GLOBAL))
    return means(rows.filter((pc.field("metric") == name) & (pc.field("client") == GLOBAL)))


def sent(run: Path, keys: tuple[str, ...], way: str = "") -> int:
    """Bytes that training sent under `keys`; `way` is "up", "down", or both."""
    plain = pa.schema([(name, pa.string()) for name in ("step", "key", "direction")] + [("bytes", pa.int64())])
    ledger = read_table(run, LEDGER).select(plain.names).cast(plain)
    sums = ledger.group_by(["step", "key", "direction"]).aggregate([("bytes", "sum")]).to_pylist()
    counted = [row for row in sums if row["step"] not in EVALUATION and way in ("", row["direction"])]
    return sum(row["bytes_sum"] for row in counted if row["key"].split("/")[0] in keys)


def _reached(run: Path, percent: float) -> int | None:
    return next((number for number, value in curve(run).items() if value >= percent), None)


def _duration(run: Path, last_round: int | None, delay: float) -> float:
    return duration(read_table(run, LEDGER), last_round).delayed(delay)


def summary(run: Path) -> Record:
    """The content of a finished run's summary.json.

    Raises:
        FedweaveError: it is damaged.
    """
    return read_summary(run / SUMMARY)


# ----------------------------------------------------------------------------------------------------
# Numbers of a run about two groups of people: in the fairest round (`metrics.measured`) and in the last.


When = Literal["fairest", "last"]


def score(name: str, when: When) -> Quantity:
    """Accuracy ("accuracy") or AUC ("auc") on the global test, in per cent."""
    return Quantity("%", lambda run: _percent(run, f"global/{name}", when), digits=2)


def gap(name: str, when: When) -> Quantity:
    """ΔSP ("sp"), ΔEO ("eo") or, with "_floor", what chance shows, on the global test, in per cent."""
    return Quantity("%", lambda run: _percent(run, f"groups/global/{name}", when), digits=2)


def median_score(name: str, when: When) -> Quantity:
    """Median over the clients of a score on their own test nodes, in per cent, without clients where it is
    undefined."""

    def value(run: Path) -> float | None:
        rows = values_of(read_table(run, METRICS), name, "test", pooled=False)
        scores = rows.filter(pc.field("round") == round_of(run, when))["value"].to_pylist()
        return 100 * statistics.median(scores) if scores else None

    return Quantity("%", value, digits=2, absent="undefined at every client")


def median_gap(name: str, when: When) -> Quantity:
    """Median over the clients of a gap on their own test nodes, in per cent."""
    entry = f"groups/median/{name}"
    return Quantity("%", lambda run: _percent(run, entry, when), digits=2, absent="undefined at every client")


def one_class(when: When) -> Quantity:
    """100 where the model predicts one class for the whole global test, so that its gaps are 0 and mean nothing, else
    0.

    The mean over runs is the share of such runs.
    """

    def value(run: Path) -> float | None:
        classes = _percent(run, "global/classes_predicted", when)
        return None if classes is None else 100.0 * (classes == 100)

    return Quantity("% of runs", value, digits=0)


def gaps(when: When) -> Quantity:
    """ΔSP + ΔEO on the global test, in per cent."""

    def value(run: Path) -> float | None:
        sp, eo = (_percent(run, f"groups/global/{name}", when) for name in ("sp", "eo"))
        return None if sp is None or eo is None else sp + eo

    return Quantity("%", value, digits=2)


def tradeoff(name: str, when: When) -> Quantity:
    """A score / (ΔSP + ΔEO) on the global test: the ratio of their means over the runs."""
    return Quantity("", lambda run: _percent(run, f"global/{name}", when), digits=2, per=gaps(when).read)


def round_of(run: Path, when: When) -> int:
    """The number of the fairest or of the last round."""
    record = summary(run)
    return int(record["metrics"][f"{FAIREST}/round"] if when == "fairest" else record["rounds"])


def _percent(run: Path, name: str, when: When) -> float | None:
    share = summary(run)["metrics"].get(f"{FAIREST}/{name}" if when == "fairest" else name)
    return None if share is None else 100 * share


# ----------------------------------------------------------------------------------------------------
# Numbers of runs whose clients are rewarded: fairness of rewards, payoffs, and each client's contribution.


QUALITIES = ("low", "medium", "high")
LEFT_OUT = "leave_one_out.parquet"  # in a run's directory: its accuracies' gains by round and client
OWN = "FairGraphFL"  # payoffs of the run itself, in addition to `incentives.payoffs.SCHEMES`


def fairness() -> Quantity:
    """Pearson's correlation of the clients' last test accuracies with their accuracies in the baseline.

    The baseline is local training with the same seed and split.
    """

    def value(run: Path, baseline: Path) -> float | None:
        together, reference = read_run(run), read_run(baseline)
        if together.partition is None or not together.partition.equals(reference.partition):
            raise FedweaveError(
                f"the clients of {run} and of {baseline} hold other data; they cannot be compared.",
                code="paper.other-data",
            )
        both = [result.clients("accuracy") for result in (reference, together)]
        shared = sorted(both[0].keys() & both[1].keys())
        result = pearson(*(np.array([scores[client] for client in shared]) for scores in both)).value
        return None if math.isnan(result) else result

    return Quantity("correlation", value, digits=3, absent="all clients are equally accurate")


def payoff(scheme: str, quality: str) -> Quantity:
    """Mean payoff per round and client of a `quality` (`partition.graphs.Perturbed`).

    Payoffs come from the run itself (`OWN`) or from one of `incentives.payoffs.SCHEMES` of data volumes; the payoffs of
    a round sum to 1.
    """
    return Quantity("share", lambda run: _paid(run, scheme)[quality])


def ordered(scheme: str) -> Quantity:
    """1 where clients of high quality are paid more than medium, and these more than low, else 0.

    The mean over runs is the share of runs with this order.
    """

    def value(run: Path) -> float:
        low, medium, high = (_paid(run, scheme)[quality] for quality in QUALITIES)
        return float(low < medium < high)

    return Quantity("share of runs", value, digits=1)


def contribution(client: int, part: int, parts: int) -> Quantity:
    """How much a client's update raises the global model's accuracy after a round, as a mean over a part of the rounds.

    part: one of equal `parts` of the rounds, from 0 on. The measured contributions are stored in the run's directory.
    """

    def value(run: Path) -> float | None:
        rounds = int(read_run(run).config["rounds"])
        table = _contributions(run, rounds)
        name = sorted(set(table["client"].to_pylist()))[client]
        rows = table.filter(pc.field("client") == name)
        pairs = zip(rows["round"].to_pylist(), rows["leave_one_out"].to_pylist(), strict=True)
        chosen = [gain for number, gain in pairs if (number - 1) * parts // rounds == part]
        return fmean(chosen) if chosen else None

    return Quantity("accuracy", value, absent="no round in it")


@cache
def _paid(run: Path, scheme: str) -> dict[str, float]:
    record = read_run(run)
    return per_group(_paid_by_run(record) if scheme == OWN else _paid_by_volume(record, scheme))


def _paid_by_run(run: Run) -> dict[str, float]:
    budget = run.section("algorithm")["budget"]
    return {client: fmean(payoffs.values()) / budget for client, payoffs in run.known("payoff").items()}


def _paid_by_volume(run: Run, scheme: str) -> dict[str, float]:
    import torch

    from fedweave.incentives.payoffs import data_volume, shares

    if run.partition is None:
        raise FedweaveError(f"{run.directory} has no partition.parquet, so the clients' data is not known.")
    clients, sizes = run.partition["client"].to_pylist(), run.partition["train"].to_pylist()
    paid = shares(scheme, data_volume(torch.tensor(sizes, device="cpu")), len(clients))
    return dict(zip(clients, paid.tolist(), strict=True))


def _contributions(run: Path, rounds: int) -> pa.Table:
    """The contributions in all rounds: read from the run's directory if it has all of them, else measured and stored
    there."""
    from fedweave.payments.contributions import left_out

    if (run / LEFT_OUT).is_file():
        existing = read_table(run, LEFT_OUT)
        if len(set(existing["round"].to_pylist())) == rounds:
            return existing
    table = left_out(run)
    write_table(run / LEFT_OUT, table)
    return table


# ----------------------------------------------------------------------------------------------------
# Numbers of a run of FairGFL: how well overlaps are estimated, the size of its messages, and what an attacker learns
# about links.


TRUE, ESTIMATED = "nodes", "nodes_estimated"
PAIRS = 10_000  # that links are asked of, as in appendix F-A


def sharing(matrix: str, groups: tuple[int, ...]) -> Quantity:
    """Σ_k N_ik as a share of its sum over all clients, mean over the clients of the partition's `groups`.

    matrix: the `TRUE` or the `ESTIMATED` matrix N.
    """

    def value(run: Path) -> float:
        record = read_run(run)
        settings = {key: setting for key, setting in record.section("partition").items() if key != "name"}
        o = _pairs(record.pairs, matrix, run).sum(1)
        return float((o / o.sum())[np.isin(Overlap(**settings).groups, groups)].mean())

    return Quantity("share", value)


def pair_auc() -> Quantity:
    """How well the estimated N_ik separate pairs of clients that share nodes from others: the area under the ROC
    curve."""

    def value(run: Path) -> float:
        pairs = read_run(run).pairs
        true, estimated = (_pairs(pairs, name, run) for name in (TRUE, ESTIMATED))
        others = ~np.eye(len(true), dtype=bool)
        common, rest = estimated[others & (true > 0)], estimated[others & (true == 0)]
        return float(mannwhitneyu(common, rest).statistic / (len(common) * len(rest)))

    return Quantity("AUC", value)


def order_kept() -> Quantity:
    """Spearman's correlation of the clients' true and estimated Σ_k N_ik."""

    def value(run: Path) -> float:
        pairs = read_run(run).pairs
        return float(spearmanr(*(_pairs(pairs, name, run).sum(1) for name in (TRUE, ESTIMATED))).statistic)

    return Quantity("Spearman", value)


def bytes_each(keys: tuple[str, ...], expected: Callable[[Document], float]) -> Quantity:
    """Bytes that a client sends under `keys` in a round."""
    return Quantity("bytes", lambda run: sent(run, keys, "up") / _messages(run), expected, digits=0)


def share_of(keys: tuple[str, ...], model: tuple[str, ...], expected: Callable[[Document], float]) -> Quantity:
    """Bytes sent by clients under `keys`, in per cent of those under `model`."""
    return Quantity("%", lambda run: 100 * sent(run, keys, "up") / sent(run, model, "up"), expected, digits=2)


def links_found(answers: int, permanent: bool) -> Quantity:
    """Links that rounding the mean of `answers` noisy answers about each finds, in per cent.

    The client draws `permanent` noise once (`fedweave attack`).
    """

    def value(run: Path) -> float:
        config = read_run(run).config
        key = random.fold(random.key(config["seed"]), "attack")
        truth = torch.arange(PAIRS, device="cpu") < PAIRS // 2
        return 100 * repeated_queries(truth, config["algorithm"]["epsilon_b"], answers, key, permanent)

    def expected(document: Document) -> float:
        flip = flip_probability(document["algorithm"]["epsilon_b"])
        return 100 * majority_accuracy(flip, 1 if permanent else answers)

    return Quantity("%", value, expected, digits=1)


def _messages(run: Path) -> int:
    """The number of uploads: one from each client in each round."""
    record = read_run(run)
    trained = record.ledger.filter((pc.field("direction") == "up") & (pc.field("round") > 0))
    return len(trained.filter(pc.field("key") == "loss").group_by(["round", "client"]).aggregate([]))


def _pairs(pairs: dict[str, np.ndarray], name: str, run: Path) -> np.ndarray:
    if name not in pairs:
        raise UserError(f"{run} has no matrix {name!r} of pairs of clients.")
    return pairs[name]

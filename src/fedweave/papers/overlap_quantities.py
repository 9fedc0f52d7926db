"""Numbers of a run of FairGFL: how well overlaps are estimated, the size of its messages, and what an attacker learns
about links.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import torch
from scipy.stats import mannwhitneyu, spearmanr

from fedweave.core import random
from fedweave.errors import UserError
from fedweave.experiment.config import Document
from fedweave.experiment.runs.reading import read_run
from fedweave.papers.paper import Quantity
from fedweave.papers.quantities import bytes_sent
from fedweave.partition.overlap import Overlap
from fedweave.privacy.attacks import majority_accuracy, repeated_query_accuracy
from fedweave.privacy.mechanisms import flip_probability

TRUE, ESTIMATED = "nodes", "nodes_estimated"
PAIRS = 10_000  # whose links are asked for, as in appendix F-A


def sharing(matrix: str, groups: tuple[int, ...]) -> Quantity:
    """Σ_k N_ik as a share of its sum over all clients, mean over the clients of the partition's `groups`.

    matrix: the `TRUE` or the `ESTIMATED` matrix N.
    """

    def value(run: Path) -> float:
        record = read_run(run)
        settings = {key: setting for key, setting in record.section("partition").items() if key != "name"}
        sums = _pairs(record.pairs, matrix, run).sum(1)  # [P]
        of_groups = np.isin(Overlap(**settings).groups, groups)
        return float((sums / sums.sum())[of_groups].mean())

    return Quantity("share", value)


def pair_auc() -> Quantity:
    """How well the estimated N_ik separate pairs of clients that share nodes from others: the area under the ROC
    curve."""

    def value(run: Path) -> float:
        pairs = read_run(run).pairs
        true = _pairs(pairs, TRUE, run)
        estimated = _pairs(pairs, ESTIMATED, run)
        different = ~np.eye(len(true), dtype=bool)
        sharing = estimated[different & (true > 0)]
        separate = estimated[different & (true == 0)]
        return float(mannwhitneyu(sharing, separate).statistic / (len(sharing) * len(separate)))

    return Quantity("AUC", value)


def rank_correlation() -> Quantity:
    """Spearman's correlation of the clients' true and estimated Σ_k N_ik."""

    def value(run: Path) -> float:
        pairs = read_run(run).pairs
        true = _pairs(pairs, TRUE, run).sum(1)
        estimated = _pairs(pairs, ESTIMATED, run).sum(1)
        return float(spearmanr(true, estimated).statistic)

    return Quantity("Spearman", value)


def bytes_each(keys: tuple[str, ...], expected: Callable[[Document], float]) -> Quantity:
    """Bytes that a client sends under `keys` in a round."""

    def value(run: Path) -> float:
        uploads = read_run(run).ledger.filter((pc.field("direction") == "up") & (pc.field("round") > 0))
        messages = uploads.filter(pc.field("key") == "loss").group_by(["round", "client"]).aggregate([])
        return bytes_sent(run, keys, "up") / len(messages)

    return Quantity("bytes", value, expected, digits=0)


def share_of(keys: tuple[str, ...], model: tuple[str, ...], expected: Callable[[Document], float]) -> Quantity:
    """Bytes sent by clients under `keys`, in per cent of those under `model`."""
    return Quantity(
        "%", lambda run: 100 * bytes_sent(run, keys, "up") / bytes_sent(run, model, "up"), expected, digits=2
    )


def links_by_averaging(answers: int, permanent: bool) -> Quantity:
    """Links that rounding the mean of `answers` noisy answers about each finds, in per cent.

    The client draws `permanent` noise once (`fedweave attack`).
    """

    def value(run: Path) -> float:
        config = read_run(run).config
        key = random.fold(random.key(config["seed"]), "attack")
        truth = torch.arange(PAIRS, device="cpu") < PAIRS // 2
        return 100 * repeated_query_accuracy(truth, config["algorithm"]["epsilon_b"], answers, key, permanent)

    def expected(document: Document) -> float:
        flip = flip_probability(document["algorithm"]["epsilon_b"])
        return 100 * majority_accuracy(flip, 1 if permanent else answers)

    return Quantity("%", value, expected, digits=1)


def _pairs(pairs: dict[str, np.ndarray], name: str, run: Path) -> np.ndarray:
    if name not in pairs:
        raise UserError(f"{run} has no matrix {name!r} of pairs of clients.")
    return pairs[name]

"""What is read of a run of FairGFL: how well overlaps are estimated, what its messages weigh, and what an attacker
finds out about links."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import torch
from scipy.stats import mannwhitneyu, spearmanr

from fedweave.core import random
from fedweave.errors import UserError
from fedweave.experiment.config import Document
from fedweave.papers.paper import Quantity
from fedweave.papers.quantities import sent
from fedweave.partition.overlap import Overlap
from fedweave.privacy.attacks import majority_accuracy, repeated_queries
from fedweave.privacy.ldp import flip_probability
from fedweave.report.reading import read_run

TRUE, ESTIMATED = "nodes", "nodes_estimated"
PAIRS = 10_000  # that links are asked of, as in appendix F-A


def sharing(matrix: str, groups: tuple[int, ...]) -> Quantity:
    """Σ_k N_ik as a share of its sum over all clients, mean over the clients of the partition's `groups`; of the
    `TRUE` or the `ESTIMATED` matrix N."""

    def value(run: Path) -> float:
        found = read_run(run)
        given = {key: own for key, own in found.section("partition").items() if key != "name"}
        o = _pairs(found.pairs, matrix, run).sum(1)
        return float((o / o.sum())[np.isin(Overlap(**given).groups, groups)].mean())

    return Quantity("share", value)


def pair_auc() -> Quantity:
    """How well the estimated N_ik tell pairs of clients that share nodes from others: the area under the curve."""

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
    """Links that rounding the mean of `answers` noisy answers about each finds, in per cent; `permanent` noise is drawn
    once (`fedweave attack`)."""

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
    """Number of uploads: one of each client in each round."""
    found = read_run(run)
    trained = found.ledger.filter((pc.field("direction") == "up") & (pc.field("round") > 0))
    return len(trained.filter(pc.field("key") == "loss").group_by(["round", "client"]).aggregate([]))


def _pairs(pairs: dict[str, np.ndarray], name: str, run: Path) -> np.ndarray:
    if name not in pairs:
        raise UserError(f"{run} has no matrix {name!r} of pairs of clients.")
    return pairs[name]

"""What a curious server infers from noisy codes and links (Zhou et al. 2026, section VII)."""

import numpy as np
import torch
from torch import Tensor

from fedweave.algorithms.parts.part import Attacked
from fedweave.core.graph_arrays import dense
from fedweave.datasets.base import Dataset
from fedweave.partition.base import Partition
from fedweave.partition.statistics import statistics
from fedweave.privacy.attacks import reidentification_rate, repeated_query_accuracy

QUERIES = (1, 5, 10, 20, 30)
HOLDERS = (1, 3, 5, 10, 27)
PAIRS = 10_000  # that links are asked of


def link_attacks(data: Dataset, partition: Partition, epsilon: float, key: Tensor) -> list[Attacked]:
    """Telling whether two nodes are linked from several answers, of one client or of several."""
    links = sum(statistics(data, partition)["edges_kept"])
    truth = torch.arange(PAIRS, device="cpu") < min(links, PAIRS // 2)  # half are, or all links that there are
    rows: list[Attacked] = []
    for n in QUERIES:
        without, protected = (repeated_query_accuracy(truth, epsilon, n, key, permanent) for permanent in (False, True))
        rows.append(("links, asked again", f"{n} answer{'s' * (n > 1)}", without, protected))
    for n in HOLDERS:
        share = repeated_query_accuracy(truth, epsilon, n, key, False)
        rows.append(("links, majority of holders", f"{n} client{'s' * (n > 1)}", 1.0, share))
    return rows


def client_features(data: Dataset, partition: Partition) -> Tensor:
    """The features of all nodes that clients hold, [n, d]."""
    nodes = np.unique(np.concatenate([part.nodes for part in partition.parts]))
    return torch.from_numpy(dense(data.x[nodes]))


def code_attack(clean: Tensor, without_noise: Tensor, noisy: Tensor) -> Attacked:
    """Naming the node of one code [b] among all n nodes, from codes [n, b] as sent without the noise and with it."""
    owner = torch.arange(len(clean), device="cpu")
    rates = reidentification_rate(without_noise, clean, owner), reidentification_rate(noisy, clean, owner)
    return "node of one code", f"{len(clean):,} nodes' features", *rates

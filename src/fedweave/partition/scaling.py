"""What clients would send to scale features by numbers over all of their nodes.

A simulation loads and scales the whole data before it cuts it (`datasets.features`). Members who each hold a part would
get such a mean, deviation and range, of the nodes that they hold, from one exchange, which stands in the ledger.
Between organisations each site scales by its own nodes, and nothing is exchanged; nor is it anywhere with "auto", by
which every client scales by its own.
"""

from collections.abc import Sequence

import numpy as np
import torch

from fedweave.core.federation import StepInfo
from fedweave.core.ledger import Ledger
from fedweave.core.purposes import SETUP
from fedweave.core.tree import Tree
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import OVER_NODES, scaling
from fedweave.partition.base import Part, Partition

Numbers = tuple[np.ndarray, np.ndarray]  # (shift, divisor) of every column, as `datasets.features.scaling` has them


def of_part(data: Dataset, part: Part) -> Numbers:
    """The numbers by which one client scales its columns of `data` (`Dataset.scaling`)."""
    return scaling(data.x[part.nodes], data.scaling)


def of_typical(data: Dataset, partition: Partition) -> Numbers:
    """Those by which a model of all clients is given new data: the mean over nodes of the clients' shifts, and the root
    of the mean of their squared divisors; a client with a constant column has no say in its divisor."""
    sizes = np.array([len(part.nodes) for part in partition.parts], np.float64)[:, None]
    shifts, divisors = map(np.stack, zip(*(of_part(data, part) for part in partition.parts), strict=True))
    known = np.where(np.isfinite(divisors), sizes, 0.0)
    total = known.sum(0)
    squares = (known * np.where(np.isfinite(divisors), divisors, 0.0) ** 2).sum(0)
    spread = np.sqrt(squares / np.where(total > 0, total, 1.0))
    return (sizes * shifts).sum(0) / sizes.sum(), np.where(total > 0, spread, np.inf)


SCALE = "(scale)"
_MOMENTS = {
    "n": "how many nodes it has",
    "sum": "the sum of every feature over its nodes",
    "squares": "the sum of every feature's square over its nodes",
}
_RANGE = {"low": "the smallest value of every feature at its nodes", "high": "the largest value of every feature"}
_BACK = {
    "shift": "by what every feature is shifted: its mean, or the middle of its range, over all members' nodes",
    "divisor": "by what every feature is divided: its deviation, or half its range, over all members' nodes",
}


def meter_scaling(
    ledger: Ledger, clients: Sequence[str], partition: Partition, features: int, how: str, of: str = "node"
) -> None:
    """Note in a `ledger` the exchange by which `clients` scale `features` columns of nodes or edges, if any.

    None is needed where columns are not scaled over nodes, where there is one client, or where each holds columns of
    its own for the same nodes. A node that several clients hold counts for each of them, and once in the simulation.

    how: of `datasets.features.NORMALISE`.
    """
    alone = len(clients) < 2 or any(part.columns is not None for part in partition.parts)
    if how not in OVER_NODES or alone:
        return
    up, down = _messages(torch.zeros(features, dtype=torch.float64, device="cpu"), how)
    ledger.purpose = SETUP
    told = {key: text.replace("node", of) for key, text in (_RANGE if how == "minmax" else _MOMENTS).items()}
    back = {key: text.replace("node", of) for key, text in _BACK.items()}
    ledger.record(0, 0, SCALE, clients, "up", up, 0.0, StepInfo.of(told))
    ledger.record(0, 0, SCALE, clients, "down", down, 0.0, StepInfo.of(back))


def _messages(column: torch.Tensor, how: str) -> tuple[Tree, Tree]:
    """Of the shapes of what goes up and down; "scale" needs no shift."""
    up: Tree = {"low": column, "high": column} if how == "minmax" else {"n": 0, "sum": column, "squares": column}
    return up, {"divisor": column} if how == "scale" else {"shift": column, "divisor": column}

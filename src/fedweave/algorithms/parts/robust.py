"""Robust aggregation: a minority of clients cannot move the model where they want, even with arbitrary updates.

Each part reads every client's update, so none can be combined with secure aggregation. These parts replace weighting by
size, because a client could report a false size. An update of exactly 0, which clients without training examples send,
does not count: it would be a vote for leaving the model unchanged. The server reads which updates are 0, so the rounds
of these parts vary (`Part.rounds_vary`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedweave.algorithms.parts.needs import Needs
from fedweave.algorithms.parts.part import Part
from fedweave.algorithms.parts.weights import Uniform
from fedweave.core.algorithm import Round
from fedweave.core.bounds import Count, CountOrNone, NonNegative, Positive
from fedweave.core.federation import Federation
from fedweave.core.tree import Tree, leaves, map_leaves, nest, ravel, unravel
from fedweave.errors import UserError


@dataclass(frozen=True)
class Median(Uniform):
    """The median of the clients' updates in every coordinate (Yin et al. 2018, "Byzantine-robust distributed learning:
    towards optimal statistical rates", definition 1); with two middle values, their mean."""

    recorded = True
    rounds_vary = True

    def aggregate(self, state: Tree, round: Round) -> Tree:
        def median(ascending: np.ndarray) -> np.ndarray:
            two_middle: np.ndarray = ascending[(len(ascending) - 1) // 2] + ascending[len(ascending) // 2]
            return two_middle / 2

        return _from_sorted(round, median)


@dataclass(frozen=True)
class TrimmedMean(Uniform):
    """The mean of the clients' updates in every coordinate, without the ⌊β P⌋ largest and the ⌊β P⌋ smallest of P
    values (Yin et al. 2018, definition 2).

    beta: β, at least the share of clients that may be malicious, below one half.
    """

    beta: Annotated[float, Field(gt=0, lt=0.5)] = 0.2
    recorded = True
    rounds_vary = True

    def init(self, fed: Federation, w: Tree) -> Tree:
        self._trim_count(len(fed.clients))  # raises an error if it is 0 even where all clients reply
        return {}

    def aggregate(self, state: Tree, round: Round) -> Tree:
        cut = self._trim_count(len(round.at))

        def trimmed_mean(ascending: np.ndarray) -> np.ndarray:
            # Updates of 0 do not count, so fewer than P rows may be here; at least one row remains.
            rows = min(cut, (len(ascending) - 1) // 2)
            mean: np.ndarray = ascending[rows : len(ascending) - rows].mean(0)
            return mean

        return _from_sorted(round, trimmed_mean)

    def _trim_count(self, clients: int) -> int:
        """⌊β P⌋.

        Raises:
            UserError: it is 0, so that no update would be left out.
        """
        cut = int(self.beta * clients + 1e-9)  # in binary, 0.29 * 100 is a little less than 29
        if not cut:
            raise UserError(
                f"trimmed_mean: beta = {self.beta:g} of {clients} clients leaves out none; raise beta, or "
                "algorithm.quorum where clients are missing.",
                code="user.too-few",
            )
        return cut


@dataclass(frozen=True)
class Krum(Part):
    """The update with the smallest sum of squared distances to its P − f − 2 nearest neighbors or, with m > 1
    (multi-Krum), the mean of the m best updates (Blanchard et al. 2017, "Machine learning with adversaries: Byzantine
    tolerant gradient descent", sections 4 and 5).

    malicious: f, the number of a round's P clients that may be malicious; P must be at least 2 f + 3.
    keep:      m, the number of updates in the mean, at most P − f.
    """

    malicious: CountOrNone = 1
    keep: Count = 1
    recorded = True
    rounds_vary = True

    def init(self, fed: Federation, w: Tree) -> Tree:
        self._check(len(fed.clients))
        return {}

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """1 / m for the m best updates, 0 for the others; if too few updates are not 0, updates of 0 count too."""
        self._check(len(round.at))
        voters = _voters(round, self._min_clients)
        best = voters[krum_scores(round.updates[voters], self.malicious).argsort(stable=True)[: self.keep]]
        return torch.zeros_like(round.at, dtype=torch.float64).index_fill(0, best, 1 / self.keep)

    @property
    def _min_clients(self) -> int:
        """2 f + 3 or f + m, the larger."""
        return max(2 * self.malicious + 3, self.malicious + self.keep)

    def _check(self, clients: int) -> None:
        """Check the number of a round's clients.

        Raises:
            UserError: they are too few.
        """
        if clients < self._min_clients:
            raise UserError(
                f"krum: malicious = {self.malicious} and keep = {self.keep} need {self._min_clients} clients in a "
                f"round; there are {clients}. Lower them, or raise algorithm.participation or quorum.",
                code="user.too-few",
            )


def krum_scores(updates: Tensor, malicious: int) -> Tensor:
    """s(i) = Σ ‖V_i − V_j‖² over the P − f − 2 nearest neighbors j of each of the `updates` float64 [P, D]: [P]."""
    products = updates @ updates.T  # [P, P]
    squares = products.diagonal()
    distances = (squares[:, None] + squares - 2 * products).clamp(min=0)  # [P, P]; rounding could make 0 negative
    ascending = distances.fill_diagonal_(torch.inf).sort(1).values
    return ascending[:, : len(updates) - malicious - 2].sum(1)


@dataclass(frozen=True)
class GeometricMedian(Part):
    """The point with the smallest sum of distances to the clients' updates, by Weiszfeld's steps v ← Σ β_i Δ_i / Σ β_i
    with β_i = 1 / max(ν, ‖v − Δ_i‖), from the mean on (Pillutla et al. 2022, "Robust aggregation for federated
    learning", algorithm 2). Clients count equally, because a client could report a false size.

    nu:         ν, the smallest distance that counts, so that no weight is infinite.
    iterations: number of steps.
    """

    nu: Positive = 1e-6
    iterations: Count = 8
    recorded = True
    rounds_vary = True

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """β_i / Σ β_k, 0 for updates of 0."""
        updates = round.updates  # [P, D]
        moving = _moving(round).double()
        equal = moving / moving.sum()
        beta = equal
        for _ in range(self.iterations):
            v = beta @ updates
            beta = equal / (updates - v).norm(dim=1).clamp(min=self.nu)
            beta = beta / beta.sum()
        return beta


@dataclass(frozen=True)
class Bulyan(Uniform):
    """The mean in every coordinate of the θ − 2 f values nearest to the median of θ = P − 2 f updates (El Mhamdi et al.
    2018, "The hidden vulnerability of distributed learning in Byzantium", algorithm 2). Krum chooses these updates one
    after the other among the remaining ones. If few updates remain, Krum looks at one neighbor at least.

    malicious: f, the number of a round's P clients that may be malicious; P must be at least 4 f + 3.
    """

    malicious: CountOrNone = 1
    recorded = True
    rounds_vary = True

    def init(self, fed: Federation, w: Tree) -> Tree:
        self._check(len(fed.clients))
        return {}

    def aggregate(self, state: Tree, round: Round) -> Tree:
        """The means; if too few updates are not 0, updates of 0 count too."""
        self._check(len(round.at))
        updates = round.updates[_voters(round, self._min_clients)]
        selection, remaining = list[Tensor](), updates
        for _ in range(len(updates) - 2 * self.malicious):
            # f is lowered where few updates remain, so that Krum looks at one neighbor at least.
            scores = krum_scores(remaining, min(self.malicious, max(len(remaining) - 3, 0)))
            best = int(scores.argmin())
            selection.append(remaining[best])
            remaining = torch.cat([remaining[:best], remaining[best + 1 :]])
        rows = torch.stack(selection).sort(0).values  # [θ, D]
        median = (rows[(len(rows) - 1) // 2] + rows[len(rows) // 2]) / 2
        nearest = (rows - median).abs().argsort(dim=0, stable=True)[: len(rows) - 2 * self.malicious]
        return unravel(rows.gather(0, nearest).mean(0), round.w)

    @property
    def _min_clients(self) -> int:
        return 4 * self.malicious + 3

    def _check(self, clients: int) -> None:
        """Check the number of a round's clients.

        Raises:
            UserError: they are too few.
        """
        if clients < self._min_clients:
            raise UserError(
                f"bulyan: malicious = {self.malicious} needs {self._min_clients} clients in a round; there are "
                f"{clients}. Lower it, or raise algorithm.participation or quorum.",
                code="user.too-few",
            )


@dataclass(frozen=True)
class CenteredClip(Uniform):
    """The mean of the clients' updates, each clipped to the distance τ from the last joint update: v ← v + 1/P Σ (Δ_i −
    v) min(1, τ / ‖Δ_i − v‖) (Karimireddy et al. 2021, "Learning from history for Byzantine robust optimization",
    algorithm 2). Deviations: clients use the momentum of their local optimizer, if any; τ can follow the round.

    tau:        τ; 0 takes the median of the round's distances to v, computed in each step.
    iterations: number of steps.
    """

    tau: NonNegative = 0.0
    iterations: Count = 1
    recorded = True
    rounds_vary = True

    def init(self, fed: Federation, w: Tree) -> Tree:
        return {"center": map_leaves(torch.zeros_like, w)}  # v

    def aggregate(self, state: Tree, round: Round) -> Tree:
        updates, v = round.updates[_moving(round)], ravel(state["center"]).double()
        for _ in range(self.iterations):
            difference = updates - v  # [P, D]
            distances = difference.norm(dim=1)
            tau = self.tau or distances.median()
            v = v + (difference * (tau / distances.clamp(min=1e-30)).clamp(max=1.0)[:, None]).mean(0)
        return unravel(v, round.w)

    def update(self, state: Tree, round: Round) -> Tree:
        return {"center": round.delta}


@dataclass(frozen=True)
class NormBound(Part):
    """Scales each update down to L2 norm M at most at the server (Sun et al. 2019, "Can you really backdoor federated
    learning?", section 4). It works with every way to weight or aggregate updates. Clients count equally unless another
    part decides it: a size that the client reports could undo the bound.

    Deviations: M can follow the round's updates; no noise is added to the model afterwards.

    norm: M, largest norm of an update; 0 takes the median of the round's norms above 0, the lower of two middle ones.
    """

    norm: NonNegative = 0.0
    recorded = True
    rounds_vary = True
    needs = Needs(alike=True)

    def limit(self, state: Tree, round: Round) -> Tensor:
        """min(1, M / ‖Δ_i‖₂), float64 [P]."""
        norms = round.updates.norm(dim=1)
        moved = norms[norms > 0]
        if not len(moved):
            return torch.ones_like(norms)
        result: Tensor = ((self.norm or moved.median()) / norms.clamp(min=1e-30)).clamp(max=1.0)
        return result


def _moving(round: Round) -> Tensor:
    """bool [P]: the clients whose updates are not 0; all clients if every update is 0."""
    by_leaf = [(round.update(path) != 0).flatten(1).any(1) for path, _ in leaves(round.w)]
    mask = torch.stack(by_leaf).any(0)
    return mask if mask.any() else ~mask


def _voters(round: Round, min_clients: int) -> Tensor:
    """int64 [v]: the clients whose updates are not 0 or, if these are fewer than `min_clients`, all clients."""
    moving = _moving(round)
    return (moving if moving.sum() >= min_clients else torch.ones_like(moving)).nonzero()[:, 0]


def _from_sorted(round: Round, function: Callable[[np.ndarray], np.ndarray]) -> Tree:
    """`function` of each leaf's updates [P, …] that are not 0, float64, with every coordinate in ascending order."""
    moving, result = _moving(round), Tree()
    for path, leaf in leaves(round.w):
        # NumPy's sort along the clients takes a tenth of torch's time.
        ascending = np.sort(round.update(path)[moving].cpu().numpy(), axis=0).astype(np.float64)
        result[path] = torch.from_numpy(np.asarray(function(ascending))).to(leaf.device, leaf.dtype)
    return nest(result)

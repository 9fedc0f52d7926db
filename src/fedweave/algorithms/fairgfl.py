"""FairGFL: Zhou et al. 2026, "FairGFL: privacy-preserving fairness-aware federated learning with overlapping
subgraphs", algorithms 1 and 2.

Clients whose nodes others also hold get less weight, and the client with the largest loss gets an additional weight.
The server estimates who overlaps with whom only from noisy codes and links of minibatches.

What the paper leaves open, or where this differs:
- Eq. 25 is written on weights, which it would shrink by the mean of q; on updates it is gradient descent on eq. 27, and
  so is one step along the update of the client with the largest loss.
- Codes are binary: under the paper's noise its min–max codes (`code = "minmax"`) distinguish neither nodes nor clients.
- Noise is drawn once for each node and pair (appendix F-A): a client keeps its first codes even if the server sends
  another encoder later, and pairs keep their RNG key.
- The number of matching pairs is corrected for pairs that match by chance and for missed pairs (`matching`); the rates
  and the threshold come from the public sample.
- N_ik is scaled by n_k / b_k, with which it is unbiased, and T_ik by n_k² / b_k²; theorems V.4 and V.5 print n_i / b_k
  and n_k² / b_i². The first estimate of a pair stands by itself; clients that were never called together have none.
- With `alpha` = 1 links are neither needed nor sent.
- λ, the threshold, E, learning rates and the encoder's form are ours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedweave.algorithms.parts import Context, Needs, Part, Round
from fedweave.algorithms.parts.part import Attacked
from fedweave.algorithms.preset import preset_of
from fedweave.core import random
from fedweave.core.bounds import CountOrNone, Fraction, NonNegative
from fedweave.core.federation import Federation, Sends
from fedweave.core.graph import Graph
from fedweave.core.graph_arrays import dense
from fedweave.core.mechanism import LDP
from fedweave.core.ranges import Real, Whole
from fedweave.core.tree import Tree, leaves
from fedweave.core.types import Record, Values
from fedweave.datasets.base import Dataset
from fedweave.errors import CallRefused, UserError
from fedweave.learn import Adam, fit
from fedweave.ops.hashing import bits
from fedweave.ops.linear import linear
from fedweave.ops.sparse import Sparse
from fedweave.partition.base import Partition
from fedweave.partition.statistics import statistics
from fedweave.privacy.attacks import majority_accuracy, reidentification_rate, repeated_query_accuracy
from fedweave.privacy.mechanisms import (
    flip_probability,
    noisy_levels,
    noisy_links,
    pack_bits,
    sparsify_links,
    unpack_bits,
)

# ----------------------------------------------------------------------------------------------------
# Codes of nodes: an encoder that the server makes of a public sample and sends to all clients (Zhou et al. 2026,
# section V-B1 and appendix F-B), and what a curious server infers from noisy codes and links (section VII). Everything
# about an encoder comes from the public sample: its projection, and the thresholds or ranges of its coordinates. The
# paper leaves its form open; ours is one linear layer, which an autoencoder follows by tanh and another.


EncoderName = Literal["autoencoder", "pca", "random"]
CodeName = Literal["binary", "minmax"]
_BATCH = 32  # of the autoencoder's training
_LR = (
    1e-4  # with ten times that, 600 rounds on Cora correlate the coordinates so much that different nodes' codes match
)


@dataclass(frozen=True)
class Encoder:
    """How the server makes an encoder.

    kind:   "autoencoder", "pca", or a "random" projection.
    code:   "binary": 1 where a coordinate is above its median on the public sample; "minmax": its place between its
            ends there.
    size:   d, coordinates of a code.
    rounds: minibatches of 32 public nodes that an autoencoder is trained on; 0 leaves its first weights.
    """

    kind: EncoderName
    code: CodeName
    size: int
    rounds: int

    def made(self, public: Graph, key: Tensor) -> Tree:
        """The encoder for the clients: "weight" [features, d], "low" and, for a min-max code, "span" [d]."""
        x = features(public)
        weight = {"autoencoder": self._trained, "pca": self._principal, "random": self._random}[self.kind](
            x, public, key
        ).to(x.dtype)
        u = linear(x, weight)
        if self.code == "binary":
            return {"weight": weight, "low": u.quantile(0.5, dim=0)}
        low = u.amin(0)
        return {"weight": weight, "low": low, "span": (u.amax(0) - low).clamp(min=1e-9)}

    def _random(self, x: Tensor, public: Graph, key: Tensor) -> Tensor:
        result: Tensor = random.normal(random.fold(key, "encoder"), (x.shape[1], self.size)) * x.shape[1] ** -0.5
        return result

    def _principal(self, x: Tensor, public: Graph, key: Tensor) -> Tensor:
        if self.size > min(len(x) - 1, x.shape[1]):
            raise UserError(
                f"encoder = 'pca' has at most {min(len(x) - 1, x.shape[1])} components of {len(x)} public nodes with "
                f"{x.shape[1]} features, but code_size is {self.size}; lower it, or raise [partition] public.",
                code="user.components",
            )
        result: Tensor = torch.linalg.svd(x.double() - x.double().mean(0), full_matrices=False)[2][: self.size].T
        return result

    def _trained(self, x: Tensor, public: Graph, key: Tensor) -> Tensor:
        w = {
            "in": self._random(x, public, key).to(x.dtype),
            "out": (random.normal(random.fold(key, "decoder"), (self.size, x.shape[1])) * self.size**-0.5).to(x.dtype),
            "mean": x.mean(0),
        }
        if self.rounds == 0:
            result: Tensor = w["in"]
            return result
        trained: Tensor = fit(_reconstruction, w, public, key, Adam(_LR), self.rounds, args={"x": x}).w["in"]
        return trained


def features(public: Graph) -> Tensor:
    """[m, F]: features of the sample's m nodes, dense."""
    n = int(public.real.sum())
    x = public.x
    return torch.from_numpy(x.blocks.members[0].scipy()[:n].toarray()).to(x.device) if isinstance(x, Sparse) else x[:n]


def check_form(encoder: Tree, width: int, size: int, code: CodeName) -> None:
    """Check that an encoder has the form of `Encoder.made`: each further coordinate would cost another ε.

    Raises:
        CallRefused: it has another form.
    """
    due = {"weight": (width, size), "low": (size,)} | ({"span": (size,)} if code == "minmax" else {})
    shapes = {name: tuple(leaf.shape) for name, leaf in leaves(encoder)}
    if shapes != due:
        raise CallRefused(f"the server sends an encoder of the form {shapes}, and not {due}")


def encoded(encoder: Tree, x: "Tensor | Sparse") -> Tensor:
    """The codes of nodes with the features x [n, F]: [n, d] in [0, 1]."""
    u = linear(x, encoder["weight"])
    if "span" in encoder:
        result: Tensor = ((u - encoder["low"]) / encoder["span"]).clamp(0, 1)
        return result
    result = (u > encoder["low"]).to(u.dtype)
    return result


def _reconstruction(w: Tree, public: Graph, key: Tensor, args: Tree) -> Tensor:
    """Mean squared error of the autoencoder on a minibatch."""
    x = args["x"]
    x = x[random.bits(random.fold(key, "batch"), len(x)).argsort()[:_BATCH]]
    return F.mse_loss(torch.tanh(linear(x, w["in"])) @ w["out"] + w["mean"], x)


QUERIES = (1, 5, 10, 20, 30)
HOLDERS = (1, 3, 5, 10, 27)
PAIRS = 10_000  # that links are asked of


def attacked_links(data: Dataset, partition: Partition, epsilon: float, key: Tensor) -> list[Attacked]:
    """Telling whether two nodes are linked from several answers, of one client or of several."""
    links = sum(statistics(data, partition)["edges_kept"])
    truth = torch.arange(PAIRS, device="cpu") < min(links, PAIRS // 2)  # half are, or all links that there are

    def share(copies: int, permanent: bool) -> float:
        return repeated_query_accuracy(truth, epsilon, copies, key, permanent)

    rows = [("links, asked again", f"{n} answer{'s' * (n > 1)}", share(n, False), share(n, True)) for n in QUERIES]
    return rows + [("links, majority of holders", f"{n} client{'s' * (n > 1)}", 1.0, share(n, False)) for n in HOLDERS]


def held_features(data: Dataset, partition: Partition) -> Tensor:
    """The features of all nodes that clients hold, [n, d]."""
    x = data.x[np.unique(np.concatenate([part.nodes for part in partition.parts]))]
    return torch.from_numpy(dense(x))


def attacked_codes(clean: Tensor, bare: Tensor, hidden: Tensor) -> Attacked:
    """Naming the node of one code [b] among all n nodes, from codes [n, b] as sent without the noise and with it."""
    owner = torch.arange(len(clean), device="cpu")
    without, with_it = (reidentification_rate(noisy, clean, owner) for noisy in (bare, hidden))
    return "node of one code", f"{len(clean):,} nodes' features", without, with_it


# ----------------------------------------------------------------------------------------------------
# Counts of common nodes and links in noisy codes and adjacencies, and estimates for whole clients from them (Zhou et
# al. 2026, section V-B2). Clients upload mini-batches: codes uint8 [P, b, d], adjacencies bool [P, b, b], `taken` int64
# [P], the number of real rows, and their numbers of nodes int64 [P]. `matches` and the functions on its pairs compute
# on the host, by NumPy.


_ELEMENTS = 1 << 18  # distances computed at a time, so that they stay in the cache


@dataclass(frozen=True)
class Rates:
    """When two noisy codes are taken for the same node's, and how often that is so.

    most:  the largest distance, in steps of a level (see `distances`). true, false: the share of pairs of codes of one
           node, and of two nodes, that are so near.
    """

    most: int
    true: float
    false: float


def comparable(codes: Tensor, levels: int) -> Tensor:
    """Codes uint8 [n, d] as `distances` takes them: float32 [n, d], bits as -1 and 1."""
    return codes.float() if levels > 1 else 2 * codes.float() - 1


def distances(one: Tensor, other: Tensor, levels: int) -> Tensor:
    """L1 distance between `comparable` codes [n, d] and [m, d] in steps of a level: whole numbers float32 [n, m]."""
    if levels > 1:
        return torch.cdist(one, other, p=1)
    half = torch.full((), one.shape[1] / 2, device=one.device)
    return torch.addmm(half, one, other.T, alpha=-0.5)  # of a, b = ±1 half of 1 − a b; exact


def rates(first: Tensor, second: Tensor, levels: int, threshold: float | None, odds: float) -> Rates:
    """The rates on the public sample: two noisy copies uint8 [R, m, d] of each of its m nodes' codes.

    threshold: largest L1 / d; None takes the threshold with the least variance of an estimated intersection
    (`overlap_count`) of mini-batches with `odds` pairs of different nodes to each pair of one node.
    """
    steps = levels * first.shape[2]
    same = torch.zeros(steps + 1, dtype=torch.float64, device=first.device)
    different = torch.zeros_like(same)
    for one, other in zip(first, second, strict=True):
        distance = distances(comparable(one, levels), comparable(other, levels), levels).long()
        same += torch.bincount(distance.diagonal(), minlength=steps + 1)
        different += torch.bincount(distance.flatten(), minlength=steps + 1)
    different -= same
    true, false = ((counts.cumsum(0) / counts.sum().clamp(min=1)).clamp(0, 1) for counts in (same, different))
    if threshold is None:
        spread = true * (1 - true) + odds * false * (1 - false)
        difference = true - false
        most = int(torch.where(difference > 0, spread / difference**2, torch.inf).argmin())
    else:
        most = int(threshold * steps + 1e-9)
    return Rates(most, float(true[most]), float(false[most]))


def matches(codes: Tensor, taken: Tensor, levels: int, most: int) -> np.ndarray:
    """The pairs of rows of different clients whose codes are at most `most` apart: int64 [2, M], rows counted through
    all clients' minibatches, of each pair the lower first."""
    clients, batch, _ = codes.shape
    near = _NearLevels(codes.flatten(0, 1), levels) if levels > 1 else _NearBits(codes.flatten(0, 1))
    real, rows = (torch.arange(batch, device="cpu") < taken[:, None]).flatten().numpy(), clients * batch
    width = max(1, _ELEMENTS // max(rows * batch, 1)) * batch
    blocks = []
    for start in range(0, rows - batch, width):
        after = start + batch  # nothing before can be of a later client
        low, high = near(slice(start, start + width), slice(after, rows), most)
        low, high = low + start, high + after
        mask = (low // batch < high // batch) & real[low] & real[high]
        blocks.append(np.stack([low[mask], high[mask]]))
    return np.concatenate(blocks, axis=1) if blocks else np.zeros((2, 0), np.int64)


class _NearLevels:
    """Finds codes of several levels [n, d] that are near each other."""

    def __init__(self, codes: Tensor, levels: int) -> None:
        self._codes, self._levels = comparable(codes, levels), levels

    def __call__(self, one: slice, other: slice, most: int) -> tuple[np.ndarray, np.ndarray]:
        """The pairs of the rows `one` and `other` at most `most` apart, as places in them, in order."""
        near = distances(self._codes[one], self._codes[other], self._levels).numpy() <= np.float32(most)
        low, high = np.nonzero(near)
        return low, high


class _NearBits:
    """Near pairs of binary codes, uint8 [n, d]. It compares all pairs in their first 64 bits, and the few near ones in
    the other bits."""

    def __init__(self, codes: Tensor) -> None:
        packed = np.packbits(codes.numpy(), axis=1)
        self._words = np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8))).view(np.uint64)
        self._first = np.ascontiguousarray(self._words[:, 0])

    def __call__(self, one: slice, other: slice, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of rows at distance `most` or less, as for codes with levels."""
        apart = np.bitwise_count(self._first[one, None] ^ self._first[other])
        at = np.flatnonzero(apart <= most)
        low, high = at // apart.shape[1], at % apart.shape[1]
        if self._words.shape[1] > 1:
            rest = np.bitwise_count(self._words[one, 1:][low] ^ self._words[other, 1:][high]).sum(1)
            mask = apart.ravel()[at] + rest <= most
            low, high = low[mask], high[mask]
        return low, high


def counts(pairs: np.ndarray, batch: int, clients: int) -> Tensor:
    """The number of pairs of rows between every two clients: float64 [P, P], symmetric."""
    low, high = pairs // batch
    upper = np.bincount(low * clients + high, minlength=clients**2).reshape(clients, clients)
    return torch.from_numpy(upper + upper.T).double()


def overlap_count(matched: Tensor, taken: Tensor, error_rates: Rates) -> Tensor:
    """(M − f b_i b_k) / (t − f): the unbiased size of the intersection of minibatches with M matching pairs."""
    taken = taken.double()
    return (matched - error_rates.false * taken[:, None] * taken) / max(error_rates.true - error_rates.false, 1e-6)


def node_ratios(common: Tensor, taken: Tensor, nodes: Tensor) -> Tensor:
    """N_ik = Ñ_ik n_k / b_k with Ñ_ik = |∩| / b_i, clipped to [0, 1]: float64 [P, P], 0 on the diagonal."""
    taken, nodes = taken.double(), nodes.double()
    return _clipped(common / taken[:, None] * (nodes / taken))


def link_ratios(links: Tensor, pairs: np.ndarray, taken: Tensor, nodes: Tensor) -> Tensor:
    """T_ik = T̃_ik n_k² / b_k², clipped to [0, 1]; T̃_ik is the share of the links in i's mini-batch whose ends match
    the ends of a link in k's: float64 [P, P], 0 on the diagonal and for minibatches without links."""
    clients, batch, _ = links.shape
    client, one, other = (index.numpy() for index in links.nonzero(as_tuple=True))  # each link in both directions
    degree = np.bincount(client * batch + one, minlength=clients * batch)
    low, high = np.concatenate([pairs, pairs[::-1]], axis=1)
    at, first, second = _products(degree[low], degree[high])  # a link of each of two rows that match
    start, ends = degree.cumsum() - degree, client * batch + other
    low, high = low[at], high[at]
    same = np.isin(_code(ends[start[low] + first], ends[start[high] + second]), _code(*pairs))
    shared = np.bincount((low // batch * clients + high // batch)[same], minlength=clients**2)
    totals = np.bincount(client, minlength=clients)
    ratios = torch.from_numpy(shared.reshape(clients, clients) / np.maximum(totals, 1)[:, None])
    return _clipped(ratios * (nodes.double() / taken.double()) ** 2)


def _products(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For counts [M] of two kinds all combinations of the things counted: which of the M, and the numbers of both."""
    many = one * other
    at = np.repeat(np.arange(len(many)), many)
    number = np.arange(len(at)) - (many.cumsum() - many)[at]
    return at, number // other[at], number % other[at]


def _code(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """A number for each unordered pair of rows."""
    result: np.ndarray = np.minimum(one, other) << 32 | np.maximum(one, other)
    return result


def accumulated(before: Tensor, now: Tensor, at: Tensor, seen: Tensor, beta: float) -> Tensor:
    """β now + (1 − β) before for every two of the clients `at` int64 [P]; `before` [N, N] for other pairs, and `now`
    for two clients that were never `seen` [N, N] together."""
    rows, columns = at[:, None], at
    last = torch.where(seen[rows, columns] > 0, before[rows, columns], now)
    out = before.clone()
    out[rows, columns] = beta * now + (1 - beta) * last
    return out


def _clipped(ratios: Tensor) -> Tensor:
    return ratios.clamp(0, 1).fill_diagonal_(0)


_COPIES = 8  # noisy ones of the public sample, twice, to measure rates with
_ODDS = 1280.0  # pairs of different nodes to each common one, for minibatches of 64 with a twentieth in common
_MOST_SIZE = 1 << 16  # of codes; a server's word must not fill a site's memory


@dataclass(frozen=True)
class OverlapWeights(Part):
    """Updates count 1 / (K (1 + O_i)), where O_i sums up the overlaps O_ik = α N_ik + (1 − α) T_ik with the other
    clients, and the update of the client with the largest loss λ more (eqs. 24, 25 and 27).

    lam:            λ, additional weight of the client with the largest loss.
    normalize:      weights before λ sum to 1, so that fairness is not confounded with the size of the step.
    estimator:      overlaps are estimated from noisy uploads ("ldp"), taken from the simulation's partition ("oracle"),
                    or taken for 0 ("none").
    alpha:          α, the share of nodes against links; 1 needs no links.
    beta:           β, the share of this round's estimate in the accumulated one.
    sample:         nodes of a minibatch.
    epsilon_a:      ε of each coordinate of a code; inf adds no noise.
    epsilon_b:      ε of each pair of nodes; inf adds no noise.
    code:           "binary", or "minmax" with `levels`.
    levels:         p, steps of a coordinate of a min-max code.
    code_size:      d, coordinates of a code.
    encoder:        encoder made from the public sample: "autoencoder", "pca", or a "random" projection.
    encoder_rounds: rounds of the autoencoder's training.
    renew:          whether nodes whose data changed (`parts.Drift`) get new codes and noise; then every message counts
                    as new, and the server sends its encoder in every round. Otherwise a node keeps its first code.
    threshold:      largest L1 / d between codes taken for one node's; left out, the server finds it on the public
                    sample.
    """

    needs = Needs(reads=("graph",), statistics="home")
    client_learns = "the encoder that codes are to be made with, which comes of public data"

    lam: NonNegative = 0.1
    normalize: bool = False
    estimator: Literal["ldp", "oracle", "none"] = "ldp"
    alpha: Fraction = 0.8
    beta: Fraction = 0.5
    sample: Annotated[int, Field(ge=2)] = 64
    epsilon_a: Annotated[float, Field(gt=0)] = 3.0
    epsilon_b: Annotated[float, Field(gt=0)] = 1.0
    code: CodeName = "binary"
    levels: Annotated[int, Field(ge=1, le=255)] = 10
    code_size: Annotated[int, Field(ge=1, le=_MOST_SIZE)] = 100
    encoder: EncoderName = "autoencoder"
    encoder_rounds: CountOrNone = 600
    renew: bool = False
    threshold: Fraction | None = None
    recorded = True
    rounds_vary = True

    # --- what leaves a client ----------------------------------------------------------------------------------------

    @property
    def sends(self) -> Mapping[str, Sends | str]:  # type: ignore[override]
        """The loss and, to estimate overlaps, a noisy minibatch."""
        result: dict[str, Sends | str] = {"loss": Sends("mean training loss of the received weights", within=Real())}
        if self.estimator == "ldp":
            result["nodes"] = Sends("number of the client's nodes", within=Whole())
            result["codes"] = Sends(f"noisy codes of the features of {self.sample} random nodes", self._private_codes)
            if self.alpha < 1:
                result["links"] = Sends(
                    "noisy links between these nodes, thinned out by their codes", self._private_links
                )
        return result

    @property
    def _private_codes(self) -> tuple[LDP, ...]:
        epsilon = self.code_size * self.epsilon_a
        return (LDP(epsilon, "node", self._permanent),) if epsilon < math.inf else ()

    @property
    def _private_links(self) -> tuple[LDP, ...]:
        return (LDP(self.epsilon_b, "pair of nodes", self._permanent),) if self.epsilon_b < math.inf else ()

    @property
    def _permanent(self) -> str:
        """The name of a draw that is made only once (`LDP.release`); "" if codes are renewed."""
        return "" if self.renew else type(self).__name__

    @property
    def steps(self) -> int:
        """Steps of a code's coordinate."""
        return 1 if self.code == "binary" else self.levels

    def noisy(self, code: Tensor, key: Tensor) -> Tensor:
        """𝓜_N of codes [...] in [0, 1]: uint8 [...], in steps."""
        words = bits(random.fold(key, "codes"), code.numel()).view(code.shape)
        return noisy_levels(code, self.steps, self.epsilon_a, words)

    # --- client ------------------------------------------------------------------------------------------------------

    def report(self, ctx: Context) -> Tree:
        """F_i(w_t) and a noisy minibatch (algorithm 1, lines 6-8)."""
        loss = {"loss": ctx.loss(ctx.received)}
        return loss | self._minibatch(ctx) if self.estimator == "ldp" else loss

    def _minibatch(self, ctx: Context) -> Tree:
        if not ctx.memory:
            ctx.keep(self._first_noise(ctx))
        elif self.renew:
            ctx.keep(self._renewed(ctx))
        graph, noisy = ctx.client.graph, ctx.memory
        order = random.order(random.fold(ctx.client.key, "minibatch"), graph.real).argsort()[: self.sample]
        nodes = F.pad(order, (0, self.sample - len(order)))
        taken = torch.arange(self.sample, device=graph.device) < graph.real.sum()
        codes = noisy["codes"][nodes] * taken[:, None].to(torch.uint8)
        reply = {"nodes": graph.real.sum(), "codes": pack_bits(codes) if self.steps == 1 else codes}
        if self.alpha == 1:
            return reply
        picked = (nodes == torch.arange(graph.nodes, device=graph.device)[:, None]) & taken
        links = (graph.edges.operator("sum") @ picked.to(graph.x.dtype))[nodes] > 0
        drawn = nodes + graph.nodes * noisy["version"][nodes] if self.renew else nodes
        links = noisy_links(links, drawn, self.epsilon_b, noisy["links"])
        links = sparsify_links(links, _euclidean(codes), taken, self.epsilon_b)
        return reply | {"links": pack_bits(links)}

    def _first_noise(self, ctx: Context) -> Tree:
        """The draws that are made only once: 𝓜_N of every node's code, and the RNG key of 𝓜_E."""
        secret = ctx.client.secret
        check_form(ctx.downloaded["encoder"], ctx.client.graph.x.shape[1], self.code_size, self.code)
        codes = self.noisy(encoded(ctx.downloaded["encoder"], ctx.client.graph.x), secret)
        versions = torch.zeros_like(ctx.client.graph.real, dtype=torch.int64)
        counted = {"version": versions, "drawn": versions} if self.renew else {}
        return {"codes": codes, "links": random.fold(secret, "links")} | counted

    def _renewed(self, ctx: Context) -> Tree:
        """The memory with new draws of 𝓜_N for changed nodes; 𝓜_E gets a new number for them."""
        memory, fresh = ctx.memory, self._first_noise(ctx)
        stale = memory["version"] > memory["drawn"]
        return memory | {
            "codes": torch.where(stale[:, None], fresh["codes"], memory["codes"]),
            "drawn": memory["version"],
        }

    def changed(self, ctx: Context, nodes: Tensor) -> None:
        """Give the changed nodes new codes."""
        if self.renew and ctx.memory:
            ctx.keep(ctx.memory | {"version": ctx.memory["version"] + nodes})

    # --- server ------------------------------------------------------------------------------------------------------

    def init(self, fed: Federation, w: Tree) -> Tree:
        """No overlap known; the encoder and its rates on the public sample, or the truth."""
        n = len(fed.clients)
        empty = torch.zeros(n, dtype=torch.float64, device=fed.device)
        state: Tree = {"weight": empty, "loss": empty, "heard": torch.zeros_like(empty, dtype=torch.int64)}
        matrices = {name: empty.new_zeros(n, n) for name in ("nodes", "links")}
        known = fed.pairs
        if self.estimator != "none":
            state |= {"true": overlap(known, self.alpha).to(fed.device)} if known else {}
        if self.estimator == "oracle":
            if not known:
                raise UserError(
                    "estimator = 'oracle' needs the true overlap, which only a simulation with the partition 'overlap' "
                    "knows; choose that, estimator = 'ldp' or 'none'.",
                    code="user.oracle",
                )
            matrices = {name: known[name].to(fed.device, copy=True) for name in matrices}
        if self.estimator == "ldp":
            state |= self.made_encoder(fed) | {"seen": empty.new_zeros(n, n, dtype=torch.int64)}
        return state | matrices

    def made_encoder(self, fed: Federation) -> Tree:
        """The "encoder" and the "rates" of its noisy codes on the public sample."""
        if "public" not in fed.held:
            raise UserError(
                "estimator = 'ldp' needs a public sample at the server, to make the encoder of. A simulation has one "
                "with [partition] public of the partition 'overlap' alone; between sites put public.npz into the "
                "server's folder. estimator = 'none' needs none (docs/fairgfl.md).",
                code="user.no-sample",
            )
        public, key = fed.held["public"], fed.key("encoder")
        encoder = Encoder(self.encoder, self.code, self.code_size, self.encoder_rounds).made(public, key)
        code = encoded(encoder, features(public)).expand(2, _COPIES, -1, -1)
        first, second = self.noisy(code, key)
        error_rates = rates(first, second, self.steps, self.threshold, _ODDS)
        return {"encoder": encoder, "rates": vars(error_rates)}

    def attacks(self, fed: Federation, data: Dataset, partition: Partition, key: Tensor) -> list[Attacked]:
        """Attacks on noisy codes and, if clients send them, links."""
        if self.estimator != "ldp":
            return []
        links = attacked_links(data, partition, self.epsilon_b, key) if self.alpha < 1 else []
        bare, encoder = replace(self, epsilon_a=float("inf")), self.made_encoder(fed)["encoder"]
        clean = encoded(encoder, held_features(data, partition).to(fed.dtype))
        return [*links, attacked_codes(clean, *(variant.noisy(clean, key) / variant.steps for variant in (bare, self)))]

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        """The encoder, as long as one of the called clients may not have it, or needs it again."""
        new = self.estimator == "ldp" and (self.renew or not state["heard"][at].all())
        return {"encoder": state["encoder"]} if new else {}, {}

    def observe(self, state: Tree, round: Round) -> Tree:
        """The accumulated N and T with this round's minibatches (algorithm 2, lines 4-6)."""
        state = state | {"loss": state["loss"].index_copy(0, round.at, round.replies.stack("loss").double())}
        state["heard"] = state["heard"].index_fill(0, round.at, 1)
        return state | self._estimated(state, round) if self.estimator == "ldp" else state

    def _estimated(self, state: Tree, round: Round) -> Tree:
        nodes, codes = (round.replies.stack(name).cpu() for name in ("nodes", "codes"))  # NumPy counts below
        taken, error_rates = nodes.clamp(max=self.sample), Rates(**state["rates"])
        codes = unpack_bits(codes, self.code_size).to(torch.uint8) if self.steps == 1 else codes
        pairs = matches(codes, taken, self.steps, error_rates.most)
        common = overlap_count(counts(pairs, self.sample, len(nodes)), taken, error_rates)
        now = {"nodes": node_ratios(common, taken, nodes)}
        if self.alpha < 1:
            links = unpack_bits(round.replies.stack("links").cpu(), self.sample)
            now["links"] = link_ratios(links, pairs, taken, nodes)
        seen = state["seen"].clone()
        seen[round.at[:, None], round.at] = 1
        return {
            name: accumulated(state[name], ratios.to(state[name].device), round.at, state["seen"], self.beta)
            for name, ratios in now.items()
        } | {"seen": seen}

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """q_i / K or q_i / Σ q_k, and λ more for the client with the largest loss."""
        q = 1 / (1 + overlap(state, self.alpha)[round.at])
        weights = q / (q.sum() if self.normalize else len(q))
        worst = state["loss"][round.at].argmax()
        return torch.where(torch.arange(len(q), device=q.device) == worst, weights + self.lam, weights)

    def update(self, state: Tree, round: Round) -> Tree:
        """The weights, for `measures`."""
        return state | {"weight": state["weight"].index_copy(0, round.at, round.weights)}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """For clients that replied at least once: the sums O_i of estimated and of true overlaps, and weight and loss
        of their last round. For every two clients: the accumulated estimates of N and T."""
        named = {"weight": state["weight"], "loss": state["loss"]}
        named |= {"overlap_estimated": overlap(state, self.alpha)} if self.estimator == "ldp" else {}
        named |= {"overlap_true": state["true"]} if "true" in state else {}
        known = {name: torch.where(state["heard"] > 0, values, math.nan) for name, values in named.items()}
        pairs = ("nodes", "links")[: 2 if self.alpha < 1 else 1] if self.estimator == "ldp" else ()
        return known | {f"{name}_estimated": state[name] for name in pairs}

    def remaining(self) -> tuple[str, ...]:
        """Limits of the noise's protection, as sentences."""
        if self.estimator != "ldp":
            return ()
        sentences = [
            "Noise is drawn once, so that asking again reveals nothing new. But every holder of a record draws its "
            "own: "
            "one that h clients hold costs h times the ε above.",
            "What shows that two clients hold the same node also shows which one it is, to a server that knows the "
            "features of all nodes: on Cora it names 99 % of them from a single binary code at ε = 3 per coordinate "
            "(`fedweave attack`).",
        ]
        if self.alpha < 1:
            flip = flip_probability(self.epsilon_b)
            shares = ", ".join(f"{majority_accuracy(flip, h):.1%} of {h}" for h in (1, 5, 27))
            sentences.append(
                "All links of one node together are protected by the ε of a pair times up to the number of its "
                "client's other nodes. The majority of the holders of a pair of nodes says rightly whether they are "
                f"linked with probability {shares} holders."
            )
        return tuple(sentences)


def overlap(pairs: Values, alpha: float) -> Tensor:
    """O_i = Σ_k α N_ik + (1 − α) T_ik, float64 [N] (eq. 24)."""
    both: Tensor = alpha * pairs["nodes"] + (1 - alpha) * pairs["links"]
    return both.sum(1)


def _euclidean(codes: Tensor) -> Tensor:
    """Squared distances between codes uint8 [b, d]: float64 [b, b], whole numbers and so the same in any order of
    summation."""
    rows = codes.double()
    norm = (rows * rows).sum(1)
    return norm[:, None] + norm - 2 * (rows @ rows.mT)


@preset_of(OverlapWeights)
class FairGFL:
    """FedAvg in which clients that hold the same nodes count less, as far as noisy codes of these show it."""

    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "the server's step is longer by the worst loss"
    }
    test_settings: ClassVar[Record] = {
        "code_size": 20,
        "encoder_rounds": 3,
        "sample": 24,
        "epsilon_a": 6.0,
        "epsilon_b": 4.0,
    }

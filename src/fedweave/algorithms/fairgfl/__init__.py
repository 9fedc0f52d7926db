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
  and n_k² / b_i². The first estimate of a pair is not averaged with an earlier one; clients that were never called
  together have none.
- With `alpha` = 1 links are neither needed nor sent.
- λ, the threshold, E, learning rates and the encoder's form are ours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedweave.algorithms.fairgfl.attacks import client_features, code_attack, link_attacks
from fedweave.algorithms.fairgfl.encoder import (
    CodeName,
    Encoder,
    EncoderName,
    check_encoder,
    node_codes,
    sample_features,
)
from fedweave.algorithms.fairgfl.overlaps import (
    Rates,
    accumulate,
    counts,
    link_ratios,
    matches,
    node_ratios,
    overlap_count,
    rates,
)
from fedweave.algorithms.parts import Context, Needs, Part, Round
from fedweave.algorithms.parts.part import Attacked
from fedweave.algorithms.preset import preset_of
from fedweave.core import random
from fedweave.core.bounds import CountOrNone, Fraction, NonNegative
from fedweave.core.federation import Federation, Sends
from fedweave.core.mechanism import LDP
from fedweave.core.ranges import Real, Whole
from fedweave.core.tree import Tree
from fedweave.core.types import Record, Values
from fedweave.datasets.base import Dataset
from fedweave.errors import UserError
from fedweave.ops.hashing import bits
from fedweave.partition.base import Partition
from fedweave.privacy.attacks import majority_accuracy
from fedweave.privacy.mechanisms import (
    flip_probability,
    noisy_levels,
    noisy_links,
    pack_bits,
    sparsify_links,
    unpack_bits,
)

_NOISY_COPIES = 8  # noisy ones of the public sample, twice, to measure rates with
_PAIR_ODDS = 1280.0  # pairs of different nodes to each common one, for minibatches of 64 with a twentieth in common
_MAX_CODE_SIZE = 1 << 16  # of codes; a server's word must not fill a site's memory


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
    code_size: Annotated[int, Field(ge=1, le=_MAX_CODE_SIZE)] = 100
    encoder: EncoderName = "autoencoder"
    encoder_rounds: CountOrNone = 600
    renew: bool = False
    threshold: Fraction | None = None
    recorded = True
    rounds_vary = True

    @property
    def sends(self) -> Mapping[str, Sends | str]:  # type: ignore[override]
        result: dict[str, Sends | str] = {"loss": Sends("mean training loss of the received weights", within=Real())}
        if self.estimator != "ldp":
            return result
        draw = "" if self.renew else type(self).__name__  # of draws that are made only once (`LDP.release`)
        epsilon = self.code_size * self.epsilon_a
        of_codes = (LDP(epsilon, "node", draw),) if epsilon < math.inf else ()
        result["nodes"] = Sends("number of the client's nodes", within=Whole())
        result["codes"] = Sends(f"noisy codes of the features of {self.sample} random nodes", of_codes)
        if self.alpha < 1:
            of_links = (LDP(self.epsilon_b, "pair of nodes", draw),) if self.epsilon_b < math.inf else ()
            result["links"] = Sends("noisy links between these nodes, thinned out by their codes", of_links)
        return result

    @property
    def steps(self) -> int:
        """Steps of a code's coordinate."""
        return 1 if self.code == "binary" else self.levels

    def add_noise(self, code: Tensor, key: Tensor) -> Tensor:
        """𝓜_N of codes [...] in [0, 1]: uint8 [...], in steps."""
        words = bits(random.fold(key, "codes"), code.numel()).view(code.shape)
        return noisy_levels(code, self.steps, self.epsilon_a, words)

    def report(self, ctx: Context) -> Tree:
        """F_i(w_t) and a noisy minibatch (algorithm 1, lines 6-8)."""
        reply = {"loss": ctx.loss(ctx.received)}
        if self.estimator != "ldp":
            return reply
        if not ctx.memory:
            ctx.keep(self.draw_noise(ctx))
        elif self.renew:  # new draws of 𝓜_N for changed nodes; 𝓜_E gets a new number for them
            stale = ctx.memory["version"] > ctx.memory["drawn"]
            codes = torch.where(stale[:, None], self.draw_noise(ctx)["codes"], ctx.memory["codes"])
            ctx.keep(ctx.memory | {"codes": codes, "drawn": ctx.memory["version"]})
        graph, memory = ctx.client.graph, ctx.memory
        order = random.order(random.fold(ctx.client.key, "minibatch"), graph.real).argsort()[: self.sample]
        nodes = F.pad(order, (0, self.sample - len(order)))  # [b]
        real = torch.arange(self.sample, device=graph.device) < graph.real.sum()
        codes = memory["codes"][nodes] * real[:, None].to(torch.uint8)  # [b, d]
        reply |= {"nodes": graph.real.sum(), "codes": pack_bits(codes) if self.steps == 1 else codes}
        if self.alpha == 1:
            return reply
        picked = (nodes == torch.arange(graph.nodes, device=graph.device)[:, None]) & real
        links = (graph.edges.operator("sum") @ picked.to(graph.x.dtype))[nodes] > 0  # [b, b]
        draws = nodes + graph.nodes * memory["version"][nodes] if self.renew else nodes
        links = noisy_links(links, draws, self.epsilon_b, memory["links"])
        # Squared distances of codes: whole numbers, and so the same in any order of summation.
        rows = codes.double()
        norm = (rows * rows).sum(1)
        distances = norm[:, None] + norm - 2 * (rows @ rows.mT)
        return reply | {"links": pack_bits(sparsify_links(links, distances, real, self.epsilon_b))}

    def draw_noise(self, ctx: Context) -> Tree:
        """The draws that are made only once: 𝓜_N of every node's code, and the RNG key of 𝓜_E."""
        secret, x = ctx.client.secret, ctx.client.graph.x
        check_encoder(ctx.downloaded["encoder"], x.shape[1], self.code_size, self.code)
        codes = self.add_noise(node_codes(ctx.downloaded["encoder"], x), secret)
        memory = {"codes": codes, "links": random.fold(secret, "links")}
        if self.renew:
            versions = torch.zeros_like(ctx.client.graph.real, dtype=torch.int64)
            memory |= {"version": versions, "drawn": versions}
        return memory

    def follow_changes(self, ctx: Context, nodes: Tensor) -> None:
        if self.renew and ctx.memory:
            ctx.keep(ctx.memory | {"version": ctx.memory["version"] + nodes})

    def init(self, fed: Federation, w: Tree) -> Tree:
        n = len(fed.clients)
        empty = torch.zeros(n, dtype=torch.float64, device=fed.device)
        state: Tree = {"weight": empty, "loss": empty, "heard": torch.zeros_like(empty, dtype=torch.int64)}
        state |= {"nodes": empty.new_zeros(n, n), "links": empty.new_zeros(n, n)}
        if self.estimator != "none" and fed.pairs:
            state["true"] = overlap(fed.pairs, self.alpha).to(fed.device)
        if self.estimator == "oracle":
            if not fed.pairs:
                raise UserError(
                    "estimator = 'oracle' needs the true overlap, which only a simulation with the partition 'overlap' "
                    "knows; choose that, estimator = 'ldp' or 'none'.",
                    code="user.oracle",
                )
            state |= {name: fed.pairs[name].to(fed.device, copy=True) for name in ("nodes", "links")}
        if self.estimator == "ldp":
            state |= self.build_encoder(fed) | {"seen": empty.new_zeros(n, n, dtype=torch.int64)}
        return state

    def build_encoder(self, fed: Federation) -> Tree:
        """The "encoder" and the "rates" of its noisy codes on the public sample."""
        if "public" not in fed.held:
            raise UserError(
                "estimator = 'ldp' needs a public sample at the server, to make the encoder of. A simulation has one "
                "with [partition] public of the partition 'overlap' alone; between sites put public.npz into the "
                "server's folder. estimator = 'none' needs none (docs/fairgfl.md).",
                code="user.no-sample",
            )
        public, key = fed.held["public"], fed.key("encoder")
        encoder = Encoder(self.encoder, self.code, self.code_size, self.encoder_rounds).build(public, key)
        code = node_codes(encoder, sample_features(public)).expand(2, _NOISY_COPIES, -1, -1)
        first, second = self.add_noise(code, key)
        error_rates = rates(first, second, self.steps, self.threshold, _PAIR_ODDS)
        return {"encoder": encoder, "rates": vars(error_rates)}

    def attacks(self, fed: Federation, data: Dataset, partition: Partition, key: Tensor) -> list[Attacked]:
        if self.estimator != "ldp":
            return []
        links = link_attacks(data, partition, self.epsilon_b, key) if self.alpha < 1 else []
        clean = node_codes(self.build_encoder(fed)["encoder"], client_features(data, partition).to(fed.dtype))
        without_noise = replace(self, epsilon_a=float("inf")).add_noise(clean, key) / self.steps
        return [*links, code_attack(clean, without_noise, self.add_noise(clean, key) / self.steps)]

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        """The encoder, as long as one of the called clients may not have it, or needs it again."""
        new = self.estimator == "ldp" and (self.renew or not state["heard"][at].all())
        return {"encoder": state["encoder"]} if new else {}, {}

    def observe(self, state: Tree, round: Round) -> Tree:
        """The accumulated N and T with this round's minibatches (algorithm 2, lines 4-6)."""
        state = state | {"loss": state["loss"].index_copy(0, round.at, round.replies.stack("loss").double())}
        state["heard"] = state["heard"].index_fill(0, round.at, 1)
        if self.estimator != "ldp":
            return state
        nodes, codes = round.replies.stack("nodes").cpu(), round.replies.stack("codes").cpu()  # NumPy counts below
        sizes, error_rates = nodes.clamp(max=self.sample), Rates(**state["rates"])
        if self.steps == 1:
            codes = unpack_bits(codes, self.code_size).to(torch.uint8)
        pairs = matches(codes, sizes, self.steps, error_rates.most)
        common = overlap_count(counts(pairs, self.sample, len(nodes)), sizes, error_rates)
        ratios = {"nodes": node_ratios(common, sizes, nodes)}  # [P, P]
        if self.alpha < 1:
            links = unpack_bits(round.replies.stack("links").cpu(), self.sample)
            ratios["links"] = link_ratios(links, pairs, sizes, nodes)
        together = state["seen"]  # [N, N], pairs that were in one round before
        for name, now in ratios.items():
            state[name] = accumulate(state[name], now.to(state[name].device), round.at, together, self.beta)
        state["seen"] = together.clone()
        state["seen"][round.at[:, None], round.at] = 1
        return state

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """q_i / K or q_i / Σ q_k, and λ more for the client with the largest loss."""
        q = 1 / (1 + overlap(state, self.alpha)[round.at])
        weights = q / (q.sum() if self.normalize else len(q))
        worst = state["loss"][round.at].argmax()
        return torch.where(torch.arange(len(q), device=q.device) == worst, weights + self.lam, weights)

    def update(self, state: Tree, round: Round) -> Tree:
        return state | {"weight": state["weight"].index_copy(0, round.at, round.weights)}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """For clients that replied at least once: the sums O_i of estimated and of true overlaps, and weight and loss
        of their last round. For every two clients: the accumulated estimates of N and T."""
        values = {"weight": state["weight"], "loss": state["loss"]}
        if self.estimator == "ldp":
            values["overlap_estimated"] = overlap(state, self.alpha)
        if "true" in state:
            values["overlap_true"] = state["true"]
        result = {name: torch.where(state["heard"] > 0, value, math.nan) for name, value in values.items()}
        if self.estimator == "ldp":
            result["nodes_estimated"] = state["nodes"]
            if self.alpha < 1:
                result["links_estimated"] = state["links"]
        return result

    def remaining(self) -> tuple[str, ...]:
        """Limits of the noise's protection, as sentences."""
        if self.estimator != "ldp":
            return ()
        sentences = [
            "Noise is drawn once, so that asking again reveals nothing new. But every holder of a record draws its "
            "own: one that h clients hold costs h times the ε above.",
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

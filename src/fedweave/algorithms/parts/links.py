"""Training on links: each step compares a client's training links with pairs of its nodes that are no links."""

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.algorithms.parts.needs import Needs
from fedweave.algorithms.parts.part import Outputs, Part
from fedweave.algorithms.parts.training import Training
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.bounds import Count, CountOrNone
from fedweave.core.graph import ITEMS, KNOWN, LOOPS, RELATION, SOURCE, TARGET, TRAINED, Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.ops.batching import vectorize
from fedweave.ops.hashing import GOLDEN, finalize
from fedweave.ops.rows import common_length

TRIES = 6  # to draw a pair that is no link; a pair that is still a link does not count


@dataclass(frozen=True)
class LinkPrediction(Part):
    """The loss of a client's training links against pairs that are no links.

    negatives:   pairs that are no links, drawn in each step for each link.
    loss:        "cross_entropy", binary, over both; "bpr", −log σ(s⁺ − s⁻) (Rendle et al. 2009); "margin", max(0, γ +
                 s⁻ − s⁺) (Bordes et al. 2013); "self_adversarial", −log σ(γ + s⁺) − Σ_i p_i log σ(−γ − s⁻_i) with p =
                 softmax(α s⁻) and no gradient through it (Sun et al. 2019, eq. 5 and 6).
    margin:      γ, by how much a link must score above its negatives (losses "margin" and "self_adversarial").
    temperature: α, how much harder negatives weigh more (loss "self_adversarial").
    batch:       training links of a step, drawn at random with replacement; 0 takes all.
    """

    negatives: Count = 1
    loss: Literal["cross_entropy", "bpr", "margin", "self_adversarial"] = "cross_entropy"
    margin: float = 9.0
    temperature: float = 1.0
    batch: CountOrNone = 0
    recorded = True
    needs = Needs(supervised=True, links=True)

    def check(self, training: Training) -> None:
        """Raise a ValueError if the model's examples are no links, or classes have weights."""
        if models.example(training.model) != "link":
            raise ValueError("link_prediction needs links, but the model has no decoder; set data.task = 'links'")
        if not training.loss.plain:
            raise ValueError(
                "link_prediction weighs no classes: it draws the pairs that are no links itself. "
                "Leave out class_weight, focal and logit_adjustment"
            )

    def links(self, graph: Graph) -> tuple[Tensor, Tensor]:
        return training_links(graph)

    def no_links(self, graph: Graph, links: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return no_links(graph, links, key)

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """{"pairs": int64 [steps, 3, k negatives] that are no links, in the order of the k training links; "there":
        bool [steps, k, negatives], whether a pair was found; "links": int64 [steps, k], places of the training links if
        a step takes a batch of them}."""
        keys, batches = random.fold(key, torch.arange(steps, device=key.device)), dict[str, Tensor]()
        if self.batch:
            total = self.links(graph)[1].sum().clamp(min=1)
            words = random.bits(random.fold(key, "links"), steps * self.batch) & 0x3FFFFFFFFFFFFFFF
            batches["links"] = words.view(steps, self.batch) % total
        each = list[tuple[Tensor, Tensor]]()
        for step in range(steps):
            links, real = self._chosen(graph, {name: rows[step] for name, rows in batches.items()})
            columns = links[:, :, None].expand(3, len(real), self.negatives).reshape(3, -1)
            pairs, there = self.no_links(graph, columns, keys[step])
            each.append((pairs, there.view(len(real), self.negatives) & real[:, None]))
        pairs, there = (torch.stack(part) for part in zip(*each, strict=True))
        return batches | {"pairs": pairs, "there": there}

    def _chosen(self, graph: Graph, drawn: Tree) -> tuple[Tensor, Tensor]:
        links, real = self.links(graph)
        if not self.batch:
            return links, real
        return links.gather(1, drawn["links"].expand(3, -1)), real.gather(0, drawn["links"])

    def objective(self, outputs: Outputs) -> Tensor:
        """Scalar; 0 at a client without training links."""
        links, real = self._chosen(outputs.graph, outputs.drawn)
        scores = outputs.scores(torch.cat([links, outputs.drawn["pairs"]], 1))[:, 1]
        second = scores[len(real) :].view(len(real), self.negatives)
        return self.compared(scores[: len(real)], second, real, outputs.drawn["there"])

    def compared(self, first: Tensor, second: Tensor, real: Tensor, there: Tensor) -> Tensor:
        """The loss of links with the scores `first` [k] against pairs that are no links with the scores `second` [k,
        negatives]: scalar, 0 without any. Only links that are `real`, bool [k], and pairs that are `there` count."""
        if self.loss == "cross_entropy":
            total = (F.softplus(-first) * real).sum() + (F.softplus(second) * there).sum()
            count = real.sum() + there.sum()
        elif self.loss == "bpr":
            total, count = (F.softplus(second - first[:, None]) * there).sum(), there.sum()
        elif self.loss == "margin":
            total, count = (F.relu(self.margin + second - first[:, None]) * there).sum(), there.sum()
        else:
            total, count = (self._adversarial(first, second, there) * real).sum(), real.sum()
        mean: Tensor = total / count.clamp(min=1)
        return mean

    def _adversarial(self, first: Tensor, second: Tensor, there: Tensor) -> Tensor:
        """The loss [k] of each link with score `first` [k] against pairs with scores `second` [k, negatives]."""
        weight = torch.softmax(torch.where(there, self.temperature * second.detach(), -torch.inf), 1).nan_to_num()
        return F.softplus(-self.margin - first) + (weight * F.softplus(self.margin + second)).sum(1)


def training_links(graph: Graph) -> tuple[Tensor, Tensor]:
    """The client's training links, int64 [3, k] as `Graph.pairs`, and bool [k], which of them are real."""
    rows = graph.precomputed(TRAINED)
    if graph.pairs is None:
        raise ValueError("these examples are no links")
    return graph.pairs.gather(1, rows.clamp(min=0).expand(3, -1)), rows >= 0


def no_links(graph: Graph, links: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """A pair of the client's nodes for each of `links` int64 [3, m] that is none of its known links, int64 [3, m], and
    bool [m], whether one was found in `TRIES`.

    Both ends are drawn; with several relations only the head or the tail; with items only the item.
    """
    nodes, known, items = graph.real.sum(), graph.precomputed(KNOWN), graph.extra.get(ITEMS)
    kind = "tail" if items is not None else "turns" if known.shape[0] > 0 and graph.several else "both"
    keys = torch.stack([random.fold(key, purpose) for purpose in ("head", *range(TRIES))])
    drawn = _DRAWS[kind, LOOPS in graph.extra](links, keys, known, nodes[None], nodes[None] if items is None else items)
    return torch.cat([drawn[:RELATION], links[RELATION:].clamp(min=0)]), drawn[RELATION] == 0


def _drawn(kind: str, loops: bool, *tensors: Tensor) -> Tensor:
    """int64 [P, 3, m]: ends of pairs that are no links, and 1 where a pair is one. A place is drawn again only while
    its pair is a link. The draw of a place depends on nothing else, so that a client's draws are the same in any batch.

    kind: "both" ends are drawn, the head or the "tail" in "turns", or the tail. loops: whether a pair may join a node
    with itself. tensors: links [P, 3, m], keys [P, 1 +
    TRIES], sorted codes of known links [P, k], numbers of nodes [P, 1], and these again or items [P, c], -1 at padding.
    """
    if tensors[0].dim() == 2:
        return _drawn(kind, loops, *(tensor[None] for tensor in tensors))[0]
    links, keys, known, nodes, pool = tensors
    count = (pool >= 0).sum(1, keepdim=True).clamp(min=1) if kind == "tail" else nodes
    place = torch.arange(links.shape[2], device=links.device).expand(len(links), -1)
    head = finalize(keys[:, :1] + (place + 1) * GOLDEN) & 1 == 0
    ends, relation, bad = links[:, :RELATION].clone(), links[:, RELATION].clamp(min=0), torch.ones_like(place)
    for attempt in range(TRIES):
        left = common_length(bad.sum(1), links.shape[2]) if attempt else links.shape[2]
        if not left:
            break
        at = place if left == links.shape[2] else bad.topk(left, 1).indices
        source, target, again = ends[:, SOURCE].gather(1, at), ends[:, TARGET].gather(1, at), bad.gather(1, at) > 0
        words = (finalize(keys[:, 1 + attempt, None] + (2 * at + end) * GOLDEN) for end in (1, 2))
        first, second = (word >> 1 & 0x3FFFFFFFFFFFFFFF for word in words)
        first, second = first % nodes, second % count
        if kind == "tail":
            first, second = source, pool.gather(1, second).clamp(min=0)
        if kind == "turns":
            turned = head.gather(1, at)
            first, second = torch.where(turned, first, source), torch.where(turned, target, second)
        source, target = torch.where(again, first, source), torch.where(again, second, target)
        code = (relation.gather(1, at) * nodes + source) * nodes + target
        there = torch.searchsorted(known, code).clamp(max=known.shape[1] - 1)
        link = known.gather(1, there) == code
        if not loops:
            link |= source == target
        ends.scatter_(2, at[:, None].expand(-1, 2, -1), torch.stack([source, target], 1))
        bad.scatter_(1, at, (link & again).long())
    return torch.cat([ends, bad[:, None]], 1)


_DRAWS = {
    (kind, loops): vectorize(partial(_drawn, kind, loops))
    for kind, loops in product(("both", "turns", "tail"), (False, True))
}

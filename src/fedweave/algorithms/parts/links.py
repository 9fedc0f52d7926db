"""Training on links: each step compares a client's training links with pairs of its nodes that are not links."""

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Literal, get_args

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

TRIES = 6  # to draw a pair that is not a link; a pair that is still a link does not count
Ends = Literal["both", "turns", "tail"]  # see `_draw_ends`


@dataclass(frozen=True)
class LinkPrediction(Part):
    """The loss of a client's training links against pairs that are not links.

    negatives:   pairs that are not links, drawn in each step for each link.
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
        if models.example(training.model) != "link":
            raise ValueError("link_prediction needs links, but the model has no decoder; set data.task = 'links'")
        if not training.loss.plain:
            raise ValueError(
                "link_prediction weighs no classes: it draws the pairs that are not links itself. "
                "Leave out class_weight, focal and logit_adjustment"
            )

    def links(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """The client's training links, int64 [3, k] as `Graph.pairs`, and bool [k], which of them are real."""
        rows = graph.precomputed(TRAINED)
        if graph.pairs is None:
            raise ValueError("these examples are not links")
        return graph.pairs.gather(1, rows.clamp(min=0).expand(3, -1)), rows >= 0

    def no_links(self, graph: Graph, links: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """A pair of the client's nodes for each of `links` int64 [3, m] that is none of its known links, int64 [3, m],
        and bool [m], whether one was drawn in `TRIES`.

        Both ends are drawn; with several relations only the head or the tail; with items only the item.
        """
        nodes, known, items = graph.real.sum(), graph.precomputed(KNOWN), graph.extra.get(ITEMS)
        ends: Ends = "both"
        if items is not None:
            ends = "tail"
        elif known.shape[0] > 0 and graph.several:
            ends = "turns"
        keys = torch.stack([random.fold(key, purpose) for purpose in ("head", *range(TRIES))])  # [1 + TRIES]
        draw = _DRAW_ENDS[ends, LOOPS in graph.extra]
        result = draw(links, keys, known, nodes[None], nodes[None] if items is None else items)  # [3, m]
        return torch.cat([result[:RELATION], links[RELATION:].clamp(min=0)]), result[RELATION] == 0

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """{"pairs": int64 [steps, 3, k negatives] that are not links, in the order of the k training links; "there":
        bool [steps, k, negatives], whether a pair was drawn; "links": int64 [steps, k], places of the training links if
        a step takes a batch of them}."""
        keys = random.fold(key, torch.arange(steps, device=key.device))
        batches = dict[str, Tensor]()
        if self.batch:
            total = self.links(graph)[1].sum().clamp(min=1)
            words = random.bits(random.fold(key, "links"), steps * self.batch) & 0x3FFFFFFFFFFFFFFF
            batches["links"] = words.view(steps, self.batch) % total
        pairs, there = list[Tensor](), list[Tensor]()
        for step in range(steps):
            links, real = self._batch_links(graph, {name: rows[step] for name, rows in batches.items()})
            columns = links[:, :, None].expand(3, len(real), self.negatives).reshape(3, -1)
            step_pairs, step_there = self.no_links(graph, columns, keys[step])
            pairs.append(step_pairs)
            there.append(step_there.view(len(real), self.negatives) & real[:, None])
        return batches | {"pairs": torch.stack(pairs), "there": torch.stack(there)}

    def _batch_links(self, graph: Graph, drawn: Tree) -> tuple[Tensor, Tensor]:
        """The links of a step, as in `links`; drawn: the step's `draw`."""
        links, real = self.links(graph)
        if not self.batch:
            return links, real
        return links.gather(1, drawn["links"].expand(3, -1)), real.gather(0, drawn["links"])

    def objective(self, outputs: Outputs) -> Tensor:
        """Scalar; 0 at a client without training links."""
        links, real = self._batch_links(outputs.graph, outputs.drawn)
        scores = outputs.scores(torch.cat([links, outputs.drawn["pairs"]], 1))[:, 1]
        of_links, of_negatives = scores[: len(real)], scores[len(real) :].view(len(real), self.negatives)
        return self.link_loss(of_links, of_negatives, real, outputs.drawn["there"])

    def link_loss(self, positive: Tensor, negative: Tensor, real: Tensor, there: Tensor) -> Tensor:
        """The loss of links with the scores s⁺, `positive` [k], against pairs that are not links with the scores s⁻,
        `negative` [k, negatives]: scalar, 0 without any. Only links that are `real`, bool [k], and pairs that are
        `there` count."""
        if self.loss == "cross_entropy":
            total = (F.softplus(-positive) * real).sum() + (F.softplus(negative) * there).sum()
            count = real.sum() + there.sum()
        elif self.loss == "bpr":
            total, count = (F.softplus(negative - positive[:, None]) * there).sum(), there.sum()
        elif self.loss == "margin":
            total, count = (F.relu(self.margin + negative - positive[:, None]) * there).sum(), there.sum()
        else:
            alpha_s = torch.where(there, self.temperature * negative.detach(), -torch.inf)
            p = torch.softmax(alpha_s, 1).nan_to_num()  # [k, negatives]
            each = F.softplus(-self.margin - positive) + (p * F.softplus(self.margin + negative)).sum(1)
            total, count = (each * real).sum(), real.sum()
        mean: Tensor = total / count.clamp(min=1)
        return mean


def _draw_ends(kind: Ends, loops: bool, *tensors: Tensor) -> Tensor:
    """int64 [P, 3, m]: ends of pairs that are not links, and 1 where a pair is one. A place is drawn again only while
    its pair is a link. The draw of a place depends on nothing else, so that a client's draws are the same in any batch.

    kind: which ends are drawn, "both", only the head or only the tail of each ("turns"), or the "tail". loops: whether
    a pair may join a node with itself. tensors: links [P, 3, m], keys [P, 1 + TRIES], sorted codes of known links
    [P, k], numbers of nodes [P, 1], and the same numbers or items [P, c], -1 at padding.
    """
    if tensors[0].dim() == 2:
        return _draw_ends(kind, loops, *(tensor[None] for tensor in tensors))[0]
    links, keys, known, nodes, pool = tensors
    total = links.shape[2]
    count = (pool >= 0).sum(1, keepdim=True).clamp(min=1) if kind == "tail" else nodes
    place = torch.arange(total, device=links.device).expand(len(links), -1)  # [P, m]
    draws_head = finalize(keys[:, :1] + (place + 1) * GOLDEN) & 1 == 0  # [P, m]
    ends, relation = links[:, :RELATION].clone(), links[:, RELATION].clamp(min=0)
    is_link = torch.ones_like(place)  # int64 [P, m]
    for attempt in range(TRIES):
        # Redraw r places of each client, r the largest number of pairs that are still links; on an accelerator, which
        # would wait for that number, all.
        remaining = common_length(is_link.sum(1), total) if attempt else total
        if not remaining:
            break
        at = place if remaining == total else is_link.topk(remaining, 1).indices  # [P, r]
        source, target = ends[:, SOURCE].gather(1, at), ends[:, TARGET].gather(1, at)
        redraw = is_link.gather(1, at) > 0
        words = [finalize(keys[:, 1 + attempt, None] + (2 * at + end) * GOLDEN) for end in (1, 2)]
        new_source = (words[0] >> 1 & 0x3FFFFFFFFFFFFFFF) % nodes
        new_target = (words[1] >> 1 & 0x3FFFFFFFFFFFFFFF) % count
        if kind == "tail":
            new_source, new_target = source, pool.gather(1, new_target).clamp(min=0)
        if kind == "turns":
            head = draws_head.gather(1, at)
            new_source, new_target = torch.where(head, new_source, source), torch.where(head, target, new_target)
        source, target = torch.where(redraw, new_source, source), torch.where(redraw, new_target, target)
        code = (relation.gather(1, at) * nodes + source) * nodes + target
        nearest = torch.searchsorted(known, code).clamp(max=known.shape[1] - 1)
        link = known.gather(1, nearest) == code
        if not loops:
            link |= source == target
        ends.scatter_(2, at[:, None].expand(-1, 2, -1), torch.stack([source, target], 1))
        is_link.scatter_(1, at, (link & redraw).long())
    return torch.cat([ends, is_link[:, None]], 1)


_DRAW_ENDS = {
    (kind, loops): vectorize(partial(_draw_ends, kind, loops)) for kind, loops in product(get_args(Ends), (False, True))
}

"""Links between clients: a client trains on pairs with one end at another client, whose model computes the embedding of
that end.

The score of a pair is the decoder's s(h_u, h_v). h_u is the embedding of the client's own node, and h_v the embedding
that the holder of v sends once a round. No gradient goes back to the holder.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from fedweave.algorithms.parts.links import TRIES, LinkPrediction
from fedweave.algorithms.parts.needs import Needs, Protection
from fedweave.algorithms.parts.part import Context, Outputs
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.bounds import Between, Count, NonNegative, Positive
from fedweave.core.federation import Client, Declaration, Federation, Sends, Step, on_client
from fedweave.core.graph import (
    FOREIGN,
    FOREIGN_LINKS,
    FOREIGN_NODES,
    FOREIGN_PAIRS,
    FOREIGN_TRAINED,
    NODE_NAMES,
    RECORDS,
    ROOM,
    TRAIN,
    Graph,
)
from fedweave.core.mechanism import Clipped, Mechanism
from fedweave.core.model import Model
from fedweave.core.ranges import Pairs, Whole
from fedweave.core.settings import Beside
from fedweave.core.tree import Tree
from fedweave.errors import ConfigError
from fedweave.metrics.classification import counts
from fedweave.metrics.selection import CROSSING
from fedweave.ops.rows import gather_rows
from fedweave.partition.crossing import CrossingLinks
from fedweave.privacy.gaussian import GaussianRows, noise_multiplier

_SPLIT, _Y = 4, 5  # columns of FOREIGN_PAIRS
_NAME = 0  # column of FOREIGN_NODES
_LARGEST = torch.iinfo(torch.int64).max

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ForeignEnds(LinkPrediction):
    """The loss of a client's training links to other clients' nodes, against pairs with other foreign nodes that it has
    links to (`[data] external = "predict"`). The holder of a foreign node sends its embedding once a round.

    Before the first round each client asks all others for its foreign nodes: it sends keyed hashes of their names, and
    with each name the hash of a pair. A holder answers only if its own records have the pair, unless `unrecorded`.

    negatives: false ends drawn for each link.
    loss: loss of a link and its negatives, as in the part `link_prediction`.
    margin, temperature: γ and α of that loss.
    batch: links in a step; 0 for all.
    weight:        factor of this term of the objective.
    neighbors:     whether to add to a foreign node's row the mean of the client's own rows that training links join to
                   it, without the scored link; a node without such links gets the mean over all.
    unrecorded:    whether a holder also answers for nodes without such a pair in its own records, so that only the
                   demand claims that there is one.
    clip:          largest norm of each row that a holder sends; 0 leaves rows as they are.
    sigma:         standard deviation of the noise of each number that a holder sends, in units of clip; 0 for none.
    epsilon, target_rounds: a target instead of sigma: the least noise with which a run of target_rounds rounds has this
                   ε for each node's row. Longer runs raise an error.
    delta:         δ of the target's ε and of the ε in ledgers.
    """

    weight: Positive = 1.0
    neighbors: bool = False
    unrecorded: bool = False
    clip: NonNegative = 0.0
    sigma: NonNegative = 0.0
    epsilon: Annotated[Positive | None, Beside("target_rounds")] = None
    delta: Between = 1e-5
    target_rounds: Annotated[Count | None, Beside("epsilon")] = None
    needs = Needs(data=("ids",), models=("global",), links=True, finder=CrossingLinks())

    def __post_init__(self) -> None:
        if self.epsilon is not None and self.sigma:
            raise ValueError(
                f"sigma = {self.sigma}: epsilon is {self.epsilon}. Give the noise, or the target that it follows from"
            )
        if (self.sigma or self.epsilon is not None) and not self.clip:
            raise ValueError(f"clip = {self.clip}: noise needs a positive norm that rows are clipped to. Set it")
        if self.clip:
            self.rows  # noqa: B018  raises an error if a value is out of range

    @cached_property
    def rows(self) -> GaussianRows:
        sigma = self.sigma
        if self.epsilon is not None and self.target_rounds is not None:  # rows are sent once more than there are rounds
            sigma = 2 * noise_multiplier(self.epsilon, self.delta, self.target_rounds + 1)
        return GaussianRows(self.clip or 1.0, sigma, self.delta)

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        if not self.clip:
            return ()
        return self.rows.mechanisms or (Clipped(self.clip),)

    @property
    def protection(self) -> Protection:
        """The rounds of the target; updates leave as they are."""
        return Protection(max_rounds=self.target_rounds)

    # --- before the first round: who holds whose foreign ends ---

    @property
    def setup(self) -> tuple[Step, ...]:
        return self.ask, self.match

    def init(self, fed: Federation, w: Tree) -> Tree:
        """{"refused": the number of each client's rejected demands, int64 [N]}; logs them too.

        Raises:
            ConfigError: there is one client.
        """
        if len(fed.clients) < 2:
            raise ConfigError(
                "data.external = 'predict': one member has no links to another. Cut the data into two or more.",
                code="config.external",
            )
        to = {client: [peer for peer in fed.clients if peer != client] for client in fed.clients}
        replies = fed.map(self.match, received=fed.send(self.ask, to=to))
        refused = dict.fromkeys(fed.clients, 0)
        for client in replies.clients:
            for peer, count in zip(to[client], replies[client]["refused"].tolist(), strict=True):
                refused[peer] += count
                if count:
                    _log.warning(
                        "note: %s asked %s for %d nodes that it has no link to by the records of %s, which "
                        "sends nothing for them",
                        peer,
                        client,
                        count,
                        client,
                    )
        return {"refused": torch.tensor(list(refused.values()), device=fed.device)}

    def measures(self, state: Tree) -> dict[str, Tensor | float]:
        """{"refused_demands": the number of each client's rejected demands}."""
        return {"refused_demands": state["refused"].double()}

    @on_client(
        sends={
            "names": "keyed hashes of the names of all foreign nodes that it has links to; the key reveals the names",
            "evidence": "for each of them, a keyed hash of a pair with one of its own nodes",
        },
        peers=True,
    )
    def ask(self, client: Client, message: Tree) -> Tree:
        """{"names", "evidence": int64 [F], -1 at padding}."""
        names, evidence = client.graph.precomputed(FOREIGN_NODES).unbind(1)
        return {"names": names.clone(), "evidence": evidence.clone()}

    @on_client(sends={"refused": Sends("how many nodes each peer asked it for that it has no link to", within=Whole())})
    def match(self, client: Client, message: Tree) -> Tree:
        """Keep, for each of P peers, the client's nodes whose rows the peer gets, "rows" int64 [P, m], and their places
        among the peer's foreign nodes, "places" int64 [P, m]; both -1 at padding."""
        graph, received = client.graph, message["received"]
        room, key = graph.precomputed(ROOM).shape[0], type(self).__name__
        names = torch.where(graph.real, graph.precomputed(NODE_NAMES)[:, 0], -1)
        order = names.argsort()
        (records, at), ends = graph.precomputed(RECORDS)[:, 0].sort(), graph.precomputed(RECORDS)[:, 1]
        rows, places, refused = list[Tensor](), list[Tensor](), list[Tensor]()
        for demand in (received[str(peer)] for peer in range(len(received))):
            mine, there = _member(names.gather(0, order), demand["names"])
            mine = order.gather(0, mine)
            record, recorded = _member(records, demand["evidence"])
            answered = there & ((recorded & (ends.gather(0, at.gather(0, record)) == mine)) | self.unrecorded)
            first = (~answered).long().argsort(stable=True)[:room]
            some = answered.gather(0, first)
            rows.append(torch.where(some, mine.gather(0, first), -1))
            places.append(torch.where(some, first, -1))
            refused.append((there & ~answered).sum())
        client.state[key] = {"rows": torch.stack(rows), "places": torch.stack(places)}
        return {"refused": torch.stack(refused)}

    # --- after each round: holders send rows of their models ---

    @property
    def sends_to_peers(self) -> Declaration:
        what = "the embeddings by the holder's model of the nodes that the peer asked for, from features and neighbors"
        return {
            "h": Sends(what, self.mechanisms),
            "places": "which of the nodes that the peer asked for the holder has",
        }

    def tell_peers(self, ctx: Context, model: Model, w: Tree) -> Tree:
        """{peer: {"h": [m, k], "places": int64 [m]}}: the decoder's input rows of the nodes that a peer asked for,
        computed along the client's training links."""
        h = models.embedded(model, w, ctx.client.graph.at(TRAIN))
        if self.rows.sigma:
            h = self.rows.apply(h, random.fold(ctx.client.secret, "foreign ends"))
        elif self.clip:
            h = h * (self.clip / torch.linalg.vector_norm(h, dim=1, keepdim=True).clamp(min=self.clip))
        return self.parcels(ctx.memory, h)

    def parcels(self, memory: Tree, h: Tensor) -> Tree:
        """{peer: {"h": [m, k], "places": int64 [m]}}: the rows of h [n, k] that a peer asked for, 0 at padding."""
        parcels = Tree()
        for peer in range(len(memory["rows"])):
            rows = memory["rows"][peer]
            picked = torch.where((rows >= 0)[:, None], gather_rows(h, rows.clamp(min=0)), 0)
            parcels[str(peer)] = {"h": picked, "places": memory["places"][peer].clone()}
        return parcels

    def hear_peers(self, ctx: Context, received: Sequence[Tree], present: Tensor) -> None:
        """Keep the last row of each foreign node from its holder, "h" [F, k], and "there" bool [F], whether there is
        one. If two peers claim the same node, the client takes neither row."""
        memory, size = ctx.memory, ctx.client.graph.precomputed(FOREIGN_NODES).shape[0]
        h = received[0]["h"].new_zeros(size + 1, received[0]["h"].shape[1])
        claims = torch.zeros(size + 1, dtype=torch.int64, device=h.device)
        for at, parcel in enumerate(received):
            places, sent = parcel["places"], parcel["h"]
            good = (places >= 0) & (places < size) & sent.isfinite().all(1) & present[at]
            place = torch.where(good, places, size)
            h = h.scatter(0, place[:, None].expand_as(sent), sent)
            claims = claims.scatter_add(0, place, torch.ones_like(place))
        fresh = claims[:size] == 1
        before = memory.get("h", torch.zeros_like(h[:size])), memory.get("there", torch.zeros_like(fresh))
        latest = {"h": torch.where(fresh[:, None], h[:size], before[0]), "there": fresh | before[1]}
        ctx.keep(memory | latest)

    # --- training and scores ---

    def recall(self, ctx: Context) -> Tree:
        return {"h": ctx.memory["h"], "there": ctx.memory["there"]}

    def foreign(self, model: Model, w: Tree, graph: Graph, memory: Tree, h: Tensor | None = None) -> Tensor:
        """The decoder's input rows [F, k] of foreign nodes; h: the rows of the client's own nodes [n, k], if already
        computed."""
        rows = self.sent(memory)
        if not self.neighbors:
            return rows
        sums, counts = self._joined(graph, models.embedded(model, w, graph) if h is None else h)
        return rows + torch.where(counts > 0, sums / counts.clamp(min=1), sums.sum(0) / counts.sum().clamp(min=1))

    def sent(self, memory: Tree) -> Tensor:
        """The rows that the holders of foreign nodes sent last, [F, k]."""
        rows: Tensor = memory["h"]
        return rows

    def _joined(self, graph: Graph, h: Tensor) -> tuple[Tensor, Tensor]:
        """The sum [F, k] of the rows of h [n, k] that training links join to each foreign node, and their number [F,
        1]."""
        links, real = self.links(graph)
        size, there = graph.precomputed(FOREIGN_NODES).shape[0], real[:, None].to(h.dtype)
        place, near = places_of(graph, links), links[:2].amin(0)
        sums = h.new_zeros(size, h.shape[1]).index_add(0, place, gather_rows(h, near) * there)
        return sums, h.new_zeros(size, 1).index_add(0, place, there)

    def _without(self, graph: Graph, h: Tensor, memory: Tree, links: Tensor, real: Tensor) -> Tensor:
        """The `foreign` rows [t, k] of the ends of training links, int64 [3, t], each computed without its own link."""
        sums, counts = self._joined(graph, h)
        place, mine = places_of(graph, links), gather_rows(h, links[:2].amin(0)) * real[:, None].to(h.dtype)
        left, rest = gather_rows(counts, place) - 1, gather_rows(sums, place) - mine
        all_rest = (sums.sum(0) - mine) / (counts.sum() - 1).clamp(min=1)
        return gather_rows(self.sent(memory), place) + torch.where(left > 0, rest / left.clamp(min=1), all_rest)

    def links(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """The client's training links to foreign nodes, int64 [3, t] as `Graph.pairs`, and bool [t] which are real."""
        trained = graph.precomputed(FOREIGN_TRAINED)[:, 0]
        return ends_of(graph).gather(1, trained.clamp(min=0).expand(3, -1)), trained >= 0

    def no_links(self, graph: Graph, links: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """For each of `links` int64 [3, m] a pair of a client's node and the foreign end of a training link that is
        none of its known links, and bool [m], whether one was drawn in `TRIES`. With several relations only the foreign
        end is drawn."""
        trained = graph.precomputed(FOREIGN_TRAINED)[:, 0]
        ends, total = (
            graph.precomputed(FOREIGN_PAIRS)[:, 1].gather(0, trained.clamp(min=0)),
            (trained >= 0).sum().clamp(min=1),
        )
        nodes, count = graph.real.sum(), (graph.precomputed(FOREIGN_NODES)[:, _NAME] != -1).sum().clamp(min=1)
        codes = graph.precomputed(FOREIGN_LINKS)[:, 0]
        codes = torch.where(codes < 0, _LARGEST, codes)
        source, target, relation = links
        leads = source < graph.nodes
        near, place = torch.where(leads, source, target), torch.where(leads, target, source) - graph.nodes
        bad = torch.ones_like(leads)
        for attempt in range(TRIES):
            drawn = random.bits(random.fold(key, attempt), 2 * links.shape[1]) >> 1 & 0x3FFFFFFFFFFFFFFF
            first, second = drawn.view(2, -1).unbind(0)
            if not graph.several:
                near = torch.where(bad, first % nodes, near)
            place = torch.where(bad, ends.gather(0, second % total).clamp(min=0), place)
            code = (relation.clamp(min=0) * nodes + near) * count + place
            bad = _member(codes, code)[1]
        far = place + graph.nodes
        return torch.stack([torch.where(leads, near, far), torch.where(leads, far, near), relation]), ~bad

    def objective(self, outputs: Outputs) -> Tensor:
        """Scalar; 0 at a client without links to foreign nodes whose rows it received."""
        graph, drawn, there = outputs.graph, outputs.drawn, outputs.inputs["there"]
        links, real = self._chosen(graph, drawn)
        pairs, count = torch.cat([links, drawn["pairs"]], 1), len(real)
        known = there.gather(0, places_of(graph, pairs))
        foreign = self.foreign(outputs.model, outputs.w, graph, outputs.inputs, outputs.embedding)
        if self.neighbors:  # each link gets a row that is computed without it
            apart = self._without(graph, outputs.embedding, outputs.inputs, links, real)
            at = graph.nodes + len(foreign) + torch.arange(count, device=links.device)
            ends = [torch.where(end < graph.nodes, end, at) for end in links[:2]]
            pairs = torch.cat([torch.stack([*ends, links[2]]), drawn["pairs"]], 1)
            foreign = torch.cat([foreign, apart])
        scores = outputs.scores(pairs, foreign)[:, 1]
        second, negative = (rows[count:].view(count, self.negatives) for rows in (scores, known))
        real = real & known[:count]
        loss = self.compared(scores[:count], second, real, drawn["there"] & negative & real[:, None])
        return self.weight * loss

    @property
    def score_sends(self) -> Declaration:
        what = "the model's loss and hits on pairs of its nodes with other members', and how well it orders them"
        return {CROSSING: Sends(what, within=Pairs()), f"{CROSSING}/classes": Sends(what, within=Whole())}

    def more_scores(self, ctx: Context, model: Model, w: Tree) -> Tree:
        """{"crossing": [3, 2, …] as in `metrics.classification.counts`} of links to foreign nodes whose rows the client
        received, and of pairs that are no links, in each split."""
        graph = with_foreign(self, model, w, ctx.client.graph, ctx.memory)
        return {CROSSING: counts(models.infer(model, w, graph), graph.y, graph.masks)}


def with_foreign(part: ForeignEnds, model: Model, w: Tree, graph: Graph, memory: Tree) -> Graph:
    """A client's graph whose examples are the pairs with a foreign end; pairs that can be scored are in their splits;
    memory: the part's memory at the client."""
    table, pairs = graph.precomputed(FOREIGN_PAIRS), ends_of(graph)
    known = memory["there"].gather(0, places_of(graph, pairs)) & (table[:, _Y] >= 0)
    masks = (table[:, _SPLIT] == torch.arange(3, device=table.device)[:, None]) & known
    rows = part.foreign(model, w, graph, memory)
    extra = {**graph.extra, FOREIGN: rows}
    return graph._replace(pairs=pairs, y=table[:, _Y], masks=masks, ranks=None, extra=extra)


def ends_of(graph: Graph) -> Tensor:
    """int64 [3, c]: the pairs with a foreign end, as `Graph.pairs`."""
    near, place, relation, leads, *_ = graph.precomputed(FOREIGN_PAIRS).unbind(1)
    near, far = near.clamp(min=0), place.clamp(min=0) + graph.nodes
    return torch.stack([torch.where(leads == 1, near, far), torch.where(leads == 1, far, near), relation])


def places_of(graph: Graph, pairs: Tensor) -> Tensor:
    """int64 [m]: the foreign node of each of the pairs [3, m]."""
    return pairs[:2].amax(0) - graph.nodes


def _member(values: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The place of each of `wanted` int64 [m] among rising `values` int64 [v], and bool [m], whether it is there; -1
    never is."""
    at = torch.searchsorted(values, wanted).clamp(max=values.shape[0] - 1)
    return at, (values.gather(0, at) == wanted) & (wanted != -1)

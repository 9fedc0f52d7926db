"""Links between clients: a client trains on pairs with one external end, a node that another client holds.

The score of a pair is the decoder's s(h_u, h_v). h_u is the embedding of the client's own node, and h_v the embedding
that the holder of v computes with its model and sends once a round. No gradient goes back to the holder.
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
_MAX_CODE = torch.iinfo(torch.int64).max

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ForeignEnds(LinkPrediction):
    """The loss of a client's training links to external nodes, against pairs with other external nodes that it has
    links to (`[data] external = "predict"`). The holder of an external node sends its embedding once a round.

    Before the first round each client asks all others for its external nodes: it sends keyed hashes of their names, and
    with each name the hash of a pair. A holder answers only if its own records have the pair, unless `unrecorded`.

    negatives:     false ends drawn for each link.
    loss:          loss of a link and its negatives, as in the part `link_prediction`.
    margin, temperature: γ and α of that loss.
    batch:         links in a step; 0 for all.
    weight:        factor of this term of the objective.
    neighbors:     whether to add to an external node's row the mean of the client's own rows that training links join
                   to it, without the scored link; a node without such links gets the mean over all.
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

    # Before the first round: which client holds which external ends.

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
        peers = {}
        for client in fed.clients:
            peers[client] = [peer for peer in fed.clients if peer != client]
        replies = fed.map(self.match, received=fed.send(self.ask, to=peers))
        refused = dict.fromkeys(fed.clients, 0)
        for client in replies.clients:
            for peer, count in zip(peers[client], replies[client]["refused"].tolist(), strict=True):
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
        among the peer's external nodes, "places" int64 [P, m]; both -1 at padding."""
        graph, received = client.graph, message["received"]
        room = graph.precomputed(ROOM).shape[0]  # m
        names = torch.where(graph.real, graph.precomputed(NODE_NAMES)[:, 0], -1)  # [n]
        by_name = names.argsort()
        records, by_record = graph.precomputed(RECORDS)[:, 0].sort()  # [r]
        local_ends = graph.precomputed(RECORDS)[:, 1].gather(0, by_record)
        rows, places, refused = list[Tensor](), list[Tensor](), list[Tensor]()
        for peer in range(len(received)):
            demand = received[str(peer)]  # "names" and "evidence" int64 [F] of the peer
            place, is_here = _find(names.gather(0, by_name), demand["names"])
            node = by_name.gather(0, place)
            record, is_recorded = _find(records, demand["evidence"])
            is_proven = is_recorded & (local_ends.gather(0, record) == node)
            is_answered = is_here & (is_proven | self.unrecorded)
            first = (~is_answered).long().argsort(stable=True)[:room]  # the answered nodes before all others
            is_sent = is_answered.gather(0, first)
            rows.append(torch.where(is_sent, node.gather(0, first), -1))
            places.append(torch.where(is_sent, first, -1))
            refused.append((is_here & ~is_answered).sum())
        client.state[type(self).__name__] = {"rows": torch.stack(rows), "places": torch.stack(places)}
        return {"refused": torch.stack(refused)}

    # After each round: holders send rows of their models.

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
            rows = memory["rows"][peer]  # [m]
            sent = torch.where((rows >= 0)[:, None], gather_rows(h, rows.clamp(min=0)), 0)
            parcels[str(peer)] = {"h": sent, "places": memory["places"][peer].clone()}
        return parcels

    def hear_peers(self, ctx: Context, received: Sequence[Tree], present: Tensor) -> None:
        """Keep the last row of each external node from its holder, "h" [F, k], and "there" bool [F], whether there is
        one. If two peers claim the same node, the client takes neither row."""
        memory, size = ctx.memory, ctx.client.graph.precomputed(FOREIGN_NODES).shape[0]
        # The last place takes all rows that do not count.
        h = received[0]["h"].new_zeros(size + 1, received[0]["h"].shape[1])  # [F + 1, k]
        claims = torch.zeros(size + 1, dtype=torch.int64, device=h.device)  # [F + 1]
        for peer, parcel in enumerate(received):
            places, sent = parcel["places"], parcel["h"]  # [m], [m, k]
            is_valid = (places >= 0) & (places < size) & sent.isfinite().all(1) & present[peer]
            place = torch.where(is_valid, places, size)
            h = h.scatter(0, place[:, None].expand_as(sent), sent)
            claims = claims.scatter_add(0, place, torch.ones_like(place))
        is_new = claims[:size] == 1
        last_h = memory.get("h", torch.zeros_like(h[:size]))
        was_there = memory.get("there", torch.zeros_like(is_new))
        ctx.keep(memory | {"h": torch.where(is_new[:, None], h[:size], last_h), "there": is_new | was_there})

    # Training and scores.

    def recall(self, ctx: Context) -> Tree:
        return {"h": ctx.memory["h"], "there": ctx.memory["there"]}

    def external_rows(self, model: Model, w: Tree, graph: Graph, memory: Tree, h: Tensor | None = None) -> Tensor:
        """The decoder's input rows [F, k] of external nodes; h: the rows of the client's own nodes [n, k], if already
        computed."""
        rows: Tensor = memory["h"]  # [F, k]
        if not self.neighbors:
            return rows
        sums, counts = self._neighbor_sums(graph, models.embedded(model, w, graph) if h is None else h)
        return rows + torch.where(counts > 0, sums / counts.clamp(min=1), sums.sum(0) / counts.sum().clamp(min=1))

    def _neighbor_sums(self, graph: Graph, h: Tensor) -> tuple[Tensor, Tensor]:
        """The sum [F, k] of the rows of h [n, k] that training links join to each external node, and their number [F,
        1]."""
        links, real = self.links(graph)
        size, is_real = graph.precomputed(FOREIGN_NODES).shape[0], real[:, None].to(h.dtype)
        place, node = external_places(graph, links), links[:2].amin(0)  # [t], [t]
        sums = h.new_zeros(size, h.shape[1]).index_add(0, place, gather_rows(h, node) * is_real)
        return sums, h.new_zeros(size, 1).index_add(0, place, is_real)

    def _rows_without_link(self, graph: Graph, h: Tensor, memory: Tree, links: Tensor, real: Tensor) -> Tensor:
        """The `external_rows` [t, k] of the ends of training links, int64 [3, t], each computed without its own
        link."""
        sums, counts = self._neighbor_sums(graph, h)
        place = external_places(graph, links)
        row = gather_rows(h, links[:2].amin(0)) * real[:, None].to(h.dtype)  # [t, k]
        count, rest = gather_rows(counts, place) - 1, gather_rows(sums, place) - row
        mean_of_all = (sums.sum(0) - row) / (counts.sum() - 1).clamp(min=1)
        mean = torch.where(count > 0, rest / count.clamp(min=1), mean_of_all)
        return gather_rows(memory["h"], place) + mean

    def links(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """The client's training links to external nodes, int64 [3, t] as `Graph.pairs`, and bool [t] which are real."""
        rows = graph.precomputed(FOREIGN_TRAINED)[:, 0]
        return crossing_pairs(graph).gather(1, rows.clamp(min=0).expand(3, -1)), rows >= 0

    def no_links(self, graph: Graph, links: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """For each of `links` int64 [3, m] a pair of a client's node and the external end of a training link that is
        none of its known links, and bool [m], whether one was drawn in `TRIES`. With several relations only the
        external end is drawn."""
        rows = graph.precomputed(FOREIGN_TRAINED)[:, 0]
        ends = graph.precomputed(FOREIGN_PAIRS)[:, 1].gather(0, rows.clamp(min=0))  # [t]
        total = (rows >= 0).sum().clamp(min=1)
        nodes, count = graph.real.sum(), (graph.precomputed(FOREIGN_NODES)[:, _NAME] != -1).sum().clamp(min=1)
        codes = graph.precomputed(FOREIGN_LINKS)[:, 0]
        codes = torch.where(codes < 0, _MAX_CODE, codes)  # [k], padding last
        source, target, relation = links
        leads = source < graph.nodes
        node, place = torch.where(leads, source, target), torch.where(leads, target, source) - graph.nodes
        is_link = torch.ones_like(leads)
        for attempt in range(TRIES):
            words = random.bits(random.fold(key, attempt), 2 * links.shape[1]) >> 1 & 0x3FFFFFFFFFFFFFFF
            first, second = words.view(2, -1).unbind(0)
            if not graph.several:
                node = torch.where(is_link, first % nodes, node)
            place = torch.where(is_link, ends.gather(0, second % total).clamp(min=0), place)
            code = (relation.clamp(min=0) * nodes + node) * count + place
            _, is_link = _find(codes, code)
        external = place + graph.nodes
        ends_in_order = torch.where(leads, node, external), torch.where(leads, external, node)
        return torch.stack([*ends_in_order, relation]), ~is_link

    def objective(self, outputs: Outputs) -> Tensor:
        """Scalar; 0 at a client without links to external nodes whose rows it received."""
        graph, drawn, there = outputs.graph, outputs.drawn, outputs.inputs["there"]
        links, real = self._batch_links(graph, drawn)
        pairs, count = torch.cat([links, drawn["pairs"]], 1), len(real)
        is_known = there.gather(0, external_places(graph, pairs))
        rows = self.external_rows(outputs.model, outputs.w, graph, outputs.inputs, outputs.embedding)
        if self.neighbors:  # each link gets a row that is computed without it
            place = graph.nodes + len(rows) + torch.arange(count, device=links.device)
            ends = [torch.where(end < graph.nodes, end, place) for end in links[:2]]
            pairs = torch.cat([torch.stack([*ends, links[2]]), drawn["pairs"]], 1)
            without_link = self._rows_without_link(graph, outputs.embedding, outputs.inputs, links, real)
            rows = torch.cat([rows, without_link])
        scores = outputs.scores(pairs, rows)[:, 1]
        of_links, of_negatives = scores[:count], scores[count:].view(count, self.negatives)
        real = real & is_known[:count]
        there = drawn["there"] & is_known[count:].view(count, self.negatives) & real[:, None]
        return self.weight * self.link_loss(of_links, of_negatives, real, there)

    @property
    def score_sends(self) -> Declaration:
        what = "the model's loss and hits on pairs of its nodes with other members', and how well it orders them"
        return {CROSSING: Sends(what, within=Pairs()), f"{CROSSING}/classes": Sends(what, within=Whole())}

    def more_scores(self, ctx: Context, model: Model, w: Tree) -> Tree:
        """{"crossing": [3, 2, …] as in `metrics.classification.counts`} of links to external nodes whose rows the
        client received, and of pairs that are not links, in each split."""
        graph = crossing_examples(self, model, w, ctx.client.graph, ctx.memory)
        return {CROSSING: counts(models.infer(model, w, graph), graph.y, graph.masks)}


def crossing_examples(part: ForeignEnds, model: Model, w: Tree, graph: Graph, memory: Tree) -> Graph:
    """A client's graph whose examples are the pairs with an external end; pairs that can be scored are in their splits;
    memory: the part's memory at the client."""
    table, pairs = graph.precomputed(FOREIGN_PAIRS), crossing_pairs(graph)  # [c, 6], [3, c]
    is_known = memory["there"].gather(0, external_places(graph, pairs)) & (table[:, _Y] >= 0)
    masks = (table[:, _SPLIT] == torch.arange(3, device=table.device)[:, None]) & is_known  # [3, c]
    rows = part.external_rows(model, w, graph, memory)
    extra = {**graph.extra, FOREIGN: rows}
    return graph._replace(pairs=pairs, y=table[:, _Y], masks=masks, ranks=None, extra=extra)


def crossing_pairs(graph: Graph) -> Tensor:
    """int64 [3, c]: the pairs with an external end, as `Graph.pairs`."""
    node, place, relation, leads, *_ = graph.precomputed(FOREIGN_PAIRS).unbind(1)
    node, external = node.clamp(min=0), place.clamp(min=0) + graph.nodes
    return torch.stack([torch.where(leads == 1, node, external), torch.where(leads == 1, external, node), relation])


def external_places(graph: Graph, pairs: Tensor) -> Tensor:
    """int64 [m]: the external node of each of the pairs [3, m]."""
    return pairs[:2].amax(0) - graph.nodes


def _find(values: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """The place of each of `queries` int64 [m] among rising `values` int64 [v], and bool [m], whether it is there; -1
    never is."""
    at = torch.searchsorted(values, queries).clamp(max=values.shape[0] - 1)
    return at, (values.gather(0, at) == queries) & (queries != -1)

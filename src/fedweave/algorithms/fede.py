"""FedE: Chen, Zhang, Yuan, Jia and Chen 2021, "FedE: embedding knowledge graphs in federated setting", section 3.3.

Clients hold triples with partly shared entities. The server has one row for each entity and averages it over the
clients that hold the entity (eq. 5): E_e ← Σ_i n_ie E_ie / Σ_i n_ie. A plain mean over all clients would pull each row
back to its last value, most for rows with few holders. Relations' vectors stay at the clients, as in the paper; `share`
changes that. Deviations: other models and losses than the paper's three are allowed, and all clients know one numbering
of all entities, where the paper's server keeps a permutation for each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.algorithms.parts import Part, Round
from fedweave.algorithms.parts.needs import Needs
from fedweave.algorithms.parts.part import Context
from fedweave.algorithms.parts.secure_sum import InSum
from fedweave.algorithms.parts.training import Training
from fedweave.algorithms.parts.weights import EXAMPLES, ReportsExamples, by_size
from fedweave.algorithms.preset import part_of, preset_of
from fedweave.core import model as models
from fedweave.core.federation import Federation, Sends
from fedweave.core.graph import ITEMS, RELATION, SOURCE, TARGET, TRAIN, Graph
from fedweave.core.model import Model
from fedweave.core.ranges import Whole
from fedweave.core.tree import Tree, leaves, nest
from fedweave.ops.sparse import Sparse
from fedweave.privacy.secure_sum import beyond_declaration

HELD = "held"
ITEM_ROWS = "rows of items"  # a note of `own_users`: the rows that clients send, for the part that averages rows
_MAX_EXAMPLES = 1 << 40  # of a client
Count = Literal["uniform", "examples"]


def row_kinds(model: Model) -> dict[str, str]:
    """{path of a weight: kind of its rows}: "features" in the first layer, "relations" in a decoder."""
    return dict.fromkeys(sorted(models.feature_rows(model)), "features") | dict.fromkeys(
        sorted(models.relation_rows(model)), "relations"
    )


def training_links(graph: Graph) -> Tensor:
    """bool [e]: the examples that a client trains on; with links as examples, only true links."""
    train = graph.masks[TRAIN]
    return train if graph.pairs is None else train & (graph.y == 1)


def holder_counts(ctx: Context, count: Count) -> Tree:
    """{"features": int64 [F], "relations": int64 [R]}: n_ie of every entity and every relation at a client, 0 for
    entities and relations that it does not hold; only for shared weights."""
    graph, rows, counts = ctx.client.graph, row_kinds(ctx.training.model), Tree()
    sizes = {rows[path]: len(leaf) for path, leaf in leaves(ctx.message["w"]) if path in rows}
    x, train = graph.x, training_links(graph)

    # 1 for each node of the client, or the number of its training examples with the node: float [n].
    if count == "uniform":
        nodes = graph.real.to(x.dtype)
    elif graph.pairs is None:
        nodes = graph.masks[TRAIN].to(x.dtype)
    else:
        nodes = torch.zeros_like(graph.real, dtype=x.dtype)
        nodes = nodes.index_add(0, graph.pairs[SOURCE], train.to(x.dtype))
        nodes = nodes.index_add(0, graph.pairs[TARGET], train.to(x.dtype))
    if "features" in sizes:
        by_column = x.transpose_matmul(nodes[:, None]) if isinstance(x, Sparse) else x.mT @ nodes[:, None]
        counts["features"] = by_column[:, 0]
    if "relations" in sizes and graph.pairs is not None:
        of = graph.pairs[RELATION].clamp(min=0)
        counts["relations"] = nodes.new_zeros(sizes["relations"]).index_add(0, of, train.to(nodes.dtype))
    if "features" in counts and ITEM_ROWS in ctx.notes:
        counts["features"] = counts["features"] * ctx.notes[ITEM_ROWS]
    max_count = 1 if count == "uniform" else _MAX_EXAMPLES
    return {kind: (n.round().clamp(0, max_count) * train.any()).to(torch.int64) for kind, n in counts.items()}


def columns_of(graph: Graph, items: bool) -> Tensor:
    """bool [F]: the columns of a client's `items`, or else of its users; without users all its nodes are items."""
    places = graph.extra.get(ITEMS)
    is_item = torch.ones_like(graph.real)
    if places is not None:
        none = torch.zeros_like(graph.real, dtype=torch.int64)
        is_item = none.index_add(0, places.clamp(min=0), (places >= 0).long()) > 0
    nodes = (graph.real & (is_item == items)).to(graph.x.dtype)[:, None]
    by_column = graph.x.transpose_matmul(nodes) if isinstance(graph.x, Sparse) else graph.x.mT @ nodes
    return by_column[:, 0] > 0


@dataclass(frozen=True)
class OwnUsers(Part):
    """Keeps rows of users at their client, for links from users to items ([data] users, items). A client trains from
    its own rows and sends only rows of its items, so that it does not reveal its users. Each user is at one client."""

    recorded = True

    needs = Needs(data=("items",))

    def start(self, ctx: Context) -> Tree:
        """The received weights, and the client's own rows of its users as its last round left them."""
        before = dict(leaves(ctx.client.state["w"])) if ctx.client.state.get("w") else {}
        users, rows = columns_of(ctx.client.graph, items=False), models.feature_rows(ctx.training.model)

        start = dict(leaves(ctx.received))
        for path in rows:
            if path in start and path in before:
                mask = users.view(-1, *[1] * (start[path].dim() - 1))
                start[path] = torch.where(mask, before[path], start[path])
        return nest(start)

    def release(self, ctx: Context, update: Tree) -> Tree:
        """The update with 0 in all feature rows except the client's items."""
        items, rows = columns_of(ctx.client.graph, items=True), models.feature_rows(ctx.training.model)
        ctx.notes[ITEM_ROWS] = items

        flat = dict(leaves(update))
        for path in rows:
            if path in flat:
                flat[path] = flat[path] * items.view(-1, *[1] * (flat[path].dim() - 1))
        return nest(flat)


def over_holders(total: Tensor, counts: Tensor) -> Tensor:
    """Σ_i n_ie Δ_ie / Σ_i n_ie from its two sums [F, …] and [F]; 0 in rows that no client holds."""
    rows = counts.double().view(-1, *[1] * (total.dim() - 1))
    return torch.where(rows > 0, total / rows.clamp(min=1), 0.0)


@dataclass(frozen=True)
class Holders(ReportsExamples):
    """Averages rows of embeddings over the clients that hold the entity or the relation: E_e ← Σ_i n_ie E_ie / Σ_i n_ie
    (Chen et al. 2021, eq. 5). A row that no client holds stays. Other weights are averaged by the number of training
    examples. A client holds the entities of its nodes' features, which are 0 or 1.

    count: n_ie: 1 at all holders, "uniform" as in the paper, or the number of training "examples" with the entity.
    """

    count: Count = "uniform"
    recorded = True
    sends: ClassVar = EXAMPLES | {
        HELD: Sends("which entities and relations the client holds, or in how many training examples", within=Whole())
    }

    def check(self, training: Training) -> None:
        _check(self.count, training)

    def report(self, ctx: Context) -> Tree:
        return super().report(ctx) | {HELD: holder_counts(ctx, self.count)}

    def weigh(self, state: Tree, round: Round) -> Tensor:
        return by_size(round)  # for weights that are not rows of entities or relations

    def aggregate(self, state: Tree, round: Round) -> Tree:
        rows, whole = row_kinds(round.model), dict(leaves(round.weighted()))
        for path in rows:
            if path in whole:
                counts = round.replies.stack(f"{HELD}/{rows[path]}")  # [P, rows]
                total = torch.einsum("pf,pfd->fd", counts.double(), round.update(path).double())
                whole[path] = over_holders(total, counts.sum(0)).to(whole[path].dtype)
        return nest(whole)


@dataclass(frozen=True)
class HoldersSum(InSum):
    """`holders` by secure aggregation: every client's update covers all entities, with rows of zeros for entities that
    it does not hold, and its counts are in the same sum. So the server learns neither a client's rows nor its entities,
    but the number of clients, or training examples, of an entity over all clients.

    bound:    every number of n_ie Δ_ie is cut to ±bound.
    fraction: binary digits of a masked integer behind the point.
    bits:     bits of a masked integer, 32 or 64.
    count:    what a client counts as for a row, as in the part `holders`.
    """

    bound: float = float(1 << 16)
    fraction: int = 32
    bits: Literal[32, 64] = 64
    count: Count = "uniform"
    recorded = True
    rounds_vary = True

    def check(self, training: Training) -> None:
        _check(self.count, training)

    @property
    def sends(self) -> Mapping[str, Sends | str]:  # type: ignore[override]
        """The counts, and how many numbers were cut to the bound, in the sum."""
        hidden = replace(self.sum_form, bits=64, fraction=0)
        of_sum = "nothing by itself; with the others' "
        return {
            "n": Sends(f"{of_sum}the number of all training examples", hidden),
            HELD: Sends(f"{of_sum}how many clients hold an entity or a relation, or train on it how often", hidden),
        } | beyond_declaration("update", self.sum_form)

    def init(self, fed: Federation, w: Tree) -> Tree:
        self._words.check(self.bound, len(fed.clients), "holders_sum")
        return {}

    def terms(self, ctx: Context, update: Tree) -> Tree:
        """n_ie Δ_ie for rows, n_i Δ_i for other weights."""
        rows, counts = row_kinds(ctx.training.model), self._counts(ctx)

        terms = {}
        for path, leaf in leaves(update):
            n = counts[HELD][rows[path]] if path in rows else counts["n"]
            terms[path] = n.double().view(*n.shape, *[1] * (leaf.dim() - n.dim())) * leaf.double()
        return nest(terms)

    def report(self, ctx: Context) -> Tree:
        """{"n", "held": n_ie, "beyond": how many numbers were cut}, in the sum."""
        return self._counts(ctx) | self.beyond(ctx)

    def weigh(self, state: Tree, round: Round) -> None:
        return None  # the weights are inside the sum

    def aggregate(self, state: Tree, round: Round) -> Tree:
        rows, n = row_kinds(round.model), round.replies.total("n")
        row_counts, total = round.replies.total(HELD), dict(leaves(round.replies.total("update")))
        means = {}
        for path, w in leaves(round.w):
            decoded = self._words.decode(total[path], torch.float64)
            counts = row_counts[rows[path]] if path in rows else n.expand(max(w.shape[0], 1) if w.dim() else 1)
            means[path] = over_holders(decoded if w.dim() else decoded[None], counts).view(w.shape).to(w.dtype)
        return nest(means)

    def _counts(self, ctx: Context) -> Tree:
        return {"n": ctx.examples.clamp(max=_MAX_EXAMPLES), HELD: holder_counts(ctx, self.count)}


def _check(count: Count, training: Training) -> None:
    if count == "examples" and models.example(training.model) in ("edge", "graph"):
        raise ValueError("count = 'examples' counts nodes and links; set count = 'uniform' for other examples")


@preset_of(Holders)
class FedE:
    """Embeddings of entities, averaged row by row over the clients that hold the entity; relations' vectors stay at the
    clients.

    share:      patterns of the weights that clients share: the entities' vectors, as in the paper; "*" also shares the
                relations' vectors.
    secure_sum: whether clients send rows and counts by secure aggregation, so that the server learns neither a client's
                rows nor its entities.
    users:      whether rows of users are "shared" like rows of items, or stay "home", with links from users to items
                ([data] users, items).
    """

    share: tuple[str, ...] = ("0/*",)
    secure_sum: bool = False
    users: Literal["shared", "home"] = "shared"

    def parts(self) -> tuple[Part, ...]:
        holders = part_of(self, HoldersSum if self.secure_sum else Holders)
        return (OwnUsers(), holders) if self.users == "home" else (holders,)

"""Which pairs of nodes a finished run's models take for links: its own, given ones, and those that a node should have
most of all.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch

from fedweave.algorithms.parts import ForeignEnds
from fedweave.apply.predictions import chosen_models, link_names
from fedweave.core import model as models
from fedweave.core.algorithm import graphs_of
from fedweave.core.graph import FOREIGN, FOREIGN_NODES, ITEMS, KNOWN, RELATION, TEST, Graph
from fedweave.core.links import Links
from fedweave.core.model import Model
from fedweave.core.sizes import padded_rows
from fedweave.core.tree import Tree, device_of, map_leaves
from fedweave.core.types import Record
from fedweave.datasets.name_matching import NameIndex, positions, similar_name_hint
from fedweave.datasets.table import Table
from fedweave.datasets.table_files import read
from fedweave.errors import UserError
from fedweave.experiment.runs.trained import Trained, check_finite
from fedweave.partition.crossing import name_hashes

UNKNOWN = "user.pairs"  # the code of errors about nodes that no client has


_LOG = logging.getLogger(__name__)
COLUMNS = {"source": ("source", "head"), "target": ("target", "tail"), "relation": ("relation", "label")}


def of_pairs(run: Trained, path: Path, model: str | None = None, client: str | None = None) -> pa.Table:
    """The scores of the pairs in the table at `path`, which has columns source and target (or head and tail) and, with
    several relations, relation (or label). A row for each client that has both ends, or has one end and received the
    other from another member: "client", "source", "target", "score" (the probability of a link). A pair that no client
    has gets one row without client and score.

    Raises:
        UserError: there is no such model or client, or a column is missing. DataError: no such table.
    """
    links, chosen = run.built.data.links or Links(), _models(run, model, client)
    pairs = read_pairs(path, links)
    scored_pairs, tables = np.zeros(len(pairs.relation), bool), list[pa.Table]()
    known = list[str]()
    for name, w in chosen.items():
        graph, called = _ends(run, name, w)
        known += filter(None, called.tolist())
        at, numbers = pairs.among(called, graph.nodes)
        scored_pairs[at] = True
        tables.append(scored(name, run.net_of(name), w, graph, called, links, numbers))
    note_look_alikes(pairs.source + pairs.target, known, path)
    return pa.concat_tables([*tables, pairs.unscored(~scored_pairs, links, tables[0].schema)])


def note_look_alikes(names: Sequence[str], known: Sequence[str], path: Path) -> None:
    """A note on the names in the file at `path` that are not `known` and look like one that is."""
    unknown, index = sorted(set(names) - set(known) - {None}), NameIndex(pa.array(known, pa.string()))
    absent = [name for name, at in zip(unknown, positions(unknown, known).tolist(), strict=True) if at < 0]
    if hints := [f"{name!r} is no node{hint}" for name in absent if (hint := index.hint(name))]:
        more = f"; so are {len(hints) - 1:,} more" if hints[1:] else ""
        _LOG.warning("note: %s: %s%s", path, hints[0], more)


def _ends(run: Trained, client: str, w: Tree) -> tuple[Graph, np.ndarray]:
    """A client's graph, and the names of all ends of its pairs by their number; "" at padding. Behind its own nodes are
    the nodes that it received from other members, with their rows under the weights w."""
    graph, called, links = graphs_of(run.built.fed)[client], link_names(run, client), run.built.data.links
    parts = run.algorithm.composed
    part = next((part for part in parts.values() if isinstance(part, ForeignEnds)), None)
    if part is None or links is None:
        return graph, called
    memory = run.built.fed.snapshot()[client][type(part).__name__]
    names = dict(zip(name_hashes(run.built.data, links).tolist(), run.built.data.node_ids, strict=True))
    hashes, is_here = graph.extra[FOREIGN_NODES][:, 0].tolist(), memory["there"].tolist()
    others = [names.get(name, "") if is_known else "" for name, is_known in zip(hashes, is_here, strict=True)]
    place = device_of(w)
    with torch.no_grad():
        rows = part.foreign(run.net_of(client), w, graph.to(place), map_leaves(lambda leaf: leaf.to(place), memory))
    graph = graph._replace(extra={**graph.extra, FOREIGN: rows})
    return graph, np.array([*called.tolist(), *[""] * (graph.nodes - len(called)), *others])


class AskedPairs(NamedTuple):
    """Pairs of nodes to score: the names of their ends, and the number of the relation int64 [m]."""

    source: list[str]
    target: list[str]
    relation: np.ndarray

    def among(self, called: np.ndarray, nodes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """int64 [k], which pairs have both ends among the names `called` ("" is no name), and int64 [3, k], their
        numbers and relations. nodes: at least one end is among the first `nodes` names; None is all."""
        names = [name or None for name in called.tolist()]
        each = np.stack([positions(end, names) for end in (self.source, self.target)])
        at = np.flatnonzero((each >= 0).all(0) & (each < (len(called) if nodes is None else nodes)).any(0))
        return at, np.stack([*each[:, at], self.relation[at]])

    def unscored(self, absent: np.ndarray, links: Links, schema: pa.Schema) -> pa.Table:
        """Rows without client and score for the `absent` pairs, bool [m], which no client has."""
        rows = np.flatnonzero(absent)
        columns: Record = {"client": [""] * len(rows), "source": [self.source[at] for at in rows]}
        columns |= {"target": [self.target[at] for at in rows]}
        if links.relations:
            columns["relation"] = [links.relations[self.relation[at]] for at in rows]
        return pa.table(columns | {"score": pa.nulls(len(rows), schema.field("score").type)}).cast(schema)


def read_pairs(path: Path, links: Links) -> AskedPairs:
    """The pairs in the table at `path` (see `of_pairs`).

    Raises:
        UserError: a column is missing, or there is no such relation. DataError: no such table.
    """
    table = read(path)
    source, target, relation = _columns(links, table, path)
    names = None if relation is None else table.texts(relation).to_pylist()
    ends = table.texts(source).to_pylist(), table.texts(target).to_pylist()
    return AskedPairs(*ends, _relations(links, names, table.rows))


def _columns(links: Links, table: Table, path: Path) -> tuple[str, str, str | None]:
    """The names of the columns in a table of pairs: source, target and, with several relations, relation."""
    names = {what: next((one for one in called if one in table.columns), None) for what, called in COLUMNS.items()}
    several = bool(links.relations)
    source, target, relation = names["source"], names["target"], names["relation"] if several else None
    if source is None or target is None or (several and relation is None):
        due = "source, target" + (" and relation" if several else "")
        raise UserError(
            f"{path} has the columns {', '.join(table.columns)}. Give {due} (or head, tail{', label' * several}).",
            code=UNKNOWN,
        )
    return source, target, relation


def of_node(
    run: Trained,
    node: str,
    most: int,
    relation: str | None = None,
    model: str | None = None,
    client: str | None = None,
) -> pa.Table:
    """The `most` pairs of a node with the highest scores at each client that has it, without the links that the client
    knows: columns as of `of_pairs`. relation: the relation of the pairs; None for all.

    Raises:
        UserError: there is no such model, client or relation, or no client has the node.
    """
    tables, known, links = list[pa.Table](), list[str](), run.built.data.links or Links()
    kinds = np.arange(max(1, len(links.relations)))
    if relation is not None:
        if not links.relations:
            raise UserError("the run's links are of one relation. Leave out --relation.", code=UNKNOWN)
        kinds = _relations(links, [relation], 1)
    for name, w in _models(run, model, client).items():
        called = link_names(run, name)
        known += called.tolist()
        place = positions([node], called.tolist())
        if place[0] < 0:
            continue
        graph = graphs_of(run.built.fed)[name].to("cpu")
        items = graph.extra[ITEMS].numpy() if ITEMS in graph.extra else np.arange(len(called))
        others = items[(items >= 0) & (links.loops | (items != place[0]))]
        if ITEMS in graph.extra and place[0] in items:
            raise UserError(f"{node!r} is an item: links lead from users to items. Name a user.", code=UNKNOWN)
        kind, target = np.repeat(kinds, len(others)), np.tile(others, len(kinds))
        codes = (kind * len(called) + place[0]) * len(called) + target
        new = ~np.isin(codes, graph.extra[KNOWN].numpy())
        pairs = np.stack([np.full(new.sum(), place[0]), target[new], kind[new]])
        table = scored(name, run.net_of(name), w, graph, called, links, pairs)
        tables.append(table.sort_by([("score", "descending")]).slice(0, most))
    if not tables:
        hint = similar_name_hint(node, known)
        raise UserError(f"no client's node is called {node!r}{hint}. Name it as the data does.", code=UNKNOWN)
    return pa.concat_tables(tables)


def scored(
    client: str, net: Model, w: Tree, graph: Graph, called: np.ndarray, links: Links, pairs: np.ndarray
) -> pa.Table:
    """The scores of pairs int64 [3, m] of a client's nodes, whose names are `called`, with the messages that test links
    get. Nodes that it received from other members come behind its own (`core.graph.FOREIGN`)."""
    score = _probability(net, w, graph, torch.from_numpy(pairs))
    columns = {"client": np.full(pairs.shape[1], client), "source": called[pairs[0]], "target": called[pairs[1]]}
    if links.relations:
        columns["relation"] = np.array(links.relations)[pairs[RELATION]]
    return pa.table(columns | {"score": score})


def _probability(net: Model, w: Tree, graph: Graph, pairs: torch.Tensor) -> np.ndarray:
    check_finite(w)
    place = device_of(w)
    size = padded_rows(pairs.shape[1])
    padded = torch.nn.functional.pad(pairs, (0, size - pairs.shape[1]))
    with torch.no_grad():
        logits = models.infer_split(net, w, graph.to(place).at(TEST)._replace(pairs=padded.to(place)))
    score: np.ndarray = torch.softmax(logits, -1)[: pairs.shape[1], 1].cpu().numpy()
    return score


def _models(run: Trained, model: str | None, client: str | None) -> Mapping[str, Tree]:
    """{client: the weights of the requested model}, by default of the model that each uses."""
    return chosen_models(run, client, model or "personal")


def _relations(links: Links, names: "list[str] | None", count: int) -> np.ndarray:
    if names is None or not links.relations:
        return np.zeros(count, np.int64)
    if unknown := sorted(set(names) - set(links.relations)):
        raise UserError(
            f"the run has no relation {unknown[0]!r}, only {', '.join(links.relations)}. Correct it.", code=UNKNOWN
        )
    return np.array([links.relations.index(name) for name in names], np.int64)

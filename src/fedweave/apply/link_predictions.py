"""Scores of pairs of nodes by a finished run's models: of given pairs, and the highest ones of a node."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch

from fedweave.algorithms.parts import ForeignEnds
from fedweave.apply.predictions import node_names
from fedweave.core import model as models
from fedweave.core.algorithm import graphs_of
from fedweave.core.graph import FOREIGN, FOREIGN_NODES, ITEMS, KNOWN, RELATION, TEST, Graph
from fedweave.core.links import Links
from fedweave.core.model import Model
from fedweave.core.sizes import padded_rows
from fedweave.core.tree import Tree, device_of, map_leaves
from fedweave.core.types import Record
from fedweave.datasets.name_matching import NameIndex, positions, similar_name_hint
from fedweave.datasets.table_files import read
from fedweave.errors import UserError
from fedweave.experiment.runs.trained import Trained, check_finite, chosen_models
from fedweave.partition.crossing import name_hashes

_LOG = logging.getLogger(__name__)
UNKNOWN = "user.pairs"  # the code of errors about nodes that no client has
COLUMNS = {"source": ("source", "head"), "target": ("target", "tail"), "relation": ("relation", "label")}


def score_file(run: Trained, path: Path, model: str | None = None, client: str | None = None) -> pa.Table:
    """The scores of the pairs in the table at `path`, which has columns source and target (or head and tail) and, with
    several relations, relation (or label). A row for each client that has both ends, or has one end and received the
    other from another member: "client", "source", "target", "score" (the probability of a link). A pair that no client
    has gets one row without client and score.

    Raises:
        UserError: there is no such model or client, or a column is missing. DataError: no such table.
    """
    links, weights = run.built.data.links or Links(), chosen_models(run, client, model)
    pairs = read_pairs(path, links)
    is_scored, tables, known = np.zeros(len(pairs.relation), bool), list[pa.Table](), list[str]()
    for name, w in weights.items():
        graph, names = _ends(run, name, w)
        known += [end for end in names.tolist() if end]
        at, numbers = pairs.among(names, graph.nodes)
        is_scored[at] = True
        tables.append(score_pairs(name, run.net_of(name), w, graph, names, links, numbers))
    _note_similar_names(pairs.source + pairs.target, known, path)
    return pa.concat_tables([*tables, pairs.unscored(~is_scored, links, tables[0].schema)])


def _note_similar_names(names: Sequence[str], known: Sequence[str], path: Path) -> None:
    """A note on the names in the file at `path` that are not `known` and look like one that is."""
    unknown, index = sorted(set(names) - set(known) - {None}), NameIndex(pa.array(known, pa.string()))
    hints = []
    for name, at in zip(unknown, positions(unknown, known).tolist(), strict=True):
        hint = index.hint(name) if at < 0 else ""
        if hint:
            hints.append(f"{name!r} is not a node{hint}")
    if hints:
        more = f"; so are {len(hints) - 1:,} more" if len(hints) > 1 else ""
        _LOG.warning("note: %s: %s%s", path, hints[0], more)


def _ends(run: Trained, client: str, w: Tree) -> tuple[Graph, np.ndarray]:
    """A client's graph, and the names of all ends of its pairs by their number; "" at padding. Behind its own nodes are
    the nodes that it received from other members, with their rows under the weights w."""
    graph, names, links = graphs_of(run.built.fed)[client], node_names(run, client), run.built.data.links
    part = next((part for part in run.algorithm.composed.values() if isinstance(part, ForeignEnds)), None)
    if part is None or links is None:
        return graph, names
    memory = run.built.fed.snapshot()[client][type(part).__name__]
    name_of = dict(zip(name_hashes(run.built.data, links).tolist(), run.built.data.node_ids, strict=True))
    received = []
    for name, is_there in zip(graph.extra[FOREIGN_NODES][:, 0].tolist(), memory["there"].tolist(), strict=True):
        received.append(name_of.get(name, "") if is_there else "")
    place = device_of(w)
    with torch.no_grad():
        rows = part.external_rows(
            run.net_of(client), w, graph.to(place), map_leaves(lambda leaf: leaf.to(place), memory)
        )
    graph = graph._replace(extra={**graph.extra, FOREIGN: rows})
    return graph, np.array([*names.tolist(), *[""] * (graph.nodes - len(names)), *received])


class PairsToScore(NamedTuple):
    """Pairs of nodes to score: the names of their ends, and the number of the relation int64 [m]."""

    source: list[str]
    target: list[str]
    relation: np.ndarray

    def among(self, ends: np.ndarray, nodes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """int64 [k], which pairs have both ends among the names `ends` ("" is not a name), and int64 [3, k], their
        numbers and relations. nodes: at least one end is among the first `nodes` names; None is all."""
        names = [name or None for name in ends.tolist()]
        places = np.stack([positions(end, names) for end in (self.source, self.target)])  # [2, m], -1 for none
        has_local = (places < (len(names) if nodes is None else nodes)).any(0)
        at = np.flatnonzero((places >= 0).all(0) & has_local)
        return at, np.stack([*places[:, at], self.relation[at]])

    def unscored(self, absent: np.ndarray, links: Links, schema: pa.Schema) -> pa.Table:
        """Rows without client and score for the `absent` pairs, bool [m], which no client has."""
        rows = np.flatnonzero(absent)
        columns: Record = {"client": [""] * len(rows), "source": [self.source[at] for at in rows]}
        columns |= {"target": [self.target[at] for at in rows]}
        if links.relations:
            columns["relation"] = [links.relations[self.relation[at]] for at in rows]
        return pa.table(columns | {"score": pa.nulls(len(rows), schema.field("score").type)}).cast(schema)


def read_pairs(path: Path, links: Links) -> PairsToScore:
    """The pairs in the table at `path` (see `score_file`).

    Raises:
        UserError: a column is missing, or there is no such relation. DataError: no such table.
    """
    table, several = read(path), bool(links.relations)
    columns = dict[str, str]()
    for what, names in COLUMNS.items():
        present = [name for name in names if name in table.columns]
        if present:
            columns[what] = present[0]
    if "source" not in columns or "target" not in columns or (several and "relation" not in columns):
        due = "source, target" + (" and relation" if several else "")
        raise UserError(
            f"{path} has the columns {', '.join(table.columns)}. Give {due} (or head, tail{', label' * several}).",
            code=UNKNOWN,
        )
    source, target = (table.texts(columns[end]).to_pylist() for end in ("source", "target"))
    if not several:
        return PairsToScore(source, target, np.zeros(table.rows, np.int64))
    return PairsToScore(source, target, _relations(links, table.texts(columns["relation"]).to_pylist()))


def top_pairs(
    run: Trained,
    node: str,
    top: int,
    relation: str | None = None,
    model: str | None = None,
    client: str | None = None,
) -> pa.Table:
    """The `top` pairs of a node with the highest scores at each client that has it, without the links that the client
    knows: columns as of `score_file`. relation: the relation of the pairs; None for all.

    Raises:
        UserError: there is no such model, client or relation, or no client has the node.
    """
    tables, known, links = list[pa.Table](), list[str](), run.built.data.links or Links()
    kinds = np.arange(max(1, len(links.relations)))
    if relation is not None:
        if not links.relations:
            raise UserError("the run's links are of one relation. Leave out --relation.", code=UNKNOWN)
        kinds = _relations(links, [relation])
    for name, w in chosen_models(run, client, model).items():
        names = node_names(run, name)
        known += names.tolist()
        place = int(positions([node], names.tolist())[0])
        if place < 0:
            continue
        graph = graphs_of(run.built.fed)[name].to("cpu")
        items = graph.extra[ITEMS].numpy() if ITEMS in graph.extra else np.arange(len(names))
        if ITEMS in graph.extra and place in items:
            raise UserError(f"{node!r} is an item: links lead from users to items. Name a user.", code=UNKNOWN)
        candidates = items[(items >= 0) & (links.loops | (items != place))]
        kind, target = np.repeat(kinds, len(candidates)), np.tile(candidates, len(kinds))
        codes = (kind * len(names) + place) * len(names) + target
        is_new = ~np.isin(codes, graph.extra[KNOWN].numpy())
        pairs = np.stack([np.full(is_new.sum(), place), target[is_new], kind[is_new]])  # [3, pairs]
        table = score_pairs(name, run.net_of(name), w, graph, names, links, pairs)
        tables.append(table.sort_by([("score", "descending")]).slice(0, top))
    if not tables:
        hint = similar_name_hint(node, known)
        raise UserError(f"no client's node is called {node!r}{hint}. Name it as the data does.", code=UNKNOWN)
    return pa.concat_tables(tables)


def score_pairs(
    client: str, net: Model, w: Tree, graph: Graph, names: np.ndarray, links: Links, pairs: np.ndarray
) -> pa.Table:
    """The scores of pairs int64 [3, m] of a client's nodes, with the messages that test links get. names: of its nodes
    and behind these of nodes that it received from other members (`core.graph.FOREIGN`)."""
    check_finite(w)
    place, count = device_of(w), pairs.shape[1]
    padded = torch.nn.functional.pad(torch.from_numpy(pairs), (0, padded_rows(count) - count))
    with torch.no_grad():
        logits = models.infer_split(net, w, graph.to(place).at(TEST)._replace(pairs=padded.to(place)))
    score: np.ndarray = torch.softmax(logits, -1)[:count, 1].cpu().numpy()
    columns = {"client": np.full(count, client), "source": names[pairs[0]], "target": names[pairs[1]]}
    if links.relations:
        columns["relation"] = np.array(links.relations)[pairs[RELATION]]
    return pa.table(columns | {"score": score})


def _relations(links: Links, names: list[str]) -> np.ndarray:
    """The numbers of relations, by name."""
    unknown = sorted(set(names) - set(links.relations))
    if unknown:
        raise UserError(
            f"the run has no relation {unknown[0]!r}, only {', '.join(links.relations)}. Correct it.", code=UNKNOWN
        )
    return np.array([links.relations.index(name) for name in names], np.int64)

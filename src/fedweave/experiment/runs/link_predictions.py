"""Which pairs of nodes a finished run's models take for links: its own, given ones, and those that a node should have
most of all.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from fedweave.algorithms.parts.composition import MadeOfParts
from fedweave.core import model as models
from fedweave.core.algorithm import graphs_of
from fedweave.core.graph import FOREIGN, FOREIGN_NODES, ITEMS, KNOWN, RELATION, TEST, Graph
from fedweave.core.model import Model
from fedweave.core.sizes import least_rows
from fedweave.core.tree import Tree, device_of
from fedweave.datasets.table import Table, read
from fedweave.errors import UserError
from fedweave.experiment.runs.predictions import chosen_models, link_names
from fedweave.experiment.runs.trained import Trained, check_finite
from fedweave.partition.crossing import name_hashes

UNKNOWN = "user.pairs"  # the code of what names no node that a client has


COLUMNS = {"source": ("source", "head"), "target": ("target", "tail"), "relation": ("relation", "label")}


def of_pairs(run: Trained, path: Path, model: str | None = None, client: str | None = None) -> pa.Table:
    """The same of the pairs in the table at `path`, which has columns source and target (or head and tail) and, of
    several relations, relation (or label): a row for each client that has both ends, or one where another member told
    it of the other, "client", "source", "target", "score" (the probability of a link), and one without client and score
    for a pair that no client has.

    Raises:
        UserError: there is no such model or client, or a column is missing. DataError: no such table.
    """
    table, chosen = read(path), _models(run, model, client)
    source, target, relation = _columns(run, table, path)
    ends, count = [table.texts(source).to_pylist(), table.texts(target).to_pylist()], table.rows
    numbers = _relations(run, None if relation is None else table.texts(relation).to_pylist(), count)
    held, tables = np.zeros(count, bool), list[pa.Table]()
    for name, w in chosen.items():
        nodes = graphs_of(run.built.fed)[name].nodes
        places = {node: at for at, node in enumerate(_called(run, name).tolist()) if node}
        each = np.array([[places.get(node, -1) for node in end] for end in ends], np.int64).reshape(2, -1)
        at = np.flatnonzero((each >= 0).all(0) & (each < nodes).any(0))
        held[at] = True
        tables.append(_scored(run, name, w, np.stack([*each[:, at], numbers[at]])))
    absent = np.flatnonzero(~held)
    columns = {"client": [""] * len(absent), "source": [ends[0][at] for at in absent]}
    columns |= {"target": [ends[1][at] for at in absent]}
    if "relation" in tables[0].column_names:
        links = run.built.data.links
        columns["relation"] = [links.relations[numbers[at]] for at in absent] if links is not None else []
    nothing = pa.table(columns | {"score": pa.nulls(len(absent), tables[0]["score"].type)})
    return pa.concat_tables([*tables, nothing.cast(tables[0].schema)])


def _called(run: Trained, client: str) -> np.ndarray:
    """The names of all ends of pairs of a client by their number; "" at padding. Behind its own nodes are those that
    other members told it of."""
    names_here, graph = link_names(run, client), graphs_of(run.built.fed)[client]
    if FOREIGN_NODES not in graph.extra or run.built.data.links is None:
        return names_here
    names = dict(zip(name_hashes(run.built.data, run.built.data.links).tolist(), run.built.data.node_ids, strict=True))
    hashes, there = graph.extra[FOREIGN_NODES][:, 0].tolist(), _foreign(run, client)["there"].tolist()
    others = [names.get(name, "") if known else "" for name, known in zip(hashes, there, strict=True)]
    return np.array([*names_here.tolist(), *[""] * (graph.nodes - len(names_here)), *others])


def _foreign(run: Trained, client: str) -> Tree:
    """What a client keeps of other members' nodes, "h" and "there"."""
    algorithm = run.algorithm
    teller = algorithm.composed.teller if isinstance(algorithm, MadeOfParts) else ""
    memory: Tree = run.built.fed.snapshot()[client][teller]
    return memory


def _columns(run: Trained, table: Table, path: Path) -> tuple[str, str, str | None]:
    """What the columns of a table of pairs are called: source, target and, of several relations, relation."""
    names = {what: next((one for one in called if one in table.columns), None) for what, called in COLUMNS.items()}
    links = run.built.data.links
    several = links is not None and bool(links.relations)
    source, target, relation = names["source"], names["target"], names["relation"] if several else None
    if source is None or target is None or (several and relation is None):
        due = "source, target" + (" and relation" if several else "")
        raise UserError(
            f"{path} has the columns {', '.join(table.columns)}. Give {due} (or head, tail{', label' * several}).",
            code=UNKNOWN,
        )
    return source, target, relation


def of_node(run: Trained, node: str, most: int, model: str | None = None, client: str | None = None) -> pa.Table:
    """The `most` pairs of a node with the highest scores at each client that has it, without the links that the client
    knows: columns as of `of_pairs`.

    Raises:
        UserError: there is no such model or client, or no client has the node.
    """
    tables = list[pa.Table]()
    for name, w in _models(run, model, client).items():
        called = link_names(run, name)
        place = np.flatnonzero(called == node)
        if not len(place):
            continue
        graph = graphs_of(run.built.fed)[name].to("cpu")
        items = graph.extra[ITEMS].numpy() if ITEMS in graph.extra else np.arange(len(called))
        others = items[(items >= 0) & (items != place[0])]
        if ITEMS in graph.extra and place[0] in items:
            raise UserError(f"{node!r} is an item: links lead from users to items. Name a user.", code=UNKNOWN)
        count = len(run.built.data.links.relations or ("",)) if run.built.data.links is not None else 1
        relation = np.repeat(np.arange(count), len(others))
        target = np.tile(others, count)
        codes = (relation * len(called) + place[0]) * len(called) + target
        new = ~np.isin(codes, graph.extra[KNOWN].numpy())
        pairs = np.stack([np.full(new.sum(), place[0]), target[new], relation[new]])
        table = _scored(run, name, w, pairs)
        tables.append(table.sort_by([("score", "descending")]).slice(0, most))
    if not tables:
        raise UserError(f"no client has a node {node!r}. Name it as the data does.", code=UNKNOWN)
    return pa.concat_tables(tables)


def _scored(run: Trained, client: str, w: Tree, pairs: np.ndarray) -> pa.Table:
    """The scores of pairs int64 [3, m] of a client's nodes, with the messages that test links get."""
    graph, called = graphs_of(run.built.fed)[client], _called(run, client)
    if FOREIGN_NODES in graph.extra:
        graph = graph._replace(extra={**graph.extra, FOREIGN: _foreign(run, client)["h"].to(graph.device)})
    score = _probability(run.net_of(client), w, graph, torch.from_numpy(pairs))
    columns = {"client": np.full(pairs.shape[1], client), "source": called[pairs[0]], "target": called[pairs[1]]}
    links = run.built.data.links
    if links is not None and links.relations:
        columns["relation"] = np.array(links.relations)[pairs[RELATION]]
    return pa.table(columns | {"score": score})


def _probability(net: Model, w: Tree, graph: Graph, pairs: torch.Tensor) -> np.ndarray:
    check_finite(w)
    place = device_of(w)
    size = least_rows(pairs.shape[1])
    padded = torch.nn.functional.pad(pairs, (0, size - pairs.shape[1]))
    with torch.no_grad():
        logits = models.judged_as_seen(net, w, graph.to(place).at(TEST)._replace(pairs=padded.to(place)))
    score: np.ndarray = torch.softmax(logits, -1)[: pairs.shape[1], 1].cpu().numpy()
    return score


def _models(run: Trained, model: str | None, client: str | None) -> Mapping[str, Tree]:
    """{client: the weights of the model that is asked for}, by default the one that each uses."""
    return chosen_models(run, client, model or "personal")


def _relations(run: Trained, names: "list[str] | None", count: int) -> np.ndarray:
    links = run.built.data.links
    if names is None or links is None or not links.relations:
        return np.zeros(count, np.int64)
    if unknown := sorted(set(names) - set(links.relations)):
        raise UserError(
            f"the run has no relation {unknown[0]!r}, only {', '.join(links.relations)}. Correct it.", code=UNKNOWN
        )
    return np.array([links.relations.index(name) for name in names], np.int64)

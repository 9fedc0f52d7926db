"""A graph whose links are the examples: each edge once, with the split that its ends' names decide."""

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np
import scipy.sparse as sp

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import SPLITS, TEST, TRAIN, VAL
from fedweave.core.link_examples import relation_of
from fedweave.core.link_hashes import hashes_of, pair_hashes, split_of
from fedweave.core.links import OF_DATA, Links
from fedweave.core.types import Values
from fedweave.datasets.base import Dataset, split_numbers
from fedweave.datasets.external import plain_edges
from fedweave.errors import ConfigError

TASK = "links"
NAMES = ("no link", "link")  # names of the two classes of links
UNLIKE = "config.links"  # the code of errors about data that cannot have links as examples


def links_of(settings: Values) -> tuple[Values, Links | None]:
    """The settings without those of links as examples, and these; None where `task` is another."""
    if settings.get("task") != TASK:
        return settings, None
    names = {field.name for field in fields(Links)} - {*OF_DATA}
    of_links = {name: value for name, value in settings.items() if name in names}
    return {name: value for name, value in settings.items() if name not in (*names, "task")}, Links(**of_links)


def as_links(data: Dataset, links: Links, key: bytes = b"") -> Dataset:
    """The graph with its links as the examples, split by the column `split` of edges or else by `links`; labels
    of nodes are not used. One of several parallel edges of a relation and a split stays.

    key: key of the hash that decides the split; sites with the same key split shared links the same way.

    Raises:
        ConfigError: the data is of small graphs, of parties, or has no nodes of the kinds in `links`.
    """
    if data.graph_of is not None or data.parties is not None:
        what = "are small graphs" if data.graph_of is not None else "are held by parties, column by column"
        raise ConfigError(
            f"data.task = 'links': the examples of {data.name} {what}; take data of one graph.", code=UNLIKE
        )
    attributes, notes = _unique_links(data, links.relation)
    source, target = attributes.ends
    if links.users is not None:
        for name in (links.users, links.items):
            if data.node_labels is None or name not in data.node_kinds:
                known = ", ".join(data.node_kinds) or "none"
                message = (
                    f"data.users, data.items: {data.name} has no nodes of the kind {name!r}. The kinds are {known}."
                )
                raise ConfigError(message, code=UNLIKE)
        kinds, names = np.asarray(data.node_labels), data.node_kinds
        is_user, is_item = kinds == names.index(links.users), kinds == names.index(str(links.items))  # [nodes]
        turned = is_item[source] & is_user[target]
        source, target = np.where(turned, target, source), np.where(turned, source, target)
        fits = is_user[source] & is_item[target]
        if not fits.all():
            raise ConfigError(
                f"data.users = {links.users!r}, data.items = {links.items!r}: {np.count_nonzero(~fits):,} edges of "
                f"{data.name} join other kinds of nodes. Leave these out, or leave users and items out.",
                code=UNLIKE,
            )
        attributes = attributes._replace(ends=np.stack([source, target]))
    names = data.node_names or tuple(map(str, range(data.nodes)))
    relations = _relation_names(data, attributes)
    public = _masks_of(attributes)
    if public is None:
        hashes = hashes_of(names, key)
        public = split_of(pair_hashes(hashes[source], hashes[target], attributes.y, links.seed), links.ratios)
    notes = (*notes, *_leak_notes(data, attributes, public))
    return replace(
        data,
        edge_attrs=attributes._replace(examples=True, split=None),
        y=np.ones(attributes.total, np.int64),
        classes=len(NAMES),
        labels=NAMES,
        public=public,
        ids=(),
        node_ids=names,
        sensitive=None,
        groups=(),
        targets=(),
        target_scale=None,
        owner=data.owner,
        notes=(*data.notes, *notes),
        links=replace(links, relations=relations, loops=bool(np.any(source == target))),
    )


def by_relation(data: Dataset) -> Dataset:
    """The links as edges whose classes are their relations, with the split of the links: the form that `as_links`
    takes and a file holds."""
    attributes, links = data.edge_attrs, data.links
    if attributes is None or links is None:
        raise ValueError(f"the examples of {data.name} are not links")
    y = np.zeros(attributes.total, np.int64) if attributes.y is None else attributes.y
    names = links.relations
    return replace(
        data, edge_attrs=attributes._replace(y=None), y=y, classes=max(1, len(names)), labels=names, links=None
    )


def _unique_links(data: Dataset, kinds: bool) -> tuple[EdgeAttributes, tuple[str, ...]]:
    """The data's edges, each pair of a relation once in each split, and notes on what was left out; kinds: whether they
    have relations. A node's edge to itself stays where edges have a direction, such as triples."""
    attributes = data.edge_attrs
    if attributes is None:
        kind = data.edge_labels if kinds else None
        once = data.edges[0] < data.edges[1]
        return plain_edges(data.edges[:, once])._replace(y=None if kind is None else kind[once]), ()
    if attributes.examples and data.links is None:  # edges whose classes are their relations
        split = None if data.public is None else split_numbers(data.public)
        attributes = attributes._replace(y=data.y if data.classes > 1 else None, split=split)
    if not kinds:
        attributes = attributes._replace(y=None)
    has_splits = attributes.split is not None
    split = np.zeros(attributes.total, np.int64) if attributes.split is None else attributes.split + 1
    loop = (attributes.ends[0] == attributes.ends[1]) & (not attributes.directed)
    _, at = np.unique(codes_of(attributes, data.nodes) * (len(SPLITS) + 1) + split, return_index=True)
    at = np.sort(at[~loop[at]])
    notes = list[str]()
    loops = np.count_nonzero(loop)
    if loops:
        tested = f" ({np.count_nonzero(split[loop] == TEST + 1):,} of them to test)" if has_splits else ""
        notes.append(
            f"{loops:,} edges that join a node with itself{tested} are not examples; with directed = true they are"
        )
    repeats = attributes.total - loops - len(at)
    if repeats:
        notes.append(f"{repeats:,} edges that join two nodes once more are no further examples")
    return attributes.select(at), tuple(notes)


def codes_of(attributes: EdgeAttributes, nodes: int) -> np.ndarray:
    """int64 [M]: one number for each link, of its ends among `nodes` and its relation; where edges have no direction,
    the same for both."""
    source, target = attributes.ends if attributes.directed else np.sort(attributes.ends, 0)
    relation = relation_of(attributes)
    return np.asarray((relation * nodes + source) * nodes + target)


_UNDIRECTED = "if direction says nothing, give undirected links (directed = false, is_undirected = True)"
_INVERSE = (
    "training gives such a link away where its relation is symmetric or the inverse of another, as in FB15k and WN18; "
    "FB15k-237 and WN18RR leave inverse relations out"
)


def _leak_notes(data: Dataset, attributes: EdgeAttributes, public: np.ndarray) -> Iterator[str]:
    """A sentence on each kind of links to validate or test that training gives away, or says nothing about."""
    codes, relation = codes_of(attributes, data.nodes), relation_of(attributes)
    trained = np.zeros(data.nodes, bool)
    trained[attributes.ends[:, public[TRAIN]]] = True
    # Whether each node has a column of its own, so that a model learns a vector for it.
    has_vectors = isinstance(data.x, sp.csr_matrix) and data.x.shape[1] >= data.nodes >= data.x.nnz
    has_untrained_end = ~trained[attributes.ends].all(0) & has_vectors
    pairs, several = attributes._replace(y=None), len(np.unique(relation)) > 1
    reverse = codes_of(pairs._replace(ends=pairs.ends[::-1]), data.nodes)
    reverse_trains = np.isin(reverse, codes_of(pairs, data.nodes)[public[TRAIN]])
    reverse_trains &= attributes.directed & (pairs.ends[0] != pairs.ends[1])
    faults = (
        ("also train", "such scores are of what a model was trained on", np.isin(codes, codes[public[TRAIN]])),
        (
            "have an end that no training link has",
            "its vector is not trained, and such scores count",
            has_untrained_end,
        ),
        ("train in the other direction", _UNDIRECTED, reverse_trains & (not several)),
        ("join a pair that trains in the other direction, by any relation", _INVERSE, reverse_trains & several),
        (
            "have a relation that no training link has",
            "its weights are not trained, and such scores count",
            ~np.isin(relation, relation[public[TRAIN]]),
        ),
    )
    for name, part in (("validation", public[VAL]), ("test", public[TEST])):
        for problem, consequence, links in faults:
            count = int(np.count_nonzero(links & part))
            if count:
                yield f"{name} links that {problem}: {count:,} of {np.count_nonzero(part):,}; {consequence}"


def _relation_names(data: Dataset, attributes: EdgeAttributes) -> tuple[str, ...]:
    """The names of the relations; () where all links are of one. A holder of only some relations still counts all of
    them, by the classes of its edges."""
    if attributes.y is None:
        return ()
    if data.links is not None:
        return data.links.relations
    examples = data.edge_attrs is not None and data.edge_attrs.examples
    count = max(data.classes if examples else 0, int(attributes.y.max(initial=0)) + 1)
    names = data.edge_kinds if data.edge_attrs is None else data.labels
    return (names or tuple(map(str, range(count)))) if count > 1 else ()


def has_split(data: Dataset) -> bool:
    """Whether the data says of its edges which split they are in."""
    attributes = data.edge_attrs
    if attributes is not None and attributes.examples:
        return data.public is not None and bool(np.any(data.public))
    return attributes is not None and _masks_of(attributes) is not None


def _masks_of(attributes: EdgeAttributes) -> np.ndarray | None:
    if attributes.split is None or not (attributes.split >= 0).any():
        return None
    return np.asarray(attributes.split == np.arange(3)[:, None])

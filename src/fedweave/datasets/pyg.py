"""A graph, or small graphs, in memory as a PyTorch Geometric `Data`, or a list of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from numbers import Real
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import TEST, TRAIN
from fedweave.core.links import Links
from fedweave.datasets.base import Dataset, undirected
from fedweave.datasets.check import check, first, refuse
from fedweave.datasets.edges import direction_note, is_mirrored, is_symmetric, one_direction, skeleton
from fedweave.datasets.features import NO_FEATURES, compact, one_hot, refuse_merged, scale_by_holders, with_constant
from fedweave.datasets.hetero import CLASSES, _dense, is_hetero, merge_types
from fedweave.datasets.labels import refuse_stray
from fedweave.datasets.leakage import check_sensitive
from fedweave.datasets.links import as_links
from fedweave.datasets.targets import Targeted
from fedweave.errors import ConfigError

_MASKS = ("train_mask", "val_mask", "test_mask")
_OF_EDGES = ("edge_weight", "edge_attr", "edge_time")
_LINKS = ("edge_label_index", "pos_edge_label_index", "neg_edge_label_index")  # pairs, as of RandomLinkSplit
_READ = ("x", "edge_index", *_MASKS, "sens", *_OF_EDGES)  # and what says the classes
_FEATURES = "Give numbers, such as a column of 0 and 1 for each value of a text."
_CLASSES = "Number the classes from 0; -1 is unlabeled."
_GROUPS = "Number the groups from 0; -1 is unknown."
_ENDS = "Number the nodes from 0, by their rows in x."
_MEASURED = ' If numbers are predicted: target = "number"; several yes-or-no labels: target = "labels".'
_GAPLESS = (
    "Number the classes from 0 without gaps: labelled = y >= 0; "
    "y[labelled] = torch.unique(y[labelled], return_inverse=True)[1]."
)


def from_pyg(
    data: object,
    name: str = "pyg",
    ignore: Sequence[str] = (),
    sens_feature: bool = False,
    directed: bool | None = None,
    loops: str = "drop",
    task: Literal["nodes", "edges", "links"] = "nodes",
    flatten: bool = False,
    normalize: str = "auto",
    **targets: Any,
) -> Dataset:
    """The graph of a `torch_geometric.data.Data` with x, edge_index and y, and where it has them train_mask, val_mask
    and test_mask, sens, and of its edges edge_weight, edge_attr and edge_time. y = -1 is unlabeled; without val_mask,
    no node is in val; a train_mask alone is no split, which is noted.

    data: such a graph, an `InMemoryDataset` of one; or a list, or an `InMemoryDataset` of several, which are small
    graphs with one y, and one sens, each, and where none has an x, one-hot degrees as features.
    targets: what is predicted (`datasets.targets.Targeted`), such as target = "number" for a y [n], or [n, t] of t
    numbers, or target = "labels" for yes-or-no labels, with NaN, or -1 of labels, at gaps; of small graphs y [1, t].
    ignore: attributes that do not count, such as "edge_weight"; other arrays that are not read are noted. Weights, or
    features of edges, that are 1 everywhere count as none.
    sens_feature: allow a feature column that equals sens.
    directed: whether edges lead only one way; None: they do not if they have no attributes, else if one lacks its
    reverse, or has other values there. loops: of a node with itself, "drop", or "keep" where edges have attributes.
    task: "edges" for edges as examples: their classes are edge_label [E] instead of y, and the masks and sens are of
    edges. Then each edge stands in edge_index once, `directed` is True by default, and x may be missing.
    "links" for links as examples (`datasets.links.as_links`): edges of edge_index train, and where there is an
    edge_label_index, as of RandomLinkSplit, its pairs with edge_label above 0 are links, too: `data` may be its (train,
    val, test), or one of these, whose further links test.
    flatten: make a `HeteroData` one graph whose first features of nodes, and of edges, say the type; then each type's
    own. One type has y, or edge_label. Edges are directed unless `directed` is False. Otherwise it is refused.
    normalize: how features are scaled (`datasets.features.normalize`).

    Raises:
        ConfigError: see `Targeted`.
        DataError: one of the three is missing, `ignore` names what is not there, the labels are of pairs
            (edge_label_index, as of RandomLinkSplit), or the data breaks what `Dataset` promises.
    """
    if odd := [key for key in targets if key not in (known := [one.name for one in fields(Targeted)])]:
        raise ConfigError(
            f"from_pyg: there is no setting {odd[0]!r}; it has {', '.join(known)}, too.", code="config.unknown-key"
        )
    target = Targeted(**targets)
    graphs = _several(data, name) or [data]
    if task == "links":
        return _of_links(graphs, name, ignore, directed, loops, normalize)
    _refuse_links(graphs, ignore, task, name)
    if is_hetero(graphs[0]):
        if len(graphs) > 1:
            refuse(name, "there are several graphs with types of nodes", "Give one, or graphs of one type.")
        flat, columns, of_edges = merge_types(graphs[0], name, flatten, task, target.by_number)
        ways = directed is not False
        dataset = from_pyg(flat, name, ignore, sens_feature, ways, loops, task, normalize=normalize, **targets)
        named = dataset.edge_attrs and dataset.edge_attrs._replace(columns=of_edges if dataset.edge_attrs.width else ())
        return replace(dataset, columns=columns, edge_attrs=named)
    label = CLASSES[task]
    if task == "edges" and len(graphs) > 1:
        what = "edges are the examples, and there are several graphs"
        refuse(name, what, "Give one graph (torch_geometric's Batch).")
    if task == "edges" or (len(graphs) == 1 and not isinstance(data, list | tuple)):
        held, graph_of = _arrays(graphs[0], name, ignore, label, bare=task == "edges"), None
        held.setdefault("x", np.empty((int(getattr(graphs[0], "num_nodes", 0) or 0), 0), np.float32))
    else:
        held, graph_of = _merge_graphs(graphs, name, ignore, target)
    dataset = _dataset(held, graph_of, label, directed, loops, name, target)
    dataset = replace(dataset, notes=(*dataset.notes, *_unread(graphs, ignore, label, name)))
    dataset = check_sensitive(check(with_constant(dataset), name), name, sens_feature)
    return scale_by_holders(dataset, normalize, name)


def _dataset(
    held: Mapping[str, np.ndarray],
    graph_of: np.ndarray | None,
    label: str,
    directed: bool | None,
    loops: str,
    name: str,
    target: Targeted,
) -> Dataset:
    """The data set of what was read; label: what says the classes, or what else is the target."""
    nodes, edged = len(held["x"]), label != CLASSES["nodes"]
    examples = held["edge_index"].size // 2 if edged else nodes if graph_of is None else len(held[label])
    _check_shapes(held, label, examples, name, target)
    ends = _ends(held["edge_index"], nodes, name)
    mask = np.ones(ends.shape[1], bool) if loops == "keep" else ends[0] != ends[1]
    of = mask if edged else np.ones(examples, bool)  # the examples that stay
    if target.by_class:
        y = _whole(held[label].reshape(examples), label, _CLASSES + _MEASURED, name)
        refuse_stray(y, lambda row, what: refuse(name, f"{label}, row {row}: {what}", _GAPLESS))
    else:
        y = target.of_array(_numbers(held[label], label, "Give numbers.", name), label, name)
    split, notes = _split_of(held, examples, "edge" if edged else "node" if graph_of is None else "graph", name)
    attributes = _edge_attributes(held, ends[:, mask], mask, edged or directed, name)
    if edged:
        both = attributes or EdgeAttributes(ends[:, mask], True)
        attributes = both._replace(directed=directed is not False, examples=True)
    dataset = Dataset(
        name=name,
        x=compact(_to_float32(_numbers(held["x"], "x", _FEATURES, name), name)),
        edges=skeleton(ends, nodes),
        edge_attrs=attributes,
        y=y[of],
        classes=int(y.max(initial=-1)) + 1 if target.by_class else 0,
        sensitive=_whole(held["sens"].reshape(-1), "sens", _GROUPS, name)[of] if "sens" in held else None,
        public=None if split is None else split[:, of],
        ids=() if of.all() else tuple(map(str, np.flatnonzero(of).tolist())),
        graph_of=graph_of,
        notes=(*notes, *direction_note(attributes, is_mirrored(ends[:, mask]), directed)),
    )
    return replace(dataset, **target.fields(dataset.y, target.names_of_array(())))


def _several(data: object, name: str) -> list[object]:
    """The small graphs of a list or of a data set of PyTorch Geometric's, which has `indices`; [] of anything else."""
    if isinstance(data, list | tuple) and not data:
        refuse(name, "the list is empty", "Give at least one graph.", "no-graphs")
    listed = isinstance(data, list | tuple) or callable(getattr(data, "indices", None))
    items = cast(Sequence[object], data if listed else ())
    return [items[at] for at in range(len(items))]


def _refuse_links(graphs: Sequence[Any], ignore: Sequence[str], task: str, name: str) -> None:
    """Labels of pairs of nodes, joined or not, are no labels of the edges in edge_index."""
    for one in graphs:
        stores = [((), one)] if not is_hetero(one) else [(kind, one[kind]) for kind in one.edge_types]
        there = [(kind, key) for kind, store in stores for key in _LINKS if getattr(store, key, None) is not None]
        named = [".".join(filter(None, ("-".join(kind), key))) for kind, key in there]
        if task == "edges" and named:
            what = f"it has {named[0]}, so that its labels are of pairs of nodes, and not of the edges in edge_index"
            remedy = "Give edge_label [E], a class for each column of edge_index, without it."
        elif unsaid := [key for key in named if key not in ignore]:
            what = f"it has {unsaid[0]}, whose pairs of nodes are not read"
            remedy = f"To classify nodes, set ignore = {json.dumps(unsaid)}."
        else:
            continue
        refuse(name, what, f"To predict links, set task = 'links'. {remedy}", "links")


def _of_links(
    graphs: Sequence[Any], name: str, ignore: Sequence[str], directed: bool | None, loops: str, normalize: str
) -> Dataset:
    """The data set of links of one graph, or of the three of RandomLinkSplit."""
    if len(graphs) not in (1, 3) or any(map(is_hetero, graphs)):
        what = "there are types of nodes" if any(map(is_hetero, graphs)) else f"there are {len(graphs)} graphs"
        refuse(name, what, "Give one Data, or RandomLinkSplit's (train, val, test) of one.", "links")
    known = [_links_of(graph, name) for graph in graphs]
    notes = (NO_FEATURES,) * (getattr(graphs[0], "x", None) is None)
    if len(graphs) == 1 and not known[0][1].size:
        keys = graphs[0].keys() if callable(graphs[0].keys) else graphs[0].keys
        bare = SimpleNamespace(**{key: getattr(graphs[0], key) for key in keys if key not in _OF_NODES})
        bare.y, bare.x = np.zeros(int(graphs[0].num_nodes), np.int64), _features(graphs[0])
        bare.keys = [*vars(bare)]
        dataset = from_pyg(bare, name, ignore, False, directed, loops, normalize=normalize)
        return as_links(replace(dataset, notes=(*dataset.notes, *notes)), Links())
    nodes = int(graphs[0].num_nodes)
    parts = [(known[0][0], TRAIN)]
    parts += [(links, split if len(graphs) == 3 else TEST) for split, (_, links) in enumerate(known)]
    ends, split = (
        np.concatenate([links for links, _ in parts], 1),
        np.repeat([at for _, at in parts], [links.shape[1] for links, _ in parts]),
    )
    ends = _ends(ends, nodes, name)
    is_directed = not is_mirrored(known[0][0]) if directed is None else directed
    first, second = (ends[0], ends[1]) if is_directed else (ends.min(0), ends.max(0))
    order = np.lexsort(
        (split if len(graphs) == 1 else -split, second, first)
    )  # a link that is known in training trains
    distinct = np.ones(len(order), bool)
    distinct[1:] = (np.diff(first[order]) != 0) | (np.diff(second[order]) != 0)
    at = np.sort(order[distinct & (first[order] != second[order])])
    attributes = EdgeAttributes(np.stack([first[at], second[at]]), bool(is_directed), split=split[at])
    x = compact(_to_float32(_numbers(_dense(_features(graphs[0])), "x", _FEATURES, name), name))
    y = np.zeros(nodes, np.int64)
    dataset = Dataset(name, x, skeleton(attributes.ends, nodes), y, 1, edge_attrs=attributes, notes=(_DRAWN, *notes))
    return as_links(scale_by_holders(check(dataset, name), normalize, name), Links())


def _features(graph: Any) -> Any:
    """The graph's x, or the constant 1 of each node."""
    x = getattr(graph, "x", None)
    return np.ones((int(graph.num_nodes), 1), np.float32) if x is None else x


_DRAWN = "pairs whose edge_label is 0 are not used: pairs that are no links are drawn (data.task)"
_OF_NODES = ("y", *_MASKS, "sens", "edge_label", "edge_label_index")


def _links_of(graph: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """int64 [2, …]: the edges along which messages go, and the pairs that are links by their labels."""
    messages = _dense(graph.edge_index).astype(np.int64)
    if getattr(graph, "pos_edge_label_index", None) is not None:
        return messages, _dense(graph.pos_edge_label_index).astype(np.int64)
    if getattr(graph, "edge_label_index", None) is None:
        return messages, np.empty((2, 0), np.int64)
    pairs = _dense(graph.edge_label_index).astype(np.int64)
    label = getattr(graph, "edge_label", None)
    if label is not None and len(label) != pairs.shape[1]:
        what = f"edge_label has {len(label)} values, and edge_label_index {pairs.shape[1]} pairs"
        refuse(name, what, "Give one label for each pair.", "links")
    return messages, pairs if label is None else pairs[:, _dense(label) > 0]


def _merge_graphs(
    graphs: Sequence[object], name: str, ignore: Sequence[str], target: Targeted
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The arrays of small graphs, one after the other, and the graph of each node."""
    bare = all(getattr(one, "x", None) is None for one in graphs)
    inputs = [_arrays(one, f"{name}, graph {at}", ignore, "y", bare) for at, one in enumerate(graphs)]
    nodes_of = [
        getattr(one, "num_nodes", 0) if bare else len(arrays["x"]) for one, arrays in zip(graphs, inputs, strict=True)
    ]
    sizes = [*map(int, nodes_of)]
    first_rows = np.cumsum([0, *sizes[:-1]])
    for at, (arrays, size, row) in enumerate(zip(inputs, sizes, first_rows, strict=True)):
        where = f"{name}, graph {at}"
        if odd := sorted(arrays.keys() ^ inputs[0].keys()):
            refuse(where, f"it and graph 0 do not both have {odd[0]}", "Give it to all graphs, or to none.")
        if target.by_class and arrays["y"].size != 1:
            what, remedy = f"y has {arrays['y'].size} values", "Give one class for each graph; a single graph with a "
            refuse(where, what, f"{remedy}class for each node is no list.{_MEASURED}", "target")
        if not target.by_class:
            arrays["y"] = arrays["y"].reshape(1, -1)
            if arrays["y"].shape != inputs[0]["y"].reshape(1, -1).shape:
                what = f"y has {arrays['y'].size} values, but y of graph 0 has {inputs[0]['y'].size}"
                refuse(where, what, "Give y [1, t] with the same t in all graphs, NaN at gaps.", "target")
        if not bare and (arrays["x"].ndim != 2 or arrays["x"].shape[1:] != inputs[0]["x"].shape[1:]):
            what = f"x is {list(arrays['x'].shape)}, but x of graph 0 is {list(inputs[0]['x'].shape)}"
            refuse(where, what, "Give x [n, d] with the same d in all graphs.")
        _check_pairs(arrays["edge_index"], where)
        arrays["edge_index"] = _ends(arrays["edge_index"], size, where) + row
    rows = {"edge_index": 1}  # the others' are the first
    arrays = {key: np.concatenate([np.atleast_1d(one[key]) for one in inputs], rows.get(key, 0)) for key in inputs[0]}
    if bare:
        first, second = arrays["edge_index"]
        apart, nodes = first != second, int(sum(sizes))
        arrays["x"] = one_hot(np.bincount(undirected(first[apart], second[apart], nodes)[0], minlength=nodes)).toarray()
    return arrays, np.repeat(np.arange(len(graphs)), sizes)


def _check_pairs(pairs: np.ndarray, name: str) -> None:
    if pairs.ndim != 2 or len(pairs) != 2:
        refuse(name, f"the shapes do not fit: edge_index {list(pairs.shape)}", "Give edge_index [2, E].")


def _check_shapes(held: Mapping[str, np.ndarray], label: str, examples: int, name: str, target: Targeted) -> None:
    x, y, pairs = (held[key] for key in ("x", label, "edge_index"))
    fits = y.shape[:1] == (examples,) and (y.ndim == 1 or (y.ndim == 2 and (y.shape[1] == 1 or not target.by_class)))
    if x.ndim != 2 or pairs.ndim != 2 or len(pairs) != 2 or not fits:
        shapes = ", ".join(f"{key} {list(it.shape)}" for key, it in (("x", x), ("edge_index", pairs), (label, y)))
        each = "a class per node, y [n]" if label == "y" else "a class per edge, edge_label [E], -1 where it is unknown"
        remedy = f"Give x [n, d], edge_index [2, E] and {each}.{_MEASURED if target.by_class else ''}"
        refuse(name, f"the shapes do not fit: {shapes}", remedy)
    if "sens" in held and held["sens"].size != examples:
        what = f"sens has {held['sens'].size} values, and there are {examples} examples"
        refuse(name, what, "Give one group for each, -1 where it is unknown.")
    for key in _OF_EDGES:
        if key in held and held[key].shape[:1] != pairs.shape[1:]:
            what = f"{key} has {len(np.atleast_1d(held[key]))} rows, and there are {pairs.shape[1]} edges"
            refuse(name, what, f'Give one row for each edge, or set ignore = ["{key}"].')


def _edge_attributes(
    held: Mapping[str, np.ndarray], ends: np.ndarray, mask: np.ndarray, directed: bool | None, name: str
) -> EdgeAttributes | None:
    """The attributes of the edges in `mask`, with these `ends`; None without attributes."""
    arrays = {key: _numbers(held[key], key, "Give numbers.", name)[mask] for key in _OF_EDGES if key in held}
    arrays = {key: values for key, values in arrays.items() if key == "edge_time" or not (values == 1).all()}
    if not arrays and not directed:
        return None
    weight = arrays["edge_weight"].reshape(-1).astype(np.float32) if "edge_weight" in arrays else None
    features = arrays["edge_attr"].reshape(len(ends[0]), -1).astype(np.float32) if "edge_attr" in arrays else None
    time = arrays["edge_time"].reshape(-1).astype(np.float64) if "edge_time" in arrays else None
    attributes = EdgeAttributes(ends, bool(directed), weight, features, time)
    if directed is None:
        attributes = attributes._replace(directed=not (is_mirrored(ends) and is_symmetric(attributes)))
    return one_direction(attributes, name)


def _arrays(data: object, name: str, ignore: Sequence[str], label: str, bare: bool = False) -> dict[str, np.ndarray]:
    """The arrays of the data by attribute, without `ignore`. label: the attribute with the classes. bare: whether x may
    be missing."""
    needed = ("x", "edge_index", label)
    present = [key for key in (*needed, *_READ[2:], *_others(data, label)) if getattr(data, key, None) is not None]
    if absent := [key for key in ignore if key not in present]:
        refuse(name, f"ignore names {absent[0]!r}, which is not there", f"Correct it; there are {', '.join(present)}.")
    if missing := [key for key in needed[bare:] if key not in present or key in ignore]:
        refuse(name, f"the data has no {', '.join(missing)}", f"Give {', '.join(needed[:2])} and {label}.")
    readable = (*_READ, label)
    return {key: _array(getattr(data, key), key, name) for key in present if key in readable and key not in ignore}


def _others(data: object, label: str) -> list[str]:
    """The names of further arrays."""
    keys = getattr(data, "keys", ())
    names = keys() if callable(keys) else keys
    return [key for key in names if key not in (*_READ, label) and getattr(getattr(data, key, None), "ndim", 0) > 0]


def _unread(graphs: Sequence[object], ignore: Sequence[str], label: str, name: str) -> tuple[str, ...]:
    """A sentence on arrays that are neither read nor ignored; none without such arrays."""
    present = [*dict.fromkeys(key for one in graphs for key in _others(one, label) if key not in ignore)]
    if not present:
        return ()
    return (
        f"of {name}, {', '.join(present)} {'is' if len(present) == 1 else 'are'} not read; set ignore = {present} to "
        "silence this note",
    )


def _ends(pairs: np.ndarray, nodes: int, name: str) -> np.ndarray:
    """int64 [2, E]: the edges, if both ends of each are nodes."""
    ends = _whole(pairs, "edge_index", _ENDS, name)
    column = first((ends.min(0) < 0) | (ends.max(0) >= nodes))
    if column is not None:
        source, target = ends[:, column]
        what = f"edge_index, column {column}: edge {source} -> {target} names a node that is not in 0..{nodes - 1}"
        refuse(name, what, "Remove the edge or add the node.")
    return ends


def _whole(array: np.ndarray, key: str, remedy: str, name: str) -> np.ndarray:
    """The numbers [n], or the edges [2, n], as int64, if they are whole."""
    numbers = _numbers(array, key, remedy, name)
    if np.can_cast(numbers.dtype, np.int64):
        return numbers.astype(np.int64)
    wide = numbers.astype(np.float64)
    with np.errstate(invalid="ignore"):
        bad = ~np.isfinite(wide) | (numbers % 1 != 0)
    long = np.abs(wide) >= 2.0**63
    if (at := first((bad | long).ravel())) is not None:
        what = "not a whole number" if bad.flat[at] else "beyond 64 bits"
        refuse(name, f"{_place(array, key, at)}: {numbers.flat[at]} is {what}", remedy)
    return numbers.astype(np.int64)


def _numbers(array: np.ndarray, key: str, remedy: str, name: str) -> np.ndarray:
    """The array, if it holds real numbers; Python's as NumPy's, as far as there are such."""
    if array.dtype.kind in "biuf":
        return array
    cells = array.ravel().tolist()
    if (at := first(np.array([not isinstance(cell, Real) for cell in cells], np.bool_))) is not None:
        names = " Names become numbers by names, y = numpy.unique(y, return_inverse=True)." if key == "y" else ""
        refuse(name, f"{_place(array, key, at)}: {cells[at]!r} is not a number", remedy + names)
    return np.array(cells).reshape(array.shape)


def _place(array: np.ndarray, key: str, at: int) -> str:
    """The place of the cell `at` of the flat array, in words."""
    row, column = divmod(at, array.shape[1]) if array.ndim == 2 else (at, 0)
    return {"x": f"x, row {row}, column {column}", "edge_index": f"edge_index, column {column}"}.get(
        key, f"{key}, row {row}"
    )


def _split_of(
    held: Mapping[str, np.ndarray], examples: int, example: str, name: str
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """bool [3, e]: the masks, if there are any; as in tables, no example need be in val. A train_mask on its own is no
    split, since the data may evaluate the other nodes in any way: then None, and a sentence. example: the kind of
    example, in messages."""
    masks = {key: held.get(key) for key in _MASKS}
    present = [key for key in _MASKS if key in held]
    if not present:
        return None, ()
    split = np.zeros((len(masks), examples), bool)
    for row, (key, mask) in zip(split, masks.items(), strict=True):
        if mask is not None:
            _check_mask(mask, key, examples, example, name)
            row[:] = mask
    if present == ["train_mask"]:
        add = "add test_mask = ~train_mask, or another mask, to use this split"
        return None, (f"train_mask is not used, as there is no test_mask; {add}",)
    if missing := [key for key in ("train_mask", "test_mask") if key not in present]:
        remedy = f"Add it, or read no split: ignore = {json.dumps(present)}."
        refuse(name, f"there is {' and '.join(present)}, but no {missing[0]}", remedy)
    return split, ()


def _check_mask(mask: np.ndarray, key: str, examples: int, example: str, name: str) -> None:
    if mask.dtype == np.bool_ and mask.shape == (examples,):
        return
    remedy = f"Give true or false for each {example}"
    if mask.ndim == 2 and len(mask) == examples:
        remedy = f"Choose one of its splits, such as {key}[:, 0]"
    elif mask.shape == (examples,) and np.isin(mask, (0, 1)).all():
        remedy += f": {key}.bool()"
    elif mask.ndim == 1 and mask.dtype.kind in "iu":
        remedy += f", not places: mask = torch.zeros({examples}, dtype=torch.bool); mask[{key}] = True"
    refuse(name, f"{key} is {mask.dtype} {list(mask.shape)}, not bool [{examples}]", f"{remedy}.")


def _to_float32(x: np.ndarray, name: str) -> np.ndarray:
    """Features [n, d] as float32, if it keeps the differences within each column."""

    def refuse_at(row: int, what: str, remedy: str) -> None:
        refuse(name, f"x, row {row}: {what}", remedy)

    with np.errstate(over="ignore", invalid="ignore"):
        narrow = np.ascontiguousarray(x, np.float32)
    for number in range(x.shape[1]) if not np.can_cast(x.dtype, np.float32) else ():
        if np.isfinite(narrow[:, number]).all():  # what is not is refused by `check`
            refuse_merged(x[:, number], f"column {number}", refuse_at)
    return narrow


def _array(tensor: object, key: str, name: str) -> np.ndarray:
    """A tensor's numbers; a sparse tensor becomes dense."""
    try:
        dense = tensor.to_dense() if hasattr(tensor, "to_dense") else tensor
        return np.asarray(dense.detach().cpu() if hasattr(dense, "detach") else dense)
    except (RuntimeError, TypeError, ValueError) as error:
        refuse(
            name, f"{key} cannot be read as an array ({error})", "Give a tensor of numbers, such as float32 or int64."
        )

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
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.check import check, first, refuse, refuse_first
from fedweave.datasets.edges import direction_note, is_mirrored, is_symmetric, one_direction, scale_features
from fedweave.datasets.features import NO_FEATURES, compact, one_hot, refuse_merged, scale_by_holders, with_constant
from fedweave.datasets.hetero import CLASSES, _dense, is_hetero, merge_types
from fedweave.datasets.labels import refuse_stray
from fedweave.datasets.leakage import check_sensitive
from fedweave.datasets.links import as_links
from fedweave.datasets.structure import with_places
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
    edge_normalize: str = "auto",
    structure: Sequence[str] = (),
    **targets: Any,
) -> Dataset:
    """The graph of a `torch_geometric.data.Data` with x, edge_index and y, and where it has them train_mask, val_mask
    and test_mask, sens, and of its edges edge_weight, edge_attr and edge_time. y = -1 is unlabeled; without val_mask,
    no node is in val; a train_mask alone is not a split, which is noted.

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
    edges. Then each edge is in edge_index once, `directed` is True by default, and x may be missing.
    "links" for links as examples (`datasets.links.as_links`): edges of edge_index train, and where there is an
    edge_label_index, as of RandomLinkSplit, its pairs with edge_label above 0 are links, too: `data` may be its (train,
    val, test), or one of these, whose further links test.
    flatten: make a `HeteroData` one graph whose first features of nodes, and of edges, say the type; then each type's
    own. One type has y, or edge_label. Edges are directed unless `directed` is False. Otherwise it is refused.
    normalize, edge_normalize: how features of nodes and of edges are scaled (`datasets.features.normalize`).
    structure: columns that each client computes on its own graph (`datasets.structure`).

    Raises:
        ConfigError: see `Targeted`.
        DataError: one of the three is missing, `ignore` names what is not there, the labels are of pairs
            (edge_label_index, as of RandomLinkSplit), or the data breaks what `Dataset` promises.
    """
    known = [field.name for field in fields(Targeted)]
    for key in targets:
        if key not in known:
            message = f"from_pyg: there is no setting {key!r}; it has {', '.join(known)}, too."
            raise ConfigError(message, code="config.unknown-key")
    target = Targeted(**targets)
    graphs = _several(data, name) or [data]
    if task == "links":
        return _of_links(graphs, name, ignore, directed, loops, normalize)
    _refuse_links(graphs, ignore, task, name)
    # 1. A graph of several types becomes one of one type.
    if is_hetero(graphs[0]):
        if len(graphs) > 1:
            refuse(name, "there are several graphs with types of nodes", "Give one, or graphs of one type.")
        flat, columns, edge_columns = merge_types(graphs[0], name, flatten, task, target.by_number)
        ways = directed is not False
        dataset = from_pyg(flat, name, ignore, sens_feature, ways, loops, task, normalize=normalize, **targets)
        edge_attrs = dataset.edge_attrs
        if edge_attrs is not None:
            edge_attrs = edge_attrs._replace(columns=edge_columns if edge_attrs.width else ())
        return replace(dataset, columns=columns, edge_attrs=edge_attrs)
    # 2. The arrays that it has: of one graph, or of several, one after the other.
    label, of_edges, graph_of = CLASSES[task], task == "edges", None
    if of_edges and len(graphs) > 1:
        what = "edges are the examples, and there are several graphs"
        refuse(name, what, "Give one graph (torch_geometric's Batch).")
    if of_edges or (len(graphs) == 1 and not isinstance(data, list | tuple)):
        arrays = _arrays(graphs[0], name, ignore, label, bare=of_edges)
        arrays.setdefault("x", np.empty((int(getattr(graphs[0], "num_nodes", 0) or 0), 0), np.float32))
    else:
        arrays, graph_of = _merge_graphs(graphs, name, ignore, target)
    nodes = len(arrays["x"])
    if of_edges:
        examples, example = arrays["edge_index"].size // 2, "edge"
    else:
        examples, example = (nodes, "node") if graph_of is None else (len(arrays[label]), "graph")
    _check_shapes(arrays, label, examples, name, target)
    # 3. Edges, which as examples are left out with their loops.
    ends = _ends(arrays["edge_index"], nodes, name)
    mask = np.ones(ends.shape[1], bool) if loops == "keep" else ends[0] != ends[1]
    remaining = mask if of_edges else np.ones(examples, bool)
    attributes = _edge_attributes(arrays, ends[:, mask], mask, of_edges or directed, name)
    if of_edges:
        attributes = attributes or EdgeAttributes(ends[:, mask], True)
        attributes = attributes._replace(directed=directed is not False, examples=True)
    # 4. Targets, groups and the split.
    if target.by_class:
        y = _whole(arrays[label].reshape(examples), label, _CLASSES + _MEASURED, name)
        refuse_stray(y, lambda row, what: refuse(name, f"{label}, row {row}: {what}", _GAPLESS))
    else:
        y = target.of_array(_numbers(arrays[label], label, "Give numbers.", name), label, name)
    split, notes = _masks(arrays, examples, example, name)
    dataset = Dataset(
        name=name,
        x=compact(_to_float32(_numbers(arrays["x"], "x", _FEATURES, name), name)),
        edges=to_undirected(ends, nodes),
        edge_attrs=attributes,
        y=y[remaining],
        classes=int(y.max(initial=-1)) + 1 if target.by_class else 0,
        sensitive=_whole(arrays["sens"].reshape(-1), "sens", _GROUPS, name)[remaining] if "sens" in arrays else None,
        public=None if split is None else split[:, remaining],
        ids=() if remaining.all() else tuple(map(str, np.flatnonzero(remaining).tolist())),
        graph_of=graph_of,
        notes=(*notes, *direction_note(attributes, is_mirrored(ends[:, mask]), directed)),
    )
    dataset = replace(dataset, **target.fields(dataset.y, target.names_of_array(())))
    dataset = replace(dataset, notes=(*dataset.notes, *_unread(graphs, ignore, label, name)))
    dataset = check_sensitive(check(with_constant(dataset), name), name, sens_feature)
    if dataset.edge_attrs is not None:
        dataset = replace(dataset, edge_attrs=scale_features(dataset.edge_attrs, edge_normalize, name))
    return with_places(scale_by_holders(dataset, normalize, name), tuple(structure))


def _several(data: object, name: str) -> list[object]:
    """The small graphs of a list or of a data set of PyTorch Geometric's, which has `indices`; [] of anything else."""
    if isinstance(data, list | tuple) and not data:
        refuse(name, "the list is empty", "Give at least one graph.", "no-graphs")
    listed = isinstance(data, list | tuple) or callable(getattr(data, "indices", None))
    items = cast(Sequence[object], data if listed else ())
    return [items[at] for at in range(len(items))]


def _refuse_links(graphs: Sequence[Any], ignore: Sequence[str], task: str, name: str) -> None:
    """Labels of pairs of nodes, joined or not, are not labels of the edges in edge_index."""
    for graph in graphs:
        stores = {"": graph}
        if is_hetero(graph):
            stores = {f"{'-'.join(kind)}.": graph[kind] for kind in graph.edge_types}
        labels = list[str]()  # attributes that label pairs
        for prefix, store in stores.items():
            labels += [prefix + key for key in _LINKS if getattr(store, key, None) is not None]
        unread = [key for key in labels if key not in ignore]
        if task == "edges" and labels:
            what = f"it has {labels[0]}, so that its labels are of pairs of nodes, and not of the edges in edge_index"
            remedy = "Give edge_label [E], a class for each column of edge_index, without it."
        elif unread:
            what = f"it has {unread[0]}, whose pairs of nodes are not read"
            remedy = f"To classify nodes, set ignore = {json.dumps(unread)}."
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
    links = [_links_of(graph, name) for graph in graphs]
    notes = (NO_FEATURES,) if getattr(graphs[0], "x", None) is None else ()
    # 1. Without pairs of links, the edges are the links.
    if len(graphs) == 1 and not links[0][1].size:
        keys = graphs[0].keys() if callable(graphs[0].keys) else graphs[0].keys
        bare = SimpleNamespace(**{key: getattr(graphs[0], key) for key in keys if key not in _OF_NODES})
        bare.y, bare.x = np.zeros(int(graphs[0].num_nodes), np.int64), _features(graphs[0])
        bare.keys = [*vars(bare)]
        dataset = from_pyg(bare, name, ignore, False, directed, loops, normalize=normalize)
        return as_links(replace(dataset, notes=(*dataset.notes, *notes)), Links())
    # 2. All links with their splits: the first graph's edges train, pairs are of their graph's split, or test.
    nodes, parts, splits = int(graphs[0].num_nodes), [links[0][0]], [TRAIN]
    for number, (_, pairs) in enumerate(links):
        parts.append(pairs)
        splits.append(number if len(graphs) == 3 else TEST)
    ends = _ends(np.concatenate(parts, 1), nodes, name)
    split = np.repeat(splits, [part.shape[1] for part in parts])
    # 3. Each link once. Of several splits the first, but a link that is known in training trains.
    is_directed = not is_mirrored(links[0][0]) if directed is None else directed
    first, second = (ends[0], ends[1]) if is_directed else (ends.min(0), ends.max(0))
    order = np.lexsort((split if len(graphs) == 1 else -split, second, first))
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(first[order]) != 0) | (np.diff(second[order]) != 0)
    at = np.sort(order[new & (first[order] != second[order])])
    attributes = EdgeAttributes(np.stack([first[at], second[at]]), bool(is_directed), split=split[at])
    x = compact(_to_float32(_numbers(_dense(_features(graphs[0])), "x", _FEATURES, name), name))
    edges, y = to_undirected(attributes.ends, nodes), np.zeros(nodes, np.int64)
    dataset = Dataset(name, x, edges, y, 1, edge_attrs=attributes, notes=(_DRAWN, *notes))
    return as_links(scale_by_holders(check(dataset, name), normalize, name), Links())


def _features(graph: Any) -> Any:
    """The graph's x, or the constant 1 of each node."""
    x = getattr(graph, "x", None)
    return np.ones((int(graph.num_nodes), 1), np.float32) if x is None else x


_DRAWN = "pairs whose edge_label is 0 are not used: pairs that are not links are drawn (data.task)"
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
    template, sizes = inputs[0], list[int]()
    for at, (graph, arrays) in enumerate(zip(graphs, inputs, strict=True)):
        where, y, pairs = f"{name}, graph {at}", arrays["y"], arrays["edge_index"]
        size = int(getattr(graph, "num_nodes", 0) if bare else len(arrays["x"]))
        for key in sorted(arrays.keys() ^ template.keys()):
            refuse(where, f"it and graph 0 do not both have {key}", "Give it to all graphs, or to none.")
        if target.by_class and y.size != 1:
            remedy = (
                f"Give one class for each graph; a single graph with a class for each node is not a list.{_MEASURED}"
            )
            refuse(where, f"y has {y.size} values", remedy, "target")
        if not target.by_class:
            arrays["y"] = y.reshape(1, -1)
            if y.size != template["y"].size:
                what = f"y has {y.size} values, but y of graph 0 has {template['y'].size}"
                refuse(where, what, "Give y [1, t] with the same t in all graphs, NaN at gaps.", "target")
        if not bare and (arrays["x"].ndim != 2 or arrays["x"].shape[1:] != template["x"].shape[1:]):
            what = f"x is {list(arrays['x'].shape)}, but x of graph 0 is {list(template['x'].shape)}"
            refuse(where, what, "Give x [n, d] with the same d in all graphs.")
        if pairs.ndim != 2 or len(pairs) != 2:
            refuse(where, f"the shapes do not fit: edge_index {list(pairs.shape)}", "Give edge_index [2, E].")
        arrays["edge_index"] = _ends(pairs, size, where) + sum(sizes)
        sizes.append(size)
    merged = dict[str, np.ndarray]()
    for key in template:
        axis = 1 if key == "edge_index" else 0
        merged[key] = np.concatenate([np.atleast_1d(arrays[key]) for arrays in inputs], axis)
    if bare:
        edges = to_undirected(merged["edge_index"], sum(sizes))
        merged["x"] = one_hot(np.bincount(edges[0], minlength=sum(sizes))).toarray()
    return merged, np.repeat(np.arange(len(graphs)), sizes)


def _check_shapes(arrays: Mapping[str, np.ndarray], label: str, examples: int, name: str, target: Targeted) -> None:
    x, y, pairs = arrays["x"], arrays[label], arrays["edge_index"]
    one_column = y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1)
    several_columns = y.ndim == 2 and not target.by_class
    fits = y.shape[:1] == (examples,) and (one_column or several_columns)
    if x.ndim != 2 or pairs.ndim != 2 or len(pairs) != 2 or not fits:
        shapes = f"x {list(x.shape)}, edge_index {list(pairs.shape)}, {label} {list(y.shape)}"
        each = "a class per node, y [n]" if label == "y" else "a class per edge, edge_label [E], -1 where it is unknown"
        remedy = f"Give x [n, d], edge_index [2, E] and {each}.{_MEASURED if target.by_class else ''}"
        refuse(name, f"the shapes do not fit: {shapes}", remedy)
    if "sens" in arrays and arrays["sens"].size != examples:
        what = f"sens has {arrays['sens'].size} values, and there are {examples} examples"
        refuse(name, what, "Give one group for each, -1 where it is unknown.")
    for key in _OF_EDGES:
        if key in arrays and arrays[key].shape[:1] != pairs.shape[1:]:
            what = f"{key} has {len(np.atleast_1d(arrays[key]))} rows, and there are {pairs.shape[1]} edges"
            refuse(name, what, f'Give one row for each edge, or set ignore = ["{key}"].')


def _edge_attributes(
    arrays: Mapping[str, np.ndarray], ends: np.ndarray, mask: np.ndarray, directed: bool | None, name: str
) -> EdgeAttributes | None:
    """The attributes of the edges in `mask`, with these `ends`; None without attributes."""
    values = dict[str, np.ndarray]()
    for key in _OF_EDGES:
        if key in arrays:
            numbers = _numbers(arrays[key], key, "Give numbers.", name)[mask]
            if key == "edge_time" or not (numbers == 1).all():
                values[key] = numbers
    if not values and not directed:
        return None
    weight = values["edge_weight"].reshape(-1).astype(np.float32) if "edge_weight" in values else None
    features = values["edge_attr"].reshape(len(ends[0]), -1).astype(np.float32) if "edge_attr" in values else None
    time = values["edge_time"].reshape(-1).astype(np.float64) if "edge_time" in values else None
    attributes = EdgeAttributes(ends, bool(directed), weight, features, time)
    if directed is None:
        attributes = attributes._replace(directed=not (is_mirrored(ends) and is_symmetric(attributes)))
    return one_direction(attributes, name)


def _arrays(data: object, name: str, ignore: Sequence[str], label: str, bare: bool = False) -> dict[str, np.ndarray]:
    """The arrays of the data by attribute, without `ignore`. label: the attribute with the classes. bare: whether x may
    be missing."""
    known = ("x", "edge_index", label, *_READ[2:])
    present = [key for key in (*known, *_other_arrays(data, label)) if getattr(data, key, None) is not None]
    for key in ignore:
        if key not in present:
            refuse(name, f"ignore names {key!r}, which is not there", f"Correct it; there are {', '.join(present)}.")
    needed = known[1:3] if bare else known[:3]
    missing = [key for key in needed if key not in present or key in ignore]
    if missing:
        refuse(name, f"the data has no {', '.join(missing)}", f"Give x, edge_index and {label}.")
    arrays = dict[str, np.ndarray]()
    for key in present:
        if key in known and key not in ignore:
            try:
                arrays[key] = _dense(getattr(data, key))
            except (RuntimeError, TypeError, ValueError) as error:
                what = f"{key} cannot be read as an array ({error})"
                refuse(name, what, "Give a tensor of numbers, such as float32 or int64.")
    return arrays


def _other_arrays(data: object, label: str) -> list[str]:
    """The names of further arrays."""
    keys = getattr(data, "keys", ())
    names = list[str]()
    for key in keys() if callable(keys) else keys:
        if key not in (*_READ, label) and getattr(getattr(data, key, None), "ndim", 0) > 0:
            names.append(key)
    return names


def _unread(graphs: Sequence[object], ignore: Sequence[str], label: str, name: str) -> tuple[str, ...]:
    """A sentence on arrays that are neither read nor ignored; none without such arrays."""
    present = list[str]()
    for graph in graphs:
        present += [key for key in _other_arrays(graph, label) if key not in ignore and key not in present]
    if not present:
        return ()
    verb = "is" if len(present) == 1 else "are"
    return (f"of {name}, {', '.join(present)} {verb} not read; set ignore = {present} to silence this note",)


def _ends(pairs: np.ndarray, nodes: int, name: str) -> np.ndarray:
    """int64 [2, E]: the edges, if both ends of each are nodes."""
    ends = _whole(pairs, "edge_index", _ENDS, name)
    what = f"edge_index, column {{}}: edge {{}} -> {{}} names a node that is not in 0..{nodes - 1}".format
    absent = (ends.min(0) < 0) | (ends.max(0) >= nodes)
    refuse_first(name, absent, lambda column: what(column, *ends[:, column]), "Remove the edge or add the node.")
    return ends


def _whole(array: np.ndarray, key: str, remedy: str, name: str) -> np.ndarray:
    """The numbers [n], or the edges [2, n], as int64, if they are whole."""
    numbers = _numbers(array, key, remedy, name)
    if np.can_cast(numbers.dtype, np.int64):
        return numbers.astype(np.int64)
    wide = numbers.astype(np.float64)
    with np.errstate(invalid="ignore"):
        bad = ~np.isfinite(wide) | (numbers % 1 != 0)
    at = first((bad | (np.abs(wide) >= 2.0**63)).ravel())
    if at is not None:
        what = "not a whole number" if bad.flat[at] else "beyond 64 bits"
        refuse(name, f"{_place(array, key, at)}: {numbers.flat[at]} is {what}", remedy)
    return numbers.astype(np.int64)


def _numbers(array: np.ndarray, key: str, remedy: str, name: str) -> np.ndarray:
    """The array, if it holds real numbers; Python's as NumPy's, as far as there are such."""
    if array.dtype.kind in "biuf":
        return array
    cells = array.ravel().tolist()
    for at, cell in enumerate(cells):
        if not isinstance(cell, Real):
            names = " Names become numbers by names, y = numpy.unique(y, return_inverse=True)." if key == "y" else ""
            refuse(name, f"{_place(array, key, at)}: {cell!r} is not a number", remedy + names)
    return np.array(cells).reshape(array.shape)


def _place(array: np.ndarray, key: str, at: int) -> str:
    """The place of the cell `at` of the flat array, in words."""
    row, column = divmod(at, array.shape[1]) if array.ndim == 2 else (at, 0)
    if key == "edge_index":
        return f"edge_index, column {column}"
    return f"x, row {row}, column {column}" if key == "x" else f"{key}, row {row}"


def _masks(
    arrays: Mapping[str, np.ndarray], examples: int, example: str, name: str
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """bool [3, e]: the masks, if there are any; as in tables, no example need be in val. A train_mask on its own is no
    split, since the data may evaluate the other nodes in any way: then None, and a sentence. example: the kind of
    example, in messages."""
    present = [key for key in _MASKS if key in arrays]
    if not present:
        return None, ()
    split = np.zeros((len(_MASKS), examples), bool)
    for row, key in enumerate(_MASKS):
        if key not in arrays:
            continue
        mask = arrays[key]
        if mask.dtype != np.bool_ or mask.shape != (examples,):
            remedy = f"Give true or false for each {example}"
            if mask.ndim == 2 and len(mask) == examples:
                remedy = f"Choose one of its splits, such as {key}[:, 0]"
            elif mask.shape == (examples,) and np.isin(mask, (0, 1)).all():
                remedy += f": {key}.bool()"
            elif mask.ndim == 1 and mask.dtype.kind in "iu":
                remedy += f", not places: mask = torch.zeros({examples}, dtype=torch.bool); mask[{key}] = True"
            refuse(name, f"{key} is {mask.dtype} {list(mask.shape)}, not bool [{examples}]", f"{remedy}.")
        split[row] = mask
    if present == ["train_mask"]:
        add = "add test_mask = ~train_mask, or another mask, to use this split"
        return None, (f"train_mask is not used, as there is no test_mask; {add}",)
    for key in ("train_mask", "test_mask"):
        if key not in present:
            remedy = f"Add it, or read no split: ignore = {json.dumps(present)}."
            refuse(name, f"there is {' and '.join(present)}, but no {key}", remedy)
    return split, ()


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

"""Notes on data that is valid but probably not what its owner intended."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from fedweave.core.graph_arrays import Matrix, dense
from fedweave.core.target import CLASS, LABELS, where_known
from fedweave.datasets import edges as of_edges
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import by_holder, column_blocks
from fedweave.datasets.leakage import group_columns, separating_columns
from fedweave.datasets.name_matching import difference, similar_names
from fedweave.datasets.row_numbers import MIN_ROWS, row_numbers

_LINE = 1e-9  # below 1, of the correlation of two columns that are a straight line
_MAX_CELLS = 10**8  # of features that are looked at for that
MIN_OF_CLASS = 5  # examples of a class from which on disjoint ranges of numbers are not chance
MAX_RATIO = 1000.0  # times the median column's largest number; of the public sets at hand none is beyond 12
_MAX_MEMBERS = 3  # that a sentence names
MIN_VALIDATION = 10  # examples, of two classes positive ones; with fewer a score moves much with each of them
MAX_OF_EDGES = 100.0  # of features of edges; scaled ones are within about 30


def feature_notes(data: Dataset) -> Iterator[str]:
    """A sentence for each kind of suspicious column, with the columns' names, or their numbers from 0."""
    if data.example == "node":
        yield from _target_leaks(data, data.x, lambda columns: column_names(data, columns), "feature")
    elif data.example == "edge" and data.edge_attrs is not None and data.edge_attrs.features is not None:
        features = data.edge_attrs.features  # [M, k]
        names = data.edge_attrs.columns or tuple(map(str, range(data.edge_attrs.width)))
        yield from _target_leaks(data, features, lambda columns: _first_of(names, columns), "edge feature")
    if isinstance(data.x, np.ndarray) and data.graph_columns is None:  # without a scaled copy of all features
        blocks = column_blocks(np.arange(data.features), data.nodes)
        each = [_largest(by_holder(replace(data, x=data.x[:, block])).x) for block in blocks]
        largest = np.concatenate([np.zeros(0, np.float32), *each])
    else:
        largest = _largest(by_holder(data).x)
    median = float(np.median(largest[largest > 0])) if (largest > 0).any() else np.inf
    columns = np.flatnonzero(largest > MAX_RATIO * median)
    if len(columns):
        feature = "feature {} has" if len(columns) == 1 else "features {} have"
        yield (
            f"the {feature.format(column_names(data, columns))} numbers up to {largest[columns].max() / median:,.0f} "
            "times the median column's, which hides the others from a model; scale features, by data.normalize or "
            "before"
        )
    attributes = of_edges.by_holder(data).edge_attrs
    if attributes is None or attributes.features is None or not attributes.total:
        return
    largest = _largest(attributes.features)
    columns = np.flatnonzero(largest > MAX_OF_EDGES)
    if len(columns):
        names = attributes.columns or tuple(map(str, range(attributes.width)))
        feature = "edge feature {} has" if len(columns) == 1 else "edge features {} have"
        yield (
            f"the {feature.format(_first_of(names, columns))} numbers up to {largest[columns].max():,.0f}, which "
            "hides all else from a model that adds them to messages; scale features of edges, by data.edge_normalize "
            "or before"
        )


def _largest(x: Matrix) -> np.ndarray:
    """float [d]: the largest absolute number of each column of x [m, d]."""
    largest = abs(x).max(axis=0)
    return np.asarray(largest.toarray()[0] if sp.issparse(largest) else largest)


def _target_leaks(data: Dataset, x: Matrix, names: Callable[[np.ndarray], str], what: str) -> Iterator[str]:
    """A sentence on the columns of the examples' features x [e, d] that give away the target."""
    if data.target == CLASS:
        same = group_columns(x, data.y)
        ranges = np.setdiff1d(separating_columns(x, data.y, MIN_OF_CLASS), same)
        for columns, how in (
            (same, "one value for each class"),
            (ranges, "numbers in a separate range for each class"),
        ):
            if len(columns):
                verb = f"{what} {names(columns)} has" if len(columns) == 1 else f"{what}s {names(columns)} have"
                yield (
                    f"the {verb} {how}, so that a model reads the label off; leave out what is not known before the "
                    "label is"
                )
        return
    is_known = where_known(data.y)
    for target, y, rows in zip(data.targets or map(str, range(data.outputs)), data.y.T, is_known.T, strict=True):
        columns = _linear_columns(x[rows], y[rows].astype(np.float64))
        if len(columns):
            verb = f"{what} {names(columns)} has" if len(columns) == 1 else f"{what}s {names(columns)} have"
            kind = "label" if data.target == LABELS else "number"
            yield (
                f"the {verb} the same differences as the {kind} {target}, so that a model reads it off; leave out what "
                "is not known before"
            )


def _linear_columns(x: Matrix, y: np.ndarray) -> np.ndarray:
    """int64, the columns of x [n, d] that are a straight line over y float64 [n], up to rounding."""
    if len(y) < MIN_ROWS or x.shape[0] * x.shape[1] > _MAX_CELLS or np.ptp(y) == 0:
        return np.zeros(0, np.int64)
    wide = dense(x).astype(np.float64)
    wide -= wide.mean(0)
    target = y - y.mean()
    size = np.sqrt((wide**2).sum(0) * (target**2).sum())
    return np.flatnonzero((np.abs(target @ wide) > (1 - _LINE) * size) & (size > 0))


def column_names(data: Dataset, columns: np.ndarray) -> str:
    """The names of features int64 [m], with the party's in front, or their numbers from 0; only the first of many."""
    party_columns = dict[int, str]()
    for party in data.parties or ():
        for at, name in zip(party.columns.tolist(), party.names, strict=False):
            party_columns[at] = f"{party.name}/{name}"
    names = data.columns or tuple(party_columns.get(at, str(at)) for at in range(data.features))
    return _first_of(names, columns)


def _first_of(names: Sequence[str], columns: np.ndarray) -> str:
    """The names at int64 places `columns`; only the first of many."""
    texts = [names[at] for at in columns.tolist()]
    return ", ".join(texts[:5]) + (f" and {len(texts) - 5} more" if len(texts) > 5 else "")


_MAX_PAIRS = 3  # pairs of names


def name_notes(data: Dataset) -> Iterator[str]:
    """A sentence for each kind of names that look the same, and for columns that number the rows."""
    kinds = {"classes": data.labels, "groups": data.groups, "owners": data.owners}
    kinds |= {"kinds of nodes": data.node_kinds, "kinds of edges": data.edge_kinds}
    kinds |= {"relations": () if data.links is None else data.links.relations}
    yield from similar_name_notes(kinds)
    columns = row_numbers(data.x)
    if len(columns):
        feature, them = ("feature {} numbers", "it") if len(columns) == 1 else ("features {} number", "them")
        yield (
            f"the {feature.format(column_names(data, columns))} the rows, so a model learns the place of an example in "
            f"the table; leave {them} out (ignore in [data]) unless the order means something"
        )


def similar_name_notes(kinds: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A sentence for each kind of names, {what they are: the names}, that has names that look the same."""
    for what, names in kinds.items():
        pairs = list(similar_names(names))
        text = ", ".join(f"{one!r} and {two!r} differ in {difference(one, two)}" for one, two in pairs[:_MAX_PAIRS])
        more = f", and {len(pairs) - _MAX_PAIRS:,} more pairs" if pairs[_MAX_PAIRS:] else ""
        if pairs:
            question = "are they meant to be different? If not, write them the same way in all tables"
            yield f"of the {what}, {text}{more}; {question}"


UNITS = 1000.0  # from which factor on times of two clients are not in one unit; a day has 86,400 seconds


def time_notes(
    data: Dataset, split_times: tuple[float, float] | None, clients: Mapping[str, np.ndarray]
) -> Iterator[str]:
    """A sentence for each way in which a split by time lacks one unit of time, or edges that are early enough.

    split_times: the ends of training and of validation; None where the split is not by time. clients: the nodes of
    each, int64, by its name.
    """
    if split_times is None or data.edge_attrs is None or data.edge_attrs.time is None or not data.edge_attrs.total:
        return
    edges, nodes = data.edge_attrs.time, data.node_time
    names = list(clients)
    if nodes is not None and (nodes.min() > edges.max() or nodes.max() < edges.min()):
        yield (
            f"the nodes' times, {_span(nodes)}, and the edges' times, {_span(edges)}, do not overlap; are both in one "
            "unit? Dates are days since 1970"
        )
    # The place of each node's, and each edge's, client among the names; after them without a client, or between two.
    of_node = np.full(data.nodes, len(names))  # [n]
    for at, rows in enumerate(clients.values()):
        of_node[rows] = at
    source, target = of_node[data.edge_attrs.ends]
    of_edge = np.where(source == target, source, len(names))  # [M]
    for what, times, client in (("nodes", nodes, of_node), ("edges", edges, of_edge)):
        last = np.zeros(len(names) + 1)
        np.maximum.at(last, client, 0.0 if times is None else np.abs(times))
        last[last == 0] = np.nan
        if np.nanmax(last[:-1], initial=0) > UNITS * np.nanmin(last[:-1], initial=np.inf):
            low, high = int(np.nanargmin(last[:-1])), int(np.nanargmax(last[:-1]))
            span = f"{last[low]:.10g} at {names[low]} and {last[high]:.10g} at {names[high]}"
            yield f"the {what}' times go up to {span}; are all in one unit? Dates are days since 1970"
    total = np.bincount(of_edge, minlength=len(names) + 1)[:-1]
    early = np.bincount(of_edge[edges <= split_times[0]], minlength=len(names) + 1)[:-1]
    late = np.flatnonzero((total > 0) & (early == 0))
    if edges.min() > split_times[0]:
        yield (
            f"no edge is early enough for training: the first is at {edges.min():.10g}, and training ends at "
            f"{split_times[0]:.10g}"
        )
    elif len(late):
        verb = "has" if len(late) == 1 else "have"
        yield (
            f"{_first_of(names, late)} {verb} edges, and none that is early enough for training, which ends at "
            f"{split_times[0]:.10g}"
        )


def _span(times: np.ndarray) -> str:
    return f"{times.min():.10g} to {times.max():.10g}"


def single_class_notes(data: Dataset) -> Iterator[str]:
    """A sentence if all labeled examples are of one class; not for links, where pairs that are not links are drawn."""
    if data.target != CLASS:
        return
    classes = np.unique(data.y[data.y >= 0])
    if len(classes) == 1 and data.links is None:
        label = data.labels[classes[0]] if data.labels else classes[0]
        yield (
            f"all labeled {data.example}s are of one class, {label}: a model that always predicts it is right, and "
            "scores mean nothing"
        )


def validation_notes(data: Dataset, members: Mapping[str, np.ndarray], positive: int | None = None) -> dict[str, str]:
    """{"few-validation": a sentence} where members have some validation examples, and of the positive class fewer than
    `MIN_VALIDATION`, else fewer than that at all.

    members: the validation examples of each, int64, by its name. positive: the number of the positive one of two
    classes; None where all examples count.
    """
    is_counted, what = np.ones(data.examples, bool), "validation links"
    if data.links is None:
        what = f"validation {data.example}s"
    if positive is not None:
        is_counted, what = data.y == positive, f"{what} of class {data.labels[positive] if data.labels else positive}"
    few = list[tuple[int, str]]()
    for name, rows in members.items():
        count = int(is_counted[rows].sum())
        if len(rows) and count < MIN_VALIDATION:
            few.append((count, name))
    if not few:
        return {}
    text = ", ".join(f"{count} at {name}" for count, name in sorted(few)[:_MAX_MEMBERS])
    more = f" and few at {len(few) - _MAX_MEMBERS:,} more members" if few[_MAX_MEMBERS:] else ""
    return {
        "few-validation": f"{what}: {text}{more}. With fewer than {MIN_VALIDATION}, a member's validation score is "
        "mostly chance. So are a threshold of its own and its part in choosing the round; give validation a larger "
        "share, or compare over several seeds"
    }

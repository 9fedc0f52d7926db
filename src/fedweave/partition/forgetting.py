"""What a run leaves out of a partition, as if it had never been there: whole clients, or single examples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from fedweave.core.settings import Settings
from fedweave.core.target import missing_like
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.name_matching import positions, similar_name_hint
from fedweave.errors import ConfigError, listed
from fedweave.partition.base import Part, Partition, client_ids
from fedweave.partition.client_data import shares
from fedweave.partition.overlap import overlaps

OVERLAPS = ("nodes", "links")  # the facts of pairs that follow from what clients hold (`partition.overlap`)


class Remaining(NamedTuple):
    """Data and partition without what is forgotten. nodes: bool [n], and examples: bool [e], the remaining ones."""

    data: Dataset
    partition: Partition
    nodes: np.ndarray
    examples: np.ndarray


@dataclass(frozen=True)
class Forget(Settings):
    """The section [forget]: what takes no part in the run. The rest is divided as it would be with it, and keeps its
    numbers, its roles and its randomness.

    clients: names of clients that leave.
    ids:     examples that leave (nodes, edges or small graphs), as the tables call them; without ids their numbers.
             Edges of a node leave with it.
    """

    clients: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    def apply(self, data: Dataset, partition: Partition) -> Remaining:
        """The data and the partition without the clients and the examples.

        Raises:
            ConfigError: there is no such client or example, nothing would be left of a client, or the partition is
                vertical.
        """
        names = client_ids(len(partition.parts), partition.names)
        evaluation = partition.evaluation_part
        self._check(data, partition, names)
        forgotten = np.zeros(data.examples, bool)  # the examples of `ids`
        forgotten[places(data, self.ids)] = True
        staying = [at for at, name in enumerate(names) if name not in self.clients]
        staying_parts = [partition.parts[at] for at in staying]
        removed_parts = [part for name, part in zip(names, partition.parts, strict=True) if name in self.clients]
        # 1. What leaves the data: the examples of `ids`, and what no other part than a leaving client's holds.
        other_parts = [*staying_parts, *partition.held.values(), *([] if evaluation is None else [evaluation])]
        test = np.zeros(0, np.int64) if partition.test is None else partition.test
        removed_examples = [part.examples for part in removed_parts]
        other_examples = [*(part.examples for part in other_parts), test]
        lost_examples = forgotten | _only_in_first(data.examples, removed_examples, other_examples)
        removed_nodes = [part.nodes for part in removed_parts]
        other_nodes = [*(part.nodes for part in other_parts), data.nodes_of(test)]
        lost_nodes = _only_in_first(data.nodes, removed_nodes, other_nodes)
        if data.example != "edge":
            lost_nodes |= forgotten if data.graph_of is None else forgotten[data.graph_of]
        # 2. The parts that stay, without the examples of `ids`.
        parts = tuple(_without(data, part, forgotten) for part in staying_parts)
        for at, part in zip(staying, parts, strict=True):
            if not len(part.examples):
                message = f"forget.ids: nothing is left of {names[at]}. Forget the client itself: forget.clients."
                raise ConfigError(message, code="forget.empty")
        # 3. The data and the partition of the rest.
        rest = _data_without(data, lost_nodes, lost_examples)
        pairs = {name: matrix[np.ix_(staying, staying)] for name, matrix in partition.pairs.items()}
        if self.ids and pairs.keys() == {*OVERLAPS}:
            pairs = dict(zip(OVERLAPS, overlaps(rest, [part.nodes for part in parts]), strict=True))
        rest_partition = replace(
            partition,
            parts=parts,
            names=tuple(names[at] for at in staying),
            test=None if partition.test is None else test[~forgotten[test]],
            evaluation_part=None if evaluation is None else _without(data, evaluation, forgotten),
            held={role: _without(data, part, forgotten) for role, part in partition.held.items()},
            pairs=pairs,
        )
        return Remaining(rest, rest_partition, ~lost_nodes, ~lost_examples)

    def _check(self, data: Dataset, partition: Partition, names: Sequence[str]) -> None:
        if any(part.columns is not None for part in partition.parts):
            raise ConfigError(
                "forget: parties of a vertical run hold the same examples, so that none can leave alone. Remove the "
                "rows from every party's tables, or the party's folder, and run again.",
                code="forget.vertical",
            )
        unknown = [name for name in self.clients if name not in names]
        if unknown:
            message = f"forget.clients: there is no client {unknown[0]!r}. Choose among {listed(names)}."
            raise ConfigError(message, code="forget.no-client")
        if len(set(self.clients)) >= len(names):
            raise ConfigError("forget.clients: no client is left. Leave one or more.", code="forget.empty")
        if self.ids and data.links is not None:
            raise ConfigError(
                "forget.ids: the run predicts links, which have no ids. Remove the rows from the tables and run "
                "again, or forget a client.",
                code="forget.links",
            )


def names_of(data: Dataset) -> list[str]:
    """What the examples of `data` are called: their ids, or their numbers where they have none."""
    return list(data.ids) if data.ids else [str(number) for number in range(data.examples)]


def places(data: Dataset, ids: Sequence[str]) -> np.ndarray:
    """int64 [k]: the examples with these ids.

    Raises:
        ConfigError: there is no such example.
    """
    names = names_of(data)
    at = positions(ids, names)
    unknown = [name for name, place in zip(ids, at.tolist(), strict=True) if place < 0]
    if unknown:
        hint = similar_name_hint(unknown[0], names)
        raise ConfigError(
            f"forget.ids: no {data.example} of {data.name!r} is called {unknown[0]!r}{hint}; {len(unknown) - 1:,} more "
            f"are unknown. Take {'ids' if data.ids else 'numbers'} such as {', '.join(names[:3])}.",
            code="forget.no-id",
        )
    return np.unique(at)


def names_among(names: Sequence[str], ids: Sequence[str]) -> tuple[np.ndarray, int]:
    """bool [e], which of the examples' names are among the `ids`, and how many of the ids are not a name."""
    at = positions(ids, names)
    mask = np.zeros(len(names), bool)
    mask[at[at >= 0]] = True
    return mask, int((at < 0).sum())


def read_ids(path: Path, what: str) -> tuple[str, ...]:
    """The ids in a text file, one in each line. what: the setting or option that names the file."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        why = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"cannot be read ({error.strerror})"
        raise ConfigError(
            f"{what} = {path}: it {why}. Give a text file with an id per line.", code="forget.ids"
        ) from error
    names = tuple(dict.fromkeys(filter(None, lines)))
    if not names:
        raise ConfigError(f"{what} = {path}: it has no id. Give an id per line.", code="forget.ids")
    return names


def without_ids(data: Dataset, ids: Sequence[str]) -> Dataset:
    """The data of one holder, features not scaled, without the rows of the examples with these ids.

    Raises:
        ConfigError: there is no such example, or none would be left.
    """
    times = None if data.edge_attrs is None else data.edge_attrs.split_times
    whole = replace(Part.of(data, np.arange(data.examples), np.asarray(data.public)), split_times=times)
    rest = Forget(ids=tuple(ids)).apply(data, Partition((whole,)))
    [share] = shares(rest.data, rest.partition.parts)
    return share


def _only_in_first(count: int, first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> np.ndarray:
    """bool [count]: which numbers are among the `first` and not among the `second`."""
    result = np.zeros(count, bool)
    for numbers in first:
        result[numbers] = True
    for numbers in second:
        result[numbers] = False
    return result


def _without(data: Dataset, part: Part, forgotten: np.ndarray) -> Part:
    """A part without the examples `forgotten` bool [e]."""
    stays = ~forgotten[part.examples]
    if stays.all():
        return part
    masks = part.masks[:, stays]
    rows = part.examples[stays]
    if data.example == "edge":
        ends = data.edge_attrs.ends[:, rows]  # type: ignore[union-attr]
        return replace(part, masks=masks, edge_rows=rows, edges=to_undirected(ends, data.nodes))
    if part.graphs is not None:
        nodes = data.nodes_of(rows)
        edges = part.edges if part.edges is None else part.edges[:, np.isin(part.edges[0], nodes)]
        return replace(part, nodes=nodes, masks=masks, graphs=rows, edges=edges)
    edges = part.edges if part.edges is None else part.edges[:, ~forgotten[part.edges].any(0)]
    return replace(part, nodes=rows, masks=masks, edges=edges)


def _data_without(data: Dataset, nodes: np.ndarray, examples: np.ndarray) -> Dataset:
    """The data with zeros and no edges at lost nodes bool [n], and without labels at lost examples bool [e]."""
    if isinstance(data.x, sp.csr_matrix):
        x = sp.csr_matrix(sp.diags((~nodes).astype(np.float32), dtype=np.float32) @ data.x)
        x.eliminate_zeros()
    else:
        x = np.where(nodes[:, None], np.float32(0), data.x)
    inside = ~nodes[data.edges].any(0)
    edge_attrs = data.edge_attrs
    outside = data.outside
    if edge_attrs is not None and data.example != "edge":
        edge_attrs = edge_attrs.select(~nodes[edge_attrs.ends].any(0))
    if outside is not None:
        near = np.minimum(*outside.edge_attrs.ends)  # the end that the data has
        outside = outside._replace(edge_attrs=outside.edge_attrs.select(~nodes[near]))
    return replace(
        data,
        x=x,
        y=np.where(examples if data.y.ndim == 1 else examples[:, None], missing_like(data.y), data.y),
        sensitive=None if data.sensitive is None else np.where(examples, -1, data.sensitive),
        edges=data.edges[:, inside],
        edge_labels=None if data.edge_labels is None else data.edge_labels[inside],
        edge_attrs=edge_attrs,
        outside=outside,
    )

"""Links between members: what each member knows, before any step runs, of pairs with one end at another member (`[data]
external = "predict"`).

A member knows the links that its own records name. Where a partition cuts a link, both files have it; a link of
`Dataset.outside` is in one file only. Such a pair is an example of each member that knows it. The hash of its names
decides its split, as for any link. No crossing pair carries a message.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fedweave.core.graph import (
    FOREIGN_LINKS,
    FOREIGN_NODES,
    FOREIGN_PAIRS,
    FOREIGN_TRAINED,
    NODE_NAMES,
    RECORDS,
    ROOM,
    TRAIN,
)
from fedweave.core.link_examples import relation_of
from fedweave.core.link_hashes import draws, hashes_of, pair_hashes, split_of
from fedweave.core.links import Links
from fedweave.core.operators import NODES, Precomputed
from fedweave.datasets.base import Dataset, split_numbers
from fedweave.errors import ConfigError
from fedweave.partition.base import Partition
from fedweave.partition.client_data import link_masks
from fedweave.partition.external import ends_in_data, holders_of

TRIES = 32  # to find a pair that is not a link
REFUSED = "config.external"  # the code of errors where links between members cannot be predicted
LINK, NO_LINK = 1, 0


class KnownPairs(NamedTuple):
    """Links with one end at another member, as one member knows them; int64 [c] each.

    near, far: the numbers of the member's own node and of the other one. relation: its kind. leads: whether the link
    leads from `near`. split: TRAIN, VAL or TEST, -1 for none.
    """

    near: np.ndarray
    far: np.ndarray
    relation: np.ndarray
    leads: np.ndarray
    split: np.ndarray


@dataclass(frozen=True)
class CrossingLinks:
    """Finds the links between members that each of them knows, and pairs that are not links for evaluation."""

    def everywhere(self, data: Dataset, partition: Partition) -> list[Precomputed]:
        """Each client's lists (`core.graph.FOREIGN_PAIRS` and so on), which `precompute.everywhere` pads."""
        links = data.links
        if links is None or data.edge_attrs is None or links.items is not None:
            raise ConfigError(
                "data.external = 'predict': needs links between nodes of one kind. Set data.task = "
                "'links', and leave users and items out.",
                code=REFUSED,
            )
        holder, parts = holders_of(data, partition), partition.parts
        hashes = name_hashes(data, links)
        pairs = _pairs(data, links, parts[0].split_times)  # all parts have the same times
        # Holders from len(parts) on are sets of nodes at the server; -1 is nobody.
        near, far = holder[pairs.near], holder[pairs.far]
        between = (near != far) & (near >= 0) & (far >= 0) & (near < len(parts)) & (far < len(parts))
        members, room = list[_Member](), 1
        for at, part in enumerate(parts):
            known = KnownPairs(*(column[between & (near == at)] for column in pairs))
            members.append(_Member(links, hashes, part.nodes, known))
            room = max(room, np.bincount(holder[members[-1].far_nodes], minlength=1).max())
        # room: the most nodes that a member asks one other member for
        return [member.arrays(np.zeros(int(room), np.int64)) for member in members]

    def alone(self, data: Dataset, folder: Path) -> Precomputed:
        """Raise ConfigError: between organizations no process matches the ends of links yet."""
        raise ConfigError(
            "data.external = 'predict': links between members are predicted in simulations.", code=REFUSED
        )

    def tables(self, known: Mapping[str, Precomputed]) -> Mapping[str, pa.Table]:
        """No tables."""
        return {}


def name_hashes(data: Dataset, links: Links) -> np.ndarray:
    """int64 [n]: keyed hashes of all nodes' names, by which members ask each other for nodes."""
    return hashes_of(data.node_ids, str(links.seed).encode())


def _pairs(data: Dataset, links: Links, split_times: tuple[float, float] | None) -> KnownPairs:
    """All links, once from each end that knows it: both ends of the data's own links, and the owner's end of links in
    one file (`outside`)."""
    attributes, masks = data.edge_attrs, link_masks(data, split_times)
    if attributes is None:
        raise ValueError(f"the examples of {data.name} are not links")
    split = split_numbers(masks)
    source, target = attributes.ends
    relation, leads = relation_of(attributes), np.ones(attributes.total, np.int64)
    pieces = [
        KnownPairs(source, target, relation, leads, split),
        KnownPairs(target, source, relation, 1 - leads, split),
    ]
    if data.outside is not None and data.outside.edge_attrs.total:
        pieces.append(_outside(data, links, split_times))
    return KnownPairs(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))


def _outside(data: Dataset, links: Links, split_times: tuple[float, float] | None) -> KnownPairs:
    """The links that are in one member's file only, to nodes that some member holds."""
    outside = data.outside
    if outside is None:
        raise ValueError(f"{data.name} has no edges to nodes elsewhere")
    inside = outside.edge_attrs.ends < data.nodes  # bool [2, M], true of one end of each link
    ends = ends_in_data(data)[outside.edge_attrs.ends]
    is_held = (ends >= 0).all(0)  # bool [M]
    leads = inside[0, is_held].astype(np.int64)
    source, target = ends[:, is_held]
    relation = relation_of(outside.edge_attrs)[is_held]
    if split_times is not None and outside.edge_attrs.time is not None:
        split = np.searchsorted(split_times, outside.edge_attrs.time[is_held])
    elif outside.edge_attrs.split is not None and (outside.edge_attrs.split >= 0).any():
        split = outside.edge_attrs.split[is_held]
    else:
        hashes = hashes_of(data.node_ids)  # without a key, as for other links (`datasets.links.as_links`)
        masks = split_of(pair_hashes(hashes[source], hashes[target], relation, links.seed), links.ratios)
        split = split_numbers(masks)
    near = np.where(leads == 1, source, target)
    far = np.where(leads == 1, target, source)
    return KnownPairs(near, far, relation, leads, split)


class _Member:
    """One member's links `known`, with one end among its `nodes`; hashes: keyed hashes of all nodes' names."""

    def __init__(self, links: Links, hashes: np.ndarray, nodes: np.ndarray, known: KnownPairs) -> None:
        _, first = np.unique(np.stack([known.near, known.far, known.relation, known.leads]), axis=1, return_index=True)
        self._known = KnownPairs(*(column[np.sort(first)] for column in known))
        self._links = links
        self._hashes = hashes
        self._nodes = nodes
        self.far_nodes = np.unique(self._known.far)

    def arrays(self, room: np.ndarray) -> Precomputed:
        """All arrays that the steps read."""
        known, count = self._known, len(self._known.near)
        near = np.searchsorted(self._nodes, known.near)
        slot = np.searchsorted(self.far_nodes, known.far)
        # A pair is a link in either direction.
        codes = np.unique((known.relation * len(self._nodes) + near) * len(self.far_nodes) + slot)
        rows = [np.stack([near, slot, known.relation, known.leads, known.split, np.full(count, LINK)], 1)]
        rows.append(self._no_links(rows[0], codes))
        # The holder of the far node looks for this hash among its own RECORDS before it answers.
        evidence = pair_hashes(self._hashes[known.near], self._hashes[known.far], None, self._links.seed)
        _, link_of_slot = np.unique(slot, return_index=True)
        arrays = {
            FOREIGN_PAIRS: np.concatenate(rows),
            FOREIGN_TRAINED: np.flatnonzero(known.split == TRAIN)[:, None],
            FOREIGN_LINKS: codes[:, None],
            FOREIGN_NODES: np.stack([self._hashes[self.far_nodes], evidence[link_of_slot]], 1),
            RECORDS: np.unique(np.stack([evidence, near], 1), axis=0),
            NODE_NAMES: self._hashes[self._nodes][:, None],
            ROOM: room[:, None],  # only its length is read
        }
        along = {name: name for name in arrays} | {NODE_NAMES: NODES}
        return Precomputed(arrays, along=along)

    def _no_links(self, links: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """One pair that is not a link for each link in a split. Its near end is any of the member's nodes, or with
        several relations the link's near end; its external end is from a link of the same split. So pairs have each
        external end as often as links have it, and whether the end occurs in training shows nothing."""
        # Columns: near end, external end, relation, whether it leads from the near end, split, y.
        rows = links[links[:, 4] >= 0]
        rows = rows[np.argsort(rows[:, 4], kind="stable")]
        many = np.bincount(rows[:, 4], minlength=3)
        start, size = (many.cumsum() - many)[rows[:, 4]], many[rows[:, 4]]  # of the link's split among the sorted rows
        ends = rows[:, 1].copy()
        keys = pair_hashes(
            self._hashes[self._nodes[rows[:, 0]]],
            self._hashes[self.far_nodes[rows[:, 1]]],
            rows[:, 2],
            self._links.seed + 1,
        )
        rows[:, 5] = NO_LINK
        at = np.arange(len(rows))  # the rows whose pair is still a link
        for attempt in range(TRIES):  # draws from 8 on, as in `core.link_examples`
            if not len(at):
                break
            if not self._links.relations:
                rows[at, 0] = draws(keys[at], 8 + 2 * attempt) % len(self._nodes)
            rows[at, 1] = ends[start[at] + draws(keys[at], 9 + 2 * attempt) % size[at]]
            code = (rows[at, 2] * len(self._nodes) + rows[at, 0]) * len(self.far_nodes) + rows[at, 1]
            at = at[np.isin(code, codes)]
        return np.delete(rows, at, 0)

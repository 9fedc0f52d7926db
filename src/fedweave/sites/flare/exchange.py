"""How sites exchange features of neighbors over edges between sites, before training (`partition.external`).

The server learns neither an id nor a feature. Every site sends the ids of its own nodes and of the nodes that its edges
lead to, blinded (`protocols.intersection`), and marks the points of its own nodes. The server sends the lists around,
compares them, and numbers the nodes that one site holds and others have edges to. For each of these nodes a site adds
up the features of its own neighbors of the node. It pads the sums with numbers derived from the key of the ids and the
id itself, so that only a site that knows both can read them, and sends them as its term of a secure aggregation of all
sites. The server opens the sum and sends every site the rows of the nodes that the site holds."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.core.federation import Declaration, StepInfo
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset
from fedweave.datasets.external import BARE, Outside, append_columns, ways
from fedweave.errors import CallRefused, UserError
from fedweave.partition.external import ADDING, HEARS, SUMS, TELLERS, TOTALS, means, member_words
from fedweave.sites.flare.alignment import RELAYED, Ask, blind_all, opening_tree, points_of
from fedweave.sites.flare.sitefile import SiteData
from fedweave.sites.protocols.intersection import IntersectionParty

CLAIMING: Declaration = {
    "ids": "how many nodes the site has, how many others its edges lead to, and which of the points are also on other "
    "sites' lists: blinded ids, which the server cannot read",
    "owned": "which of the blinded ids are of nodes that it holds",
    "signed": "the site's certificate and its signature on its list of blinded ids",
}
RECEIVES = RELAYED | HEARS | {"places": "at which places of its list the ids are that some site holds and others name"}
INFO = StepInfo.of(ADDING, True, hears=RECEIVES)


@dataclass
class Exchange:
    """A site's part in one exchange.

    data: the site's data, not scaled, with columns for the exchange to fill (`partition.external.member_data`).
    columns: number of the first columns whose sums the site sends. meeting: the site's side of the protocol that finds
    common ids. min_nodes: minimum number of the site's nodes in a sum that it sends. site: [data] of its `site.toml`.
    scaling: of features of nodes, once they have these columns (`partition.preparation`).
    """

    data: Dataset
    columns: int
    meeting: IntersectionParty
    min_nodes: int
    site: SiteData
    scaling: Record
    _slots: int = -1
    _nodes: dict[int, int] = field(default_factory=dict)  # {slot: the node that it is of}
    _other: dict[int, int] = field(default_factory=dict)  # {slot: place among the names elsewhere}

    def greeting(self) -> Tree:
        """The site's blinded ids (`CLAIMING`), sent once."""
        points, opening = self.meeting.open([*self.data.node_names, *self._outside.names])
        owned = torch.tensor([row < self.data.nodes for row in self.meeting.order], device="cpu")
        return {"ids": torch.from_numpy(points), "owned": owned, "signed": opening_tree(opening)}

    def match(self, message: Tree) -> None:
        """Take the numbers that the server gives to the site's nodes and to the nodes that its edges lead to."""
        places, numbers = _read_numbers(message.get("places")), _read_numbers(message.get("slots"))
        count = message.get("count")
        rows = self.meeting.rows(places) if places else []
        if type(count) is not int or len(rows) != len(numbers) or len(set(numbers)) < len(numbers):
            raise CallRefused("exchange: the server gives two nodes one number, or a node none")
        if self._slots >= 0 or any(not 0 <= number < count for number in numbers):
            raise CallRefused("exchange: the server numbers nodes twice, or beyond what it counts")
        named = dict(zip(numbers, rows, strict=True))
        self._slots, n = count, self.data.nodes
        self._nodes = {slot: row for slot, row in named.items() if row < n}
        self._other = {slot: row - n for slot, row in named.items() if row >= n}

    def add(self, message: Tree, sites: int) -> Tree:
        """The site's term of the sum: for each numbered node, the features of the site's own neighbors of the node.

        sites: number of sites in the sum.

        Raises:
            CallRefused: the nodes have no numbers yet, or the server asks for others. DataError: a number is too large
                for the sum.
        """
        if self._slots < 0 or message != {"slots": self._slots}:
            raise CallRefused("exchange: the server asks for sums of other nodes than it has numbered")
        names = self._outside.names
        slot = np.full(len(names), -1)
        slot[list(self._other.values())] = list(self._other)
        matrix = np.zeros((self._slots, TELLERS + self.width), np.int64)
        if self._other:
            x = self.data.x[:, : self.columns]
            matrix[:, TELLERS:] = member_words(x, self._outside, slot, self._slots, self.min_nodes, sites)
        padded = matrix.view(np.uint64)
        for at, place in self._other.items():
            if matrix[at].any():
                pad, weights = self._pad(names[place])
                padded[at, :TELLERS] = np.uint64(1) + padded[at] @ weights
                padded[at] += pad
        return {SUMS: torch.from_numpy(matrix)}

    def take(self, message: Tree, sites: int) -> "np.ndarray | sp.csr_matrix":
        """The features float32 [n, d], not scaled, with the columns that other sites sent for the site's nodes."""
        total = message.get(TOTALS)
        if not isinstance(total, torch.Tensor) or total.shape != (len(self._nodes), TELLERS + self.width):
            raise CallRefused("exchange: the server does not send the sums of this site's nodes")
        plain = np.zeros((self.data.nodes, self.width), np.int64)
        for slot, sums in zip(sorted(self._nodes), total.numpy(), strict=True):
            row = self._nodes[slot]
            (pad, weights), values = self._pad(self.data.node_names[row]), sums.view(np.uint64)  # [TELLERS + width]
            for senders in range(sites):  # each of them has added the pad once: try out how many there were
                opened = values - np.uint64(senders) * pad
                if (opened[:TELLERS] - opened @ weights == senders).all():
                    plain[row] = opened[TELLERS:].view(np.int64)
                    break
            else:
                raise CallRefused("exchange: the server sends a sum that no sites sent for this node")
        columns = means(plain, len(ways(self._outside.edge_attrs.directed)))
        return append_columns(self.data.x[:, : -self.width], columns)

    def _pad(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """uint64 [1 + w], twice: the pad of the row of a node, and the weights of the row's checksum."""
        pad, weights = self.meeting.pad(name, 2 * (TELLERS + self.width)).reshape(2, -1)
        return pad, weights * (np.arange(len(weights)) >= TELLERS)

    @property
    def width(self) -> int:
        """The number of columns to fill: for each direction, the number of neighbors and their means."""
        return len(ways(self._outside.edge_attrs.directed)) * (1 + self.columns)

    @property
    def _outside(self) -> Outside:
        return self.data.outside or Outside(BARE, ())


def _read_numbers(numbers: object) -> list[int]:
    if not isinstance(numbers, torch.Tensor) or numbers.dtype != torch.int64 or numbers.dim() != 1:
        raise CallRefused("exchange: the server sends no list of whole numbers")
    return [int(one) for one in numbers]


def match_nodes(replies: Replies, ask: Ask) -> tuple[int, dict[str, Tree], dict[str, torch.Tensor]]:
    """How many nodes one site holds and others have edges to; {site: the server's message with their numbers}; {site:
    the numbers of the nodes that it holds, ascending}.

    ask: sends every site a list, which the site blinds.

    Raises:
        UserError: two sites hold one node, or no site has an edge to another site's node. FedweaveError: a site sent no
            blinded ids.
    """
    # 1. Every site blinds every list, so that equal ids are equal points.
    by_site = {site: replies[site] for site in replies.clients}
    lists = {site: points_of(site, reply["ids"]) for site, reply in by_site.items()}
    silent = [site for site, entry in lists.items() if not len(entry) or len(entry) != len(by_site[site]["owned"])]
    if silent:
        raise UserError(
            f"{', '.join(silent)}: no ids came from there, and an exchange over edges needs them. Give the nodes ids, "
            "and do not deny `ids` in the policy."
        )
    points, owned = dict[str, list[bytes]](), dict[str, list[bool]]()
    for site, entry in blind_all(lists, by_site, ask).items():
        points[site] = [point.tobytes() for point in entry.numpy()]
        owned[site] = by_site[site]["owned"].bool().tolist()
    # 2. Which site holds each node, and which nodes do edges of other sites lead to?
    holders, named, twice = dict[bytes, str](), set[bytes](), Counter[frozenset[str]]()
    for site, site_points in points.items():
        for point, is_owner in zip(site_points, owned[site], strict=True):
            if not is_owner:
                named.add(point)
            elif holders.setdefault(point, site) != site:
                twice[frozenset((site, holders[point]))] += 1
    if twice:
        pairs = "; ".join(f"{' and '.join(sorted(pair))}: {count:,}" for pair, count in twice.items())
        raise UserError(
            f"two sites claim the same nodes ({pairs}), and each node must belong to one site. Ask the owners whose "
            "nodes they are. Nothing has been exchanged."
        )
    numbers = {point: number for number, point in enumerate(sorted(named & holders.keys()))}
    if not numbers:
        raise UserError(
            "no site has an edge to a node that another holds. Write the same ids in the same way everywhere, and give "
            "every site the same ids.key."
        )
    # 3. The messages with their numbers.
    sent, local_slots = dict[str, Tree](), dict[str, torch.Tensor]()
    for site, site_points in points.items():
        places = [at for at, point in enumerate(site_points) if point in numbers]
        slots = torch.tensor([numbers[site_points[at]] for at in places], dtype=torch.int64, device="cpu")
        is_local = torch.tensor([owned[site][at] for at in places], dtype=torch.bool, device="cpu")
        at = torch.tensor(places, dtype=torch.int64, device="cpu")
        sent[site] = {"places": at, "slots": slots, "count": len(numbers)}
        local_slots[site] = slots[is_local].sort().values
    return len(numbers), sent, local_slots

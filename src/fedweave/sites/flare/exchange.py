"""How sites exchange features of neighbors over edges between sites, before training (`partition.external`).

The server learns neither an id nor a feature. Every site sends the ids of its own nodes and of the nodes that its edges
lead to, blinded (`privacy.intersection`), and marks the points of its own nodes. The server sends the lists around,
compares them, and numbers the nodes that one site holds and others have edges to. For each of these nodes a site adds
up the features of its own neighbors of the node. It pads the sums with numbers derived from the key of the ids and the
id itself, so that only a site that knows both can read them, and sends them as its term of a secure aggregation of all
sites. The server opens the sum and sends every site the rows of the nodes that the site holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
from fedweave.partition.external import (
    ADDING,
    HEARS,
    SUMS,
    TELLERS,
    TOTALS,
    columns_to_send,
    means,
    member_words,
)
from fedweave.sites.flare.alignment import RELAYED, Ask, blind_all, opening_tree, points_of
from fedweave.sites.flare.policy import min_exchange_nodes
from fedweave.sites.flare.requests import Join
from fedweave.sites.flare.sitefile import Rules, SiteData, read_ids_key
from fedweave.sites.protocols.identity import read_identity
from fedweave.sites.protocols.intersection import IntersectionParty

CLAIMING: Declaration = {
    "ids": "how many nodes the site has, how many others its edges lead to, and which of the points are also on other "
    "sites' lists: blinded ids, which the server cannot read",
    "owned": "which of the blinded ids are of nodes that it holds",
    "signed": "the site's certificate and its signature on its list of blinded ids",
}


HEARD = RELAYED | HEARS | {"places": "at which places of its list the ids are that some site holds and others name"}


INFO = StepInfo.of(ADDING, True, hears=HEARD)


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
        """Take the numbers that the server gives to the site's nodes and to the nodes that its edges lead to.

        Raises:
            CallRefused: the numbers are not valid.
        """
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
        """The features float32 [n, d], not scaled, with the columns that other sites sent for the site's nodes.

        Raises:
            CallRefused: the `message` does not hold the sums that other sites sent for these nodes.
        """
        total = message.get(TOTALS)
        if not isinstance(total, torch.Tensor) or total.shape != (len(self._nodes), TELLERS + self.width):
            raise CallRefused("exchange: the server does not send the sums of this site's nodes")
        rows = [self._nodes[slot] for slot in sorted(self._nodes)]
        plain = np.zeros((self.data.nodes, self.width), np.int64)
        for row, sums in zip(rows, total.numpy(), strict=True):
            plain[row] = self._open_sum(row, sums, sites)
        columns = means(plain, len(ways(self._outside.edge_attrs.directed)))
        return append_columns(self.data.x[:, : -self.width], columns)

    def _open_sum(self, row: int, total: np.ndarray, sites: int) -> np.ndarray:
        """int64 [width]: the sum that others sent for a node, without their pads."""
        (pad, weights), values = self._pad(self.data.node_names[row]), total.view(np.uint64)
        for tellers in range(sites):
            opened = values - np.uint64(tellers) * pad
            if (opened[:TELLERS] - opened @ weights == tellers).all():
                return opened[TELLERS:].view(np.int64)
        raise CallRefused("exchange: the server sends a sum that no sites sent for this node")

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


def make_exchange(
    folder: Path, request: Join, name: str, rules: Rules, whole: Dataset, site: SiteData, scaling: Record
) -> Exchange:
    """The part of the site `name` in a job's exchange over edges between sites.

    whole: the site's data, features not scaled. site, scaling: see `Exchange`.

    Raises:
        ConfigError: there is no key for the ids, or no certificate. PolicyViolation: the policy does not allow it.
    """
    identity, key = read_identity(folder, rules.members), read_ids_key(folder)
    meeting = IntersectionParty(name, identity, request.run, tuple(request.sites), key)
    return Exchange(whole, columns_to_send(whole), meeting, min_exchange_nodes(rules), site, scaling)


def match_nodes(replies: Replies, ask: Ask) -> tuple[int, dict[str, Tree], dict[str, torch.Tensor]]:
    """How many nodes one site holds and others have edges to; {site: the server's message with their numbers}; {site:
    the numbers of the nodes that it holds, ascending}.

    ask: sends every site a list, which the site blinds.

    Raises:
        UserError: two sites hold one node, or no site has an edge to another site's node. FedweaveError: a site sent no
            blinded ids.
    """
    by_site = {site: replies[site] for site in replies.clients}
    lists = {site: points_of(site, reply["ids"]) for site, reply in by_site.items()}
    silent = [site for site, entry in lists.items() if not len(entry) or len(entry) != len(by_site[site]["owned"])]
    if silent:
        raise UserError(
            f"{', '.join(silent)}: no ids came from there, and an exchange over edges needs them. Give the nodes ids, "
            "and do not deny `ids` in the policy."
        )
    points = dict[str, list[bytes]]()
    for site, entry in blind_all(lists, by_site, ask).items():
        points[site] = [point.tobytes() for point in entry.numpy()]
    owned = {site: by_site[site]["owned"].bool().tolist() for site in points}
    holders = _holders(points, owned)
    named = set[bytes]()  # by edges of sites that do not hold them
    for site, site_points in points.items():
        named |= {point for point, is_owner in zip(site_points, owned[site], strict=True) if not is_owner}
    numbers = {point: number for number, point in enumerate(sorted(named & holders.keys()))}
    if not numbers:
        raise UserError(
            "no site has an edge to a node that another holds. Write the same ids in the same way everywhere, and give "
            "every site the same ids.key."
        )
    sent, local_slots = dict[str, Tree](), dict[str, torch.Tensor]()
    for site, site_points in points.items():
        places = [at for at, point in enumerate(site_points) if point in numbers]
        slots = [numbers[site_points[at]] for at in places]
        pair = {
            "places": torch.tensor(places, dtype=torch.int64, device="cpu"),
            "slots": torch.tensor(slots, dtype=torch.int64, device="cpu"),
        }
        sent[site] = pair | {"count": len(numbers)}
        mine = sorted(slot for at, slot in zip(places, slots, strict=True) if owned[site][at])
        local_slots[site] = torch.tensor(mine, dtype=torch.int64, device="cpu")
    return len(numbers), sent, local_slots


def _holders(points: Mapping[str, list[bytes]], owned: Mapping[str, list[bool]]) -> dict[bytes, str]:
    """{point of a node: the site that claims the node}.

    Raises:
        UserError: two sites claim one node.
    """
    holders, twice = dict[bytes, str](), dict[frozenset[str], int]()
    for site, site_points in points.items():
        for point, is_owner in zip(site_points, owned[site], strict=True):
            if is_owner and holders.setdefault(point, site) != site:
                pair = frozenset((site, holders[point]))
                twice[pair] = twice.get(pair, 0) + 1
    if twice:
        pairs = "; ".join(f"{' and '.join(sorted(pair))}: {count:,}" for pair, count in twice.items())
        raise UserError(
            f"two sites claim the same nodes ({pairs}), and each node must belong to one site. Ask the owners whose "
            "nodes they are. Nothing has been exchanged."
        )
    return holders

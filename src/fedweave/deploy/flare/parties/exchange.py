"""How sites tell each other of the nodes at their ends of edges, before training (`partition.external`): the server
learns neither an id nor a number.

Every site sends its own ids and those that its edges lead to, blinded (`privacy.intersection`), and says which of the
points are of nodes that it holds. The server hands the lists around, compares them, and numbers the nodes that one site
holds and others have edges to. Of each of these a site adds up its own nodes' features, pads them with what the key of
the ids and the id itself make, so that they can be read by who knows both, and sends them as its term of a secure sum
of all sites. The server opens the sum and sends every site the rows of the nodes that it holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from fedweave.core.federation import Declaration, StepInfo
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree
from fedweave.datasets.base import Dataset
from fedweave.datasets.edges import BARE, Outside, beside, ends_at, ways
from fedweave.datasets.features import normalise
from fedweave.deploy.flare.parties.alignment import TOLD, Ask, blinded, opening_tree, points_of
from fedweave.deploy.flare.policy.policy import least_told
from fedweave.deploy.flare.site.sitefile import IDS_KEY, Rules, read_secret
from fedweave.deploy.flare.wire.requests import Join
from fedweave.errors import CallRefused, UserError
from fedweave.partition.external import (
    ADDING,
    HEARS,
    SUMS,
    TELLERS,
    TOTALS,
    columns_told,
    means,
    own_holder,
    terms,
    words,
)
from fedweave.privacy.aggregation import read_identity
from fedweave.privacy.intersection import Party

CLAIMING: Declaration = {
    "ids": "how many nodes the site has, how many others its edges lead to, and which of the points stand on other "
    "sites' lists, too: blinded ids, of which the server cannot tell what they are",
    "owned": "which of the blinded ids are of nodes that it holds",
    "signed": "the site's certificate and its signature on its list of blinded ids",
}
HEARD = TOLD | HEARS | {"places": "at which places of its list the ids are that some site holds and others name"}
INFO = StepInfo.of(ADDING, True, hears=HEARD)


@dataclass
class Exchange:
    """A site's part in one exchange.

    data: its own, not scaled, with columns that are to be filled (`partition.external.alone`). told: of how many of the
    first columns it tells sums. meeting: where it finds common ids. least: the fewest of its nodes of which it tells a
    sum. scaling: of the features once there are all.
    """

    data: Dataset
    told: int
    meeting: Party
    least: int
    scaling: str
    _slots: int = -1
    _own: dict[int, int] = field(default_factory=dict)  # {slot: the node that it is of}
    _other: dict[int, int] = field(default_factory=dict)  # {slot: place among the names elsewhere}

    def greeting(self) -> Tree:
        """What it says of its ids (`CLAIMING`), once."""
        points, opening = self.meeting.open([*self.data.called, *self._outside.names])
        owned = torch.tensor([row < self.data.nodes for row in self.meeting.order], device="cpu")
        return {"ids": torch.from_numpy(points), "owned": owned, "signed": opening_tree(opening)}

    def match(self, told: Tree) -> None:
        """Take the numbers that the server gave to its nodes, and to those that its edges lead to.

        Raises:
            CallRefused: they cannot be.
        """
        places, numbers, count = _listed(told.get("places")), _listed(told.get("slots")), told.get("count")
        rows = self.meeting.rows(places) if places else []
        if type(count) is not int or len(rows) != len(numbers) or len(set(numbers)) < len(numbers):
            raise CallRefused("exchange: the server gives two nodes one number, or a node none")
        if self._slots >= 0 or any(not 0 <= number < count for number in numbers):
            raise CallRefused("exchange: the server numbers nodes twice, or beyond what it counts")
        named = dict(zip(numbers, rows, strict=True))
        self._slots, n = count, self.data.nodes
        self._own = {slot: row for slot, row in named.items() if row < n}
        self._other = {slot: row - n for slot, row in named.items() if row >= n}

    def add(self, told: Tree, sites: int) -> Tree:
        """Its term of the sum: what it tells of each of the numbered nodes, of which that many `sites` tell.

        Raises:
            CallRefused: they are not numbered yet, or are others. DataError: a number is too large for the sum.
        """
        if self._slots < 0 or told != {"slots": self._slots}:
            raise CallRefused("exchange: the server asks for sums of other nodes than it has numbered")
        n, names = self.data.nodes, self._outside.names
        slot = np.full(len(names), -1)
        slot[list(self._other.values())] = list(self._other)
        made = np.zeros((self._slots, TELLERS + self.width), np.int64)
        if self._other:
            ends = ends_at(self._outside.carried, own_holder(n, self._outside))
            ends = ends._replace(far=slot[ends.far - n])
            form = self._slots, len(ways(self._outside.carried.directed))
            found = terms(self.data.x[:, : self.told], ends.only(ends.far >= 0), form, self.least)
            made[:, TELLERS:] = words(found, sites)
        padded = made.view(np.uint64)
        for at, place in self._other.items():
            if made[at].any():
                pad, weights = self._pad(names[place])
                padded[at, :TELLERS] = np.uint64(1) + padded[at] @ weights
                padded[at] += pad
        return {SUMS: torch.from_numpy(made)}

    def take(self, told: Tree, sites: int) -> Dataset:
        """The data with what others told of its nodes, scaled.

        Raises:
            CallRefused: what the server `told` is not what others told of these nodes.
        """
        total = told.get(TOTALS)
        if not isinstance(total, torch.Tensor) or total.shape != (len(self._own), TELLERS + self.width):
            raise CallRefused("exchange: what the server tells are not the sums of this site's nodes")
        rows = [self._own[slot] for slot in sorted(self._own)]
        plain = np.zeros((self.data.nodes, self.width), np.int64)
        for row, of in zip(rows, total.numpy(), strict=True):
            plain[row] = self._opened(row, of, sites)
        heard = means(plain, len(ways(self._outside.carried.directed)))
        x = beside(self.data.x[:, : -self.width], heard)
        return replace(self.data, x=normalise(x, self.scaling, self.data.name))

    def _opened(self, row: int, total: np.ndarray, sites: int) -> np.ndarray:
        """int64 [width]: what others told of a node, without their pads."""
        (pad, weights), given = self._pad(self.data.called[row]), total.view(np.uint64)
        for tellers in range(sites):
            opened = given - np.uint64(tellers) * pad
            if (opened[:TELLERS] - opened @ weights == tellers).all():
                return opened[TELLERS:].view(np.int64)
        raise CallRefused("exchange: what the server tells of a node was not told of it")

    def _pad(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """uint64 [1 + w], twice: the pad of a row that tells of a node, and by what its values are checked."""
        pad, weights = self.meeting.pad(name, 2 * (TELLERS + self.width)).reshape(2, -1)
        return pad, weights * (np.arange(len(weights)) >= TELLERS)

    @property
    def width(self) -> int:
        """How many columns are to be filled: for each direction, the number of neighbours and their means."""
        return len(ways(self._outside.carried.directed)) * (1 + self.told)

    @property
    def _outside(self) -> Outside:
        return self.data.outside or Outside(BARE, ())


def _listed(given: object) -> list[int]:
    if not isinstance(given, torch.Tensor) or given.dtype != torch.int64 or given.dim() != 1:
        raise CallRefused("exchange: what the server numbers are no places of a list")
    return [int(one) for one in given]


def entered(folder: Path, asked: Join, name: str, rules: Rules, whole: Dataset, scaling: str) -> Exchange:
    """The part of the site `name` in what a job exchanges over edges of its data, features not scaled.

    Raises:
        ConfigError: there is no key for the ids, or no certificate. PolicyViolation: the policy does not allow it.
    """
    identity, key = read_identity(folder, rules.members), read_secret(folder / IDS_KEY)
    meeting = Party(name, identity, asked.run, tuple(asked.sites), key)
    return Exchange(whole, columns_told(whole), meeting, least_told(rules), scaling)


def matched(replies: Replies, ask: Ask) -> tuple[int, dict[str, Tree], dict[str, torch.Tensor]]:
    """How many nodes one site holds and others have edges to; {site: what it is told of their numbers}; {site: the
    numbers of those that it holds, rising}.

    ask: has every site blind the list that it is sent.

    Raises:
        UserError: two sites hold one node, or no site has an edge to another's. FedweaveError: what came are no blinded
            ids.
    """
    told = {site: replies[site] for site in replies.clients}
    lists = {site: points_of(site, reply["ids"]) for site, reply in told.items()}
    if silent := [site for site, own in lists.items() if not len(own) or len(own) != len(told[site]["owned"])]:
        raise UserError(
            f"{', '.join(silent)}: no ids came from there, without which nothing can be exchanged over edges: a policy "
            "must not deny `ids`, and data needs them."
        )
    points = {site: [point.tobytes() for point in own.numpy()] for site, own in blinded(lists, told, ask).items()}
    owned = {site: told[site]["owned"].bool().tolist() for site in points}
    holders = _holders(points, owned)
    named = {point for site in points for point, own in zip(points[site], owned[site], strict=True) if not own}
    numbers = {point: number for number, point in enumerate(sorted(named & holders.keys()))}
    if not numbers:
        raise UserError(
            "no site has an edge to a node that another holds. The same ids must be written alike everywhere, and "
            "every site needs the same ids.key."
        )
    sent, held = dict[str, Tree](), dict[str, torch.Tensor]()
    for site, own in points.items():
        places = [at for at, point in enumerate(own) if point in numbers]
        slots = [numbers[own[at]] for at in places]
        pair = {
            "places": torch.tensor(places, dtype=torch.int64, device="cpu"),
            "slots": torch.tensor(slots, dtype=torch.int64, device="cpu"),
        }
        sent[site] = pair | {"count": len(numbers)}
        mine = sorted(slot for at, slot in zip(places, slots, strict=True) if owned[site][at])
        held[site] = torch.tensor(mine, dtype=torch.int64, device="cpu")
    return len(numbers), sent, held


def _holders(points: Mapping[str, list[bytes]], owned: Mapping[str, list[bool]]) -> dict[bytes, str]:
    """{point of a node: the site that says that it holds it}.

    Raises:
        UserError: two sites say so.
    """
    found, twice = dict[bytes, str](), dict[frozenset[str], int]()
    for site, own in points.items():
        for point, is_own in zip(own, owned[site], strict=True):
            if is_own and found.setdefault(point, site) != site:
                pair = frozenset((site, found[point]))
                twice[pair] = twice.get(pair, 0) + 1
    if twice:
        pairs = "; ".join(f"{' and '.join(sorted(pair))}: {count:,}" for pair, count in twice.items())
        raise UserError(
            f"two sites say that they hold the same nodes ({pairs}), and what others know of a node is for one alone. "
            "Have their owners find out whose they are; nothing has been exchanged."
        )
    return found

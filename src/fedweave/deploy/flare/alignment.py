"""The data of a party in a vertical federation, and how the parties find the nodes that all of them have without
revealing an id to the server: the protocol of `privacy.intersection` on trees and requests.

The sites send their ids blinded. The server sends every list around, turn by turn, so that each of the other sites
blinds it once. Then it compares the lists, and sends each site the places of the common ids on the site's own list.
Every site sorts these ids as text, so that all sites number their nodes in the same way as the dataset "parties".
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedweave.core.federation import Declaration, Sends, StepInfo
from fedweave.core.graph import TRAIN
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree
from fedweave.core.types import Record
from fedweave.datasets import npz
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import refuse
from fedweave.datasets.external import BARE, Outside, append_columns, ways
from fedweave.datasets.features import OVER_NODES, compact, normalize, of_party
from fedweave.datasets.folder import Folder
from fedweave.datasets.leakage import check_sensitive
from fedweave.datasets.parties import read_party, restricted
from fedweave.deploy.flare.accounts import Accounts, LeftOut
from fedweave.deploy.flare.data_marks import data_digest, key_mark, mark, site_key
from fedweave.deploy.flare.holdings import (
    HASH,
    WIDTH,
    Holdings,
    LabelVersion,
    check_meant,
    check_split,
    marks,
    numbered,
    recognized,
    require,
    source_of,
)
from fedweave.deploy.flare.policy import least_told
from fedweave.deploy.flare.requests import Join
from fedweave.deploy.flare.sitefile import Rules, SiteData, read_ids_key
from fedweave.deploy.flare.sums import data, tensor
from fedweave.errors import CallRefused, FedweaveError, UserError
from fedweave.experiment.graphs import graph_of
from fedweave.partition.external import (
    ADDING,
    HEARS,
    SUMS,
    TELLERS,
    TOTALS,
    columns_told,
    means,
    member_words,
)
from fedweave.partition.splits import split_by_hash
from fedweave.privacy.identity import read_identity
from fedweave.privacy.intersection import WIDTH as POINT
from fedweave.privacy.intersection import IntersectionParty, Opening, common, digest

MEETING: Declaration = {
    "features": Sends("how many features the party has", within=WIDTH),
    "classes": Sends("how many classes the data has", within=WIDTH),
    "ids": "how many nodes the party has and how many it shares with others: blinded ids, which the server cannot read",
    "signed": "the site's certificate and its signature on its list of blinded ids",
}
RELAYED = {
    "width": "how many features the party has that has most",
    "common": "at which places of its list the ids are that all parties have",
    "openings": "how many ids each party has, signed",
    "ids": "another party's ids, blinded by others",
    "signature": "a signature on them",
    "motifs": "how long the longest list of motifs is that any site has, in blocks of 32",
}
BLINDING = StepInfo.of(
    {"ids": "another party's ids, blinded by this one too", "signature": "the site's signature on them"},
    ragged=True,
    hears=RELAYED,
)
Ask: TypeAlias = Callable[[int, Mapping[str, Tree]], Replies]  # turn, {site: message}


def opening_tree(opening: Opening) -> Tree:
    """The certificate, nonce and signature of an opening. The list of ids, sent with them, determines the rest."""
    values = {"certificate": opening.certificate, "nonce": opening.nonce, "signature": opening.signature}
    return {key: tensor(value) for key, value in values.items()}


def no_opening() -> Tree:
    """The empty opening of a site without ids."""
    return dict.fromkeys(("certificate", "nonce", "signature"), torch.empty(0, dtype=torch.uint8, device="cpu"))


def read_openings(message: object) -> dict[str, Opening]:
    """The openings of all sites in a `message` of the server.

    Raises:
        CallRefused: the message is not of this form.
    """
    try:
        if not isinstance(message, dict):
            raise TypeError("it is no table")
        return {
            site: Opening(
                data(entry["certificate"]),
                data(entry["nonce"]),
                int(entry["size"]),
                data(entry["digest"]),
                data(entry["signature"]),
            )
            for site, entry in message.items()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise CallRefused("alignment: the openings of the sites' lists are not of fedweave's form") from error


def meet(replies: Replies, ask: Ask) -> dict[str, Tree]:
    """{site: the server's message to it}: the "width" of the widest features and, where tables have ids, the places of
    the "common" ids on the site's list.

    ask: sends every site a list, which the site blinds.

    Raises:
        UserError: a party withholds a required field, only some parties have ids, or no id is common. FedweaveError: a
            site sent no blinded ids.
    """
    by_site = {site: replies[site] for site in replies.clients}
    if silent := [site for site, reply in by_site.items() if reply["features"] < 1]:
        raise UserError(f"{', '.join(silent)}: the policy keeps back `features`, without which no model can be built.")
    width = widest(replies)
    lists = {site: points_of(site, reply["ids"]) for site, reply in by_site.items()}
    if not any(map(len, lists.values())):  # an .npz file has no ids; its nodes are in the common order
        return {site: {"width": width} for site in by_site}
    if silent := [site for site, points in lists.items() if not len(points)]:
        raise UserError(
            f"{', '.join(silent)}: no ids came from there, but from the other sites. Every site needs a folder of "
            "tables as its [data] path (an .npz file has no ids), and a policy that does not deny `ids`."
        )
    sizes = ", ".join(f"{site} has {len(points)}" for site, points in lists.items())
    common_places = common({site: points.numpy() for site, points in blinded(lists, by_site, ask).items()})
    if not all(map(len, common_places.values())):
        raise UserError(
            f"no id is common to all sites ({sizes}). Write the same ids in the same way everywhere, and give every "
            "site the same ids.key."
        )
    return {site: {"width": width, "common": torch.from_numpy(places)} for site, places in common_places.items()}


def widest(replies: Replies) -> int:
    """The number of features of the party that has most."""
    return max(int(replies[site]["features"]) for site in replies.clients)


def blinded(lists: dict[str, Tensor], by_site: Mapping[str, Tree], ask: Ask) -> dict[str, Tensor]:
    """The `lists`, after every site has blinded every list. by_site: {site: its reply}, whose field "signed" holds the
    site's opening of its own list.

    Raises:
        FedweaveError: a site sent no blinded ids.
    """
    sites = list(lists)
    openings = {
        site: by_site[site]["signed"] | {"size": len(points), "digest": tensor(digest(points.numpy()))}
        for site, points in lists.items()
    }
    signatures = {site: by_site[site]["signed"]["signature"] for site in sites}
    for turn in range(1, len(sites)):
        owner = {site: sites[at - turn] for at, site in enumerate(sites)}
        more = {"openings": openings} if turn == 1 else {}
        sent = {site: {"ids": lists[of], "signature": signatures[of]} | more for site, of in owner.items()}
        replies = ask(turn, sent)
        for site, of in owner.items():
            before, lists[of] = len(lists[of]), points_of(site, replies[site]["ids"])
            signatures[of] = replies[site]["signature"]
            if len(lists[of]) != before:
                raise FedweaveError(
                    f"{site}: it was to blind {before} ids, and sent {len(lists[of])}.", code="reply.blinded"
                )
    return lists


def points_of(site: str, ids: object) -> Tensor:
    """The list uint8 [n, 32] that a site sent.

    Raises:
        FedweaveError: it is of another form.
    """
    if not isinstance(ids, Tensor) or ids.dtype != torch.uint8 or ids.shape[1:] != (POINT,):
        raise FedweaveError(
            f"{site}: the site sent no blinded ids. Install the same fedweave everywhere.",
            code="reply.blinded",
        )
    return ids


@dataclass(frozen=True)
class PartyData:
    """A party's data before the parties have found their common nodes.

    data: features not yet scaled; there may be no labels; without ids, the nodes are in the common order already.
    meeting: the party's side of the protocol that finds the common nodes, if there are ids. columns: the names of the
    features, where they have names. scaling: how the features are scaled, over the common nodes.
    """

    path: Path
    data: Dataset
    meeting: IntersectionParty | None
    columns: tuple[str, ...]
    scaling: str

    def greeting(self) -> Tree:
        """The party's first message to the server (`alignment.MEETING`), sent once."""
        sizes = {"features": self.data.features, "classes": self.data.classes}
        if self.meeting is None:
            return sizes | {"ids": torch.empty(0, POINT, dtype=torch.uint8, device="cpu"), "signed": no_opening()}
        points, opening = self.meeting.open(self.data.ids)
        return sizes | {"ids": torch.from_numpy(points), "signed": opening_tree(opening)}

    def align(self, message: Tree, dtype: torch.dtype) -> Holdings:
        """The party's data on the common nodes, padded to the features of the widest party. message: the server's, from
        `alignment.meet`.

        Raises:
            FedweaveError: the message contradicts the party's data or a limit.
        """
        if message["width"] < self.data.features:
            raise FedweaveError(
                f"the server says that no party has more than {message['width']} features; this one has."
            )
        if message["width"] > WIDTH.most:
            raise FedweaveError(f"the server asks for {message['width']:,} features; {WIDTH.most:,} are allowed.")
        data, rows = self.data, np.arange(self.data.nodes)
        if self.meeting is not None:
            common = self.meeting.rows(message["common"].tolist())
            rows = np.array(sorted(common, key=lambda row: self.data.ids[row]), np.int64)
            data = restricted(data, rows)
        data = replace(data, x=normalize(compact(data.x), self.scaling, self.path.name))
        graph, version = graph_of(data, message["width"], dtype), LabelVersion.of(self.data, rows)
        # The same masks at every party, also where a party has labels for only some of the nodes.
        masks = torch.zeros_like(graph.masks)
        masks[:, : data.nodes] = torch.from_numpy(np.asarray(data.public, bool))
        graph = graph._replace(masks=masks)
        apart = self.data.nodes - len(rows)
        return Holdings(graph, None, replace(data, columns=()), version=version, apart=apart)

    def marks(self, common: Dataset) -> Record:
        """`holdings.marks` of the common nodes; also these, if features are scaled over them."""
        scaled = json.dumps([common.nodes, *common.ids]) if self.scaling in OVER_NODES else ""
        scaled_over = {"scaled over nodes": hashlib.sha256(scaled.encode()).hexdigest()}
        return marks(replace(common, columns=self.columns), self.scaling) | scaled_over

    def left_out(self, common: Dataset, folder: Path, accounts: Accounts) -> LeftOut:
        """What a run on the `common` nodes leaves out of the party's whole table. The party compares its runs by the
        table, because the other parties and the server have a say in what is common.

        Raises:
            ConfigError: see `data_marks.site_key`.
        """
        data, seen = recognized(self.data, self.path, accounts)
        place = {name: at for at, name in enumerate(self.data.ids)}
        rows = np.array([place[name] for name in common.ids], np.int64)
        if len(rows) == len(place):  # also without ids
            return LeftOut(data, data, seen=seen)
        key, trained = site_key(folder), np.asarray(self.data.public)[TRAIN]
        marks = {name: mark(key, b"aligned", name) for name in place.keys() - {*common.ids}}
        training = frozenset(one for name, one in marks.items() if trained[place[name]])
        rest, examples = data_digest(restricted(self.data, rows)), frozenset(marks.values())
        return LeftOut(data, rest, examples, training, seen, key_mark(folder))

    def overlap(self, common: Dataset) -> str:
        """A line for the owner: how much of the party's data is common to all."""
        nodes, edges = (
            f"{now:,} of {before:,} {what}"
            for what, now, before in (
                ("nodes", common.nodes, self.data.nodes),
                ("edges", common.edges.shape[1] // 2, self.data.edges.shape[1] // 2),
            )
        )
        return f"the parties have {nodes} in common, and {edges} join them"


def _hashed(path: Path, data: Dataset, shares: tuple[float, float, float], key: bytes) -> np.ndarray:
    """The split by a keyed hash of each id. Nodes without a label get a split, too, so that it does not reveal which
    nodes have labels.

    Raises:
        DataError: the nodes have no ids, or the file has a split already.
    """
    if not data.ids:
        refuse(path, "its nodes have no ids, and data.split = 'hash' goes by them", "Give ids, or take tables.")
    if data.public is not None:
        problem = "it has a split, and site.toml says data.split = 'hash'"
        refuse(path, problem, "Leave out the column split, or data.split.", "split-twice")
    return split_by_hash(data.ids, shares, key)


def read_own(
    site: SiteData, folder: Path, run: str, sites: Sequence[str], name: str, members: Mapping[str, str]
) -> PartyData:
    """Read the data that `site.toml` names, for a vertical algorithm in a `run` of these `sites`.

    name: this site's name. members: see `sitefile.Rules`.

    Raises:
        DataError: a file is absent or invalid, or has no split. ConfigError: there is no key for the ids, or no
            certificate.
    """
    path = require(folder / site.path)
    if path.is_dir():
        data, columns = read_party(path, source_of(Folder, site))
    else:
        data = check_sensitive(npz.read(path, path.stem, labelled=False, loops=site.loops), path, site.sens_feature)
        data, columns = numbered(path, data, site), data.columns
    check_meant(path, site)
    if data.graph_of is not None:
        refuse(path, "these are small graphs", "A party of a vertical run brings one graph.")
    key = read_ids_key(folder) if data.ids else b""
    if site.split == HASH:
        data = replace(data, public=_hashed(path, data, site.ratios, key))
    check_split(path, data)
    meeting = IntersectionParty(name, read_identity(folder, members), run, tuple(sites), key) if data.ids else None
    return PartyData(path, data, meeting, columns, of_party(site.normalize))


# ----------------------------------------------------------------------------------------------------
# How sites exchange features of neighbors over edges between sites, before training (`partition.external`). The server
# learns neither an id nor a feature. Every site sends the ids of its own nodes and of the nodes that its edges lead to,
# blinded (`privacy.intersection`), and marks the points of its own nodes. The server sends the lists around, compares
# them, and numbers the nodes that one site holds and others have edges to. For each of these nodes a site adds up the
# features of its own neighbors of the node. It pads the sums with numbers derived from the key of the ids and the id
# itself, so that only a site that knows both can read them, and sends them as its term of a secure aggregation of all
# sites. The server opens the sum and sends every site the rows of the nodes that the site holds.


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
    common ids. least: minimum number of the site's nodes in a sum that it sends. site: [data] of its `site.toml`.
    scaling: of features of nodes, once they have these columns (`partition.preparation`).
    """

    data: Dataset
    columns: int
    meeting: IntersectionParty
    least: int
    site: SiteData
    scaling: Record
    _slots: int = -1
    _nodes: dict[int, int] = field(default_factory=dict)  # {slot: the node that it is of}
    _other: dict[int, int] = field(default_factory=dict)  # {slot: place among the names elsewhere}

    def greeting(self) -> Tree:
        """The site's blinded ids (`CLAIMING`), sent once."""
        points, opening = self.meeting.open([*self.data.called, *self._outside.names])
        owned = torch.tensor([row < self.data.nodes for row in self.meeting.order], device="cpu")
        return {"ids": torch.from_numpy(points), "owned": owned, "signed": opening_tree(opening)}

    def match(self, message: Tree) -> None:
        """Take the numbers that the server gives to the site's nodes and to the nodes that its edges lead to.

        Raises:
            CallRefused: the numbers are not valid.
        """
        places, numbers, count = _listed(message.get("places")), _listed(message.get("slots")), message.get("count")
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
            matrix[:, TELLERS:] = member_words(x, self._outside, slot, self._slots, self.least, sites)
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
            plain[row] = self._opened(row, sums, sites)
        heard = means(plain, len(ways(self._outside.edge_attrs.directed)))
        return append_columns(self.data.x[:, : -self.width], heard)

    def _opened(self, row: int, total: np.ndarray, sites: int) -> np.ndarray:
        """int64 [width]: the sum that others sent for a node, without their pads."""
        (pad, weights), values = self._pad(self.data.called[row]), total.view(np.uint64)
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


def _listed(numbers: object) -> list[int]:
    if not isinstance(numbers, torch.Tensor) or numbers.dtype != torch.int64 or numbers.dim() != 1:
        raise CallRefused("exchange: the server sends no list of whole numbers")
    return [int(one) for one in numbers]


def entered(
    folder: Path, request: Join, name: str, rules: Rules, whole: Dataset, site: SiteData, scaling: Record
) -> Exchange:
    """The part of the site `name` in a job's exchange over edges between sites.

    whole: the site's data, features not scaled. site, scaling: see `Exchange`.

    Raises:
        ConfigError: there is no key for the ids, or no certificate. PolicyViolation: the policy does not allow it.
    """
    identity, key = read_identity(folder, rules.members), read_ids_key(folder)
    meeting = IntersectionParty(name, identity, request.run, tuple(request.sites), key)
    return Exchange(whole, columns_told(whole), meeting, least_told(rules), site, scaling)


def matched(replies: Replies, ask: Ask) -> tuple[int, dict[str, Tree], dict[str, torch.Tensor]]:
    """How many nodes one site holds and others have edges to; {site: the server's message with their numbers}; {site:
    the numbers of the nodes that it holds, ascending}.

    ask: sends every site a list, which the site blinds.

    Raises:
        UserError: two sites hold one node, or no site has an edge to another site's node. FedweaveError: a site sent no
            blinded ids.
    """
    by_site = {site: replies[site] for site in replies.clients}
    lists = {site: points_of(site, reply["ids"]) for site, reply in by_site.items()}
    if silent := [site for site, entry in lists.items() if not len(entry) or len(entry) != len(by_site[site]["owned"])]:
        raise UserError(
            f"{', '.join(silent)}: no ids came from there, and an exchange over edges needs them. Give the nodes ids, "
            "and do not deny `ids` in the policy."
        )
    points = {
        site: [point.tobytes() for point in entry.numpy()] for site, entry in blinded(lists, by_site, ask).items()
    }
    owned = {site: by_site[site]["owned"].bool().tolist() for site in points}
    holders = _holders(points, owned)
    named = {point for site in points for point, is_own in zip(points[site], owned[site], strict=True) if not is_own}
    numbers = {point: number for number, point in enumerate(sorted(named & holders.keys()))}
    if not numbers:
        raise UserError(
            "no site has an edge to a node that another holds. Write the same ids in the same way everywhere, and give "
            "every site the same ids.key."
        )
    sent, held = dict[str, Tree](), dict[str, torch.Tensor]()
    for site, site_points in points.items():
        places = [at for at, point in enumerate(site_points) if point in numbers]
        slots = [numbers[site_points[at]] for at in places]
        pair = {
            "places": torch.tensor(places, dtype=torch.int64, device="cpu"),
            "slots": torch.tensor(slots, dtype=torch.int64, device="cpu"),
        }
        sent[site] = pair | {"count": len(numbers)}
        mine = sorted(slot for at, slot in zip(places, slots, strict=True) if owned[site][at])
        held[site] = torch.tensor(mine, dtype=torch.int64, device="cpu")
    return len(numbers), sent, held


def _holders(points: Mapping[str, list[bytes]], owned: Mapping[str, list[bool]]) -> dict[bytes, str]:
    """{point of a node: the site that claims the node}.

    Raises:
        UserError: two sites claim one node.
    """
    holders, twice = dict[bytes, str](), dict[frozenset[str], int]()
    for site, site_points in points.items():
        for point, is_own in zip(site_points, owned[site], strict=True):
            if is_own and holders.setdefault(point, site) != site:
                pair = frozenset((site, holders[point]))
                twice[pair] = twice.get(pair, 0) + 1
    if twice:
        pairs = "; ".join(f"{' and '.join(sorted(pair))}: {count:,}" for pair, count in twice.items())
        raise UserError(
            f"two sites claim the same nodes ({pairs}), and each node must belong to one site. Ask the owners whose "
            "nodes they are. Nothing has been exchanged."
        )
    return holders

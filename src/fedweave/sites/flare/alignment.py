"""The data of a party in a vertical federation, and how the parties find the nodes that all of them have without
revealing an id to the server: the protocol of `protocols.intersection` on trees and requests.

The sites send their ids blinded. The server sends every list around, turn by turn, so that each of the other sites
blinds it once. Then it compares the lists, and sends each site the places of the common ids on the site's own list.
Every site sorts these ids as text, so that all sites number their nodes in the same way as the dataset "parties".
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
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
from fedweave.datasets.features import OVER_NODES, compact, normalize, of_party
from fedweave.datasets.folder import Folder
from fedweave.datasets.leakage import check_sensitive
from fedweave.datasets.parties import read_party, restrict
from fedweave.errors import CallRefused, FedweaveError, UserError
from fedweave.experiment.graphs import graph_of
from fedweave.partition.splits import masks_by_hash
from fedweave.sites.flare.accounts import Accounts, Exclusion
from fedweave.sites.flare.data_marks import data_digest, key_mark, mark, site_key
from fedweave.sites.flare.holdings import Holdings, LabelVersion, identify, marks
from fedweave.sites.flare.joining import WIDTH
from fedweave.sites.flare.masking import data, tensor
from fedweave.sites.flare.site_data import HASH, check_meant, check_split, source_of, with_classes
from fedweave.sites.flare.sitefile import SiteData, read_ids_key
from fedweave.sites.protocols.identity import read_identity
from fedweave.sites.protocols.intersection import WIDTH as POINT
from fedweave.sites.protocols.intersection import IntersectionParty, Opening, common, digest

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


def read_openings(message: object) -> dict[str, Opening]:
    """The openings of all sites in a `message` of the server."""
    try:
        if not isinstance(message, dict):
            raise TypeError("it is not a table")
        openings = dict[str, Opening]()
        for site, entry in message.items():
            certificate, nonce = data(entry["certificate"]), data(entry["nonce"])
            size, list_digest = int(entry["size"]), data(entry["digest"])
            openings[site] = Opening(certificate, nonce, size, list_digest, data(entry["signature"]))
        return openings
    except (KeyError, TypeError, ValueError) as error:
        raise CallRefused("alignment: the openings of the sites' lists are not of fedweave's form") from error


def meet(replies: Replies, ask: Ask) -> dict[str, Tree]:
    """{site: the server's message to it}: the "width" of the widest features and, where tables have ids, the places of
    the "common" ids on the site's list.

    ask: sends every site a list, which the site blinds.
    """
    by_site = {site: replies[site] for site in replies.clients}
    silent = [site for site, reply in by_site.items() if reply["features"] < 1]
    if silent:
        raise UserError(f"{', '.join(silent)}: the policy keeps back `features`, without which no model can be built.")
    width = max_features(replies)
    lists = {site: points_of(site, reply["ids"]) for site, reply in by_site.items()}
    if not any(map(len, lists.values())):  # an .npz file has no ids; its nodes are in the common order
        return {site: {"width": width} for site in by_site}
    silent = [site for site, points in lists.items() if not len(points)]
    if silent:
        raise UserError(
            f"{', '.join(silent)}: no ids came from there, but from the other sites. Every site needs a folder of "
            "tables as its [data] path (an .npz file has no ids), and a policy that does not deny `ids`."
        )
    sizes = ", ".join(f"{site} has {len(points)}" for site, points in lists.items())
    common_places = common({site: points.numpy() for site, points in blind_all(lists, by_site, ask).items()})
    if not all(map(len, common_places.values())):
        raise UserError(
            f"no id is common to all sites ({sizes}). Write the same ids in the same way everywhere, and give every "
            "site the same ids.key."
        )
    return {site: {"width": width, "common": torch.from_numpy(places)} for site, places in common_places.items()}


def max_features(replies: Replies) -> int:
    """The number of features of the party that has most."""
    return max(int(replies[site]["features"]) for site in replies.clients)


def blind_all(lists: dict[str, Tensor], by_site: Mapping[str, Tree], ask: Ask) -> dict[str, Tensor]:
    """The `lists`, after every site has blinded every list. by_site: {site: its reply}, whose field "signed" holds the
    site's opening of its own list."""
    sites = list(lists)
    openings = dict[str, Tree]()
    for site, points in lists.items():  # points: [n, 32]
        openings[site] = by_site[site]["signed"] | {"size": len(points), "digest": tensor(digest(points.numpy()))}
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
    """The list uint8 [n, 32] that a site sent."""
    if not isinstance(ids, Tensor) or ids.dtype != torch.uint8 or ids.shape[1:] != (POINT,):
        raise FedweaveError(
            f"{site}: the site sent no blinded ids. Install the same fedweave everywhere.", code="reply.blinded"
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
            empty = torch.empty(0, POINT, dtype=torch.uint8, device="cpu")
            signed = dict.fromkeys(("certificate", "nonce", "signature"), empty[:, 0])
            return sizes | {"ids": empty, "signed": signed}
        points, opening = self.meeting.open(self.data.ids)
        return sizes | {"ids": torch.from_numpy(points), "signed": opening_tree(opening)}

    def align(self, message: Tree, dtype: torch.dtype) -> Holdings:
        """The party's data on the common nodes, padded to the features of the widest party. message: the server's, from
        `alignment.meet`."""
        if message["width"] < self.data.features:
            raise FedweaveError(
                f"the server says that no party has more than {message['width']} features; this one has."
            )
        if message["width"] > WIDTH.maximum:
            raise FedweaveError(f"the server asks for {message['width']:,} features; {WIDTH.maximum:,} are allowed.")
        data, rows = self.data, np.arange(self.data.nodes)
        if self.meeting is not None:
            common = self.meeting.rows(message["common"].tolist())
            rows = np.array(sorted(common, key=lambda row: self.data.ids[row]), np.int64)
            data = restrict(data, rows)
        tables = data
        data = replace(data, x=normalize(compact(data.x), self.scaling, self.path.name))
        graph, version = graph_of(data, message["width"], dtype), LabelVersion.of(self.data, rows)
        # The same masks at every party, also where a party has labels for only some of the nodes.
        masks = torch.zeros_like(graph.masks)
        masks[:, : data.nodes] = torch.from_numpy(np.asarray(data.public, bool))
        graph = graph._replace(masks=masks)
        unaligned = self.data.nodes - len(rows)
        return Holdings(graph, None, replace(data, columns=()), version=version, tables=tables, unaligned=unaligned)

    def marks(self, common: Dataset) -> Record:
        """`holdings.marks` of the common nodes; also these, if features are scaled over them."""
        scaled = json.dumps([common.nodes, *common.ids]) if self.scaling in OVER_NODES else ""
        scaled_over = {"scaled over nodes": hashlib.sha256(scaled.encode()).hexdigest()}
        return marks(replace(common, columns=self.columns), self.scaling) | scaled_over

    def exclusion(self, common: Dataset, folder: Path, accounts: Accounts) -> Exclusion:
        """What a run on the `common` nodes leaves out of the party's whole table. The party compares its runs by the
        table, because the other parties and the server have a say in what is common."""
        data, digests = identify(self.data, self.path, accounts)
        place = {name: at for at, name in enumerate(self.data.ids)}
        rows = np.array([place[name] for name in common.ids], np.int64)
        if len(rows) == len(place):  # also without ids
            return Exclusion(data, data, digests=digests)
        key, trained = site_key(folder), np.asarray(self.data.public)[TRAIN]
        marks = {name: mark(key, b"aligned", name) for name in place.keys() - {*common.ids}}
        training = frozenset(one for name, one in marks.items() if trained[place[name]])
        rest, examples = data_digest(restrict(self.data, rows)), frozenset(marks.values())
        return Exclusion(data, rest, examples, training, digests, key_mark(folder))

    def overlap(self, common: Dataset) -> str:
        """A line for the owner: how much of the party's data is common to all."""
        edges, all_edges = common.edges.shape[1] // 2, self.data.edges.shape[1] // 2
        return (
            f"the parties have {common.nodes:,} of {self.data.nodes:,} nodes in common, and {edges:,} of "
            f"{all_edges:,} edges join them"
        )


def read_party_data(
    site: SiteData, folder: Path, run: str, sites: Sequence[str], name: str, members: Mapping[str, str]
) -> PartyData:
    """Read the data that `site.toml` names, for a vertical algorithm in a `run` of these `sites`.

    name: this site's name. members: see `sitefile.Rules`.
    """
    path = folder / site.path
    check_meant(path, site)
    if path.is_dir():
        data, columns = read_party(path, source_of(Folder, site))
    else:
        data = check_sensitive(npz.read(path, path.stem, labelled=False, loops=site.loops), path, site.sens_feature)
        data, columns = with_classes(path, data, site), data.columns
    if data.graph_of is not None:
        refuse(path, "these are small graphs", "A party of a vertical run brings one graph.")
    key = read_ids_key(folder) if data.ids else b""
    if site.split == HASH:
        # Nodes without a label get a split, too, so that it does not reveal which nodes have labels.
        if not data.ids:
            refuse(path, "its nodes have no ids, and data.split = 'hash' goes by them", "Give ids, or take tables.")
        if data.public is not None:
            problem = "it has a split, and site.toml says data.split = 'hash'"
            refuse(path, problem, "Leave out the column split, or data.split.", "split-twice")
        data = replace(data, public=masks_by_hash(data.ids, site.ratios, key))
    check_split(path, data)
    meeting = IntersectionParty(name, read_identity(folder, members), run, tuple(sites), key) if data.ids else None
    return PartyData(path, data, meeting, columns, of_party(site.normalize))

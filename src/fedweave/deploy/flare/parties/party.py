"""What a party of a vertical federation holds: at first all its nodes, then those that all parties have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from fedweave.core.records import Record
from fedweave.core.tree import Tree
from fedweave.datasets import npz
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import refuse
from fedweave.datasets.features import compact, normalise, without_sens
from fedweave.datasets.parties import read_party, restricted
from fedweave.deploy.flare.parties.alignment import no_opening, opening_tree
from fedweave.deploy.flare.site.holdings import (
    Holdings,
    LabelVersion,
    check_meant,
    check_split,
    marks,
    numbered,
    require,
    tables,
)
from fedweave.deploy.flare.site.joining import WIDTH as COLUMNS
from fedweave.deploy.flare.site.sitefile import IDS_KEY, SiteData, read_secret
from fedweave.errors import FedweaveError
from fedweave.experiment.graphs import graph_of
from fedweave.privacy.aggregation import read_identity
from fedweave.privacy.intersection import WIDTH, Party


@dataclass(frozen=True)
class PartyData:
    """A site's data before it has met the others.

    data: features not yet scaled; there may be no labels; without ids, the nodes are in the common order already.
    meeting: where it finds the nodes that all have, if there are ids. columns: what the features are called, where they
    have names. scaling: of the features, over the common nodes.
    """

    path: Path
    data: Dataset
    meeting: Party | None
    columns: tuple[str, ...]
    scaling: str

    def greeting(self) -> Tree:
        """What it says to the server (`alignment.MEETING`), once."""
        sizes = {"features": self.data.features, "classes": self.data.classes}
        if self.meeting is None:
            return sizes | {"ids": torch.empty(0, WIDTH, dtype=torch.uint8, device="cpu"), "signed": no_opening()}
        points, opening = self.meeting.open(self.data.ids)
        return sizes | {"ids": torch.from_numpy(points), "signed": opening_tree(opening)}

    def align(self, told: Tree, dtype: torch.dtype) -> Holdings:
        """Its share of the common nodes, as wide as the widest party's, once the server has `told` (`alignment.meet`).

        Raises:
            FedweaveError: what the server told cannot be.
        """
        if told["width"] < self.data.features:
            raise FedweaveError(f"the server says that no party has more than {told['width']} features; this one has.")
        if told["width"] > COLUMNS.most:
            raise FedweaveError(f"the server asks for {told['width']:,} features; {COLUMNS.most:,} are allowed.")
        data, rows = self.data, np.arange(self.data.nodes)
        if self.meeting is not None:
            common = self.meeting.rows(told["common"].tolist())
            rows = np.array(sorted(common, key=lambda row: self.data.ids[row]), np.int64)
            data = restricted(data, rows)
        data = replace(data, x=normalise(compact(data.x), self.scaling, self.path.name))
        graph, version = graph_of(data, told["width"], dtype), LabelVersion.of(self.data, rows)
        apart = self.data.nodes - len(rows)
        return Holdings(graph, None, replace(data, columns=()), version=version, apart=apart)

    def marks(self, kept: Dataset) -> Record:
        """See `holdings.marks`, of the `kept` nodes."""
        return marks(replace(kept, columns=self.columns), self.scaling)

    def kept(self, kept: Dataset) -> str:
        """For the owner, what is left of its data."""
        nodes, edges = (
            f"{now:,} of {before:,} {what}"
            for what, now, before in (
                ("nodes", kept.nodes, self.data.nodes),
                ("edges", kept.edges.shape[1] // 2, self.data.edges.shape[1] // 2),
            )
        )
        return f"the parties have {nodes} in common, and {edges} join them"


def read_own(
    site: SiteData, folder: Path, run: str, sites: Sequence[str], name: str, members: Mapping[str, str]
) -> PartyData:
    """Read what `site.toml` names, for a vertical algorithm in a `run` of these `sites`, of which it is that `name`.

    members: see `sitefile.Rules`.

    Raises:
        DataError: a file is absent or refused, or has no split. ConfigError: there is no key for the ids, or
            no certificate.
    """
    path = require(folder / site.path)
    if path.is_dir():
        data, columns = read_party(path, tables(site))
    else:
        data = without_sens(npz.read(path, path.stem, labelled=False, loops=site.loops), path, site.sens_feature)
        data, columns = numbered(path, data, site), data.columns
    check_split(path, data)
    check_meant(path, site)
    if data.graph_of is not None:
        refuse(path, "these are small graphs", "A party of a vertical run brings one graph.")
    key = read_secret(folder / IDS_KEY) if data.ids else b""
    meeting = Party(name, read_identity(folder, members), run, tuple(sites), key) if data.ids else None
    return PartyData(path, data, meeting, columns, site.normalise)

"""Before training, the sites agree on numbers of the entities whose vectors they learn ([data] features = "learned").

Each site reports its number of entities, rounded up to whole blocks, and sends a table of their keyed hashes as its
term of a secure aggregation of all sites (`privacy.union`). The server opens the sum, reads all hashes from it, and
sends this list to every site. The place of an entity's hash on the list is the entity's number. So the server learns
how many entities there are and how many sites have each of them. Without `ids.key` it cannot tell which entity a hash
stands for, and neither the server nor a site learns which site has which entity. A site that does not find one of its
entities on the list continues, with a line in its own log: if it refused, a server that left an entity out would learn
whose it is.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedweave.core.federation import Declaration, Sends, StepInfo
from fedweave.core.mechanism import SecureSum
from fedweave.core.ranges import Whole
from fedweave.core.sizes import padded_rows
from fedweave.core.tree import Tree
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import refuse
from fedweave.datasets.triples import with_node_columns
from fedweave.errors import CallRefused, FedweaveError, UserError
from fedweave.experiment.runs.files import write
from fedweave.privacy import union
from fedweave.sites.flare.sitefile import read_ids_key

UNITE = "unite"  # the name of the step that adds up the tables
ENTITIES, CELLS = "entities", "cells"
NUMBERED = "entities.npz"  # in a run's folder at a site: how it numbers its entities
MAX_ROWS = 1 << 22  # rows of a table
COUNTING: Declaration = {ENTITIES: Sends("how many entities the site has, in whole blocks", within=Whole(-1, MAX_ROWS))}
UNITING: Declaration = {
    CELLS: Sends(
        "nothing by itself; with the others' a keyed hash of each entity that some site has, and how many sites have "
        "it",
        SecureSum(everyone=True, bits=64, fraction=0),
    )
}
RECEIVES = {
    "rows": "how many entities all sites have together, one that several have counted by each",
    "listed": "keyed hashes of all entities that some site has",
}
INFO = StepInfo.of(UNITING, True, hears=RECEIVES)


@dataclass(frozen=True)
class Entities:
    """A site's part in numbering the entities.

    data: the site's data. hashes: int64 [n, 2], a keyed hash of each of its nodes.
    """

    data: Dataset
    hashes: np.ndarray

    @classmethod
    def of(cls, data: Dataset, folder: Path) -> "Entities":
        """The entities of a site's `data`, hashed with the key in its `folder`."""
        if not data.node_names:
            refuse(folder, "its nodes have no ids, by which sites number them alike", "Give ids, or take tables.")
        return cls(data, union.hashes(data.node_names, read_ids_key(folder)))

    def greeting(self) -> Tree:
        """The site's report of how many entities it has (`COUNTING`)."""
        return {ENTITIES: padded_rows(len(self.hashes))}

    def table(self, message: Tree) -> Tree:
        """The site's term of the sum, with the number of rows in the server's `message`."""
        rows = message.get("rows")
        if type(rows) is not int or not union.PLACES <= rows <= MAX_ROWS or rows % union.PLACES:
            raise CallRefused(f"entities: the server asks for a table of {rows!r} rows")
        return {CELLS: torch.from_numpy(union.table(self.hashes, rows))}

    def assign_numbers(self, message: Tree, path: Path, log: logging.Logger) -> Dataset:
        """The data with the columns of its entities by the list in the server's `message`; also writes these to
        `path`."""
        listed = message.get("listed")  # int64 [F, 2]
        if not isinstance(listed, Tensor) or listed.dtype != torch.int64 or listed.dim() != 2 or listed.shape[1] != 2:
            raise CallRefused("entities: the server sends no list of hashes")
        rows = listed.numpy()
        order = rows[:, 0].astype(object) * (1 << union.BITS) + rows[:, 1]  # one comparable number for each hash
        if not 0 < len(rows) <= MAX_ROWS or not (order[1:] > order[:-1]).all():
            raise CallRefused("entities: the server's list is empty, too long, or not in order")
        columns = union.places(self.hashes, rows)  # [n]
        lost = int((columns < 0).sum())
        if lost > 0:
            log.warning(
                "%d of the site's %d entities are not on the server's list: they learn nothing", lost, len(columns)
            )
        archive = BytesIO()
        np.savez(archive, hashes=self.hashes, columns=columns, width=np.array(len(rows)))
        write(path, lambda file: file.write(archive.getvalue()))
        return with_node_columns(self.data, columns, len(rows))

    def with_saved_numbers(self, path: Path) -> Dataset:
        """The data with the columns that its entities had when the run began. Entities that are new since then have
        none."""
        if not path.exists():
            raise FedweaveError(
                f"{path} is not there: the run did not begin at this site. Restore the file, or start a new run."
            )
        with np.load(path) as archive:
            known = dict(zip(map(tuple, archive["hashes"].tolist()), archive["columns"].tolist(), strict=True))
            columns = np.array([known.get(tuple(one), -1) for one in self.hashes.tolist()], np.int64)
            return with_node_columns(self.data, columns, int(archive["width"]))


def rows_of(replies: Mapping[str, Tree]) -> int:
    """The number of rows of every site's table, from the numbers of entities that the sites report."""
    counts = {site: reply[ENTITIES] for site, reply in replies.items()}
    silent = [site for site, count in counts.items() if count < 0]
    if silent:
        raise UserError(
            f"{', '.join(silent)}: the policy keeps back `{ENTITIES}`, without which entities cannot be numbered. "
            "Allow it."
        )
    rows = union.rows_for(sum(counts.values()))
    if rows > MAX_ROWS:
        raise UserError(
            f"the sites have {sum(counts.values()):,} entities, and {MAX_ROWS // 2:,} can be numbered. Train on fewer.",
            code="user.entities",
        )
    return rows

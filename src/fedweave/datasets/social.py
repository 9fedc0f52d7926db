"""Published graphs of people and of their posts: Pokec, Twitch and Heri-Graphs.

Pokec-z and Pokec-n are users of a Slovak social network in two regions, as cut and published with FairGNN (Dai and Wang
2021). Twitch are gamers of four countries (Rozemberczki et al. 2021, "Multi-scale attributed node embedding"), separate
in the source: no edge joins two countries. Heri-Graphs are posts about the heritage of three cities, each data set
split among three parties (Bai et al. 2022, "Heri-Graphs: a dataset creation framework for multi-modal machine learning
on graphs of heritage values and attributes with social media"): as in GLASU (Zhang et al. 2023, appendix D.1) each
party holds one subgraph and one block of image features; the classes are the nine heritage attributes. Their published
tables are not read as they are; examples/heri_graphs.py converts them.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow.compute as pc
import scipy.sparse as sp

from fedweave.datasets import npz
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.check import check, check_counts, first, refuse, refuse_first
from fedweave.datasets.features import AUTO, compact, normalize, scale_by_holders
from fedweave.datasets.lookup import Facts, PublishedFile, kinds_of
from fedweave.datasets.parties import PartyFolders
from fedweave.datasets.settings import Normalize
from fedweave.datasets.table import WHOLE, Table
from fedweave.datasets.table_files import read

COUNTRIES = ("de", "engb", "es", "fr")
ID, LABEL, SENSITIVE = "user_id", "I_am_working_in_field", "region"
# Features by party: scene categories, scene attributes, hidden layer. Which goes with which subgraph is our choice.
BLOCKS = {"social": 365, "spatial": 102, "temporal": 512}


@dataclass(frozen=True)
class Twitch(PublishedFile):
    """MUSAE (Rozemberczki et al. 2021); gamers by games and habits, friends; mature content or not.

    `[partition] name = "column"` makes a client of each of the four countries.
    """

    name = "twitch"
    facts = Facts(27821, 360510, 3170, 2)
    files = tuple(f"{country}.npz" for country in COUNTRIES)
    remedy = "Put {} (layout: docs/data-layouts.md) at one of these places, or name their folder in [data] path or "

    def load(self, root: Path | None, seed: int) -> Dataset:
        """All four graphs, one country after the other."""
        folder = self.find(root)
        each = [npz.read(folder / f"{country}.npz", country) for country in COUNTRIES]
        first = np.cumsum([0, *(one.nodes for one in each)])
        joined = Dataset(
            name=self.name,
            x=sp.vstack([sp.csr_matrix(one.x) for one in each], format="csr"),
            edges=np.concatenate([one.edges + at for one, at in zip(each, first[:-1], strict=True)], 1),
            y=np.concatenate([one.y for one in each]),
            classes=2,
            labels=each[0].labels,
            owner=np.repeat(np.arange(len(each)), np.diff(first)),
            owners=COUNTRIES,
        )
        check_counts(joined, self.facts, folder, ("nodes", "edges", "features", "classes"))
        joined = scale_by_holders(replace(joined, x=compact(joined.x)), self.normalize, self.name)
        return check(joined, folder)


@dataclass(frozen=True)
class HeriGraph(PublishedFile):
    """Base of the three cities, each a folder `<name>` of the parties social, spatial and temporal (see `parties`)."""

    files = tuple(BLOCKS)
    remedy = (
        "The data is published as tables at github.com/zzbn12345/Heri_Graphs; examples/heri_graphs.py makes "
        "of them a folder of the parties {}. Name the folder above it in [data] path or "
    )

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The posts as nodes, the parties in order of name."""
        folder = self.find(root)
        dataset = replace(PartyFolders(self.normalize, classes=self.facts.classes).load(folder, seed), name=self.name)
        features = {party.name: len(party.columns) for party in dataset.parties or ()}
        if features != BLOCKS:
            refuse(folder, f"the parties' features are {features}, not {BLOCKS}", "See docs/data-public.md.")
        check_counts(dataset, self.facts, folder, ("nodes", "features", "classes"))
        return dataset


_POSTS = (
    "Heri-Graphs (Bai et al. 2022), three parties; posts by image features, social, spatial and temporal proximity."
)
_CITIES = {
    "suzhou": Facts(3137, 916496, 979, 9),
    "venice": Facts(2951, 534513, 979, 9),
    "amsterdam": Facts(3727, 1271171, 979, 9),
}
HERITAGE: tuple[type[HeriGraph], ...] = tuple(
    kinds_of(HeriGraph, {name: (facts, _POSTS) for name, facts in _CITIES.items()})
)


@dataclass(frozen=True)
class Pokec(PublishedFile):
    """Base of the two: `<stem>.csv` with one user per row, and `<stem>_relationship.txt` with two user ids per line.

    The label is the working field, the sensitive attribute the region; as in the code of FairGNN and F²GNN both are
    made binary (0 stays, above is 1) and below 0 is unknown. Every other column except for the id is a feature. A
    relationship with oneself is left out; one direction is enough.
    """

    normalize: Normalize = "minmax"

    stem: ClassVar[str]
    called = ("pokec",)
    remedy = (
        "The files {} are published at github.com/EnyanDai/FairGNN, dataset/pokec; name their folder in [data] path or "
    )

    def __init_subclass__(cls) -> None:
        cls.files = (f"{cls.stem}.csv", f"{cls.stem}_relationship.txt")

    def load(self, root: Path | None, seed: int) -> Dataset:
        """Users in the order of their rows."""
        folder = self.find(root)
        users = read(folder / f"{self.stem}.csv")
        missing = [name for name in (ID, LABEL, SENSITIVE) if name not in users.columns]
        if missing:
            refuse(users.path, f"the columns {', '.join(missing)} are missing", "Take the file as it is published.")
        features = [name for name in users.columns if name not in (ID, LABEL, SENSITIVE)]
        x = np.empty((users.rows, len(features)), np.float32)
        for column, name in enumerate(features):
            x[:, column] = users.numbers(name, distinct=False)  # as published
        ids = _whole(users, ID)
        _, first_rows = np.unique(ids, return_index=True)
        twice = np.ones(len(ids), bool)
        twice[first_rows] = False
        row = first(twice)
        users.refuse_at(row, f"{ID} {ids[row or 0]} is there twice", "Give every user one row.")
        # 0 stays 0, above is 1, below is -1 (unknown)
        y, sensitive = np.sign(_whole(users, LABEL)), np.sign(_whole(users, SENSITIVE))
        edges = _edges(folder / f"{self.stem}_relationship.txt", ids)
        dataset = Dataset(
            name=self.name,
            x=compact(x if self.normalize == AUTO else normalize(x, self.normalize, self.name)),
            scaling=AUTO if self.normalize == AUTO else "none",
            edges=edges,
            y=y,
            classes=2,
            sensitive=sensitive,
            ids=tuple(map(str, ids.tolist())),
            columns=tuple(features),
        )
        return check(dataset, folder)


@dataclass(frozen=True)
class PokecZ(Pokec):
    """FairGNN (Dai and Wang 2021); users by profile, friendship; sensitive: region."""

    name = "pokec-z"
    stem = "region_job"


@dataclass(frozen=True)
class PokecN(Pokec):
    """FairGNN (Dai and Wang 2021); users by profile, friendship; sensitive: region."""

    name = "pokec-n"
    stem = "region_job_2"


POKEC: tuple[type[Pokec], ...] = (PokecZ, PokecN)


def _whole(users: Table, column: str) -> np.ndarray:
    """int64 [rows]; an empty cell or a fraction is an error."""
    cells = users.nonempty_texts(column)
    bad = first(pc.invert(pc.match_substring_regex(cells, WHOLE)).to_numpy(zero_copy_only=False))
    if bad is not None:
        users.refuse_at(bad, f"{column} is {cells[bad].as_py()!r}, not a whole number", "Correct it.")
    return np.asarray(pc.replace_substring_regex(cells, r"\.0*$", "").cast("int64").to_numpy())


def _edges(path: Path, ids: np.ndarray) -> np.ndarray:
    """int64 [2, E] in row numbers, both directions."""
    try:
        pairs = np.loadtxt(path, np.int64, ndmin=2)
    except ValueError as error:
        refuse(path, f"this is not a table of whole numbers ({error})", "Give two user ids per line.")
    if pairs.size and pairs.shape[1] != 2:
        refuse(path, f"there are {pairs.shape[1]} numbers per line", "Give two user ids per line.")
    order = np.argsort(ids)
    place = order[np.searchsorted(ids, pairs, sorter=order).clip(max=len(ids) - 1)]
    unknown, what = (ids[place] != pairs).any(1), "line {}: {} names a user without a row".format
    refuse_first(path, unknown, lambda row: what(row + 1, pairs[row].tolist()), "Take both published files.")
    return to_undirected(place.T, len(ids))

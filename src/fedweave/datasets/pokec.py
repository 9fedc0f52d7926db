"""Pokec-z and Pokec-n: users of a Slovak social network in two regions, as cut and published with FairGNN (Dai and Wang
2021), read from the published tables."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow.compute as pc

from fedweave.datasets.base import Dataset
from fedweave.datasets.check import check, first, refuse
from fedweave.datasets.edges import undirected
from fedweave.datasets.features import check_normalise, compact, normalise
from fedweave.datasets.lookup import cache, held_in, shared
from fedweave.datasets.table import WHOLE, Table, read

ID, LABEL, SENS = "user_id", "I_am_working_in_field", "region"


@dataclass(frozen=True)
class Pokec:
    """Base of the two: `<stem>.csv` with one user per row, and `<stem>_relationship.txt` with two user ids per line.

    The label is the working field, the sensitive attribute the region; as in the code of FairGNN and F²GNN both are
    made binary (0 stays, above is 1) and below 0 is unknown. Every other column besides the id is a feature. A
    relationship with oneself is left out; one direction is enough. The files are looked for in `<name>`, `pokec` and
    the folder itself, of [data] path alone or, without it, of $FEDWEAVE_DATA, then of the cache; there is no download.

    normalise: how features are scaled: none, row, binary, scale, standard or minmax (docs/data-format.md).
    """

    normalise: str = "minmax"

    name: ClassVar[str]
    stem: ClassVar[str]

    def __post_init__(self) -> None:
        check_normalise(self.normalise)

    def load(self, root: Path | None, seed: int) -> Dataset:
        """Users in the order of their rows; `seed` is not used.

        Raises:
            NotHeld: the files are not in `root`.
            DataError: they are nowhere (lists all places) or refused; names file, row and remedy.
        """
        folder = self._find(root)
        users = read(folder / f"{self.stem}.csv")
        missing = [name for name in (ID, LABEL, SENS) if name not in users.columns]
        if missing:
            refuse(users.path, f"the columns {', '.join(missing)} are missing", "Take the file as it is published.")
        features = [name for name in users.columns if name not in (ID, LABEL, SENS)]
        x = np.empty((users.rows, len(features)), np.float32)
        for column, name in enumerate(features):
            x[:, column] = users.numbers(name, apart=False)  # as published
        ids = _ids(users)
        dataset = Dataset(
            name=self.name,
            x=compact(normalise(x, self.normalise, self.name)),
            edges=_edges(folder / f"{self.stem}_relationship.txt", ids),
            y=_binary(users, LABEL),
            classes=2,
            sens=_binary(users, SENS),
            ids=tuple(map(str, ids.tolist())),
            columns=tuple(features),
        )
        return check(dataset, folder)

    def _find(self, root: Path | None) -> Path:
        bases = [base for base in (shared(), cache()) if base is not None] if root is None else [root]
        places = [place for base in bases for place in (base / self.name, base / "pokec", base)]
        files = (f"{self.stem}.csv", f"{self.stem}_relationship.txt")
        return held_in(
            self.name,
            places,
            lambda place: all((place / name).is_file() for name in files),
            root,
            f"there is no folder with {' and '.join(files)}.",
            "The files are published at github.com/EnyanDai/FairGNN, dataset/pokec; name their folder in [data] path "
            "or $FEDWEAVE_DATA.",
        )


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
    """int64 [rows]; an empty cell or a fraction is refused."""
    cells = users.filled(column)
    bad = first(pc.invert(pc.match_substring_regex(cells, WHOLE)).to_numpy(zero_copy_only=False))
    if bad is not None:
        users.refuse_at(bad, f"{column} is {cells[bad].as_py()!r}, not a whole number", "Correct it.")
    result: np.ndarray = pc.replace_substring_regex(cells, r"\.0*$", "").cast("int64").to_numpy()
    return result


def _binary(users: Table, column: str) -> np.ndarray:
    """int64 [rows]: 0 stays 0, above is 1, below is -1 (unknown)."""
    result: np.ndarray = np.sign(_whole(users, column))
    return result


def _ids(users: Table) -> np.ndarray:
    ids = _whole(users, ID)
    order = np.argsort(ids, kind="stable")
    twice = np.zeros(len(ids), bool)
    twice[order[1:]] = np.diff(ids[order]) == 0
    row = first(twice)
    users.refuse_at(row, f"{ID} {ids[row or 0]} is there twice", "Give every user one row.")
    return ids


def _edges(path: Path, ids: np.ndarray) -> np.ndarray:
    """int64 [2, E] in row numbers, both directions."""
    try:
        pairs = np.loadtxt(path, np.int64, ndmin=2)
    except ValueError as error:
        refuse(path, f"this is no table of whole numbers ({error})", "Give two user ids per line.")
    if pairs.size and pairs.shape[1] != 2:
        refuse(path, f"there are {pairs.shape[1]} numbers per line", "Give two user ids per line.")
    order = np.argsort(ids)
    place = order[np.searchsorted(ids, pairs, sorter=order).clip(max=len(ids) - 1)]
    row = first((ids[place] != pairs).any(1))
    if row is not None:
        refuse(path, f"line {row + 1}: {pairs[row].tolist()} names a user without a row", "Take both published files.")
    source, target = place[place[:, 0] != place[:, 1]].T
    return undirected(source, target, len(ids))

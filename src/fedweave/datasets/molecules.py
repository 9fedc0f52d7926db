"""Molecules: SMILES as small graphs of atoms and bonds, and their Bemis-Murcko scaffolds, by RDKit.

Features of atoms and bonds are the nine and three properties of OGB's `smiles2graph` (Hu et al. 2020, "Open graph
benchmark"), which PyTorch Geometric's `from_smiles` also has: numbers as numbers, kinds one-hot.
"""

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedweave.core.target import CLASS
from fedweave.core.text import counted
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import refuse, refuse_rows
from fedweave.datasets.column_names import EDGES
from fedweave.datasets.table import MADE, Table, Tables
from fedweave.errors import ConfigError, UserError

REFUSE = "refuse"
OTHER = "other"
# Of Duvenaud et al. (2015, "Convolutional networks on graphs for learning molecular fingerprints"); all others are
# OTHER. Public and fixed, so that members who have not seen each other's molecules have the same columns.
ELEMENTS = (
    *("C", "N", "O", "S", "F", "Si", "P", "Cl", "Br", "Mg", "Na", "Ca", "Fe", "As", "Al", "I", "B", "V", "K", "Tl"),
    *("Yb", "Sb", "Sn", "Ag", "Pd", "Co", "Se", "Ti", "Zn", "H", "Li", "Ge", "Cu", "Au", "Ni", "Cd", "In", "Mn", "Zr"),
    *("Cr", "Pt", "Hg", "Pb", OTHER),
)
BONDS = ("single", "double", "triple", "aromatic", OTHER)
HYBRIDIZATIONS = ("sp", "sp2", "sp3", "sp3d", "sp3d2")
CHIRALITIES = {"clockwise": "CHI_TETRAHEDRAL_CW", "counterclockwise": "CHI_TETRAHEDRAL_CCW"}
STEREO = {"cis": ("STEREOZ", "STEREOCIS"), "trans": ("STEREOE", "STEREOTRANS")}

_LOG = logging.getLogger(__name__)


def holds_molecules(root: Path) -> bool:
    """Whether a folder has a table of graphs, and neither nodes nor edges: its graphs are then made from SMILES."""
    return any(root.glob("graphs.*")) and not any(root.glob("nodes.*")) and not any(root.glob("edges.*"))


def tables_of(graphs: Table, columns: Mapping[str, str], elements: Sequence[str], unreadable: str) -> Tables:
    """Tables of atoms, of bonds and of the molecules that can be read, from a table with SMILES; columns have the names
    that `columns` gives, or the names of their meanings.

    columns:    names of columns by their meaning, such as {"smiles": "structure"}; ids are rows if no column has them.
    elements:   kinds of atoms with a label of their own; if OTHER is among them, it stands for all others.
    unreadable: "refuse", or "drop" molecules that RDKit cannot read, with a note.

    Raises:
        UserError: RDKit is not installed.
        DataError: there is no column of SMILES, or one cannot be read; names file and row.
    """
    smiles, ids = columns.get("smiles", "smiles"), columns.get("id", "id")
    if smiles not in graphs.columns:
        what = f"there are neither nodes and edges, nor a column {smiles!r} to make them from"
        remedy = 'Add the two tables, or name the column with SMILES: [data] columns = {smiles = "structure"}.'
        refuse(graphs.path, f"{what}; it has {', '.join(graphs.columns)}", remedy, "column-missing")
    graphs = graphs.without(graphs.blank())
    if ids not in graphs.columns:
        rows = np.arange(graphs.rows) if graphs.file_rows is None else graphs.file_rows
        data = graphs.data.append_column(pa.field(ids, pa.string(), metadata=MADE), pa.array(rows.astype(str)))
        graphs = Table(graphs.path, data, graphs.top, file_rows=rows)
    texts = graphs.texts(smiles).to_pylist()
    molecules = list(map(read_molecule, texts))
    bad = np.array([molecule is None for molecule in molecules], bool)
    if unreadable == REFUSE or bad.all():
        remedy = 'Correct it, or leave all such rows out: [data] unreadable = "drop".'
        fault = lambda row: f"SMILES {texts[row]!r} cannot be read" if texts[row] else "SMILES is empty"  # noqa: E731
        refuse_rows(graphs, bad, fault, remedy)
    if bad.any():
        places = [graphs.place(row)[1] for row in np.flatnonzero(bad).tolist()]
        shown = ", ".join(map(str, places[:MAX_SHOWN])) + (" and others" if places[MAX_SHOWN:] else "")
        what = f"{len(places):,} of {graphs.rows:,} SMILES cannot be read and left out, row{'s' if places[1:] else ''}"
        _LOG.warning("note: %s: %s %s", graphs.path, what, shown)
        graphs = graphs.without(bad)
    readable = [molecule for molecule in molecules if molecule is not None]
    # All atoms, molecule by molecule, and all bonds.
    atom_rows, bond_rows, before = list[tuple[Any, ...]](), list[tuple[Any, ...]](), 0
    for molecule, graph in zip(readable, graphs.nonempty_texts(ids).to_pylist(), strict=True):
        for atom in molecule.GetAtoms():
            element = atom.GetSymbol()
            kind = OTHER if element not in elements and OTHER in elements else element
            atom_rows.append((str(before + atom.GetIdx()), graph, kind, *_properties_of_atom(atom)))
        for bond in molecule.GetBonds():
            ends = (str(before + bond.GetBeginAtomIdx()), str(before + bond.GetEndAtomIdx()))
            kind, stereo = str(bond.GetBondType()).lower(), str(bond.GetStereo())
            one_hot_kind = [int(kind == name) for name in BONDS[:-1]]
            is_stereo = [int(stereo in tags) for tags in STEREO.values()]
            properties = (*one_hot_kind, int(bond.GetIsConjugated()), int(bond.IsInRing()), *is_stereo)  # as in `BOND`
            bond_rows.append((*ends, kind if kind in BONDS else OTHER, *properties))
        before += molecule.GetNumAtoms()
    atoms, bonds = _table(atom_rows, ("id", "graph", "label"), ATOM), _table(bond_rows, (*EDGES, "label"), BOND)
    return Tables(Table(graphs.path.parent / "nodes", atoms, 0), Table(graphs.path.parent / "edges", bonds, 0), graphs)


MAX_SHOWN = 10  # rows


ATOM = ("charge", "hydrogens", "degree", "radicals", "aromatic", "ring", *HYBRIDIZATIONS, *CHIRALITIES)
BOND = (*BONDS[:-1], "conjugated", "ring", *STEREO)


def _properties_of_atom(atom: Any) -> tuple[int, ...]:
    """The properties in `ATOM`."""
    hybridization, chirality = str(atom.GetHybridization()).lower(), str(atom.GetChiralTag())
    return (
        atom.GetFormalCharge(),
        atom.GetTotalNumHs(),
        atom.GetDegree(),
        atom.GetNumRadicalElectrons(),
        int(atom.GetIsAromatic()),
        int(atom.IsInRing()),
        *(int(hybridization == name) for name in HYBRIDIZATIONS),
        *(int(chirality == tag) for tag in CHIRALITIES.values()),
    )


def _table(rows: Sequence[tuple[Any, ...]], texts: Sequence[str], numbers: Sequence[str]) -> pa.Table:
    columns = [*zip(*rows, strict=True)] or [()] * (len(texts) + len(numbers))
    types = [pa.string()] * len(texts) + [pa.int64()] * len(numbers)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.table(dict(zip((*texts, *numbers), arrays, strict=True)))


def _rdkit() -> Any:
    """RDKit's module of chemistry."""
    try:
        from rdkit import Chem
    except ImportError as error:
        message = "SMILES are read by RDKit, which is not installed: pip install 'fedweave[molecules]'."
        raise UserError(message, code="user.molecules") from error
    return Chem


def read_molecule(smiles: str | None) -> Any:
    """RDKit's molecule; None where there is none, or the text cannot be read."""
    chemistry = _rdkit()
    from rdkit import rdBase

    with rdBase.BlockLogs():
        molecule = chemistry.MolFromSmiles(smiles) if smiles and smiles.strip() else None
    return molecule if molecule is not None and molecule.GetNumAtoms() else None


def coordinates(smiles: str) -> np.ndarray | None:
    """float64 [atoms, 2], where chemists draw the atoms of a molecule, in the order of its nodes; None where RDKit is
    not installed or cannot read it."""
    molecule = None if find_spec("rdkit") is None else read_molecule(smiles)
    if molecule is None:
        return None
    from rdkit.Chem import rdDepictor

    rdDepictor.Compute2DCoords(molecule)
    return np.array(molecule.GetConformer().GetPositions(), np.float64)[:, :2]


def repeats(data: Dataset, train: np.ndarray, test: np.ndarray) -> list[str]:
    """Notes on molecules that are in the data several times, in any spelling: test molecules that train too,
    and those with different labels. [] without SMILES or RDKit.

    train, test: numbers of examples.
    """
    if not data.smiles or find_spec("rdkit") is None:
        return []
    texts = list[str]()
    for text in data.smiles:
        molecule = read_molecule(text)
        texts.append(text if molecule is None else str(_rdkit().MolToSmiles(molecule)))  # canonical, if it can be read
    names, structure = np.unique(np.array(texts, str), return_inverse=True)
    notes, known = list[str](), np.isin(structure[test], structure[train])
    if known.any():
        shown = ", ".join(dict.fromkeys(names[structure[test[known]]][:MAX_SHOWN].tolist()))
        notes.append(
            f"{int(known.sum()):,} of {len(test):,} test molecules are training molecules, too, in the same or another "
            f"spelling ({shown}), so that the test measures memory. Leave rows out, or set partition.split = "
            '"scaffold", which keeps equal molecules together'
        )
    if data.target == CLASS:
        labeled = np.flatnonzero(data.y >= 0)
        pairs = np.unique(np.stack([structure[labeled], data.y[labeled]]), axis=1)
        structures, labels = np.unique(pairs[0], return_counts=True)
        ambiguous = structures[labels > 1]
        if len(ambiguous):
            shown = ", ".join(names[ambiguous[:MAX_SHOWN]].tolist())
            notes.append(f"different rows give different labels to {counted(len(ambiguous), 'molecule')} ({shown})")
    return notes


def scaffold(smiles: str) -> str | None:
    """The Bemis-Murcko scaffold of a molecule, its rings and what links them, as canonical SMILES without chirality; ""
    without rings, None of what cannot be read (Bemis and Murcko 1996, "The properties of known drugs").

    Raises:
        UserError: RDKit is not installed.
    """
    molecule = read_molecule(smiles)
    if molecule is None:
        return None
    from rdkit.Chem.Scaffolds import MurckoScaffold

    scaffold_of: Any = MurckoScaffold.MurckoScaffoldSmiles  # which has no types
    return str(scaffold_of(mol=molecule, includeChirality=False))


def scaffolds_of(data: Dataset) -> np.ndarray:
    """int64 [e]: the number of each small graph's scaffold, as the data says or as made from its SMILES. Molecules
    without a ring have one in common.

    Raises:
        ConfigError: the data has neither. UserError: RDKit is not installed. DataError: it cannot read a molecule.
    """
    if data.scaffold is not None:
        return data.scaffold
    if not data.smiles:
        raise ConfigError(
            f"[partition]: {data.name!r} has no scaffolds. Give the table graphs a column scaffold, or smiles to make "
            'them from; or deal the graphs out by chance: partition.name = "graphs_iid".',
            code="config.no-scaffolds",
        )
    texts = [scaffold(text) for text in data.smiles]
    if None in texts:
        at = texts.index(None)
        what = f"the scaffold of graph {data.ids[at] if data.ids else at} is to be made from SMILES {data.smiles[at]!r}"
        refuse(data.name, f"{what}, which cannot be read", "Correct it, or give a column scaffold.", "smiles")
    numbers: np.ndarray = np.unique(np.array(texts, str), return_inverse=True)[1]
    return numbers.astype(np.int64)

"""Molecules from SMILES: against the tables of real data and PyTorch Geometric's `from_smiles`, and what is refused."""

import logging
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from fedweave.datasets import Dataset, from_graph_frames, load
from fedweave.datasets.graph_folder import GraphFolder, check_name_settings
from fedweave.datasets.molecules import ATOM, BOND, BONDS, ELEMENTS, repeats, scaffold, scaffolds_of
from fedweave.partition import Random, Scaffolds
from fedweave.partition import repeats as of_both
from fedweave.partition.client_data import shares
from tests.refusals import refusal

WHY = "needs RDKit: pip install 'fedweave[molecules]'"
CSV = "id,label,smiles\nethanol,0,CCO\nbenzene,1,c1ccccc1\naniline,1,Nc1ccccc1\nsalt,0,[Na+].[Cl-]\n"


def table(path: Path, text: str = CSV) -> Path:
    (path / "graphs.csv").write_text(text)
    return path


def dense(data: Dataset) -> np.ndarray:
    return data.x.toarray() if sp.issparse(data.x) else np.asarray(data.x)


@pytest.fixture
def rdkit() -> Any:
    return pytest.importorskip("rdkit", reason=WHY)


@pytest.mark.usefixtures("rdkit")
class TestSmiles:
    def test_a_table_of_smiles_as_worked_by_hand(self, tmp_path: Path) -> None:
        data = load("graphs", str(table(tmp_path)), normalize="none")
        assert (data.examples, data.nodes, data.example) == (4, 3 + 6 + 7 + 2, "graph")
        np.testing.assert_array_equal(data.graph_of, [0] * 3 + [1] * 6 + [2] * 7 + [3] * 2)
        assert data.edges.shape[1] // 2 == 2 + 6 + 7 + 0
        assert data.ids == ("ethanol", "benzene", "aniline", "salt")
        assert data.smiles == ("CCO", "c1ccccc1", "Nc1ccccc1", "[Na+].[Cl-]")
        column = {name: dense(data)[:, at] for at, name in enumerate(data.columns)}
        np.testing.assert_array_equal(column["label = C"][:3], [1, 1, 0])
        np.testing.assert_array_equal(column["hydrogens"][:3], [3, 2, 1])
        np.testing.assert_array_equal(column["degree"][:3], [1, 2, 1])
        np.testing.assert_array_equal(column["charge"][-2:], [1, -1])
        assert column["aromatic"].sum() == column["ring"].sum() == 12
        assert (data.node_kinds, data.edge_kinds) == (ELEMENTS, BONDS)
        assert np.bincount(data.edge_labels).tolist() == [6, 0, 0, 24]  # both directions; single, aromatic
        assert data.edge_attrs is None

    def test_scaffolds_are_rings_and_what_links_them(self, tmp_path: Path) -> None:
        assert scaffold("CCO") == ""
        assert scaffold("Nc1ccccc1") == "c1ccccc1"
        assert scaffold("OCC(c1ccccc1)C1CC1") == "c1ccc(CC2CC2)cc1"
        assert scaffold("C1CC") is None
        numbers = scaffolds_of(load("graphs", str(table(tmp_path))))
        assert numbers[0] == numbers[3] != numbers[1] == numbers[2]

    def test_a_refusal_lists_the_columns_of_the_file(self, tmp_path: Path) -> None:
        """Not the ids that are made of row numbers where it has none."""
        with refusal("data.column-missing", "'label'", "it has smiles, name. ") as error:
            load("graphs", str(table(tmp_path, "smiles,name\nCCO,ethanol\n")))
        assert "  " not in str(error.value)

    def test_real_molecules_are_those_of_the_tables(self, data_root: Path) -> None:
        """Which RDKit made, too, by others: every atom's kind and five numbers, every bond and its kind."""
        tables = load("graphs", str(data_root / "bace"), normalize="none")
        graphs = pd.read_parquet(data_root / "bace" / "graphs.parquet")
        made = from_graph_frames(graphs, normalize="none")
        np.testing.assert_array_equal(made.graph_of, tables.graph_of)
        np.testing.assert_array_equal(made.edges, tables.edges)
        kinds = [np.array(data.edge_kinds)[data.edge_labels] for data in (made, tables)]
        np.testing.assert_array_equal(*kinds)
        np.testing.assert_array_equal(made.y, tables.y)
        x = {name: at for at, name in enumerate(made.columns)}
        np.testing.assert_array_equal(dense(made)[:, [x[name] for name in tables.columns]], dense(tables))

    def test_atoms_and_bonds_are_those_of_pytorch_geometric(self, data_root: Path) -> None:
        """All that `from_smiles` says; its degree counts hydrogens, too."""
        pyg = pytest.importorskip("torch_geometric.utils.smiles")
        known_atoms, known_bonds, from_smiles = pyg.x_map, pyg.e_map, pyg.from_smiles
        smiles = [
            *pd.read_parquet(data_root / "bace" / "graphs.parquet").smiles[::60].tolist(),
            r"F/C=C\F",
            r"F/C=C/F",
            "[Fe+2].[CH3]",
            "FS(F)(F)(F)(F)F",
            "C#N",
            "[U]",
        ]
        frame = pd.DataFrame({"smiles": smiles, "label": np.arange(len(smiles)) % 2})
        made = from_graph_frames(frame, normalize="none", edge_features="all")
        theirs = [from_smiles(text) for text in smiles]
        x = np.concatenate([one.x.numpy() for one in theirs])
        ours = {name: dense(made)[:, at] for at, name in enumerate(made.columns)}
        from rdkit.Chem import GetPeriodicTable

        symbols = [GetPeriodicTable().GetElementSymbol(int(number)) for number in x[:, 0]]
        for at, name in enumerate(ELEMENTS):
            rows = [symbol == name or (name == "other" and symbol not in ELEMENTS) for symbol in symbols]
            np.testing.assert_array_equal(dense(made)[:, at], rows)
        np.testing.assert_array_equal(ours["degree"] + ours["hydrogens"], x[:, 2])
        charges = np.array(known_atoms["formal_charge"])[x[:, 3]]
        np.testing.assert_array_equal(ours["charge"], charges)
        for name, at in (("hydrogens", 4), ("radicals", 5), ("aromatic", 7), ("ring", 8)):
            np.testing.assert_array_equal(ours[name], x[:, at], err_msg=name)
        for name in ("sp", "sp2", "sp3", "sp3d", "sp3d2"):
            hybrid = x[:, 6] == known_atoms["hybridization"].index(name.upper())
            np.testing.assert_array_equal(ours[name], hybrid, err_msg=name)
        for name, tag in (("clockwise", "CHI_TETRAHEDRAL_CW"), ("counterclockwise", "CHI_TETRAHEDRAL_CCW")):
            np.testing.assert_array_equal(ours[name], x[:, 1] == known_atoms["chirality"].index(tag), err_msg=name)
        edge_attrs, before, rows = made.edge_attrs, 0, {}
        assert edge_attrs is not None
        for one in theirs:
            ends = one.edge_index.numpy() + before
            rows |= {tuple(pair): row for pair, row in zip(ends.T.tolist(), one.edge_attr.numpy(), strict=True)}
            before += one.num_nodes
        edge_attr = np.stack([rows[tuple(pair)] for pair in edge_attrs.ends.T.tolist()])
        assert 2 * edge_attrs.total == len(rows)
        bond = {name: edge_attrs.features[:, at] for at, name in enumerate(edge_attrs.columns)}
        for name in BONDS[:-1]:
            kind = edge_attr[:, 0] == known_bonds["bond_type"].index(name.upper())
            np.testing.assert_array_equal(bond[name], kind, err_msg=name)
        for name, tag in (("cis", "STEREOZ"), ("trans", "STEREOE")):
            np.testing.assert_array_equal(bond[name], edge_attr[:, 1] == known_bonds["stereo"].index(tag), err_msg=name)
        np.testing.assert_array_equal(bond["conjugated"], edge_attr[:, 2])
        assert (bond["cis"].sum(), bond["trans"].sum()) == (1, 1)

    def test_features_of_bonds_are_those_that_are_named(self, tmp_path: Path) -> None:
        table(tmp_path)
        every = load("graphs", str(tmp_path), edge_features="all").edge_attrs
        some = load("graphs", str(tmp_path), edge_features=("ring", "double")).edge_attrs
        assert every is not None
        assert some is not None
        assert (every.columns, some.columns) == (BOND, ("ring", "double"))
        np.testing.assert_array_equal(some.features[:, 0], every.features[:, BOND.index("ring")])
        with refusal("data.column-missing", "'length'"):
            load("graphs", str(tmp_path), edge_features=("length",))

    def test_columns_keep_their_names_and_ids_may_be_left_out(self, tmp_path: Path) -> None:
        table(tmp_path, "structure,toxic,batch\nCCO,0,7\nc1ccccc1,1,8\n")
        columns = {"smiles": "structure", "label": "toxic"}
        data = load("graphs", str(tmp_path), columns=columns, ignore=("batch",))
        assert (data.ids, data.y.tolist(), data.nodes) == (("0", "1"), [0, 1], 9)
        with refusal("data.column-unknown", "batch"):
            load("graphs", str(tmp_path), columns=columns)
        frame = from_graph_frames(pd.read_csv(tmp_path / "graphs.csv"), columns=columns, ignore=("batch",))
        assert (frame.ids, frame.columns) == (data.ids, data.columns)

    def test_kinds_of_atoms_may_be_listed(self, tmp_path: Path) -> None:
        data = load("graphs", str(table(tmp_path)), node_labels=("C", "N", "other"))
        assert data.columns[:4] == ("label = C", "label = N", "label = other", "charge")
        assert dense(data)[:, :3].sum() == data.nodes
        with refusal("data.row", "'O'", "node_labels"):
            load("graphs", str(tmp_path), node_labels=("C", "N"))

    def test_all_sites_have_the_same_columns(self, tmp_path: Path) -> None:
        """Whatever their molecules; nothing has to be listed."""
        check_name_settings(table(tmp_path), GraphFolder())
        one = load("graphs", str(tmp_path))
        other = load("graphs", str(table(tmp_path, "label,smiles\n0,C\n1,[He]\n")))
        assert one.columns == other.columns
        assert other.columns[: len(ELEMENTS)] == tuple(f"label = {name}" for name in ELEMENTS)
        assert other.columns[len(ELEMENTS) :] == ATOM

    def test_molecules_have_numbers_or_several_assays(self) -> None:
        """With gaps; a molecule that is left out takes its own with it."""
        frame = pd.DataFrame({"smiles": ["CCO", "C1CC", "CC", "c1ccccc1"], "logS": [1.1, 0.0, np.nan, -1.6]})
        numbers = from_graph_frames(frame, target="number", targets=("logS",), unreadable="drop")
        np.testing.assert_array_equal(numbers.y, [[1.1], [np.nan], [-1.6]])
        assays = frame[["smiles"]].assign(**{"NR-AR": [0.0, 1.0, np.nan, 1.0], "SR-p53": [1, 1, 0, 1]})
        several = from_graph_frames(assays, labels=("NR-AR", "SR-p53"), unreadable="drop")
        np.testing.assert_array_equal(several.y, [[0, 1], [-1, 0], [1, 1]])
        for data in (numbers, several):
            [part] = Scaffolds(clients=1, split="scaffold").cut(data, 0).parts
            assert part.masks.sum() == data.has_label.sum()

    def test_what_cannot_be_read_is_refused_or_left_out(self, tmp_path: Path, caplog: Any) -> None:
        """By its row in the file; with ids, and without."""
        table(tmp_path, "smiles,label\nCCO,0\nC1CC,1\n\nN(C)(C)(C)(C)C,0\nCC,1\n,1\n")
        with refusal("data.row", "graphs.csv: row 3", "'C1CC'", "row 5", "row 7", "empty", 'unreadable = "drop"'):
            load("graphs", str(tmp_path))
        with caplog.at_level(logging.WARNING):
            data = load("graphs", str(tmp_path), unreadable="drop")
        assert (data.ids, data.y.tolist(), data.smiles) == (("0", "4"), [0, 1], ("CCO", "CC"))
        assert re.search("3 of 5 SMILES .*rows 3, 5, 7", caplog.text)
        table(tmp_path, "smiles,label\nC1CC,1\n")
        with refusal("data.row", "row 2"):
            load("graphs", str(tmp_path), unreadable="drop")

    def test_a_client_keeps_its_molecules(self, tmp_path: Path) -> None:
        data = load("graphs", str(table(tmp_path)))
        cut = Scaffolds(clients=2).cut(data, 0)
        for part, own in zip(cut.parts, shares(data, cut.parts), strict=True):
            assert own.smiles == tuple(data.smiles[at] for at in part.examples)
            np.testing.assert_array_equal(scaffolds_of(own) == scaffolds_of(own)[0], True)

    def test_a_scaffold_from_smiles_that_cannot_be_read_is_refused(self, data_root: Path) -> None:
        graphs = pd.DataFrame({"id": ["a", "b"], "label": [0, 1], "smiles": ["C", "C1CC"]})
        nodes = pd.DataFrame({"id": [0, 1], "graph": ["a", "b"], "f": [0.0, 1.0]})
        data = from_graph_frames(graphs, nodes, pd.DataFrame({"source": [0], "target": [1]})[:0])
        with refusal("data.smiles", "graph b", "'C1CC'"):
            Scaffolds(clients=1).cut(data, 0)


SMILES = ("CCO", "CCCO", "CNN", "Oc1ccccc1", "OCC", "C(C)O", "OCCC")


@pytest.mark.usefixtures("rdkit")
@pytest.mark.parametrize(
    ("train", "test", "shown"),
    [
        ([0, 1, 2, 3], [4, 5, 6], "3 of 3 test molecules"),  # in other spellings
        ([0, 2, 3], [4, 6], "1 of 2 test molecules"),
        ([0, 4, 5], [1, 6], ""),  # twice on one side
    ],
)
def test_test_molecules_that_train_in_any_spelling_are_noted(train: list[int], test: list[int], shown: str) -> None:
    cells = {"id": [f"m{at}" for at in range(len(SMILES))], "smiles": SMILES, "label": [0, 1, 0, 1, 0, 0, 1]}
    data = from_graph_frames(pd.DataFrame(cells))
    notes = " ".join(repeats(data, np.array(train), np.array(test)))
    assert shown in notes
    assert bool(notes) == bool(shown)


@pytest.mark.usefixtures("rdkit")
def test_a_molecule_with_different_labels_is_noted() -> None:
    labels = {"id": [f"m{at}" for at in range(len(SMILES))], "smiles": SMILES, "label": [0, 1, 0, 1, 1, None, 1]}
    [note] = repeats(from_graph_frames(pd.DataFrame(labels)), np.array([0, 1, 4]), np.array([2]))
    assert re.search(r"1 molecule \(CCO\)", note)


@pytest.mark.usefixtures("rdkit")
@pytest.mark.parametrize("own_split", [False, True])
def test_a_cut_notes_molecules_on_both_sides(own_split: bool) -> None:
    """By the column split, and as the partition draws it; the scaffold split keeps equal molecules together."""
    smiles, splits = [*SMILES[:4]] * 6, ["train"] * 12 + ["val"] * 6 + ["test"] * 6
    table = pd.DataFrame({"id": [f"m{at}" for at in range(24)], "smiles": smiles, "label": [0, 1, 0, 1] * 6})
    data = from_graph_frames(table.assign(split=splits) if own_split else table)
    of_cut = Random(clients=2, use_dataset_split=own_split).cut(data, seed=0)
    assert of_both(data, of_cut)
    apart = Random(clients=1, split="scaffold").cut(data, seed=0)
    assert of_both(data, apart) == []


def test_without_the_extra_its_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of atoms and bonds next to SMILES are read without it."""
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with refusal("user.molecules", "pip install 'fedweave[molecules]'"):
        load("graphs", str(table(tmp_path)))
    graphs = pd.DataFrame({"id": ["a", "b"], "label": [0, 1], "smiles": ["C", "N"]})
    nodes = pd.DataFrame({"id": [0, 1], "graph": ["a", "b"], "f": [0.0, 1.0]})
    data = from_graph_frames(graphs, nodes, pd.DataFrame({"source": [0], "target": [1]})[:0])
    assert data.smiles == ("C", "N")
    with refusal("user.molecules"):
        Scaffolds(clients=2).cut(data, 0)


def test_scaffolds_of_a_column_may_be_empty(tmp_path: Path) -> None:
    """Molecules without a ring have one in common."""
    (tmp_path / "nodes.csv").write_text("id,graph,f\n0,a,1\n1,b,2\n2,c,3\n")
    (tmp_path / "edges.csv").write_text("source,target\n")
    data = load("graphs", str(table(tmp_path, "id,label,scaffold\na,0,\nb,1,c1ccccc1\nc,1,\n")))
    assert data.scaffold is not None
    assert data.scaffold.tolist() == [0, 1, 0]
    again = load("npz", str(data.save(tmp_path / "kept.npz")), sens_feature=True, normalize="none")
    np.testing.assert_array_equal(again.scaffold, data.scaffold)

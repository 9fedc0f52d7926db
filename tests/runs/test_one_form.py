"""Between tables and tensors there is one way: on the tables of training every door gives the scores of the run."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedweave.apply.drift import drift
from fedweave.apply.prediction_table import NOT_GIVEN
from fedweave.apply.reasons import explain
from fedweave.apply.run_predictions import predictions
from fedweave.apply.scorer import scorer_at
from fedweave.core.edge_attributes import format_date
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.run import run
from fedweave.export.serving import answer
from fedweave.python.training import Silent
from tests.one_form import MEMBERS, NODES, OTHERS, combinations, members, settings
from tests.refusals import check_facts
from tests.runs.test_predictions import made

FAST: dict[str, Any] = {"name": "fedavg", "lr": 0.05}
REST = ("none", "binary", "scale", "standard", "minmax")


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """{whether there are transfers between members: the members' folders}."""
    root = tmp_path_factory.mktemp("members")
    return {outside: members(root / str(outside), outside) for outside in (False, True)}


def outputs(table: pa.Table) -> np.ndarray:
    """[e, outputs], in the order of the rows: probabilities, or numbers."""
    names = [name for name in table.column_names if name.startswith("p_")]
    names = names or [name for name in table.column_names if name.startswith("predicted")]
    return np.stack([np.array(table[name].to_pylist(), np.float64) for name in names], 1)


def trained(out: Path, root: Path, data: dict[str, Any], algorithm: dict[str, Any] = FAST) -> Path:
    """A run of one round on the members at `root`."""
    document = {
        "seed": 1,
        "rounds": 1,
        "eval_every": 0,
        "data": {"name": "members", "path": str(root)} | data,
        "partition": {"name": "folders", "use_dataset_split": True},
        "model": {"name": "gine" if data.get("edge_features") else "sage", "hidden": 8},
        "algorithm": algorithm,
        "engine": {"threads": 1},
    }
    run(resolve(document), out, Silent(), False)
    return out


def as_rows(folder: Path, ignore: list[str]) -> bytes:
    """The tables as the body of a request, without the columns that the model ignores."""
    body = dict[str, list[dict[str, object]]]()
    for stem in ("nodes", "edges"):
        with (folder / f"{stem}.csv").open() as file:
            rows = list(csv.DictReader(file))
        left_out = {name.removeprefix("edges.") for name in ignore if name.startswith("edges.") is (stem == "edges")}
        body[stem] = [{name: typed(row[name]) for name in row if name not in left_out and row[name]} for row in rows]
    return json.dumps(body).encode()


def typed(cell: str) -> object:
    """A cell as JSON has it."""
    try:
        return float(cell)
    except ValueError:
        return cell


FEW = {
    "auto-standard-features",
    "auto-auto-features",
    "none-auto-features",
    "minmax-none-features",
    "row-row-features",
    "scale-binary",
    *OTHERS,
}


@pytest.mark.parametrize(
    "given",
    [pytest.param(given, id=name, marks=() if name in FEW else pytest.mark.slow) for name, given in combinations()],
)
def test_every_door_gives_the_scores_of_the_run_on_its_tables(
    roots: dict[bool, Path], tmp_path: Path, given: dict[str, Any]
) -> None:
    """And nothing has drifted."""
    data = settings(given)
    root = roots[data["external"] != "refuse"]
    out = trained(tmp_path / "run", root, data)
    for client in MEMBERS:
        tables, expected = root / client, outputs(predictions(out, client=client))
        size, scorer = max(1.0, np.abs(expected).max()), scorer_at(out, None, client)
        same = {"atol": 1e-6 * size, "rtol": 0}
        np.testing.assert_allclose(outputs(predictions(out, tables, client=client)), expected, **same)
        scores = scorer.score(tables)
        np.testing.assert_allclose(outputs(scores), expected, **same)
        reply = answer(scorer, as_rows(tables, [*data["ignore"], "label", "split", "edges.split"]))
        columns = pa.Table.from_pylist(reply["rows"])
        np.testing.assert_allclose(outputs(columns), expected, **same)
        assert max(one.stability for one in drift(out, tables, client=client).shifts if one.of != "score") == 0
        example = scores["id"][0].as_py() if "id" in scores.column_names else "0"
        score = explain(out, example, client=client, data=tables).score
        assert np.abs(expected[0] - score).min() < 1e-6 * size


def test_a_date_is_shown_as_a_date(roots: dict[bool, Path], tmp_path: Path) -> None:
    """The first transfer of a, as the time of an edge, as a feature, and as the bin of a histogram."""
    data = settings(OTHERS["date"] | {"edge_normalize": "standard"})
    out = trained(tmp_path / "run", roots[False], data)
    tables = roots[False] / "a"
    ends, day = (tables / "edges.csv").read_text().splitlines()[1].split(",")[:2], "2024-01-10"
    for place, names in ((None, [f"a/{end}" for end in ends]), (tables, ends)):
        found = explain(out, names[0], client="a", data=place)
        edges = [one.value for one in found.reasons if one.kind == "edge" and one.name == " → ".join(names)]
        assert any(f"day {day}, time {day}" in value for value in edges)
    [column] = [one for one in drift(out, tables, client="a").shifts if one.name == "day"]
    check_facts(column.moved[0], "2024-")
    moments = [format_date(at) for at in (0.0, 19732.5, np.float32(20661))]
    assert moments == ["1970-01-01", "2024-01-10 12:00", "2026-07-27"]


def test_neighbors_that_are_not_given_are_counted(roots: dict[bool, Path], tmp_path: Path) -> None:
    """In scores of tables, of a served request, and in predictions; with the whole member's tables only those of others
    count."""
    out = trained(tmp_path / "run", roots[True], settings({"external": "features"}))
    scorer, tables = scorer_at(out, None, "a"), roots[True] / "a"
    with (tables / "edges.csv").open() as file:
        ends = {(row["source"], row["target"]) for row in csv.DictReader(file)}
    others = {name: {end for pair in ends if name in pair for end in pair} - {name} for name in ("a0", "a1")}
    own = {f"a{at}" for at in range(NODES)}
    for table in (scorer.score(tables), predictions(out, tables, client="a")):
        count = dict(zip(table["id"].to_pylist(), table[NOT_GIVEN].to_pylist(), strict=True))
        assert {name: count[name] for name in others} == {name: len(far - own) for name, far in others.items()}
    body = json.loads(as_rows(tables, [*settings({})["ignore"], "label", "split", "edges.split"]))
    alone = {"nodes": [row for row in body["nodes"] if row["id"] == "a0"]}
    alone["edges"] = [row for row in body["edges"] if "a0" in (row["source"], row["target"])]
    [row] = answer(scorer, json.dumps(alone).encode())["rows"]
    assert row[NOT_GIVEN] == len(others["a0"])


def test_it_is_said_where_new_tables_are_read_otherwise_than_the_clients_of_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Three clients of a path of six nodes: two of its five edges lead from one client to another."""
    rows = [f"n{at},{at * 1000 + 17},{'xyz'[at // 2]},{at % 2}" for at in range(6)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/nodes.csv").write_text("\n".join(["id,income,bank,label", *rows]) + "\n")
    edges = [f"n{at},n{at + 1}" for at in range(5)]
    (tmp_path / "data/edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    data = {"name": "folder", "path": str(tmp_path / "data"), "owner": "bank", "classes": 2, "normalize": "auto"}
    cut = {"name": "column", "train": 0.5, "val": 0.0, "test": 0.5}
    made(tmp_path / "run", {"name": "fedavg"}, data, 1, partition=cut)
    for call in (lambda: predictions(tmp_path / "run", tmp_path / "data"), lambda: scorer_at(tmp_path / "run")):
        caplog.clear()
        call()
        check_facts(caplog.text, "2 of 5")
        check_facts(caplog.text, "3 clients")
    # One client's numbers scale the rows of all three; of its own rows they are right.
    (tmp_path / "own").mkdir()
    (tmp_path / "own/nodes.csv").write_text("\n".join(["id,income,bank,label", *rows[:2]]) + "\n")
    (tmp_path / "own/edges.csv").write_text("source,target\nn0,n1\n")
    for call in (
        lambda tables: predictions(tmp_path / "run", tables, client="x"),
        lambda tables: scorer_at(tmp_path / "run", client="x").score(tables),
    ):
        caplog.clear()
        call(tmp_path / "own")
        assert not caplog.records
        call(tmp_path / "data")
        [record] = caplog.records
        check_facts(record.getMessage(), "3 members", "x's")


@pytest.mark.parametrize("how", ["auto", "row", *(pytest.param(one, marks=pytest.mark.slow) for one in REST)])
def test_one_client_has_the_scores_of_the_whole_tables(roots: dict[bool, Path], tmp_path: Path, how: str) -> None:
    """A model of all data together reads the folder of all members as the run did."""
    data = settings({"normalize": how, "edge_normalize": "standard"})
    out = trained(tmp_path / "run", roots[False], data, {"name": "centralized", "lr": 0.05})
    tables, expected = roots[False], outputs(predictions(out))
    for table in (predictions(out, tables), scorer_at(out).score(tables)):
        np.testing.assert_allclose(outputs(table), expected, atol=1e-6, rtol=0)
    found = drift(out, tables)
    assert max(one.stability for one in found.shifts if one.of != "score") == 0

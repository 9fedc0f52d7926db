"""Between tables and tensors there is one way: on the tables of training every door gives the scores of the run."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedweave.cli.predict import predictions
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.drift import drift
from fedweave.experiment.runs.reasons import explain
from fedweave.experiment.runs.run import run
from fedweave.experiment.runs.scorer import scorer_at
from fedweave.export.serving import answer
from fedweave.python.training import Silent
from tests.one_form import MEMBERS, OTHERS, combinations, members, settings


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


def trained(out: Path, root: Path, data: dict[str, Any]) -> Path:
    """A run of one round on the members at `root`."""
    document = {
        "seed": 1,
        "rounds": 1,
        "eval_every": 0,
        "data": {"name": "members", "path": str(root)} | data,
        "partition": {"name": "folders", "use_dataset_split": True},
        "model": {"name": "gine" if data.get("edge_features") else "sage", "hidden": 8},
        "algorithm": {"name": "fedavg", "lr": 0.05},
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


FEW = {"auto-standard-features", "minmax-none-features", "row-row-features", "scale-binary", *OTHERS}


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
        np.testing.assert_allclose(outputs(scorer.score(tables)), expected, **same)
        reply = answer(scorer, as_rows(tables, [*data["ignore"], "label", "split", "edges.split"]))
        columns = pa.Table.from_pylist(reply["rows"])
        np.testing.assert_allclose(outputs(columns), expected, **same)
        assert max(one.stability for one in drift(out, tables, client=client).shifts if one.of != "score") == 0
        example = "0" if data.get("task") == "edges" else f"{client}0"
        score = explain(out, example, client=client, tables=tables).score
        assert np.abs(expected[0] - score).min() < 1e-6 * size

"""What it brings that members use their own model where it is better on their validation examples (`own_share`).

Numbers: the templates of `fedweave init --from numbers` and molecules, of which only the data, five members and the
metric are set. Molecules of ESOL by scaffold; speeds at detectors between five areas; amounts of 1,000 loans; and the
column with the most values of the income and credit sets, without those that follow it. Louvain communities where the
data names no owners. Columns: R² on test examples at the chosen round, mean over members, ± deviation over seeds, of
FedAvg, with `own_share`, and with its `alone`; of the same model alone, and of the shelf; and paired differences with
their 95 % interval.

    python -m benchmarks.own_share [--seeds 3] [--sets esol …] [--rows own_share.csv]

Rows that the file has already are not measured again. Needs the sets in $FEDWEAVE_DATA.
"""

import tempfile
import tomllib
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

import fedweave
from benchmarks.common import EXPERIMENTS, SavedRows, mean_deviation, mean_interval, parser_of_rows
from benchmarks.target_scale import DATA, Tables, esol, loans, speeds

HOWS: dict[str, list[dict[str, Any]]] = {
    "joint": [],
    "own_share": [{"name": "own_share"}],
    "with alone": [{"name": "own_share", "alone": True}],
}
COLUMNS = ("joint", "alone", "shelf", "seconds")
FOLLOWS = 0.98  # correlation from which a column is left out


def column_of(name: str) -> Tables:
    """The nodes of a set in one file, with its column of the most values to predict."""
    file = np.load(DATA / name / f"{name}.npz", allow_pickle=False)
    csr = (file["x_data"], file["x_indices"], file["x_indptr"])
    x = sp.csr_matrix(csr, shape=tuple(file["x_shape"])).toarray().astype(float)
    target = int(np.argmax([len(np.unique(column)) for column in x.T]))
    nodes = pd.DataFrame({"id": np.arange(len(x)), "number": x[:, target]})
    for at, column in enumerate(x.T):
        varies = at != target and np.ptp(column) > 0
        if varies and abs(np.corrcoef(column, x[:, target])[0, 1]) < FOLLOWS:
            nodes[f"column {at}"] = column
    source, target_of_edge = file["edge_index"]
    once = source < target_of_edge
    return {"nodes": nodes, "edges": pd.DataFrame({"source": source[once], "target": target_of_edge[once]})}


LOUVAIN = {"name": "louvain", "clients": 5}
SETS: dict[str, tuple[str, Any, str, dict[str, Any]]] = {  # template, tables, target, [partition]
    "esol": ("molecules", esol, "log_solubility", {"name": "scaffold", "clients": 5}),
    "speeds": ("numbers", speeds, "speed", {"name": "column"}),
    "loans": ("numbers", loans, "LoanAmount", LOUVAIN),
    "income": ("numbers", lambda: column_of("income"), "number", LOUVAIN),
    "credit": ("numbers", lambda: column_of("credit"), "number", LOUVAIN),
}


def run(name: str, how: str, seed: int) -> list[float]:
    """`COLUMNS`; alone and shelf are measured beside the joint model only."""
    template, tables, target, partition = SETS[name]
    document = tomllib.loads((EXPERIMENTS / f"{template}.toml").read_text())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / name
        folder.mkdir()
        for kind, frame in tables().items():
            frame.to_parquet(folder / f"{kind}.parquet")
        document["data"] |= {"path": str(folder), "target": "number", "targets": [target]}
        document["data"].pop("owner", None)
        if partition["name"] == "column":
            document["data"]["owner"] = "area"
        document["partition"] |= partition
        document["evaluation"] |= {"metric": "r2", "alone": how == "joint", "shelf": how == "joint"}
        document["algorithm"]["parts"] = HOWS[how]
        document |= {"seed": seed, "engine": {"threads": 1}}
        summary = fedweave.run(document, out=str(Path(scratch) / "run"), progress=False).summary
    scores = summary["metrics"]
    names = ("best_val/local/r2", "alone/local/r2", "shelf/local/r2")
    return [*(scores.get(key, float("nan")) for key in names), summary["seconds"]]


def table(rows: SavedRows, names: list[str]) -> str:
    """A line for each set."""
    differences = "own_share less joint | with alone less joint | with alone less alone | with alone less shelf"
    lines = [f"| set | seeds | joint | own_share | with alone | alone | shelf | {differences} |"]
    lines.append(f"| {' | '.join(['---'] * 11)} |")
    for name in names:
        joint, own, with_alone = (rows.by_seed(name, how) for how in HOWS)
        seeds = joint.keys() & own.keys() & with_alone.keys()
        values = [[by[seed][0] for seed in seeds] for by in (joint, own, with_alone)]
        values += [[joint[seed][at] for seed in seeds] for at in (1, 2)]
        cells = [name, str(len(seeds)), *map(mean_deviation, values)]
        for one, other in ((1, 0), (2, 0), (2, 3), (2, 4)):
            cells.append(mean_interval([a - b for a, b in zip(values[one], values[other], strict=True)]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, and print the table."""
    arguments = parser_of_rows(__doc__, SETS, "own_share.csv").parse_args()
    rows = SavedRows(arguments.rows, ("set", "how", "seed"), COLUMNS)
    for seed, name, how in product(range(arguments.seeds), arguments.sets, HOWS):
        rows.measure((name, how, str(seed)), partial(run, name, how, seed))
    print(table(rows, arguments.sets))


if __name__ == "__main__":
    main()

"""The units in which a model predicts numbers: `target_normalize` as "own", "all" and "none".

Molecules of ESOL between four members, by scaffold and at random; molecules of one publication (activity, from
RDKit's own files) by scaffold; speed at the detectors of Los Angeles in a quarter of an hour, from the last hour,
between five neighborhoods; ratings between people of Bitcoin Alpha, between five communities; loans of the German
credit data between five communities. FedAvg and the model of `SETS`; nothing was tuned. Columns: how much the members'
means differ, the units, and RMSE of the model after the last round over the test examples of all members ("pooled") and
as the mean over members ("within"), in the data's units, mean ± deviation over seeds. "less own" is the paired
difference to "own", with its 95 % interval by Student's t.

    python -m benchmarks.target_scale [--seeds 3] [--sets esol-scaffold …] [--rows target_scale.csv]

Rows that the file has already are not measured again. Needs the sets in $FEDWEAVE_DATA.
"""

import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import pandas as pd
import torch
from rdkit import RDConfig

import fedweave
from benchmarks.common import SavedRows, mean_deviation, mean_interval, parser_of_rows

HOWS = ("own", "all", "none")
Tables = dict[str, pd.DataFrame]
DATA = Path(os.environ.get("FEDWEAVE_DATA", "."))


class Set(NamedTuple):
    """A set of numbers: its tables, the sections [data], [partition], [model] and [algorithm], and how many rounds."""

    tables: Callable[[], Tables]
    data: dict[str, Any]
    partition: dict[str, Any]
    model: dict[str, Any]
    algorithm: dict[str, Any]
    rounds: int


def esol() -> Tables:
    """1,128 molecules with their solubility."""
    return {kind: pd.read_parquet(DATA / "delaney" / f"{kind}.parquet") for kind in ("graphs", "nodes", "edges")}


def activities() -> Tables:
    """1,017 molecules of one publication with their activity, which RDKit ships (ChEMBL document 2321810)."""
    folder = Path(RDConfig.RDContribDir) / "FreeWilson" / "data"
    smiles = pd.read_csv(folder / "CHEMBL2321810.smi", sep=" ", header=None, names=["smiles", "Name"])
    both = smiles.merge(pd.read_csv(folder / "CHEMBL2321810_act.csv"), on="Name")
    return {"graphs": pd.DataFrame({"id": both["Name"], "smiles": both["smiles"], "activity": both["Act"]})}


def speeds() -> Tables:
    """Speed at 207 detectors at 60 times, from the hour before; roads join detectors at the same time."""
    speed = pd.read_csv(DATA / "los-loop" / "speed.csv.xz")
    roads = pd.read_csv(DATA / "los-loop" / "edges.csv.xz", dtype={"source": str, "target": str})
    roads = roads[roads["source"] < roads["target"]]
    graph = nx.from_pandas_edgelist(roads)
    graph.add_nodes_from(speed.columns)
    areas = sorted(nx.community.greedy_modularity_communities(graph, cutoff=5, best_n=5), key=len)
    owner, nodes, edges = {}, [], []
    for at, area in enumerate(areas):
        owner |= dict.fromkeys(area, f"area-{at}")
    for time in range(12, len(speed) - 3, len(speed) // 60):
        hour, after = speed.iloc[time - 12 : time].T, speed.iloc[time + 2]
        frame = pd.DataFrame(hour.to_numpy(), columns=[f"ago{5 * (12 - at)}" for at in range(12)])
        frame.insert(0, "id", [f"{detector}@{time}" for detector in speed.columns])
        nodes.append(frame.assign(speed=after.to_numpy(), area=[owner[detector] for detector in speed.columns]))
        edges.append(roads[["source", "target"]] + f"@{time}")
    return {"nodes": pd.concat(nodes), "edges": pd.concat(edges)}


def ratings() -> Tables:
    """Ratings from -10 to 10 of people who trade."""
    edges = pd.read_parquet(DATA / "bitcoin-alpha" / "edges.parquet")[["source", "target", "rating"]]
    return {"nodes": pd.DataFrame({"id": np.unique(edges[["source", "target"]])}), "edges": edges}


def loans() -> Tables:
    """Amounts of 1,000 loans, skewed; people who resemble each other are joined."""
    people = pd.read_csv(DATA / "german" / "german.csv").drop(columns=["PurposeOfLoan", "GoodCustomer"])
    people["Gender"] = (people["Gender"] == "Female").astype(int)
    pairs = np.loadtxt(DATA / "german" / "german_edges.txt").astype(int)
    people.insert(0, "id", np.arange(len(people)))
    return {"nodes": people, "edges": pd.DataFrame(pairs, columns=["source", "target"])}


GIN = {"name": "gin", "hidden": 64, "layers": 3, "dropout": 0.0}
BATCHES = {"lr": 0.003, "local_steps": 7, "weight_decay": 0.0, "parts": [{"name": "graph_cross_entropy", "batch": 32}]}
SOLUBILITY = {"name": "graphs", "targets": ["log_solubility"]}
ACTIVITY = {"name": "graphs", "targets": ["activity"]}
NODES = {"lr": 0.01, "local_steps": 5}
SPLIT = {"train": 0.6, "val": 0.2, "test": 0.2}
SAGE = {"name": "sage", "hidden": 64, "dropout": 0.0}
SCAFFOLD = {"name": "scaffold", "clients": 4, "split": "scaffold"}
SETS = {
    "esol-scaffold": Set(esol, SOLUBILITY, SCAFFOLD, GIN, BATCHES, 60),
    "esol-random": Set(esol, SOLUBILITY, {"name": "random", "clients": 4}, GIN, BATCHES, 60),
    "activity-scaffold": Set(activities, ACTIVITY, SCAFFOLD, GIN, BATCHES, 60),
    "speeds-area": Set(
        speeds, {"name": "folder", "targets": ["speed"], "owner": "area"}, {"name": "column", **SPLIT}, SAGE, NODES, 40
    ),
    "ratings-louvain": Set(
        ratings,
        {"name": "folder", "task": "edges", "targets": ["rating"], "directed": True},
        {"name": "louvain", "clients": 5, **SPLIT},
        SAGE,
        NODES,
        40,
    ),
    "loans-louvain": Set(
        loans,
        {"name": "folder", "targets": ["LoanAmount"]},
        {"name": "louvain", "clients": 5, **SPLIT},
        SAGE,
        NODES,
        40,
    ),
}


def run(name: str, how: str, seed: int) -> list[float]:
    """Pooled and within RMSE, the RMSE of the training mean, and how much members' means differ."""
    one = SETS[name]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / name
        folder.mkdir()
        for kind, frame in one.tables().items():
            frame.to_parquet(folder / f"{kind}.parquet")
        document = {
            "seed": seed,
            "rounds": one.rounds,
            "eval_every": one.rounds,
            "data": {**one.data, "path": str(folder), "target": "number", "target_normalize": how},
            "partition": one.partition,
            "model": one.model,
            "algorithm": {"name": "fedavg", **one.algorithm},
            "engine": {"threads": 1},
        }
        scores = fedweave.run(document, out=str(Path(scratch) / "run")).summary["metrics"]
    names = ("global/rmse", "local/rmse", "global/rmse_of_mean", "targets/apart")
    return [scores.get(key, float("nan")) for key in names]


def table(rows: SavedRows, names: list[str]) -> str:
    """Means and deviations over seeds, and "all" and "none" less "own", paired."""
    lines = ["| set and cut | means apart | units | pooled RMSE | less own | within RMSE | less own |"]
    lines += ["| --- | ---: | --- | ---: | ---: | ---: | ---: |"]
    for name, how in product(names, HOWS):
        by_seed, reference = rows.by_seed(name, how), rows.by_seed(name, "own")
        cells = ["", "", how]
        if how == "own":
            cells[:2] = name, f"{statistics.mean(row[3] for row in reference.values()):.2f}"
        for at in (0, 1):  # pooled, within
            cells.append(mean_deviation(row[at] for row in by_seed.values()))
            differences = [row[at] - reference[seed][at] for seed, row in by_seed.items()]
            cells.append("" if how == "own" or len(differences) < 2 else mean_interval(differences, "+.3g"))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    args = parser_of_rows(__doc__, SETS, "target_scale.csv").parse_args()
    torch.set_num_threads(1)
    rows = SavedRows(args.rows, ("set", "how", "seed"), ("pooled", "within", "of_mean", "apart"))
    for seed, name, how in product(range(args.seeds), args.sets, HOWS):
        rows.measure((name, how, str(seed)), partial(run, name, how, seed))
    print(table(rows, args.sets))


if __name__ == "__main__":
    main()

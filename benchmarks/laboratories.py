"""Why FairGraphFL may end at one class: five laboratories with molecules of `bbbp`, by learning rate and local steps.

1,066 of the 2,039 molecules are drawn once and dealt to five laboratories, 560, 150, 150, 150 and 56. Features are the
kinds of atoms. Columns, for the global model after the last round: accuracy and AUC, mean ± deviation over seeds, and
how many seeds end at one class.

    python -m benchmarks.laboratories [--seeds 3] [--only "fedavg, defaults (lr 0.01, 3 steps)"]
"""

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import fedweave
from benchmarks.common import mean_deviation

SIZES = {"a": 560, "b": 150, "c": 150, "d": 150, "e": 56}
FAST = {"lr": 0.01, "local_steps": 3}
SLOW = {"lr": 0.001, "local_steps": 1}
ARMS: Mapping[str, dict[str, Any]] = {
    "fairgraphfl, defaults": {},
    "fairgraphfl, rewards = false": {"rewards": False},
    "fedavg, lr 0.001, 1 step": {"name": "fedavg", **SLOW},
    "fairgraphfl, lr 0.01": {"lr": 0.01},
    "fairgraphfl, lr 0.01, 3 steps": FAST,
    "fedavg, defaults (lr 0.01, 3 steps)": {"name": "fedavg"},
    "fairgraphfl, defaults, 200 rounds": {"rounds": 200},
    "fairgraphfl, pool = sum": {"pool": "sum"},
    "fairgraphfl, pool = sum, lr 0.01, 3 steps": {"pool": "sum", **FAST},
}


def laboratories(source: Path, folder: Path) -> Path:
    """Write the tables of the five into `folder`; which molecules they have does not depend on a run's seed."""
    graphs, nodes, edges = (pq.read_table(source / f"{name}.parquet") for name in ("graphs", "nodes", "edges"))
    chosen = np.random.default_rng(0).permutation(len(graphs))[: sum(SIZES.values())]
    graphs = graphs.select(["id", "label"]).take(chosen)
    graphs = graphs.append_column("lab", pa.array(np.repeat([*SIZES], [*SIZES.values()]))).sort_by("id")
    nodes = nodes.select(["id", "graph", "label"]).filter(pc.is_in(nodes["graph"], graphs["id"].combine_chunks()))
    edges = edges.filter(pc.is_in(edges["source"], nodes["id"].combine_chunks()))
    for name, table in (("graphs", graphs), ("nodes", nodes), ("edges", edges)):
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


def run(data: Path, arm: dict[str, Any], seed: int) -> dict[str, float]:
    """The last evaluation of one run."""
    algorithm = {"name": "fairgraphfl", **arm}
    rounds, pool = algorithm.pop("rounds", 30), algorithm.pop("pool", "mean")
    document = {
        "seed": seed,
        "rounds": rounds,
        "eval_every": rounds,
        "data": {"name": "graphs", "path": str(data), "owner": "lab"},
        "partition": {"name": "column"},
        "model": {"name": "gin", "pool": pool},
        "algorithm": algorithm,
        "engine": {"threads": 1},
    }
    with tempfile.TemporaryDirectory() as folder:
        metrics: dict[str, float] = fedweave.run(document, out=str(Path(folder) / "run")).summary["metrics"]
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=ARMS, default=[*ARMS])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = laboratories(Path(os.environ["FEDWEAVE_DATA"]) / "bbbp", Path(folder))
        print("| run | accuracy | AUC | seeds with one class |\n| --- | --- | --- | --- |")
        for name in args.only:
            runs = [run(data, ARMS[name], seed) for seed in range(args.seeds)]
            accuracy = mean_deviation(metrics["global/accuracy"] for metrics in runs)
            auc = mean_deviation(metrics["global/auc"] for metrics in runs)
            constant = sum(metrics["global/classes_predicted"] == 1 for metrics in runs)
            print(f"| {name} | {accuracy} | {auc} | {constant} of {args.seeds} |", flush=True)


if __name__ == "__main__":
    main()

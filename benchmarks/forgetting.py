"""What `fedweave forget` reaches: accuracy, distance to the exact model and membership inference, for each model.

    python benchmarks/forgetting.py OUT.csv [SET …]

Each set is trained with FedAvg for 50 rounds over ten clients; then a client, or 100 training examples drawn by the
seed, are forgotten: exactly, and by 5 and by 15 more rounds. The last columns of OUT.csv, from "parameters" on, are
those of `Forgetting.table`. Runs that OUT.csv has already are not repeated.
"""

import csv
import sys
import tempfile
from pathlib import Path

import numpy as np

import fedweave
from fedweave.experiment.runs.trained import finished_config, load_trained

NODES = {"partition": {"name": "louvain", "clients": 10}, "model": {"name": "gcn", "hidden": 64}}
SETS = {
    "cora": {"data": {"name": "cora"}, **NODES},
    "citeseer": {"data": {"name": "citeseer"}, **NODES},
    "german": {"data": {"name": "german"}, **NODES},
}
ROUNDS, FAST, SEEDS, IDS = 50, (5, 15), range(5), 100
COLUMNS = (
    *("set", "dropout", "seed", "forgotten", "examples", "training", "model", "rounds", "seconds", "metric", "value"),
    *("parameters", "predictions", "disagree", "auc", "advantage", "by_chance"),
)


def main(out: Path, sets: list[str]) -> None:
    """Make all lines that `out` does not have."""
    done = set()
    if out.exists():
        with open(out) as file:
            done = {(row["set"], row["dropout"], row["seed"]) for row in csv.DictReader(file)}
    else:
        with open(out, "w") as file:
            csv.writer(file).writerow(COLUMNS)
    for seed in SEEDS:
        for name in sets or SETS:
            for dropout in (0.5, 0.0) if name == "cora" else (0.5,):
                if (name, str(dropout), str(seed)) not in done:
                    rows = forget(name, dropout, seed)
                    with open(out, "a") as file:
                        csv.writer(file).writerows(rows)


def forget(name: str, dropout: float, seed: int) -> list[list[object]]:
    """The lines of one set and seed."""
    document = {**SETS[name], "seed": seed, "rounds": ROUNDS, "eval_every": ROUNDS}
    document["model"] = {**document["model"], "dropout": dropout}
    document |= {"algorithm": {"name": "fedavg"}, "evaluation": {"shelf": False}}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        run = fedweave.run(document, Path(folder) / "run", progress=False)
        requests = {"client": {"client": f"client-{seed}"}, "examples": {"ids": draw_ids(run.directory, seed)}}
        for what, request in requests.items():
            for rounds in FAST:
                result = run.forget(**request, rounds=rounds, out=Path(folder) / f"{what}-{rounds}")
                about = result.record["forgotten"]
                for row in result.table.to_pylist():
                    # the other models do not depend on the rounds of the fast way
                    if rounds == FAST[0] or row["model"] == "fast":
                        first = [name, dropout, seed, what, about["examples"], about["training"], row["model"]]
                        values = [row["rounds"], row["seconds"], result.record["metric"], row["metric"]]
                        rows.append([*first, *values, *(row[column] for column in COLUMNS[11:])])
    return rows


def draw_ids(directory: Path, seed: int) -> list[str]:
    """The numbers of training examples, drawn by the seed."""
    run = load_trained(directory, finished_config(directory), "")
    training = np.concatenate([part.examples[part.masks[0]] for part in run.built.partition.parts])
    return [str(number) for number in sorted(np.random.default_rng(seed).choice(training, IDS, replace=False).tolist())]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

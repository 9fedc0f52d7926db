"""What `fedweave forget` reaches: accuracy, distance to the exact model and membership inference, a line for each run.

    python benchmarks/forgetting.py OUT.csv [SET …]

Each set is trained with FedAvg for 50 rounds over ten clients; then a client, or 100 training examples drawn by the
seed, are forgotten: exactly, and by 5 and by 15 further rounds. Lines that OUT.csv has already are not made again.
"""

import csv
import sys
import tempfile
from pathlib import Path

import numpy as np

import fedweave
from fedweave.experiment.runs.trained import finished, trained

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
                    rows = lines(name, dropout, seed)
                    with open(out, "a") as file:
                        csv.writer(file).writerows(rows)


def lines(name: str, dropout: float, seed: int) -> list[list[object]]:
    """The lines of one set and seed."""
    document = {**SETS[name], "seed": seed, "rounds": ROUNDS, "eval_every": ROUNDS}
    document["model"] = {**document["model"], "dropout": dropout}
    document |= {"algorithm": {"name": "fedavg"}, "evaluation": {"features": False}}
    rows = []
    with tempfile.TemporaryDirectory() as place:
        run = fedweave.run(document, Path(place) / "run", progress=False)
        client = f"client-{seed}"
        for what, chosen in (("client", {"client": client}), ("examples", {"ids": drawn(run.directory, seed)})):
            for at, rounds in enumerate(FAST):
                result = run.forget(**chosen, rounds=rounds, out=Path(place) / f"{what}-{rounds}")
                about = result.record["forgotten"]
                for row in result.table.to_pylist():
                    if at == 0 or row["model"] == "fast":
                        first = [name, dropout, seed, what, about["examples"], about["training"], row["model"]]
                        values = [row["rounds"], row["seconds"], result.record["metric"], row["metric"]]
                        rows.append([*first, *values, *(row[column] for column in COLUMNS[11:])])
    return rows


def drawn(directory: Path, seed: int) -> list[str]:
    """The numbers of training examples, drawn by the seed."""
    run = trained(directory, finished(directory), "")
    training = np.concatenate([part.examples[part.masks[0]] for part in run.built.partition.parts])
    return sorted(map(str, np.random.default_rng(seed).choice(training, IDS, replace=False).tolist()), key=int)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

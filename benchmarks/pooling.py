"""How a model pools the nodes of a small graph: sum or mean, measured on validation examples only.

FedAvg with four members of a random partition, 60 % of the graphs for training and 20 % for validation, mini-batches of
32 graphs, ten a round. Columns: validation AUC of the global model after the last round with both ways, mean over
seeds, and the paired difference with its 95 % interval. Needs the sets in $FEDWEAVE_DATA.

    python -m benchmarks.pooling [--seeds 3] [--rounds 40] [--sets mutag …] [--rows pooling.csv]

Rows that the file has already are not measured again.
"""

import os
import statistics
import tempfile
from itertools import product
from pathlib import Path

import fedweave
from benchmarks.common import SavedRows, mean_interval, parser_of_rows

SETS = {"mutag": "tu", "proteins": "tu", "bace": "graphs"}
MODELS, POOLS = ("gin", "gcn", "sage"), ("sum", "mean")


def run(name: str, model: str, pool: str, seed: int, rounds: int) -> float:
    """Validation AUC after the last round."""
    folder = Path(os.environ["FEDWEAVE_DATA"]) / name
    document = {
        "seed": seed,
        "rounds": rounds,
        "eval_every": rounds,
        "data": {"name": "graphs", "path": str(folder)} if SETS[name] == "graphs" else {"name": name},
        "partition": {"name": "random", "clients": 4, "train": 0.6, "val": 0.2, "test": 0.2},
        "model": {"name": model, "pool": pool},
        "algorithm": {"name": "fedavg", "local_steps": 10, "parts": [{"name": "graph_cross_entropy", "batch": 32}]},
        "engine": {"threads": 1},
    }
    with tempfile.TemporaryDirectory() as out:
        rows = fedweave.run(document, out=str(Path(out) / "run")).metrics.to_pylist()
    [auc] = [row["value"] for row in rows if (row["client"], row["split"], row["metric"]) == ("global", "val", "auc")]
    return float(auc)


def main() -> None:
    parser = parser_of_rows(__doc__, SETS, "pooling.csv")
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    rows = SavedRows(args.rows, ("set", "model", "pool", "seed"), ("auc",))
    for seed, name, model, pool in product(range(args.seeds), args.sets, MODELS, POOLS):
        rows.measure((name, model, pool, str(seed)), lambda case=(name, model, pool, seed): [run(*case, args.rounds)])
    print("| set | model | sum | mean | sum less mean |\n| --- | --- | ---: | ---: | ---: |")
    for name, model in product(args.sets, MODELS):
        sums, means = ({seed: auc for seed, [auc] in rows.by_seed(name, model, pool).items()} for pool in POOLS)
        difference = mean_interval([sums[seed] - means[seed] for seed in sorted(sums.keys() & means.keys())])
        both = f"{statistics.mean(sums.values()):.3f} | {statistics.mean(means.values()):.3f}"
        print(f"| {name} | {model} | {both} | {difference} |")


if __name__ == "__main__":
    main()

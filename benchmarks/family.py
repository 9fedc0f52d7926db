"""The algorithms of the FedAvg family on one data set, against FedAvg on the same partitions.

Every algorithm has its defaults, except for the settings of the experiment that it shares; where `GRIDS` has a grid,
the value is chosen by validation accuracy of seed 0. Each seed draws one partition and one start for all algorithms.
Columns, after the last round: the chosen settings, accuracy of the models that clients use on their own nodes and of
the global model, the paired difference of the first to FedAvg with half of its 95 % interval (Student's t over seeds),
and the variance of the clients' test losses.

    python -m benchmarks.family [--experiment experiments/fedavg-cora.toml] [--seeds 5] [--rounds 100]
"""

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import mean_deviation, mean_half_width
from fedweave.experiment import config
from fedweave.experiment.build import build
from fedweave.experiment.rounds import train

METHODS = ("fedavg", "fedprox", "qfedavg", "fedavgm", "fedadam", "ditto", "cgsv", "dw", "local")
GRIDS: dict[str, dict[str, list[Any]]] = {
    "qfedavg": {"lr": [0.1, 0.3, 1.0, 3.0], "q": [0.1, 1.0]},
    "fedavgm": {"server_lr": [0.1, 0.5, 1.0], "momentum": [0.5, 0.9]},
    "fedadam": {"server_lr": [0.001, 0.003, 0.01]},
    "ditto": {"lam": [0.1, 1.0, 2.0]},
    "cgsv": {"gamma": [0.15, 0.5, 1.0]},
    "dw": {"gamma": [0.15, 0.5, 1.0]},
}


def run(path: Path, name: str, seed: int, rounds: int, options: dict[str, Any]) -> dict[str, float]:
    """The summary of one run, and "val", the mean over clients of their validation accuracy."""
    sets = [f"seed={seed}", f"rounds={rounds}", "eval_every=0"]
    sets += [f"algorithm.{key}={config.dumps({'x': value})[4:].strip()}" for key, value in options.items()]
    built = build(config.read(path, sets, name)[0])
    *_, last = train(built.algorithm, built.fed, rounds, eval_every=0)
    return last.summary | {"val": float(np.mean(list(last.of_clients("accuracy", "val").values())))}


def choose(path: Path, name: str, rounds: int) -> dict[str, Any]:
    """The point of the algorithm's grid with the best validation accuracy of seed 0."""
    if name not in GRIDS:
        return {}
    points = [dict(zip(GRIDS[name], values, strict=True)) for values in product(*GRIDS[name].values())]
    scores = [run(path, name, 0, rounds, point)["val"] for point in points]
    return points[int(np.argmax(scores))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", type=Path, default=Path("experiments/fedavg-cora.toml"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    args = parser.parse_args()
    keys = ("local/accuracy", "global/accuracy", "fairness/test_loss_variance")
    print("| algorithm | settings | local accuracy | global accuracy | local, to FedAvg | variance of test losses |")
    print("| --- | --- | --- | --- | --- | --- |")
    base = np.empty(0)
    for name in args.methods:
        options = choose(args.experiment, name, args.rounds)
        summaries = [run(args.experiment, name, seed, args.rounds, options) for seed in range(args.seeds)]
        local, global_, variance = (np.array([summary.get(key, np.nan) for summary in summaries]) for key in keys)
        base = local if name == "fedavg" else base
        settings = ", ".join(f"{key} {value}" for key, value in options.items()) or "defaults"
        difference = "" if name == "fedavg" or not len(base) else mean_half_width(list(local - base))
        cells = [settings, mean_deviation(local), mean_deviation(global_), difference]
        print(f"| `{name}` | {' | '.join(cells)} | {variance.mean():.4f} |", flush=True)


if __name__ == "__main__":
    main()

"""The algorithms of the FedAvg family on one data set, against FedAvg on the same cuts: accuracy of the final model.

Every algorithm with its defaults but for the settings of the experiment that it shares; where a grid is given, the
value is chosen on validation accuracy of seed 0 and printed. Seeds are paired: each draws one cut and one start for all
algorithms. The difference to FedAvg is given with a 95 % interval (Student's t over seeds).

    python -m benchmarks.family [--experiment experiments/fedavg-cora.toml] [--seeds 5] [--rounds 100]
"""

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

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
    rows = last.metrics.to_pylist()
    val = [r["value"] for r in rows if (r["split"], r["metric"]) == ("val", "accuracy") and r["client"] != "global"]
    return last.summary | {"val": float(np.mean(val))}


def chosen(path: Path, name: str, rounds: int) -> dict[str, Any]:
    """The point of the algorithm's grid with the best validation accuracy of seed 0."""
    grid = GRIDS.get(name, {})
    points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    scores = [run(path, name, 0, rounds, point)["val"] if len(points) > 1 else 0.0 for point in points]
    return points[int(np.argmax(scores))]


def interval(differences: np.ndarray) -> str:
    """Mean and 95 % interval of paired differences."""
    half = stats.t.ppf(0.975, len(differences) - 1) * differences.std(ddof=1) / np.sqrt(len(differences))
    return f"{differences.mean():+.3f} ± {half:.3f}"


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
        options = chosen(args.experiment, name, args.rounds)
        ends = [run(args.experiment, name, seed, args.rounds, options) for seed in range(args.seeds)]
        local, whole, variance = (np.array([end.get(key, np.nan) for end in ends]) for key in keys)
        base = local if name == "fedavg" else base
        said = ", ".join(f"{key} {value}" for key, value in options.items()) or "defaults"
        away = "" if name == "fedavg" or not len(base) else interval(local - base)
        cells = [f"{x.mean():.3f} ± {x.std(ddof=1):.3f}" for x in (local, whole)]
        print(f"| `{name}` | {said} | {cells[0]} | {cells[1]} | {away} | {variance.mean():.4f} |", flush=True)


if __name__ == "__main__":
    main()

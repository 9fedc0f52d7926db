"""Molecules between four laboratories: GIN on `bace`, `delaney` (ESOL) and `tox21`, next to a plain PyG loop.

Scaffolds are dealt to four members, and each member's molecules are split 80/10/10 by scaffold. Every member alone
(`local`), `fedavg`, all data at one place (`centralized`), and a plain loop over the union of the training molecules
with the same split, layers, optimizer and as many epochs. All train in mini-batches of 32 molecules, one epoch of a
member's molecules a round. Judged on the test molecules after the last round: AUC (`bace`), mean AUC of twelve assays
(`tox21`), RMSE (`delaney`, log mol/l), over the union of members ("pooled") and as the mean over members ("within").

    python -m benchmarks.molecules [--seeds 5] [--sets bace …] [--rows molecules.csv] [--table table.md]

Rows that the file has already are not measured again. Needs the sets in $FEDWEAVE_DATA.
"""

import argparse
import csv
import math
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool

import fedweave
from fedweave.core.graph import TEST, TRAIN
from fedweave.datasets import Dataset, load
from fedweave.datasets.features import by_holder
from fedweave.partition import Partition, Scaffolds
from fedweave.reports.paired import interval

ASSAYS = (
    *("NR-AR", "NR-AR-LBD", "NR-AhR", "NR-Aromatase", "NR-ER", "NR-ER-LBD", "NR-PPAR-gamma"),
    *("SR-ARE", "SR-ATAD5", "SR-HSE", "SR-MMP", "SR-p53"),
)
MEMBERS, BATCH = 4, 32
LR, DECAY, DROPOUT, HIDDEN, LAYERS = 0.003, 0.0, 0.0, 64, 3  # not tuned
SHARED = "fedavg, target_normalize = all"  # of numbers
METHODS = ("local", "fedavg", SHARED, "centralized", "plain loop")


class Set(NamedTuple):
    """A set of molecules: what is predicted, what judges it, and how many rounds and epochs."""

    metric: str
    rounds: int
    options: dict[str, Any]


SETS = {
    "bace": Set("auc", 40, {}),
    "delaney": Set("rmse", 60, {"target": "number", "targets": ("log_solubility",)}),
    "tox21": Set("auc", 12, {"labels": ASSAYS}),
}
CUT = {"clients": MEMBERS, "split": "scaffold"}
COLUMNS = ("set", "method", "seed", "pooled", "within", "seconds")


def federated(name: str, method: str, seed: int) -> tuple[float, float, float]:
    """Pooled and within score of a run of fedweave, and its seconds a round."""
    kind, folder = SETS[name], Path(os.environ["FEDWEAVE_DATA"]) / name
    units = {"target_normalize": "all"} if method == SHARED else {}
    data = load("graphs", str(folder), **kind.options)
    members = Scaffolds(**CUT).cut(data, seed).parts
    steps = round(statistics.mean(int(part.masks[TRAIN].sum()) for part in members) / BATCH)
    document = {
        "seed": seed,
        "rounds": kind.rounds,
        "eval_every": kind.rounds,
        "data": {"name": "graphs", "path": str(folder), **kind.options, **units},
        "partition": {"name": "scaffold", **CUT},
        "model": {"name": "gin", "hidden": HIDDEN, "layers": LAYERS, "dropout": DROPOUT},
        "algorithm": {
            "name": method.partition(",")[0],
            "lr": LR,
            "weight_decay": DECAY,
            "local_steps": steps * (MEMBERS if method == "centralized" else 1),
            "parts": [{"name": "graph_cross_entropy", "batch": BATCH}],
        },
        "engine": {"threads": 1},
    }
    with tempfile.TemporaryDirectory() as out:
        summary = fedweave.run(document, out=str(Path(out) / "run")).summary
    scores, metric = summary["metrics"], kind.metric
    pooled = scores.get(f"pooled/{metric}", scores.get(f"global/{metric}", math.nan))
    return math.nan if method == "local" else pooled, scores[f"local/{metric}"], summary["seconds_per_round"]


class Plain(nn.Module):
    """The layers of fedweave's `gin`, of PyTorch Geometric's."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, HIDDEN)
        widths = [nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN)) for _ in range(LAYERS)]
        self.convolutions = nn.ModuleList(GINConv(mlp) for mlp in widths)
        self.head = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(HIDDEN, outputs))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.first(x)
        for convolution in self.convolutions:
            h = self.dropout(convolution(h, edge_index).relu())
        result: Tensor = self.head(global_add_pool(h, batch))
        return result


def graphs_of(data: Dataset) -> list[Data]:
    """Each small graph as PyTorch Geometric has it, with its number."""
    x = data.x.toarray() if sparse.issparse(data.x) else data.x
    graph_of = np.asarray(data.graph_of)
    bounds, ends = np.searchsorted(graph_of, np.arange(data.examples + 1)), graph_of[data.edges[0]]
    firsts = np.searchsorted(ends, np.arange(data.examples + 1))
    return [
        Data(
            x=torch.from_numpy(x[bounds[at] : bounds[at + 1]]),
            edge_index=torch.from_numpy(data.edges[:, firsts[at] : firsts[at + 1]] - bounds[at]),
            at=at,
        )
        for at in range(data.examples)
    ]


def plain(name: str, seed: int) -> tuple[float, float, float]:
    """The same of the plain loop, whose epochs are its rounds."""
    kind = SETS[name]
    data = by_holder(load("graphs", str(Path(os.environ["FEDWEAVE_DATA"]) / name), **kind.options))
    cut = Scaffolds(**CUT).cut(data, seed)
    outputs, seconds = trained(data, cut, kind.rounds, seed)
    each = [part.examples[part.masks[TEST]] for part in cut.parts]
    scores = [score(data, outputs, examples) for examples in (np.concatenate(each), *each)]
    return scores[0], float(np.nanmean(scores[1:])), seconds


def trained(data: Dataset, cut: Partition, epochs: int, seed: int) -> tuple[np.ndarray, float]:
    """The outputs for all molecules, numbers in the data's units, and the median seconds of an epoch."""
    torch.manual_seed(seed)
    graphs, train = graphs_of(data), np.concatenate([part.examples[part.masks[TRAIN]] for part in cut.parts])
    y = torch.from_numpy(data.y if data.y.ndim > 1 else data.y[:, None])
    if data.target == "number":
        shift, divisor = y[train].mean(0), y[train].std(0, correction=0)
    model = Plain(data.features, data.outputs if data.target != "class" else 1)
    optimizer = torch.optim.Adam(model.parameters(), LR, weight_decay=DECAY)
    loader = DataLoader([graphs[at] for at in train], BATCH, shuffle=True)
    spent = []
    for _ in range(epochs):
        begun = time.perf_counter()
        model.train()
        for batch in loader:
            out, truth = model(batch.x, batch.edge_index, batch.batch), y[batch.at]
            if data.target == "number":
                loss = nn.functional.mse_loss(out, ((truth - shift) / divisor).float())
            else:
                there = truth >= 0
                loss = nn.functional.binary_cross_entropy_with_logits(out[there], truth[there].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        spent.append(time.perf_counter() - begun)
    model.eval()
    with torch.no_grad():
        whole = [model(batch.x, batch.edge_index, batch.batch) for batch in DataLoader(graphs, 256)]
    outputs = torch.cat(whole).double()
    return (outputs * divisor + shift if data.target == "number" else outputs).numpy(), statistics.median(spent)


def score(data: Dataset, outputs: np.ndarray, examples: np.ndarray) -> float:
    """RMSE, or the mean AUC of the targets that have both classes among these molecules."""
    y = (data.y if data.y.ndim > 1 else data.y[:, None])[examples]
    if data.target == "number":
        return float(np.sqrt(np.mean((y - outputs[examples]) ** 2)))
    columns = [(truth[truth >= 0], out[truth >= 0]) for truth, out in zip(y.T, outputs[examples].T, strict=True)]
    both = [roc_auc_score(truth, out) for truth, out in columns if len(np.unique(truth)) == 2]
    return float(np.mean(both)) if both else math.nan


def shown(values: Sequence[float]) -> str:
    defined = [value for value in values if not math.isnan(value)]
    spread = f" ± {statistics.stdev(defined):.3f}" if len(defined) > 1 else ""
    return f"{statistics.mean(defined):.3f}{spread}" if defined else ""


def table(rows: dict[tuple[str, str, str], list[float]], names: Sequence[str]) -> str:
    """Means and standard deviations over seeds, and each method less `local`, paired."""
    lines = ["| set | metric | method | seeds | pooled | within | within, less local | seconds a round |"]
    lines += ["| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for name, method in product(names, METHODS):
        held = {seed: row for (one, other, seed), row in rows.items() if (one, other) == (name, method)}
        if not held:
            continue
        alone = {seed: row for (one, other, seed), row in rows.items() if (one, other) == (name, "local")}
        less = [row[1] - alone[seed][1] for seed, row in held.items() if seed in alone]
        low, high = interval(less)
        paired = "" if method == "local" or low is None else f"{statistics.mean(less):+.3f} ({low:+.3f} to {high:+.3f})"
        pooled, within, seconds = ([row[at] for row in held.values()] for at in range(3))
        cells = (name, SETS[name].metric.upper(), method, len(held), shown(pooled), shown(within), paired)
        lines.append(f"| {' | '.join(map(str, cells))} | {statistics.median(seconds):.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=[*SETS])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--rows", type=Path, default=Path("molecules.csv"))
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[tuple[str, str, str], list[float]] = {}
    if args.rows.exists():
        with args.rows.open() as file:
            for row in csv.DictReader(file):
                rows[row["set"], row["method"], row["seed"]] = [float(row[key]) for key in COLUMNS[3:]]
    for seed, name, method in product(range(args.seeds), args.sets, args.methods):
        if (name, method, str(seed)) in rows or (method == SHARED and "target" not in SETS[name].options):
            continue
        found = plain(name, seed) if method == "plain loop" else federated(name, method, seed)
        rows[name, method, str(seed)] = [*found]
        with args.rows.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *((*key, *values) for key, values in rows.items())])
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    text = f"{table(rows, args.sets)}\n\nMeasured at {commit} by `python -m benchmarks.molecules`.\n"
    print(text)
    if args.table is not None:
        args.table.write_text(text)


if __name__ == "__main__":
    main()

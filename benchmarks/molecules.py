"""Molecules between four laboratories: GIN on `bace`, `delaney` (ESOL) and `tox21`, next to a plain PyG loop.

Scaffolds are dealt to four members, and each member's molecules are split 80/10/10 by scaffold. Every member on its own
(`local`), `fedavg`, all data in one place (`centralized`), and a plain loop over the union of the training molecules
with the same split, layers, optimizer and number of epochs. All train in mini-batches of 32 molecules, one epoch of a
member's molecules a round. Columns, on the test molecules after the last round: AUC (`bace`), mean AUC of twelve assays
(`tox21`) or RMSE (`delaney`, log mol/l), over the union of members ("pooled") and as the mean over members ("within"),
mean ± deviation over seeds; the paired difference to `local` with its 95 % interval; median seconds of a round.

    python -m benchmarks.molecules [--seeds 5] [--sets bace …] [--rows molecules.csv] [--table table.md]

Rows that the file has already are not measured again. Needs the sets in $FEDWEAVE_DATA.
"""

import math
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
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
from benchmarks.common import SavedRows, commit, mean_deviation, mean_interval, parser_of_rows
from fedweave.core.graph import TEST, TRAIN
from fedweave.datasets import Dataset, load
from fedweave.datasets.features import by_holder
from fedweave.partition import Partition, Scaffolds

ASSAYS = (
    *("NR-AR", "NR-AR-LBD", "NR-AhR", "NR-Aromatase", "NR-ER", "NR-ER-LBD", "NR-PPAR-gamma"),
    *("SR-ARE", "SR-ATAD5", "SR-HSE", "SR-MMP", "SR-p53"),
)
MEMBERS, BATCH = 4, 32
LR, DECAY, DROPOUT, HIDDEN, LAYERS = 0.003, 0.0, 0.0, 64, 3  # not tuned
SAME_SCALE = "fedavg, target_normalize = all"  # for numbers
METHODS = ("local", "fedavg", SAME_SCALE, "centralized", "plain loop")


class Set(NamedTuple):
    """A set of molecules: its metric, how many rounds or epochs, and what is predicted."""

    metric: str
    rounds: int
    options: dict[str, Any]


SETS = {
    "bace": Set("auc", 40, {}),
    "delaney": Set("rmse", 60, {"target": "number", "targets": ("log_solubility",)}),
    "tox21": Set("auc", 12, {"labels": ASSAYS}),
}
CUT = {"clients": MEMBERS, "split": "scaffold"}


def run_fedweave(name: str, method: str, seed: int) -> tuple[float, float, float]:
    """Pooled and within score of a run of fedweave, and its seconds a round."""
    kind, folder = SETS[name], Path(os.environ["FEDWEAVE_DATA"]) / name
    units = {"target_normalize": "all"} if method == SAME_SCALE else {}
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
    """The layers of fedweave's `gin`, made of PyTorch Geometric's."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, HIDDEN)
        self.convolutions = nn.ModuleList()
        for _ in range(LAYERS):
            mlp = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN))
            self.convolutions.append(GINConv(mlp))
        self.head = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(HIDDEN, outputs))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.first(x)
        for convolution in self.convolutions:
            h = self.dropout(convolution(h, edge_index).relu())
        result: Tensor = self.head(global_add_pool(h, batch))
        return result


def graphs_of(data: Dataset) -> list[Data]:
    """Each small graph as an object of PyTorch Geometric, with its number `at`."""
    x = data.x.toarray() if sparse.issparse(data.x) else data.x
    graph_of = np.asarray(data.graph_of)
    numbers = np.arange(data.examples + 1)
    nodes = np.searchsorted(graph_of, numbers)  # [examples + 1], the first node of each graph
    edges = np.searchsorted(graph_of[data.edges[0]], numbers)  # [examples + 1], the first edge of each graph
    graphs = []
    for at in range(data.examples):
        edge_index = data.edges[:, edges[at] : edges[at + 1]] - nodes[at]
        rows = torch.from_numpy(x[nodes[at] : nodes[at + 1]])
        graphs.append(Data(x=rows, edge_index=torch.from_numpy(edge_index), at=at))
    return graphs


def plain_loop(name: str, seed: int) -> tuple[float, float, float]:
    """The same of the plain loop, whose epochs are its rounds."""
    kind = SETS[name]
    data = by_holder(load("graphs", str(Path(os.environ["FEDWEAVE_DATA"]) / name), **kind.options))
    cut = Scaffolds(**CUT).cut(data, seed)
    outputs, seconds = train_plain(data, cut, kind.rounds, seed)
    tests = [part.examples[part.masks[TEST]] for part in cut.parts]
    within = [score(data, outputs, test) for test in tests]
    return score(data, outputs, np.concatenate(tests)), float(np.nanmean(within)), seconds


def train_plain(data: Dataset, cut: Partition, epochs: int, seed: int) -> tuple[np.ndarray, float]:
    """The outputs for all molecules, numbers in the data's units, and the median seconds of an epoch."""
    torch.manual_seed(seed)
    graphs, train = graphs_of(data), np.concatenate([part.examples[part.masks[TRAIN]] for part in cut.parts])
    y = torch.from_numpy(data.y if data.y.ndim > 1 else data.y[:, None])
    if data.target == "number":
        shift, divisor = y[train].mean(0), y[train].std(0, correction=0)
    model = Plain(data.features, data.outputs if data.target != "class" else 1)
    optimizer = torch.optim.Adam(model.parameters(), LR, weight_decay=DECAY)
    loader = DataLoader([graphs[at] for at in train], BATCH, shuffle=True)
    seconds = []
    for _ in range(epochs):
        began = time.perf_counter()
        model.train()
        for batch in loader:
            out, truth = model(batch.x, batch.edge_index, batch.batch), y[batch.at]
            if data.target == "number":
                loss = nn.functional.mse_loss(out, ((truth - shift) / divisor).float())
            else:
                has_label = truth >= 0
                loss = nn.functional.binary_cross_entropy_with_logits(out[has_label], truth[has_label].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds.append(time.perf_counter() - began)
    model.eval()
    with torch.no_grad():
        batches = [model(batch.x, batch.edge_index, batch.batch) for batch in DataLoader(graphs, 256)]
    outputs = torch.cat(batches).double()  # [examples, outputs]
    if data.target == "number":
        outputs = outputs * divisor + shift
    return outputs.numpy(), statistics.median(seconds)


def score(data: Dataset, outputs: np.ndarray, examples: np.ndarray) -> float:
    """RMSE, or the mean AUC of the targets that have both classes among these molecules."""
    y = (data.y if data.y.ndim > 1 else data.y[:, None])[examples]
    if data.target == "number":
        return float(np.sqrt(np.mean((y - outputs[examples]) ** 2)))
    scores = []
    for truth, out in zip(y.T, outputs[examples].T, strict=True):
        has_label = truth >= 0
        if len(np.unique(truth[has_label])) == 2:
            scores.append(roc_auc_score(truth[has_label], out[has_label]))
    return float(np.mean(scores)) if scores else math.nan


def table(rows: SavedRows, names: Sequence[str]) -> str:
    """Means and standard deviations over seeds, and each method less `local`, paired."""
    lines = ["| set | metric | method | seeds | pooled | within | within, less local | seconds a round |"]
    lines += ["| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for name, method in product(names, METHODS):
        by_seed, local = rows.by_seed(name, method), rows.by_seed(name, "local")
        if not by_seed:
            continue
        pooled, within, seconds = zip(*by_seed.values(), strict=True)
        defined = [value for value in pooled if not math.isnan(value)]  # local models have no pooled score
        differences = [row[1] - local[seed][1] for seed, row in by_seed.items() if seed in local]
        cells = [
            name,
            SETS[name].metric.upper(),
            method,
            str(len(by_seed)),
            mean_deviation(defined) if defined else "",
            mean_deviation(within),
            "" if method == "local" or len(differences) < 2 else mean_interval(differences),
        ]
        lines.append(f"| {' | '.join(cells)} | {statistics.median(seconds):.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = parser_of_rows(__doc__, SETS, "molecules.csv", seeds=5)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = SavedRows(args.rows, ("set", "method", "seed"), ("pooled", "within", "seconds"))
    for seed, name, method in product(range(args.seeds), args.sets, args.methods):
        if method == SAME_SCALE and "target" not in SETS[name].options:
            continue
        once = partial(plain_loop, name, seed) if method == "plain loop" else partial(run_fedweave, name, method, seed)
        rows.measure((name, method, str(seed)), once)
    text = f"{table(rows, args.sets)}\n\nMeasured at {commit()} by `python -m benchmarks.molecules`.\n"
    print(text)
    if args.table is not None:
        args.table.write_text(text)


if __name__ == "__main__":
    main()

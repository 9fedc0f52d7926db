"""OpenFGL 1.1.0 on a cut that `benchmarks.against_openfgl` exported; run by the Python of OpenFGL's own environment.

    python run_openfgl.py DATA.npz PARTS.npz ALGORITHM SEED ROUNDS FOLDER

OpenFGL's trainer, clients, server, model and evaluation run unchanged; only the loader of data is replaced, so that no
file is downloaded and both systems have the same partition. Prints JSON: {"trained": test accuracy after every round of
each client's local model on the client's nodes, weighted by nodes; "local": the same of the global model after the last
round, null where there is none; "seconds": processor time of every round with its evaluation}.
"""

import contextlib
import io
import json
import pickle
import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import scipy.sparse as sp
import torch
from openfgl import config
from openfgl.flcore import trainer as theirs
from torch_geometric.data import Data

NAMES = {"local": "isolate"}  # where OpenFGL has another name for an algorithm
SPLITS = ("train", "val", "test")


class Cut:
    """What OpenFGL's own data set offers its trainer: the clients' graphs, the whole graph and a folder with splits."""

    def __init__(self, data: Path, parts: Path, folder: Path) -> None:
        whole, cut = np.load(data), np.load(parts)
        x_arrays = whole["x_data"], whole["x_indices"], whole["x_indptr"]
        x = sp.csr_matrix(x_arrays, shape=tuple(whole["x_shape"])).toarray()
        edges, y = whole["edge_index"], whole["y"]
        classes = int(y.max()) + 1
        self.processed_dir, self.local_data = str(folder), []
        self.global_data = graph(x, edges, y, np.arange(len(x)), classes)
        splits = folder / "node_cls" / "default_split"
        splits.mkdir(parents=True, exist_ok=True)
        for client in range(len(cut.files) // 2):
            nodes, masks = cut[f"n{client}"], cut[f"m{client}"]
            self.local_data.append(graph(x, edges, y, nodes, classes))
            for name, mask in zip(SPLITS, masks, strict=True):
                torch.save(torch.from_numpy(mask), splits / f"{name}_{client}.pt")
                (splits / f"glb_{name}_{client}.pkl").write_bytes(pickle.dumps(nodes[mask].tolist()))


def graph(x: np.ndarray, edges: np.ndarray, y: np.ndarray, nodes: np.ndarray, classes: int) -> Data:
    """The subgraph that `nodes` induce."""
    place = np.full(len(x), -1)
    place[nodes] = np.arange(len(nodes))
    inside = (place[edges] >= 0).all(0)
    result = Data(
        x=torch.tensor(x[nodes], dtype=torch.float32),
        edge_index=torch.tensor(place[edges[:, inside]]),
        y=torch.tensor(y[nodes], dtype=torch.long),
    )
    result.num_global_classes = classes
    result.global_map = dict(enumerate(nodes.tolist()))
    return result


class TimedTrainer(theirs.FGLTrainer):
    """OpenFGL's trainer, which records the processor time at the end of every round."""

    def evaluate(self) -> None:
        """After a round."""
        super().evaluate()
        self.times.append(time.process_time())

    times: list[float]


def main(data: Path, parts: Path, algorithm: str, seed: int, rounds: int, folder: Path) -> None:
    torch.set_num_threads(1)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (what OpenFGL draws from)
    torch.manual_seed(seed)
    cut = Cut(data, parts, folder)
    settings = {"use_cuda": False, "dataset": ["Cora"], "model": ["gcn"], "metrics": ["accuracy"], "debug": True}
    settings |= {
        "num_clients": len(cut.local_data),
        "num_rounds": rounds,
        "fl_algorithm": NAMES.get(algorithm, algorithm),
    }
    args = SimpleNamespace(**vars(config.args) | settings | {"seed": seed, "log_root": str(folder)})
    theirs.FGLDataset = lambda args: cut
    with contextlib.redirect_stdout(io.StringIO()):
        run = TimedTrainer(args)
        run.times = [time.process_time()]
        run.train()
        accuracies = [entry["current_test_accuracy"] for entry in run.logger.metrics_list]
        seconds = np.diff(run.times).tolist()
        last = None
        if not run.server.personalized:
            args.evaluation_mode = "global_model_on_local_data"
            run.evaluate()
            last = run.logger.metrics_list[-1]["current_test_accuracy"]
    print(json.dumps({"trained": accuracies, "local": last, "seconds": seconds}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]), sys.argv[3], *map(int, sys.argv[4:6]), Path(sys.argv[6]))

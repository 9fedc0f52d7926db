"""Link prediction by OpenFGL 1.1.0 on a cut that `benchmarks.links_openfgl` exported.

    python run_openfgl_links.py CUT.npz SPLIT SEED ROUNDS FOLDER

OpenFGL's trainer, clients, server, model, loss and metrics run unchanged. SPLIT is "shared", where its files of splits
have fedweave's links, messages and test pairs, or "own", where OpenFGL splits the links of the same clients. Prints
JSON: {"global": the model after the last round, "trained": each client's local model, as OpenFGL prints it; both
{"auc", "ap": mean over clients weighted by their pairs, as in OpenFGL}; "seconds": processor time of every round with
its evaluation; "messages": the share of test links that messages go along}.
"""

import contextlib
import functools
import io
import json
import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from openfgl import config
from openfgl.flcore import trainer as theirs
from run_openfgl import TimedTrainer
from torch_geometric.data import Data

torch.load = functools.partial(torch.load, weights_only=False)  # what OpenFGL stores needs it since torch 2.6
METRICS = ("auc", "ap")


class Cut:
    """What OpenFGL's own data set offers its trainer: the clients' graphs, the whole graph and a folder with splits."""

    def __init__(self, path: Path, split: str, folder: Path) -> None:
        cut = np.load(path)
        self.processed_dir, self.local_data = str(folder), []
        splits = folder / "link_pred" / "default_split"
        splits.mkdir(parents=True, exist_ok=True)
        xs, ends = [], []
        for client in range(int(cut["clients"])):
            x, edges, nodes = (cut[f"{key}{client}"] for key in ("x", "edges", "nodes"))
            graph = Data(x=torch.from_numpy(x), edge_index=torch.from_numpy(edges), y=torch.zeros(len(x)).long())
            graph.num_global_classes, graph.global_map = 2, dict(enumerate(nodes.tolist()))
            self.local_data.append(graph)
            xs.append((nodes, x))
            ends.append(nodes[edges])
            if split == "shared":
                pairs, y, masks = (torch.from_numpy(cut[f"{key}{client}"]) for key in ("pairs", "y", "masks"))
                messages = torch.from_numpy(cut[f"messages{client}"])
                torch.save(Data(x=graph.x, edge_index=messages, y=graph.y), splits / f"forward_data_{client}.pt")
                torch.save(pairs, splits / f"merged_edge_index_{client}.pt")
                torch.save(y.float(), splits / f"merged_edge_label_{client}.pt")
                for name, mask in zip(("train", "val", "test"), masks, strict=True):
                    torch.save(mask, splits / f"merged_edge_{name}_{client}.pt")
                torch.save(torch.from_numpy(nodes)[pairs], splits / f"glb_merged_edge_index_{client}.pkl")
        whole = np.zeros((1 + max(int(nodes.max()) for nodes, _ in xs), xs[0][1].shape[1]), np.float32)
        for nodes, x in xs:
            whole[nodes] = x
        edges = torch.from_numpy(np.concatenate(ends, 1))
        self.global_data = Data(x=torch.from_numpy(whole), edge_index=edges, y=torch.zeros(len(whole)).long())
        self.global_data.num_global_classes = 2


def leaked_share(graph: Data, task: object) -> float:
    """The share of a client's test links that are among the edges of its messages."""
    links = task.merged_edge_index[:, task.merged_edge_test_mask & (task.merged_edge_label == 1)].numpy()
    nodes, messages = len(graph.x), task.forward_data.edge_index.numpy()
    return float(np.isin(links[0] * nodes + links[1], messages[0] * nodes + messages[1]).mean())


def main(path: Path, split: str, seed: int, rounds: int, folder: Path) -> None:
    torch.set_num_threads(1)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (what OpenFGL draws from)
    torch.manual_seed(seed)
    cut = Cut(path, split, folder)
    settings = {"use_cuda": False, "dataset": ["Cora"], "model": ["gcn"], "metrics": list(METRICS), "debug": True}
    settings |= {"num_clients": len(cut.local_data), "num_rounds": rounds, "task": "link_pred", "seed": seed}
    args = SimpleNamespace(**vars(config.args) | settings | {"fl_algorithm": "fedavg", "log_root": str(folder)})
    theirs.FGLDataset = lambda args: cut
    with contextlib.redirect_stdout(io.StringIO()):
        run = TimedTrainer(args)
        run.times = [time.process_time()]
        run.train()
        tasks = [client.task for client in run.clients]
        scores = {
            "global": [run.server.task.evaluate(task.splitted_data, mute=True) for task in tasks],
            "trained": [task.evaluate(mute=True) for task in tasks],
        }
    sizes = [task.num_samples for task in tasks]
    report: dict[str, object] = {}
    for side, of_clients in scores.items():
        means = {}
        for name in METRICS:
            means[name] = float(np.average([client[f"{name}_test"] for client in of_clients], weights=sizes))
        report[side] = means
    messages = [leaked_share(graph, task) for graph, task in zip(cut.local_data, tasks, strict=True)]
    print(json.dumps(report | {"seconds": np.diff(run.times).tolist(), "messages": float(np.mean(messages))}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:5]), Path(sys.argv[5]))

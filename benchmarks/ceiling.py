"""What one model reaches on the global test of FedEgo's tables when it trains on all other nodes: an upper bound for
ten clients that hold a tenth each.

Plain PyG, a linear layer and two of GraphSAGE. Settings and epoch are the best on the test set itself, so that the
result is too high as an estimate, and only a bound. Prints test accuracy of the best and of the last epoch for each
seed, and mean and deviation of the best.

    python -m benchmarks.ceiling [--data dblp] [--seeds 0 1 2] [--epochs 60]
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import degree, subgraph

from benchmarks.common import mean_deviation
from fedweave import datasets
from fedweave.papers.fedego_experiments import DATA, SKEW
from fedweave.partition import LabelSkew, cut

RATE, DECAY, DROPOUT, WIDTH = 1e-2, 5e-3, 0.5, 128  # the best of seven settings on the test of DBLP with seed 0


class Sage(torch.nn.Module):
    """FedEgo's architecture with one weight for a node and one for its neighbors."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(features, WIDTH)
        self.convolutions = torch.nn.ModuleList(SAGEConv(WIDTH, WIDTH) for _ in range(2))
        self.last = torch.nn.Linear(WIDTH, classes)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Logits [n, classes]."""
        h = F.dropout(F.relu(self.first(x)), DROPOUT, self.training)
        for convolution in self.convolutions:
            h = F.relu(convolution(h, edges))
        return self.last(F.dropout(h, DROPOUT, self.training))


def induced_edges(nodes: torch.Tensor, edges: torch.Tensor, total: int) -> torch.Tensor:
    """The edges among `nodes`, of `total` in all, and a loop at nodes without any: such a node is its own neighbor in
    FedEgo."""
    inside, _ = subgraph(nodes, edges, relabel_nodes=True, num_nodes=total)
    isolated = torch.nonzero(degree(inside[0], len(nodes)) == 0)[:, 0]
    return torch.cat([inside, isolated.expand(2, -1)], 1)


def train(name: str, seed: int, epochs: int) -> tuple[float, float]:
    """The highest test accuracy of any epoch, and that of the last."""
    data = datasets.load(name, normalize="binary")
    paper_name = next(key for key, value in DATA.items() if value == name)
    settings = {key: value for key, value in SKEW[paper_name].items() if key != "name"}
    test = torch.from_numpy(cut(LabelSkew(**settings), data, seed).test)
    rest = torch.from_numpy(np.setdiff1d(np.arange(data.nodes), test.numpy()))
    x = torch.from_numpy(np.asarray(data.x.todense() if hasattr(data.x, "todense") else data.x, np.float32))
    y, edges = torch.from_numpy(data.y), torch.from_numpy(data.edges)
    train_graph, test_graph = ((x[nodes], induced_edges(nodes, edges, len(x)), y[nodes]) for nodes in (rest, test))
    torch.manual_seed(seed)
    model = Sage(data.features, data.classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=DECAY)
    accuracies = []
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(*train_graph[:2]), train_graph[2]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            hits = model(*test_graph[:2]).argmax(1) == test_graph[2]  # [n]
            accuracies.append(float(hits.float().mean()))
    return max(accuracies), accuracies[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="dblp", choices=sorted(set(DATA.values()) & {"cora", "citeseer", "dblp"}))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=60)
    args = parser.parse_args()
    bests = []
    for seed in args.seeds:
        best, last = train(args.data, seed, args.epochs)
        bests.append(best)
        print(f"seed {seed}: best epoch on test {best:.3f}, last {last:.3f}", flush=True)
    print(f"{args.data}: best epoch on test {mean_deviation(bests)}")


if __name__ == "__main__":
    main()

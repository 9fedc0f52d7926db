"""What one model reaches on the global test of FedEgo's tables when it trains on every other node: a ceiling for ten
clients that hold a tenth each. Plain PyG, a linear layer and two of GraphSAGE; settings and epoch are the best on the
test set itself, so that it is no estimate of anything but what can be wanted at most.

    python -m benchmarks.ceiling [--data dblp] [--seeds 0 1 2] [--epochs 60]
"""

import argparse
from statistics import fmean, stdev

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import degree, subgraph

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


def induced(own: torch.Tensor, edges: torch.Tensor, nodes: int) -> torch.Tensor:
    """The edges among `own`, and a loop at those that have none: such a node is its own neighbor in FedEgo."""
    kept, _ = subgraph(own, edges, relabel_nodes=True, num_nodes=nodes)
    alone = torch.nonzero(degree(kept[0], len(own)) == 0)[:, 0]
    return torch.cat([kept, alone.expand(2, -1)], 1)


def best(name: str, seed: int, epochs: int) -> tuple[float, float]:
    """The highest test accuracy of any epoch, and that of the last."""
    data = datasets.load(name, normalize="binary")
    own = next(key for key, value in DATA.items() if value == name)
    settings = {key: value for key, value in SKEW[own].items() if key != "name"}
    test = torch.from_numpy(cut(LabelSkew(**settings), data, seed).test)
    rest = torch.from_numpy(np.setdiff1d(np.arange(data.nodes), test.numpy()))
    x = torch.from_numpy(np.asarray(data.x.todense() if hasattr(data.x, "todense") else data.x, np.float32))
    y, edges = torch.from_numpy(data.y), torch.from_numpy(data.edges)
    sides = [(x[own], induced(own, edges, len(x)), y[own]) for own in (rest, test)]
    torch.manual_seed(seed)
    model = Sage(data.features, data.classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=DECAY)
    found = []
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(*sides[0][:2]), sides[0][2]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            found.append(float((model(*sides[1][:2]).argmax(1) == sides[1][2]).float().mean()))
    return max(found), found[-1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="dblp", choices=sorted(set(DATA.values()) & {"cora", "citeseer", "dblp"}))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=60)
    args = parser.parse_args()
    found = [best(args.data, seed, args.epochs) for seed in args.seeds]
    for seed, (highest, last) in zip(args.seeds, found, strict=True):
        print(f"seed {seed}: best epoch on test {highest:.3f}, last {last:.3f}", flush=True)
    spread = f" ± {stdev(high for high, _ in found):.3f}" if len(found) > 1 else ""
    print(f"{args.data}: best epoch on test {fmean(high for high, _ in found):.3f}{spread}")


if __name__ == "__main__":
    main()

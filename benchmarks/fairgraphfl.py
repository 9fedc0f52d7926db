"""Processor seconds per round of FairGraphFL against a lean loop over the agents in PyG, and the pay of Sybils.

The loop does what a round of the paper needs: each agent trains one step on all its training graphs with the pull of
its prototypes, then embeds them again for the prototypes that it sends; values, rewards, payoffs and global prototypes
follow on flat vectors. Both run in one process in turns, without evaluation, and medians are printed. Motifs are
extracted before. With --sybils: what a member is paid a round as one, and as two members. With --alone: test accuracy
of agents that train on their own, in PyG and in fedweave, on partitions of these seeds.

    python -m benchmarks.fairgraphfl [--experiment experiments/fairgraphfl-proteins.toml] [--rounds 10] [--sybils]
    python -m benchmarks.fairgraphfl --alone 0 1 2 --rounds 200 --experiment experiments/fairgraphfl-imdb-binary.toml
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINConv, global_add_pool

from benchmarks.common import MANY_ROUNDS
from fedweave.algorithms.fairgraphfl.vocabulary import INCIDENCE, MOTIFS
from fedweave.core.graph import TEST, TRAIN, Graph
from fedweave.core.graph_arrays import graph_arrays
from fedweave.engines.simulation import Simulation
from fedweave.experiment import config
from fedweave.experiment.build import Built, build
from fedweave.experiment.graphs import client_graphs
from fedweave.experiment.rounds import train
from fedweave.incentives.payoffs import payoffs
from fedweave.partition.base import Part


class Net(nn.Module):
    """The paper's model."""

    def __init__(self, features: int, classes: int, hidden: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(features, hidden)
        mlps = [nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden)) for _ in range(3)]
        self.convolutions = nn.ModuleList([GINConv(mlp) for mlp in mlps])
        self.hidden, self.last = nn.Linear(hidden, hidden), nn.Linear(hidden, classes)

    def embed(self, data: Any) -> Tensor:
        h = self.first(data.x)
        for convolution in self.convolutions:
            h = F.dropout(torch.relu(convolution(h, data.edge_index)), 0.5, self.training)
        return global_add_pool(h, data.batch, data.num_graphs)

    def classify(self, embedded: Tensor) -> Tensor:
        return self.last(F.dropout(torch.relu(self.hidden(embedded)), 0.5, self.training))


def batch(graph: Graph, split: int) -> tuple[Any, np.ndarray]:
    """The small graphs of a split as one PyG batch, and which they are."""
    arrays = graph_arrays(graph)
    assert arrays.graph_of is not None
    x = arrays.x if isinstance(arrays.x, np.ndarray) else arrays.x.toarray()
    chosen, pieces = np.flatnonzero(arrays.masks[split]), []
    for one in chosen:
        nodes = np.flatnonzero(arrays.graph_of == one)
        edges = arrays.edges[:, np.isin(arrays.edges[0], nodes)] - nodes[0]
        pieces.append(Data(torch.from_numpy(x[nodes]), torch.from_numpy(edges), y=torch.tensor([arrays.y[one]])))
    return Batch.from_data_list(pieces), chosen


class Agent:
    """One agent's training graphs as a PyG batch, its motifs as a dense matrix of means, and its model."""

    def __init__(self, graph: Graph, classes: int) -> None:
        self.data, chosen = batch(graph, TRAIN)
        numbers = graph.precomputed(MOTIFS).numpy()
        having = graph.whole_edges.members[0].extra.matrices[INCIDENCE].copy()
        having.resize(len(numbers), len(graph.y))
        real = numbers >= 0
        has = torch.from_numpy(having.toarray()[real][:, chosen]).float()  # [motifs, graphs]
        self.numbers, self.mean = numbers[real], has / has.sum(1, keepdim=True)
        self.net = Net(self.data.x.shape[1], classes)
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-3, weight_decay=5e-4)


class Loop:
    """The federation as a loop."""

    def __init__(self, built: Built) -> None:
        graphs = built.fed.graphs
        self.agents = [Agent(graph, built.fed.classes) for graph in graphs.values()]
        for agent in self.agents[1:]:
            agent.net.load_state_dict(self.agents[0].net.state_dict())
        self.motifs = np.unique(np.concatenate([agent.numbers for agent in self.agents]))
        self.place = [torch.from_numpy(np.searchsorted(self.motifs, agent.numbers)) for agent in self.agents]
        self.d = torch.tensor([len(agent.numbers) / len(self.motifs) for agent in self.agents], dtype=torch.float64)
        count = len(self.agents)
        self.r, self.before, self.rounds = torch.full((count,), 1 / count, dtype=torch.float64), torch.zeros(count), 0
        self.global_prototypes: Tensor | None = None

    def round(self) -> None:
        starts, updates, prototypes = [], [], []
        for agent, place in zip(self.agents, self.place, strict=True):
            start = nn.utils.parameters_to_vector(agent.net.parameters()).detach()
            agent.net.train()
            agent.optimizer.zero_grad()
            embedded = agent.net.embed(agent.data)
            loss = F.cross_entropy(agent.net.classify(embedded), agent.data.y)
            if self.global_prototypes is not None:
                loss = loss + 0.1 * F.mse_loss(agent.mean @ embedded, self.global_prototypes[place])
            loss.backward()
            agent.optimizer.step()
            agent.net.eval()
            with torch.no_grad():
                prototypes.append(agent.mean @ agent.net.embed(agent.data))
            starts.append(start)
            updates.append(nn.utils.parameters_to_vector(agent.net.parameters()).detach() - start)
        self.serve(starts, torch.stack(updates).double(), prototypes)

    def serve(self, starts: list[Tensor], updates: Tensor, prototypes: list[Tensor]) -> None:
        weights = self.r.relu()
        whole = weights @ updates / weights.sum()
        phi = F.cosine_similarity(updates, whole[None])
        self.r = self.r + 0.05 * (phi + self.d)
        self.r = self.r / self.r.sum()
        self.rounds += 1
        payoffs(self.r, self.before / self.rounds, 1.0)
        self.before = self.before + self.r
        weights, width = self.r.relu(), prototypes[0].shape[1]
        total, share = torch.zeros(len(self.motifs), width), torch.zeros(len(self.motifs), 1)
        for place, of_agent, weight in zip(self.place, prototypes, weights.float(), strict=True):
            total.index_add_(0, place, weight * of_agent)
            share.index_add_(0, place, weight.expand(len(place), 1))
        self.global_prototypes = total / share.clamp(min=1e-12)
        shares, order = torch.tanh(self.r) / torch.tanh(self.r).max(), torch.argsort(whole.abs(), descending=True)
        for agent, start, reward_share in zip(self.agents, starts, shares.tolist(), strict=True):
            reward = torch.zeros_like(whole)
            largest = order[: int(reward_share * len(whole))]
            reward[largest] = whole[largest]
            nn.utils.vector_to_parameters(start + reward.float(), agent.net.parameters())


def in_turns(built: Built, rounds: int) -> tuple[list[float], list[float]]:
    """Processor seconds of each round of the loop and of fedweave, in turns, without the first two rounds of both.

    With one thread, processor seconds are those of an idle machine although others may use it, too.
    """
    loop, ours, theirs = Loop(built), [], []
    steps = train(built.algorithm, built.fed, MANY_ROUNDS, eval_every=0)
    for number in range(rounds + 2):
        began = time.process_time()
        loop.round()
        between = time.process_time()
        next(steps)
        if number > 1:
            theirs.append(between - began)
            ours.append(time.process_time() - between)
    return theirs, ours


def local_training(path: Path, seeds: list[int], rounds: int) -> None:
    """Mean test accuracy of agents that train on their own: after the last round, and in the best of each agent's tenth
    rounds."""
    for seed in seeds:
        document = config.with_algorithm(config.load(path), "local")[0]
        document |= {"seed": seed, "rounds": rounds, "eval_every": 0}
        document["algorithm"] |= {"local_steps": 1, "optimizer": "adam", "lr": 1e-3, "weight_decay": 5e-4}
        document["partition"].pop("split_seed", None)
        built = build(config.resolve(document))
        curves = np.array([_pyg_curve(graph, built.fed.classes, rounds, seed) for graph in built.fed.graphs.values()])
        *_, last = train(built.algorithm, built.fed, rounds, eval_every=0)
        ours = last.summary["local/accuracy"]
        print(f"seed {seed}: PyG {curves[:, -1].mean():.3f} (best {curves.max(1).mean():.3f}), fedweave {ours:.3f}")


def _pyg_curve(graph: Graph, classes: int, rounds: int, seed: int) -> list[float]:
    data, test = batch(graph, TRAIN)[0], batch(graph, TEST)[0]
    torch.manual_seed(seed)
    net = Net(data.x.shape[1], classes)
    optimizer, curve = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=5e-4), []
    for number in range(1, rounds + 1):
        net.train()
        optimizer.zero_grad()
        F.cross_entropy(net.classify(net.embed(data)), data.y).backward()
        optimizer.step()
        if number % 10 == 0 or number == rounds:
            net.eval()
            with torch.no_grad():
                curve.append(float((net.classify(net.embed(test)).argmax(1) == test.y).float().mean()))
    return curve


def sybils(path: Path, rounds: int) -> None:
    """What a member is paid as one, and as two with half of its graphs each, on one split."""
    for agents in (5, 10):
        settings = [f"partition.clients={agents}", "eval_every=0", "model.hidden=16"]
        built = build(config.read(path, settings)[0])
        print(f"{agents} agents: as one {_pay(built, rounds, False):.4f}, as two {_pay(built, rounds, True):.4f}")


def _pay(built: Built, rounds: int, split: bool) -> float:
    """What agent 0 is paid per round, in shares of the budget, as one or as two."""
    parts = list(built.partition.parts)
    if split:
        one, cuts = parts[0], np.array_split(np.arange(len(parts[0].examples)), 2)
        parts[:1] = [Part.of(built.data, one.examples[cut], one.masks[:, cut]) for cut in cuts]
    partition = replace(built.partition, parts=tuple(parts))
    fed = Simulation(client_graphs(built.data, partition, finders=built.algorithm.finders), classes=2)
    total = 0.0
    for step in train(built.algorithm, fed, rounds, eval_every=0):
        total += float(step.state["parts"]["Payoff"]["pay"][: 1 + split].sum())
    return total / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", type=Path, default=Path("experiments/fairgraphfl-proteins.toml"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sybils", action="store_true")
    parser.add_argument("--alone", type=int, nargs="+", metavar="SEED")
    args = parser.parse_args()
    if args.alone is not None:
        local_training(args.experiment, args.alone, args.rounds)
        return
    if args.sybils:
        sybils(args.experiment, args.rounds)
        return
    built = build(config.read(args.experiment)[0])
    theirs, ours = in_turns(built, args.rounds)
    lean, fast = statistics.median(theirs), statistics.median(ours)
    print(f"{torch.get_num_threads()} threads, {len(built.fed.clients)} agents, medians of {args.rounds} rounds")
    print(f"loop over agents in PyG {lean:.3f} s, fedweave {fast:.3f} s: {lean / fast:.2f} times as fast")


if __name__ == "__main__":
    main()

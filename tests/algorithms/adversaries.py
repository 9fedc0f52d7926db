"""Agents that do not do what they should, on real small graphs: what they send, and what they are paid for it."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedweave.core.federation import step_name
from fedweave.core.random import generator
from fedweave.core.replies import Replies, ReplyBatch, Stacked
from fedweave.core.tree import leaves, map_leaves, nest, ravel, unravel
from fedweave.engines.simulation import Simulation
from fedweave.experiment import config
from fedweave.experiment.build import Built, build
from fedweave.experiment.rounds import train

AGENT, VICTIM = 0, 1  # who is dishonest, and whose update is copied
Lie = Callable[["Dishonest", Tensor, Tensor], Tensor]


class Dishonest(Simulation):
    """An engine at which one agent sends `lie(engine, updates [P, D], last download [D])` in place of its update."""

    lie: Lie | None = None
    idle = False  # whether it has no data of its own either, so that it can name no motif
    repeated = 0  # how often it then lists a motif of another's; its list is as much longer as it said
    rng = generator(0, "adversary")

    def map(self, step: Any, shared: Any = None, each: Any = None, *args: Any, **options: Any) -> Replies:
        replies = super().map(step, shared, each, *args, **options)
        if not step_name(step).endswith(".train") or (self.lie is None and not self.idle):
            return replies
        paths = replies.paths
        tree = {path: replies.stack(path) for path in paths}
        if self.lie is not None:
            like = {p: leaf[0] for p, leaf in tree.items() if p.startswith("update/")}
            sent = replies.matrix("update")
            got = torch.zeros(sent.shape[1], dtype=torch.float64)
            if isinstance(each, Stacked):
                got = ravel(map_leaves(lambda leaf: leaf.double(), each.one(self.clients[AGENT])["w"]))
            false = unravel(type(self).lie(self, sent, got), like)  # type: ignore[misc]
            for path, leaf in leaves(false):
                tree[path][AGENT] = leaf
        if self.repeated:
            tree["motif"] = torch.nn.functional.pad(tree["motif"], (0, self.repeated), value=-1)
            tree["prototype"] = torch.nn.functional.pad(tree["prototype"], (0, 0, 0, self.repeated))
        if self.idle:
            tree["motif"][AGENT] = tree["motif"][VICTIM][0] if self.repeated else -1
        return Replies(replies.clients, [ReplyBatch(tuple(range(len(replies))), nest(tree))], replies.missing)


def noise(engine: Dishonest, sent: Tensor, got: Tensor) -> Tensor:
    """Noise as long as its update."""
    random = torch.from_numpy(engine.rng.normal(size=sent.shape[1]))
    return random * sent[AGENT].norm() / random.norm()


LIES: dict[str, Lie] = {
    "noise": noise,
    "zeros": lambda engine, sent, got: 0 * sent[AGENT],
    "its last download": lambda engine, sent, got: got,
    "a copy of another's update": lambda engine, sent, got: sent[VICTIM],
    "its update with the sign flipped": lambda engine, sent, got: -sent[AGENT],
}
SETTINGS: dict[str, Any] = {
    "data": {"name": "proteins"},
    "partition": {"name": "graphs_iid", "clients": 5, "global_test": 0.7},
    "model": {"name": "gin", "pool": "sum", "hidden": 8, "layers": 2},
    "algorithm": {"name": "fairgraphfl", "lr": 0.01},
}


@lru_cache(maxsize=8)
def prepared(seed: int, budget: float = 1.0) -> Built:
    return build(config.resolve({**SETTINGS, "seed": seed, "algorithm": SETTINGS["algorithm"] | {"budget": budget}}))


def paid(
    seed: int, lie: Lie | None = None, idle: bool = False, rounds: int = 4, repeated: int = 0, budget: float = 1.0
) -> Tensor:
    """What the agents are paid over all rounds, float64 [5]."""
    built = prepared(seed, budget)
    cheat = {"lie": lie, "idle": idle, "repeated": repeated, "rng": generator(seed, "adversary")}
    engine = type("Engine", (Dishonest,), cheat)
    fed = engine(built.fed.graphs, classes=2, seed=seed)
    total: Any = 0
    for step in train(built.algorithm, fed, rounds, eval_every=0):
        total = total + step.state["parts"]["Payoff"]["pay"]
    return total

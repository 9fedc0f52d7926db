"""What one client of GLASU computes (Zhang et al. 2023, algorithms 2 to 7).

`client.state` holds "w", "share" and, to concatenate, "at" (see `aggregation`). Within a round its "round" holds: the
"key" of the client's randomness and the common "batch" key; "drawn" and "real", the mini-batch; "nodes", the lists by
cut; "sent", what the client sent last; "others", what the others contributed, by cut, or (`exchanged`) "received", the
whole of it; "origin" (`Graph.origin`) of the lowest list; "slopes" and "pulled", gradients in weights and in the origin
so far.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vjp

from fedweave.algorithms.vertical.aggregation import Concat, Mean
from fedweave.algorithms.vertical.sampling import located
from fedweave.algorithms.vertical.split import Split
from fedweave.core import random
from fedweave.core.federation import Client
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.rows import rows
from fedweave.core.tree import Tree, map_leaves
from fedweave.learn import Sgd, cross_entropy, fit
from fedweave.learn.trace import stay_eager
from fedweave.privacy.gaussian import GaussianRows


@dataclass(frozen=True)
class Party:
    """One client's side; see `GLASU` for the fields."""

    split: Split
    how: Mean | Concat
    release: GaussianRows
    batch: int
    steps: int
    lr: float
    weight_decay: float
    exchanged: bool

    @property
    def sampling(self) -> list[int]:
        """The segments above an aggregated layer that sample neighbours, from the last."""
        return [s for s in range(self.split.last, 0, -1) if self.batch and self.split.hops(s)]

    def begin(self, client: Client, message: Tree) -> Tree:
        """Initial weights, and what tells whether the clients hold the same nodes."""
        graph, state = client.graph, client.state
        state["share"] = message["share"]
        if self.how.wider:
            state["at"] = message["at"]
        own, tail = random.fold(client.key, "init"), random.fold(message["tail"], "init")
        state["w"] = self.split.init(own, tail, message["clients"], graph.x.dtype)
        use = (graph.masks * torch.tensor([1, 2, 3])[:, None]).sum(0)
        fingerprint = (random.bits(torch.tensor(0), len(use)) * use).sum()
        return {"nodes": graph.real.sum(), "masks": fingerprint, "labels": _labelled(graph).any().long()}

    def sample(self, client: Client, message: Tree) -> Tree:
        """S_m below a segment: int32, rising, with the first repeated up to as many as there can be."""
        stay_eager()
        now, segment, graph = self._receive(client, message), message["segment"], client.graph
        targets = self._list(now, segment + 1)
        nodes, _ = self.split.sample(graph, segment, targets, now["key"])
        most = min(len(graph.y), len(targets) * (1 + self.split.fan_out) ** len(self.split.hops(segment)))
        there = torch.zeros(len(graph.y), dtype=torch.int64).scatter(0, nodes, 1)
        listed = there.argsort(descending=True, stable=True)[:most]
        return {"nodes": torch.where(torch.arange(most) < there.sum(), listed, listed[:1]).to(torch.int32)}

    def infer(self, client: Client, message: Tree) -> Tree:
        """H+_m after a segment, for all nodes of the list."""
        stay_eager()
        now, segment = self._receive(client, message), message["segment"]
        run = self._joint(client.graph, now, segment)
        h, origin = run(client.state["w"], message.get("h"), now.get("origin"))
        if segment == 0 and origin is not None:
            now["origin"] = origin
        now["sent"] = self.release.apply(h, random.fold(client.secret, "h"))
        return {"h": now["sent"]}

    def pull(self, client: Client, message: Tree) -> Tree:
        """The gradient of the client's loss in H[L]."""
        stay_eager()
        loss, w = self._prediction_loss(client), client.state["w"]
        return {"gradient": grad(lambda h: loss(w, h))(message["h"])}

    def update(self, client: Client, message: Tree) -> Tree:
        """Q steps with the others' representations as they were."""
        stay_eager()
        now, graph, state = self._receive(client, message), client.graph, client.state
        args = self._examples(graph, now) | self._own_lists(graph, now)
        args |= {name: state[name] for name in ("at", "share") if name in state}
        if "gradient" in message:
            args["gradient"] = message["gradient"] * ~_labelled(graph).any()
        tail, optimiser = self._tail_keys(now, torch.arange(self.steps)), Sgd(self.lr, self.weight_decay)
        fitted = fit(
            self._loss, state["w"], graph, client.key, optimiser, self.steps, args=args, batches={"tail": tail}
        )
        state["w"] = fitted[0]
        del state["round"]
        return {}

    def back(self, client: Client, message: Tree) -> Tree:
        """The gradient in what the client received before a segment; after the first segment, a step."""
        stay_eager()
        now, segment, w = client.state["round"], message["segment"], client.state["w"]
        if "h" in message:
            loss, tail = self._prediction_loss(client), self.split.own(w, self.split.last)
            now["slopes"] = grad(lambda tail: loss(tail, message["h"]))(tail) if tail else {}
        run, own = self._joint(client.graph, now, segment), self.split.own(w, segment)
        received = now["received"][str(segment)] if segment else None
        inputs = {"w": own} | ({"h": received, "origin": now.get("origin")} if segment else {})
        given = {name: value for name, value in inputs.items() if value is not None}
        through = lambda given: run(given["w"], given.get("h"), given.get("origin"))  # noqa: E731
        out, pull, *_ = vjp(lambda given: _tuple(through(given), segment), given)
        above = self.how.back(message["gradient"], client.state.get("at"), client.state["share"], out[0].shape[1])
        slopes = pull((above, *(now.get("pulled", torch.zeros_like(o)) for o in out[1:])))[0]
        now["slopes"] |= slopes["w"]
        if segment:
            if "origin" in slopes:
                now["pulled"] = now.get("pulled", 0) + slopes["origin"]
            return {"gradient": slopes["h"]}
        client.state["w"] = map_leaves(lambda w, s: w - self.lr * (s + self.weight_decay * w), w, now["slopes"])
        del client.state["round"]
        return {}

    def look(self, client: Client, message: Tree) -> Tree:
        """H+_m after a segment for all nodes, from all edges."""
        segment, state = message["segment"], client.state
        h = message["h"] if segment else client.graph.x
        out, origin = self.split.run(segment, state["w"], client.graph, h, origin=state.get("origin"))
        if segment == 0 and origin is not None:
            state["origin"] = origin
        return {"h": self.release.apply(out, random.fold(client.secret, "h"))}

    def logits(self, client: Client, message: Tree) -> Tensor:
        """The client's prediction for all nodes [n, c], after `look`."""
        h = message["h"] if self.split.cuts else client.graph.x
        origin = client.state.pop("origin", None)
        return self.split.run(self.split.last, client.state["w"], client.graph, h, origin=origin)[0]

    def _receive(self, client: Client, message: Tree) -> Tree:
        """The round's state with what arrived; H_{-m} = Extract(H, H+_m)."""
        state = client.state
        if "batch" in message:
            drawn = self._draw(client.graph, message["batch"])
            state["round"] = {"key": client.key, "batch": message["batch"]} | drawn
        now = state["round"]
        if "nodes" in message:
            now["nodes"] = now.get("nodes", {}) | {str(message["cut"]): message["nodes"]}
        if "h" in message:
            cut = str(message.get("segment", self.split.last))
            kept = "received" if self.exchanged else "others"
            h = (
                message["h"]
                if self.exchanged
                else self.how.extract(message["h"], now["sent"], state.get("at"), state["share"])
            )
            now[kept] = now.get(kept, {}) | {cut: h}
        return now

    def _draw(self, graph: Graph, key: Tensor) -> Tree:
        """The mini-batch: "drawn" int64 [b] train nodes, and "real" bool [b], for there may be fewer than b."""
        if not self.batch:
            return {}
        train, size = graph.masks[TRAIN], min(self.batch, len(graph.y))
        chosen = torch.topk(random.order(key, train), size, largest=False).indices
        real = torch.arange(size) < train.sum()
        return {"drawn": torch.where(real, chosen, chosen[:1]), "real": real}

    def _list(self, now: Tree, cut: int) -> Tensor:
        """The nodes whose representations are exchanged at a cut; those beyond the last sampled list's are the
        mini-batch."""
        known = [now["nodes"][c] for c in map(str, range(cut, self.split.last + 1)) if c in now.get("nodes", {})]
        return known[0] if known else now["drawn"]

    def _joint(self, graph: Graph, now: Tree, segment: int) -> Any:
        """(w, received, origin) -> output and origin of a segment for the nodes of the list above it."""
        hops = nodes = at_cut = at_lowest = targets = None
        if self.batch:
            targets = self._list(now, segment + 1)
            nodes, hops = self.split.sample(graph, segment, targets, now["key"])
            if segment:
                at_cut, at_lowest = (located(nodes, self._list(now, cut), len(graph.y)) for cut in (segment, 1))

        def run(w: Tree, received: Tensor | None, origin: Tensor | None) -> tuple[Tensor, Tensor | None]:
            tail = segment == self.split.last and self.split.cuts
            drop = self._tail_keys(now, torch.tensor(0)) if tail else random.fold(now["key"], "joint")
            h = self.split.first(graph, nodes) if segment == 0 else _picked(received, at_cut)
            begun = None if segment == 0 else _picked(origin, at_lowest)
            out, origin = self.split.run(segment, w, graph, h, hops, begun, drop)
            return out, origin if targets is None or origin is None else origin[: len(targets)]

        return run

    def _tail_keys(self, now: Tree, step: Tensor) -> Tensor:
        """What the prediction drops in a step, the same at all clients."""
        return random.fold(now["batch"], "tail", step)

    def _prediction_loss(self, client: Client) -> Any:
        """(w, H[L]) -> the client's loss; 0 without labels."""
        graph, now = client.graph, client.state["round"]
        run, seen = self._joint(graph, now, self.split.last), self._examples(graph, now)
        origin = now.get("origin")
        return lambda w, h: cross_entropy(run(w, h, origin)[0], seen["target"], seen["weight"])

    def _examples(self, graph: Graph, now: Tree) -> Tree:
        """The "target" int64 [b] and "weight" (0 or 1) of the mini-batch, or of all nodes."""
        target, weight = graph.y, _labelled(graph)
        if self.batch:
            target, weight = target.gather(0, now["drawn"]), weight.gather(0, now["drawn"]) & now["real"]
        return {"target": target.clamp(min=0), "weight": weight.to(graph.x.dtype)}

    def _own_lists(self, graph: Graph, now: Tree) -> Tree:
        """For local steps: the "nodes" that the client's own batch needs from its features, its layers' "hops", and by
        cut what the "others" contributed to its own rows."""
        others = now.get("others", {})
        if not self.batch:
            return {"others": others}
        targets = now["drawn"]
        hops: Tree = {}
        picked: Tree = {}
        for segment in range(self.split.last, -1, -1):
            targets, more = self.split.sample(graph, segment, targets, now["key"])
            hops |= more
            if segment:
                place = located(targets, self._list(now, segment), len(graph.y))
                picked[str(segment)] = rows(others[str(segment)], place)
        return {"nodes": targets, "hops": hops, "others": picked}

    def _loss(self, w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        """Algorithm 4, lines 2-11; algorithm 7, line 14, where the client has no labels."""
        split, origin, hops = self.split, None, args.get("hops")
        h: Any = split.first(graph, args.get("nodes"))
        for segment in range(split.last):
            own, origin = split.run(segment, w, graph, h, hops, origin, key)
            h = self.how.join(args["others"][str(segment + 1)], own, args.get("at"), args["share"])
        logits, _ = split.run(split.last, w, graph, h, hops, origin, args["tail"] if split.cuts else key)
        loss = cross_entropy(logits, args["target"], args["weight"])
        return loss + (args["gradient"] * h).sum() if "gradient" in args else loss


def _labelled(graph: Graph) -> Tensor:
    """bool [n]: the train nodes whose label the client sees."""
    return graph.masks[TRAIN] & (graph.y >= 0)


def _picked(h: Tensor | None, place: Tensor | None) -> Tensor | None:
    return h if h is None or place is None else rows(h, place)


def _tuple(result: tuple[Tensor, Tensor | None], segment: int) -> tuple[Tensor, ...]:
    """The output, and of the first segment the origin too, if there is one."""
    h, origin = result
    return (h,) if segment or origin is None else (h, origin)

"""The steps of a party in GLASU, the labels that it trains on, and their declarations for the ledger."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.func import grad, vjp
from torch.nn.functional import pad

from fedweave.algorithms.vertical.aggregation import Concat, Mean, RowRelease, in_words
from fedweave.algorithms.vertical.split import Split, draw, error, exchanged, labelled, sampled, sampled_own
from fedweave.core import random
from fedweave.core.federation import Client, Sends
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.mechanism import LDP, SecureSum
from fedweave.core.ranges import Whole
from fedweave.core.tree import Tree, leaves, map_leaves
from fedweave.errors import CallRefused
from fedweave.learn import PLAIN, Criterion, Fit, Optimizer, fit
from fedweave.learn.recording import record_part
from fedweave.ops import hashing
from fedweave.ops.rows import gather_rows
from fedweave.privacy.mechanisms import randomized_response
from fedweave.privacy.secure_sum import FixedPoint, beyond_declaration
from fedweave.sampling.neighborhoods import find_places, sort_distinct

DRAWN = "labels"  # in a client's state: the key of the draw
SUM = SecureSum(everyone=True, fraction=24)  # gradients of a mean over many nodes are small
SLOPES = FixedPoint.of(SUM)


@dataclass(frozen=True)
class LabelRelease:
    """Labels as they are or, with an `epsilon`, after randomized response on each label, drawn only once (Warner 1965;
    Erlingsson et al. 2014, "RAPPOR", for drawing once).

    All training at the client uses only these labels, so its training messages reveal no more about a label than ε, in
    any number and with any key. Only the draw itself costs ε. Scores, which count the labels that the model hits, use
    these labels at sites, unless a site's policy decides otherwise, and the true labels in a simulation. If a client's
    draws outlast a run (`LabelNoise`), every run with the same ε draws the same for an example and its label. The draw
    does not depend on other examples. Another ε has an independent draw, because two draws from the same random words
    would reveal more than both ε; and so has another label of the example.
    """

    epsilon: float | None

    def draw(self, client: Client) -> Tree:
        """Draw, once per run or for all runs; the reply only confirms it."""
        label_noise = client.label_noise
        drawn = random.fold(client.secret, DRAWN) if label_noise is None else self._permanent_draw(label_noise.version)
        client.state[DRAWN] = drawn
        return {"drawn": torch.ones_like(client.key)}

    def _permanent_draw(self, key: Tensor) -> Tensor:
        return random.fold(key, DRAWN, f"ε = {self.epsilon!r}")

    def kept(self, client: Client) -> Tree:
        """The random words of the draw, two for each node; {} before it. A secret key gives them only outside of
        `torch.func`."""
        if DRAWN not in client.state:
            return {}
        label_noise, words = client.label_noise, 2 * len(client.graph.y)
        if label_noise is None:
            return {DRAWN: random.bits(client.state[DRAWN], words)}
        each = random.fold(self._permanent_draw(label_noise.key), label_noise.marks)  # int64 [n]
        bits = torch.stack([random.fold(each, use) for use in ("stays", "other")], 1).flatten()
        return {DRAWN: pad(hashing.finalize(bits), (0, words - len(bits)))}  # padding has no labels

    def seen(self, y: Tensor, classes: int, kept: Tree) -> Tensor:
        """The labels for training, from y int64 [n]; −1 for a missing label, and for all labels before the draw."""
        if self.epsilon is None:
            return y
        return randomized_response(y, classes, self.epsilon, kept[DRAWN]) if DRAWN in kept else torch.full_like(y, -1)

    def draws(self) -> Mapping[str, Sends]:
        """The declaration of the reply of `draw`."""
        if self.epsilon is None:
            return {}
        reveals = "that labels were drawn by randomized response: all later messages depend only on these labels"
        return {"drawn": Sends(reveals, self._mechanism(self.epsilon), within=Whole(1, 1))}

    def sends(self, what: str) -> Mapping[str, Sends]:
        """The declaration of a "gradient" of the loss with respect to values that all parties know, which reveals
        labels."""
        if self.epsilon is None:
            return {"gradient": Sends(f"{what}: the labels of the batch can be reconstructed from it")}
        noisy = "the labels of the batch, as randomized response left them, can be reconstructed from it"
        return {"gradient": Sends(f"{what}: {noisy}", self._mechanism(self.epsilon))}

    @staticmethod
    def _mechanism(epsilon: float) -> LDP:
        return LDP(epsilon, "label", release=DRAWN, one_draw=True)

    def sends_sum(self, what: str) -> Mapping[str, Sends]:
        """The declaration of a "gradient" that leaves by secure aggregation over all clients."""
        declared = self.sends(what)["gradient"]
        reveals = f"nothing by itself; with all other clients' the mean of: {declared.reveals}"
        return {"gradient": Sends(reveals, (*declared.mechanisms, SUM))} | beyond_declaration("gradient", SUM)


# ----------------------------------------------------------------------------------------------------
# The steps of one client of GLASU (Zhang et al. 2023, algorithms 2 to 7). `client.state` holds "w", "share", "at" for
# concatenation (see `aggregation`), "optimizer", the state of the party's optimizer if it has any, and the draw of
# `LabelRelease`. Within a round its "round" holds: the "key" of the client's randomness and the common "batch" key;
# "minibatch" and "real", the mini-batch; "nodes", the lists by cut; "below", the samples of `Split.sample` below the
# list above a segment; "sent", the client's last message; "others", the others' contributions, by cut, or (`returned`)
# "received", the whole aggregates; "kept", the first segment's further outputs for the lowest list; "grads" and
# "pulled", gradients with respect to weights and "kept".


@dataclass(frozen=True)
class PartySteps:
    """The bodies of GLASU's steps at one client.

    labels: the labels that it trains on. batch, steps, lr, weight_decay: see `GLASU`. optimizer: makes an optimizer
    from `lr` and `weight_decay`. returned: whether parties exchange gradients (`backward = "exchanged"`). decays:
    whether the server sends the learning rate of each round. loss: how it weighs classes.
    """

    split: Split
    how: Mean | Concat
    release: RowRelease
    labels: LabelRelease
    batch: int
    steps: int
    optimizer: Callable[[float, float], Optimizer]
    lr: float
    weight_decay: float
    returned: bool
    decays: bool
    loss: Criterion = PLAIN

    @property
    def sampling(self) -> list[int]:
        """The segments above an aggregated layer that sample neighbors, from the last."""
        return [s for s in range(self.split.last, 0, -1) if self.batch and self.split.hops(s)]

    def fewest(self, graph: Graph) -> int:
        """The fewest examples of a step. Waits for the graph's device."""
        count, known = (int(mask.sum()) for mask in (graph.masks[TRAIN], labelled(graph)))
        least = min(self.batch or count, count)
        if 0 < known < count:  # a mini-batch may have any number of nodes without labels in it
            return max(1, least - (count - known)) if self.batch else known
        return least

    def begin(self, client: Client, message: Tree) -> Tree:
        """Initial weights; the reply shows whether the clients hold the same nodes."""
        graph, state = client.graph, client.state
        state |= {"share": message["share"]}
        if self.how.wider:
            state["at"] = message["at"]
        key, tail = random.fold(client.key, "init"), random.fold(message["tail"], "init")
        state["w"] = self.split.init(key, tail, message["clients"], graph.x.dtype)
        use = (graph.masks * torch.arange(1, 4, device=graph.device)[:, None]).sum(0)
        public = torch.zeros((), dtype=torch.int64, device=graph.device)
        fingerprint = (random.bits(public, len(use)) * use).sum()
        return {"nodes": graph.real.sum(), "masks": fingerprint, "labels": labelled(graph).any().long()}

    def sample(self, client: Client, message: Tree) -> Tree:
        """S_m below a segment: int32, rising, padded with its first node to the largest possible length."""
        now, segment, graph = self._receive(client, message), message["segment"], client.graph
        below = sampled(self.split, graph, now, segment)
        now["below"] = now.get("below", {}) | {str(segment): below}
        targets = len(exchanged(now, segment + 1))
        most = min(len(graph.y), targets * (1 + self.split.fan_out) ** len(self.split.hops(segment)))
        return {"nodes": sort_distinct(below["nodes"], len(graph.y), most).to(torch.int32)}

    def infer(self, client: Client, message: Tree) -> Tree:
        """H+_m after a segment, for all nodes of the list."""
        now, segment = self._receive(client, message), message["segment"]
        inputs = self._joint(client.graph, now, segment, client.state["w"], message.get("h"))
        outputs, count = record_part(self._segment, client.graph, _placed(inputs)), self._count(now, segment)
        result = map_leaves(lambda out: out[:count], outputs)
        if segment == 0:
            now["kept"] = result["kept"]
        now["sent"] = self.release.noised(client, result["h"], exchanged(now, segment + 1) if self.batch else None)
        return self.release.sent(client, now["sent"])

    def pull(self, client: Client, message: Tree) -> Tree:
        """The gradient of the client's loss with respect to H[L]."""
        loss, w = self._prediction_loss(client), client.state["w"]
        h = _filled(message["h"], len(client.state["round"]["sent"]))
        return {"gradient": grad(lambda h: loss(w, h))(h)}

    def pull_sum(self, client: Client, message: Tree) -> Tree:
        """`pull` as masked integers, 0 at a client without labels."""
        gradient = self.pull(client, message)["gradient"] * labelled(client.graph).any()
        return in_words(SLOPES, "gradient", gradient, client.state["share"])

    def update(self, client: Client, message: Tree) -> Tree:
        """Q steps with the others' unchanged representations."""
        now, graph, state = self._receive(client, message), client.graph, client.state
        args: Tree = {name: now[name] for name in ("minibatch", "real", "others") if name in now}
        args |= {name: state[name] for name in ("at", "share") if name in state} | self.labels.kept(client)
        if self.batch:
            top = next(iter(self.sampling), self.split.last + 1)
            below = args["below"] = sampled_own(self.split, graph, now, top)
            places = {
                cut: find_places(self.split.outputs(int(cut) - 1, below), exchanged(now, int(cut)), len(graph.y))
                for cut in now.get("others", {})
            }
            args["others"] = {cut: gather_rows(now["others"][cut], place) for cut, place in places.items()}
        if "gradient" in message:
            args["gradient"] = message["gradient"] * ~labelled(graph).any()
        keys = self._tail_keys(now, torch.arange(self.steps, device=graph.device))
        optimizer, past = self.optimizer(self._rate(message), self.weight_decay), state.get("optimizer")
        fitted = fit(
            self._loss, state["w"], graph, client.key, optimizer, self.steps,
            state=past, args=args, batches={"tail": keys},
        )  # fmt: skip
        _keep(state, fitted)
        del state["round"]
        return {}

    def back(self, client: Client, message: Tree) -> Tree:
        """The gradient with respect to the aggregate below a segment; after the first segment, a step."""
        now, segment, w = client.state["round"], message["segment"], client.state["w"]
        if "h" in message:
            loss, tail = self._prediction_loss(client), self.split.segment_weights(w, self.split.last)
            h = _filled(message["h"], len(now["sent"]))
            now["grads"] = grad(lambda tail: loss(tail, h))(tail) if tail else {}
        inputs = self._joint(client.graph, now, segment, w, now["received"][str(segment)] if segment else None)
        free: Tree = {name: inputs[name] for name in ("w", "h", "kept") if inputs[name] is not None}
        count = self._count(now, segment)

        def outputs(free: Tree) -> Tree:
            return map_leaves(lambda out: out[:count], self._segment(client.graph, _placed(inputs | free)))

        out, pull, *_ = vjp(outputs, free)
        above = self.how.back(message["gradient"], client.state.get("at"), client.state["share"], out["h"].shape[1])
        pulled = now.get("pulled") or map_leaves(torch.zeros_like, out["kept"])
        grads = pull({"h": above, "kept": {} if segment else pulled})[0]
        now["grads"] |= grads["w"]
        if segment:
            kept_grads = grads["kept"]
            now["pulled"] = map_leaves(torch.add, now["pulled"], kept_grads) if "pulled" in now else kept_grads
            return {"gradient": grads["h"]}
        lr, past = self._rate(message), client.state.get("optimizer")
        optimizer = self.optimizer(lr, self.weight_decay)
        if optimizer.moments:
            inputs = {"slopes": now["grads"]}
            _keep(client.state, fit(_linear, w, client.graph, client.key, optimizer, 1, state=past, args=inputs))
        else:  # keeps earlier results bit for bit
            client.state["w"] = map_leaves(lambda w, s: w - lr * (s + self.weight_decay * w), w, now["grads"])
        del client.state["round"]
        return {}

    def _rate(self, message: Tree) -> float:
        """The learning rate, which the server may only lower, and only if it decays. With any other length, or a
        negative one, the server could write chosen values into the weights.

        Raises:
            CallRefused: the message has another rate.
        """
        rate = float(message.get("lr", self.lr))
        if not (0 <= rate <= self.lr if self.decays else rate == self.lr):
            allowed = f"from 0 to {self.lr:g}" if self.decays else f"{self.lr:g}, as algorithm.decay_every is 0"
            raise CallRefused(f"lr is {rate:g} in the message, and may be {allowed}; send the value of algorithm.lr")
        return rate

    def infer_full(self, client: Client, message: Tree) -> Tree:
        """H+_m after a segment for all nodes, from all edges."""
        segment, state = message["segment"], client.state
        # At the first segment, "kept" is from an earlier evaluation.
        h, side_outputs = (message["h"], state.get("kept")) if segment else (client.graph.x, None)
        out, side_outputs = self.split.run(segment, state["w"], client.graph, h, kept=side_outputs)
        if segment == 0:
            state["kept"] = side_outputs
        return self.release.sent(client, self.release.noised(client, out))

    def logits(self, client: Client, message: Tree) -> Tensor:
        """The client's prediction for all nodes [n, c], after `infer_full`."""
        h = _filled(message["h"], len(client.graph.y)) if self.split.cuts else client.graph.x
        side_outputs = client.state.pop("kept", None)
        return self.split.run(self.split.last, client.state["w"], client.graph, h, kept=side_outputs)[0]

    def _receive(self, client: Client, message: Tree) -> Tree:
        """The round's state with the message's contents; H_{-m} = Extract(H, H+_m)."""
        state = client.state
        if "batch" in message:
            minibatch = draw(client.graph, message["batch"], self.batch)
            state["round"] = {"key": client.key, "batch": message["batch"]} | minibatch
        now: Tree = state["round"]
        if "nodes" in message:
            now["nodes"] = now.get("nodes", {}) | {str(message["cut"]): message["nodes"]}
        if "h" in message:
            cut = str(message.get("segment", self.split.last))
            field, h = "received" if self.returned else "others", _filled(message["h"], len(now["sent"]))
            h = h if self.returned else self.how.extract(h, now["sent"], state.get("at"), state["share"])
            now[field] = now.get(field, {}) | {cut: h}
        return now

    def _joint(self, graph: Graph, now: Tree, segment: int, w: Tree, h: Tensor | None) -> Tree:
        """The inputs of `_segment`, before `_placed`, for the nodes of the list above a segment (the first `_count` of
        its outputs) from the received h."""
        tail = segment == self.split.last and self.split.cuts
        inputs: Tree = {
            "segment": segment,
            "w": self.split.segment_weights(w, segment),
            "h": h,
            "kept": now.get("kept", {}) if segment else {},
            "drop": self._tail_keys(now, torch.zeros_like(now["batch"])) if tail else random.fold(now["key"], "joint"),
        }
        if self.batch:
            below = inputs["below"] = now.get("below", {}).get(str(segment)) or sampled(self.split, graph, now, segment)
            if segment:
                inputs["places"] = {
                    name: find_places(below["nodes"], exchanged(now, cut), len(graph.y))
                    for name, cut in (("h", segment), ("kept", 1))
                }
        return inputs

    def _count(self, now: Tree, segment: int) -> int | None:
        """The number of nodes that a segment has outputs for; None for the whole graph."""
        return len(exchanged(now, segment + 1)) if self.batch else None

    def _segment(self, graph: Graph, inputs: Tree) -> Tree:
        """{"h": a segment's output, "kept": further outputs of the first segment}."""
        segment, below = inputs["segment"], inputs.get("below", {})
        h = inputs["h"] if segment else self.split.first(graph, below.get("nodes"))
        out, side_outputs = self.split.run(
            segment, inputs["w"], graph, h, below.get("hops"), inputs["kept"], inputs["drop"]
        )
        return {"h": out, "kept": {} if segment else map_leaves(lambda rows: rows[: len(out)], side_outputs)}

    def _tail_keys(self, now: Tree, step: Tensor) -> Tensor:
        """The RNG key of the prediction's dropout in a step, the same at all clients."""
        return random.fold(now["batch"], "tail", step)

    def _prediction_loss(self, client: Client) -> Callable[[Tree, Tensor], Tensor]:
        """(w, H[L]) -> the client's loss; 0 without labels."""
        graph, now = client.graph, client.state["round"] | self.labels.kept(client)
        inputs = self._joint(graph, now, self.split.last, {}, None)
        return lambda w, h: self._error(self._segment(graph, _placed(inputs | {"w": w, "h": h}))["h"], graph, now)

    def _error(self, logits: Tensor, graph: Graph, args: Tree) -> Tensor:
        """The loss; args: the mini-batch, and the draw of labels."""
        return error(logits, self.labels.seen(graph.y, logits.shape[-1], args), graph, args, self.loss)

    def _loss(self, w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        """Algorithm 4, lines 2-11; algorithm 7, line 14, if the client has no labels.

        args: entries of the round's state by the same names, with "below" from `sampled_own` and "others" in its rows;
        "tail", the keys of the prediction; "at" and "share"; the draw of `labels`; and "gradient" with respect to H[L],
        for clients without labels.
        """
        split, below, side_outputs = self.split, args.get("below", {}), None
        h, hops = split.first(graph, below.get("nodes")), below.get("hops")
        for segment in range(split.last):
            output, side_outputs = split.run(segment, w, graph, h, hops, side_outputs, key)
            h = self.how.join(args["others"][str(segment + 1)], output, args.get("at"), args["share"])
        logits, _ = split.run(split.last, w, graph, h, hops, side_outputs, args["tail"] if split.cuts else key)
        loss = self._error(logits, graph, args)
        return loss + (args["gradient"] * h).sum() if "gradient" in args else loss


def _keep(state: Tree, fitted: Fit) -> None:
    """Put the trained weights into a client's state and, if the optimizer has any, its own state."""
    state["w"] = fitted.w
    if fitted.state:
        state["optimizer"] = fitted.state


def _filled(h: Tensor, rows: int) -> Tensor:
    """An aggregate as input of a client: zeros if the client got no row of it; results from these are multiplied by
    0."""
    return h if len(h) else h.new_zeros(rows, h.shape[1])


def _linear(w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
    """A loss with the gradient `args["slopes"]`, so that `fit` takes a step along a known gradient."""
    slopes = dict(leaves(args["slopes"]))
    return torch.stack([(slopes[path] * leaf).sum() for path, leaf in leaves(w)]).sum()


def _placed(inputs: Tree) -> Tree:
    """Inputs in the order of a segment's own nodes, from the order of the exchanged lists."""
    places = inputs.get("places", {})
    moved: Tree = {}
    for name, place in places.items():
        rows = partial(gather_rows, index=place)
        moved[name] = map_leaves(rows, inputs[name]) if isinstance(inputs[name], dict) else rows(inputs[name])
    return {name: value for name, value in inputs.items() if name != "places"} | moved

"""Models compared with the exact one, which never saw what is forgotten: on the test examples that are left, and by
what they still show of the forgotten ones."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedweave.apply.forgetting_record import EXACT
from fedweave.core.graph import TEST, Graph
from fedweave.core.model import Model
from fedweave.core.target import CLASS, LABELS
from fedweave.core.tree import Tree, encode, norm, sub
from fedweave.core.types import Record
from fedweave.experiment.runs.outputs import from_outputs, outputs_of
from fedweave.metrics.kinds import pairs_of, test_value
from fedweave.privacy.attacks import Separation, separation


class Outcome(NamedTuple):
    """A model, and what it does on given data.

    weights: {client: its model}; {"": the global model} where there is one. outputs: on graphs whose test examples are
    left, the same graphs for all models. attack: see `Compared`; so are rounds, seconds and bytes.
    """

    weights: Mapping[str, Tree]
    outputs: Sequence[tuple[Tensor, Graph]]
    attack: Separation | None
    rounds: int
    seconds: float | None = None
    bytes: int | None = None


class Compared(NamedTuple):
    """What is known of one model.

    rounds, seconds, bytes: what it cost; bytes as clients sent and received; None where that is unknown. metric: the
    run's selection metric on the test examples that are left. parameters: ‖w − w_exact‖ / ‖w_exact‖. predictions: the
    mean distance of its predictions from the exact model's on these examples: total variation of class probabilities,
    mean absolute difference of label probabilities, or of numbers in deviations. disagree: the share of examples with
    another predicted class. attack: membership inference; None where it is not defined. weights: SHA-256.
    """

    rounds: int
    seconds: float | None
    bytes: int | None
    metric: float
    parameters: float
    predictions: float
    disagree: float | None
    attack: Separation | None
    weights: str


def compare_models(outcomes: Mapping[str, Outcome], metric: str, positive: int | None) -> Record:
    """{model: the fields of `Compared`}. outcomes: of "exact", and of other models to compare with it. positive: the
    class of a metric of one."""
    exact = outcomes[EXACT]
    result = Record()
    for name, outcome in outcomes.items():
        difference, size = 0.0, 0.0  # squares, over the clients of both
        for client, w in outcome.weights.items():
            if client in exact.weights:
                difference += float(norm(sub(w, exact.weights[client]))) ** 2
                size += float(norm(exact.weights[client])) ** 2
        distance, disagree = _distance(outcome.outputs, exact.outputs)
        compared = Compared(
            rounds=outcome.rounds,
            seconds=outcome.seconds,
            bytes=outcome.bytes,
            metric=_metric_of(outcome.outputs, metric, positive),
            parameters=difference**0.5 / size**0.5 if size else 0.0,
            predictions=distance,
            disagree=disagree,
            attack=outcome.attack,
            weights=hashlib.sha256(b"".join(encode(w) for w in outcome.weights.values())).hexdigest(),
        )
        attack = None if outcome.attack is None else outcome.attack._asdict()
        result[name] = compared._asdict() | {"attack": attack}
    return result


def _metric_of(outputs: Sequence[tuple[Tensor, Graph]], metric: str, positive: int | None) -> float:
    """A metric over the test examples of all graphs together."""
    target = outputs[0][1].target
    if target in (CLASS, LABELS):
        logits = torch.cat([out[graph.masks[TEST]] for out, graph in outputs])
        y = torch.cat([graph.y[graph.masks[TEST]] for _, graph in outputs])
        pairs = [pairs_of(logits, y, torch.ones(1, len(y), dtype=torch.bool, device=y.device), target)]
    else:
        pairs = [pairs_of(out, graph.y, graph.masks[TEST][None], target, graph.scale) for out, graph in outputs]
    return float(test_value(pairs, metric, 1 if positive is None else positive))


def _distance(
    outputs: Sequence[tuple[Tensor, Graph]], reference: Sequence[tuple[Tensor, Graph]]
) -> tuple[float, float | None]:
    """The mean distance of predictions from those of reference on test examples, and the share of other classes."""
    target = outputs[0][1].target
    p = torch.cat([from_outputs(out, graph)[graph.masks[TEST]] for out, graph in outputs]).double()
    q = torch.cat([from_outputs(out, graph)[graph.masks[TEST]] for out, graph in reference]).double()
    if target == CLASS:
        return float((p - q).abs().sum(1).mean() / 2), float((p.argmax(1) != q.argmax(1)).double().mean())
    if target == LABELS:
        return float((p - q).abs().mean()), None
    return float(((p - q).abs() / q.std(0).clamp(min=1e-12)).mean()), None


def losses(net: Model, w: Tree, graph: Graph) -> np.ndarray:
    """float64 [e]: the loss of each example, NaN where it has no label: cross-entropy, of labels its mean, of numbers
    the squared error in units of the model."""
    outputs, y = outputs_of(net, w, graph).double(), graph.y.cpu()
    if graph.target == CLASS:
        loss = torch.nn.functional.cross_entropy(outputs, y.clamp(min=0), reduction="none")
        return torch.where(y >= 0, loss, torch.nan).numpy()
    known = torch.isfinite(y.double())
    if graph.target == LABELS:
        known &= y >= 0
    truth = torch.where(known, y.double(), 0)
    if graph.target == LABELS:
        each = torch.nn.functional.binary_cross_entropy_with_logits(outputs, truth, reduction="none")
    else:
        each = ((from_outputs(outputs, graph) - truth) / truth.std(0).clamp(min=1e-12)) ** 2
    loss = torch.where(known, each, 0).sum(1) / known.sum(1).clamp(min=1)
    return loss.masked_fill(~known.any(1), torch.nan).numpy()


def separation_of(members: Sequence[np.ndarray], references: Sequence[np.ndarray]) -> Separation | None:
    """How well numbers of members are separated from those of references, without NaN; None where there are none of
    either."""
    if not members or not references:
        return None
    inside, outside = np.concatenate(members), np.concatenate(references)
    inside, outside = inside[np.isfinite(inside)], outside[np.isfinite(outside)]
    return separation(inside, outside) if len(inside) and len(outside) else None

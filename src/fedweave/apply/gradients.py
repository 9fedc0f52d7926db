"""Integrated gradients (Sundararajan, Taly and Yan, ICML 2017, "Axiomatic attribution for deep networks", eq. 1): the
part of each column and neighbor in a score's difference to the score where all columns are typical."""

from dataclasses import replace

import numpy as np
import torch

from fedweave.apply.explanation import Reason
from fedweave.apply.neighborhood import batches, join_copies, scores
from fedweave.apply.surroundings import Surroundings
from fedweave.core import model as models
from fedweave.core.tree import device_of
from fedweave.experiment.runs.outputs import from_outputs

STEPS = 50  # of the integral


def gradients(surroundings: Surroundings, alone: bool) -> tuple[list[Reason], float]:
    """The part of each column, and of each neighbor, in the difference to the base score, and the base score, where all
    columns are typical. A part is (x − x′) ∫ ∂score / ∂x along the line from x′, the typical columns, to x. alone:
    whether each copy of the neighborhood is scored alone, as a model that reads the whole graph needs."""
    case, near, typical = surroundings.case, surroundings.near, surroundings.columns.typical
    steps = (np.arange(STEPS) + 0.5) / STEPS
    effect = (near.x - typical) * slopes(surroundings, typical, steps, alone) / STEPS  # float64 [n, d]
    blank = replace(near, x=np.tile(typical, (len(near.nodes), 1)))
    base = scores(case.net, case.w, [blank], case.dtype)[0, surroundings.output]

    # A reason for each column of the example's own nodes, and one for each other node. A small graph consists of its
    # own nodes: there the reasons of nodes divide the same difference once more.
    reasons = []
    for prefix, nodes in surroundings.ends.items():
        for name, columns in surroundings.groups.items():
            part = float(effect[nodes[:, None], columns].sum())
            if part != 0:
                value = surroundings.values(columns, near.x[nodes])
                usual = surroundings.columns.text_of(columns, typical)
                reasons.append(Reason("column", prefix + name, value, usual, None, part))
    for node in range(len(near.nodes)):
        if surroundings.can_leave(node):
            name = surroundings.node_name(node)
            places = (node,) if surroundings.of_graph else ()
            part = float(effect[node].sum())
            reasons.append(Reason(surroundings.words[0], name, "", "", None, part, places))
    return reasons, float(base)


def slopes(surroundings: Surroundings, start: np.ndarray, steps: np.ndarray, alone: bool) -> np.ndarray:
    """float64 [n, d], the sum of ∂score / ∂x at the shares `steps` of the way from `start` [d] in all rows to x."""
    case, near = surroundings.case, surroundings.near
    result = np.zeros(near.x.shape)
    between = (replace(near, x=start + np.float32(step) * (near.x - start), sparse=False) for step in steps)
    for copies in batches(between, alone):
        graph, targets = join_copies(copies, case.dtype)
        graph = graph.to(device_of(case.w))
        x = torch.as_tensor(graph.x, device=device_of(case.w)).requires_grad_()
        with torch.enable_grad():
            outputs = models.infer(case.net, case.w, graph._replace(x=x))
            score = from_outputs(outputs, graph)[targets, surroundings.output].sum()
            [slope] = torch.autograd.grad(score, x)
        slope = slope[: len(copies) * len(near.nodes)].view(
            len(copies), *near.x.shape
        )  # [copies, n, d], without padding
        result += slope.sum(0).double().cpu().numpy()
    return result

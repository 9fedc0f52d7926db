"""Integrated gradients (Sundararajan, Taly and Yan, ICML 2017, "Axiomatic attribution for deep networks", eq. 1): the
part of each column and neighbor in a score's difference to the score where all columns are typical."""

from dataclasses import replace

import numpy as np
import torch

from fedweave.apply.explanation import Reason
from fedweave.apply.neighborhood import batches, join_copies, scores
from fedweave.apply.outputs import from_outputs
from fedweave.apply.surroundings import Surroundings
from fedweave.core import model as models
from fedweave.core.tree import device_of

STEPS = 50  # of the integral


def gradients(surroundings: Surroundings, alone: bool) -> tuple[list[Reason], float]:
    """The part of each column, and of each neighbor, in the difference to the score where all columns are typical,
    which is the second value: (x − x′) ∫ ∂score / ∂x along the line from x′, the typical columns, to x. alone: whether
    each copy of the neighborhood is scored alone."""
    case, near, typical = surroundings.case, surroundings.near, surroundings.columns.typical
    steps = (np.arange(STEPS) + 0.5) / STEPS
    effect = (near.x - typical) * slopes(surroundings, typical, steps, alone) / STEPS  # float64 [n, d]
    blank = replace(near, x=np.tile(typical, (len(near.nodes), 1)))
    base = scores(case.net, case.w, [blank], case.dtype)[0, surroundings.output]

    # The columns of the example's nodes; of other nodes, or those of a small graph, the sum of theirs.
    reasons = []
    for prefix, nodes in surroundings.ends.items():
        for name, columns in surroundings.groups.items():
            part = float(effect[nodes[:, None], columns].sum())
            if part != 0:
                value = surroundings.values(columns, near.x[nodes])
                text = surroundings.columns.text_of(columns, typical)
                reasons.append(Reason("column", prefix + name, value, text, None, part))
    for node in range(len(near.nodes)):
        if surroundings.can_leave(node):
            name, places = surroundings.node_name(node), (node,) if surroundings.of_graph else ()
            part = float(effect[node].sum())
            reasons.append(Reason(surroundings.words[0], name, "", "", None, part, places))
    return reasons, float(base)


def slopes(surroundings: Surroundings, start: np.ndarray, steps: np.ndarray, alone: bool) -> np.ndarray:
    """float64 [n, d], the sum of ∂score / ∂x at some shares of the way to x from rows `start` [d]."""
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
        slope = slope[: len(copies) * len(near.nodes)].view(len(copies), *near.x.shape)  # [copies, n, d]
        result += slope.sum(0).double().cpu().numpy()
    return result

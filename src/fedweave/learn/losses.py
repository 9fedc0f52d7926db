"""The loss of node classification over a client's own choice of nodes."""

import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Mean cross-entropy over the nodes of weight 1, 0 without any: logits [n, c], target int64 [n] not negative,
    weight [n] of the logits' dtype."""
    # `gather` rather than F.cross_entropy, which has no batching rule and falls back to a slow decomposition
    each = -F.log_softmax(logits, -1).gather(-1, target[:, None])[:, 0]
    return (each * weight).sum() / weight.sum().clamp(min=1)

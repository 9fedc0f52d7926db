"""Labels from gradients: what a server of a vertical federation reads off the gradient in what it sent."""

import torch
from torch import Tensor


def labels_from_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """int64 [b]: the label of each row of the gradient [b, h] of a cross-entropy in the inputs of a linear classifier
    with `weight` [h, c]; −1 where the row is 0, which has no label in the loss.

    A row is (p − y) Wᵀ / n with the predicted probabilities p and the label y as one-hot vector. Least squares gives
    (p − y) / n, of which the label's entry alone is negative. Where inputs were dropped the gradient is 0, and their
    rows of W are left out; with fewer than c inputs left it is a guess.
    """
    alive = gradient != 0
    seen = torch.where(alive[:, :, None], weight.double(), 0.0)
    away = torch.linalg.pinv(seen) @ gradient.double()[:, :, None]
    return torch.where(alive.any(1), away[:, :, 0].argmin(1), -1)

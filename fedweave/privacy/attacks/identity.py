"""Whose code it is: what makes noisy codes comparable also names their owners to somebody who knows the clean ones."""

import torch
from torch import Tensor


def reidentified(noisy: Tensor, clean: Tensor, owner: Tensor) -> float:
    """The share of noisy codes [m, d] of which the nearest of all clean codes [n, d] in L1 is the one of their `owner`
    int64 [m]; of k equally near ones, 1 / k."""
    right = 0.0
    for some, own in zip(noisy.split(1024), owner.split(1024), strict=True):
        away = torch.cdist(some.double(), clean.double(), p=1)
        near = away <= away.amin(1, keepdim=True) + 1e-9
        right += float((near.gather(1, own[:, None])[:, 0] / near.sum(1)).sum())
    return right / len(noisy)

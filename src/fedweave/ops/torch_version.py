"""Which release of PyTorch this is, where older ones do otherwise."""

import torch


def torch_from(major: int, minor: int) -> bool:
    """Whether PyTorch is of this release or a newer one."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (major, minor)

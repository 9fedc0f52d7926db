"""Weights as fused optimizer kernels take them: padded to whole vector registers."""

from collections.abc import Iterable

import torch
from torch import Tensor


class PaddedTensors:
    """Weights as the optimizer holds them: every client's share of a tensor fills whole vector registers.

    Fused kernels round the last elements of a tensor, those that fill no register, differently. With padding, one
    client alone and the same client in a batch get the same bits.
    """

    WIDTH = 16

    def __init__(self, by_path: dict[str, Tensor], batch_dims: int) -> None:
        self.shapes = {path: tensor.shape for path, tensor in by_path.items()}
        self.batch_dims = batch_dims
        self.tensors = [self._pad(tensor) for tensor in by_path.values()]

    def _pad(self, tensor: Tensor) -> Tensor:
        flat = tensor.flatten(self.batch_dims) if tensor.dim() > self.batch_dims else tensor[..., None]
        missing = -flat.shape[-1] % self.WIDTH
        return torch.nn.functional.pad(flat, (0, missing)) if missing else tensor

    def spread_nonfinite(self, last: Tensor) -> None:
        """Make a last loss that is not finite, [] or [P], visible in its client's weights, in the smallest tensor: the
        gradient of such a loss may be finite."""
        smallest = min(self.tensors, key=Tensor.numel)
        zero_or_nan = last.to(smallest.dtype) * 0
        smallest.add_(zero_or_nan.reshape(*last.shape, *[1] * (smallest.dim() - last.dim())))

    def __len__(self) -> int:
        return len(self.tensors)

    def reshape(self, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
        """{path: tensor in its original shape} of tensors stored like these, differentiable."""
        result = {}
        for stored, (path, shape) in zip(tensors, self.shapes.items(), strict=True):
            if stored.shape != shape:
                stored = stored[..., : shape[self.batch_dims :].numel()].view(shape)
            result[path] = stored
        return result

    def zeros(self) -> "PaddedTensors":
        """Zeros of the same shapes."""
        zeros = {path: torch.zeros_like(tensor) for path, tensor in self.reshape(self.tensors).items()}
        return PaddedTensors(zeros, self.batch_dims)

"""What training one client and training a batch of clients have in common: the weights as stored, and the loop."""

from collections.abc import Callable, Iterable
from itertools import pairwise

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.tree import Tree
from fedweave.learn.optimisers import Moments, Optimiser
from fedweave.ops.tape import kernel

Loss = Callable[[Tree, Graph, Tensor, Tree], Tensor]
Penalty = Callable[[Tree, Tree, Tree], Tensor]
Move = Callable[[list[Tensor], list[Tensor], list[list[Tensor]], Tensor], None]  # of weights, gradients, moments, steps
Gradients = Callable[..., tuple[Tensor, ...]]  # (key, *minibatch, *weights) -> (last loss, *gradients)


class TrainSpec:
    """What a `fit` does, with the tensors taken out.

    spec:   how the operands make up a tree. result: how the outputs do: (weights, last loss, the optimiser's state).
    """

    def __init__(
        self, loss: Loss, penalty: Penalty | None, optimiser: Optimiser, steps: int, rows: frozenset[str]
    ) -> None:
        self.loss, self.penalty, self.optimiser, self.steps, self.rows = loss, penalty, optimiser, steps, rows
        self.spec: pytree.TreeSpec
        self.result: pytree.TreeSpec

    def _moved_together(self, moments: Moments) -> Move:
        """A step of all clients at once, or of one alone."""

        def move(weights: list[Tensor], gradients: list[Tensor], _: list[list[Tensor]], numbers: Tensor) -> None:
            self.optimiser.move(weights, gradients, moments, [numbers] * len(weights))

        return move

    def train_loop(
        self,
        tensors: list[Tensor],
        moments: Moments,
        taken: Tensor,
        gradients: Gradients,
        key: Tensor,
        minibatch: Callable[[int], list[Tensor]],
        limit: Tensor | None = None,
        own: int | None = None,
    ) -> Tensor:
        """Train `tensors` in place and return the last step's loss, of the shape of `key`.

        moments: the optimiser's, changed in place. taken: steps taken before, [], or [P] where clients differ in it.
        minibatch: (step) -> what was drawn for it. limit: after how many steps a client's weights stay as they are, of
        the shape of `key`; these are the first `own` tensors, all if None.
        """
        numbers = taken.to(torch.float32, copy=True)
        move = _moved_apart(self.optimiser, list(moments)) if numbers.dim() else self._moved_together(moments)
        last = tensors[0].new_zeros(key.shape)
        for step in range(self.steps):
            loss, *grads = gradients(random.fold(key, step), *minibatch(step), *tensors)
            before = [] if limit is None else [tensor.clone() for tensor in tensors[:own]]
            numbers.add_(1)
            move(tensors, [slope.contiguous() for slope in grads], list(moments.values()), numbers)
            if limit is not None:
                goes = limit > step
                for tensor, old in zip(tensors, before, strict=False):
                    tensor.copy_(torch.where(goes.view(*goes.shape, *[1] * (tensor.dim() - goes.dim())), tensor, old))
                loss = torch.where(goes, loss, last)
            last = loss
        return last


def _moved_apart(optimiser: Optimiser, names: list[str]) -> Move:
    """A step of stacked tensors, of neighbours with as many steps before at once, as the numbers of steps [P] differ;
    moments are called `names`. It is one call in a recording, which would take seconds to make of a thousand calls."""

    def move(weights: list[Tensor], gradients: list[Tensor], moments: list[list[Tensor]], numbers: Tensor) -> None:
        runs = _runs(numbers)
        past = {name: _parts(each, runs) for name, each in zip(names, moments, strict=True)}
        counts = [numbers[run.start] for run in runs] * len(weights)
        optimiser.move(_parts(weights, runs), _parts(gradients, runs), past, counts)

    move.changes_inputs = True  # type: ignore[attr-defined]
    return kernel(move)


def _runs(numbers: Tensor) -> list[slice]:
    """Where equal numbers stand together; on accelerators each by itself, for nobody waits there for values."""
    starts = list(range(1, len(numbers)))
    if numbers.device.type == "cpu":
        starts = (numbers.diff().nonzero()[:, 0] + 1).tolist()
    return [slice(*ends) for ends in pairwise([0, *starts, len(numbers)])]


def _parts(tensors: list[Tensor], runs: list[slice]) -> list[Tensor]:
    return [tensor[run] for tensor in tensors for run in runs]


class Stored:
    """Weights as the optimiser holds them: every client's share of a tensor fills whole vector registers.

    Fused kernels round the last elements of a tensor, those that fill no register, differently. With padding, one
    client alone and the same client in a batch get the same bits.
    """

    WIDTH = 16

    def __init__(self, own: dict[str, Tensor], batch_dims: int) -> None:
        self.shapes = {path: tensor.shape for path, tensor in own.items()}
        self.batch_dims = batch_dims
        self.tensors = [self._pad(tensor) for tensor in own.values()]

    def _pad(self, tensor: Tensor) -> Tensor:
        flat = tensor.flatten(self.batch_dims) if tensor.dim() > self.batch_dims else tensor[..., None]
        missing = -flat.shape[-1] % self.WIDTH
        return torch.nn.functional.pad(flat, (0, missing)) if missing else tensor

    def mark(self, last: Tensor) -> None:
        """Let a last loss that is not finite, [] or [P], show in the weights of its client, in the smallest tensor:
        a term of the loss that is no number need not have such a gradient."""
        least = min(self.tensors, key=Tensor.numel)
        least.add_((last.to(least.dtype) * 0).reshape(*last.shape, *[1] * (least.dim() - last.dim())))

    def __len__(self) -> int:
        return len(self.tensors)

    def shaped(self, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
        """{path: tensor in its own shape} of tensors stored like these, differentiable."""
        return {path: self._cut(t, shape) for t, (path, shape) in zip(tensors, self.shapes.items(), strict=True)}

    def zeros(self) -> "Stored":
        """As large, and zero."""
        own = {path: torch.zeros_like(tensor) for path, tensor in self.shaped(self.tensors).items()}
        return Stored(own, self.batch_dims)

    def _cut(self, stored: Tensor, shape: torch.Size) -> Tensor:
        return stored if stored.shape == shape else stored[..., : shape[self.batch_dims :].numel()].view(shape)


def scalar(what: str, found: Tensor, clients: int = 0) -> Tensor:
    """What a loss or a penalty gives, one number for each of `clients`, a single one's if 0.

    Raises:
        ValueError: it is more, such as one number for each node; added up, padding would count, too.
    """
    if (found.dim() if isinstance(found, Tensor) else 0) != bool(clients):
        own = list(found.shape[bool(clients) :])
        raise ValueError(
            f"fit: the {what} is to be a scalar; it is a tensor of shape {own}. Add it up (.sum()), or take the mean "
            "over the training examples"
        )
    return found


def differentiate(objective: Callable[..., tuple[Tensor, Tensor]], count: int, first: int) -> Gradients:
    """From (key, *tensors) -> (last, total) to (last, *gradients of `total` in `count` tensors from number `first`)."""

    def gradients(key: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            free = [tensor.detach().requires_grad_() for tensor in tensors[first : first + count]]
            last, total = objective(key, *tensors[:first], *free, *tensors[first + count :])
            grads = torch.autograd.grad(total, free, allow_unused=True)
        zeroed = (torch.zeros_like(f) if s is None else s for f, s in zip(free, grads, strict=True))
        return last.detach(), *zeroed

    return gradients

"""Checks of a message before a step sees it, by the run's messages before."""

import json
from pathlib import Path

import torch
from torch import Tensor

from fedweave.core.tree import Tree, leaves, not_finite
from fedweave.errors import NOT_FINITE, CallRefused
from fedweave.ops.touched_rows import materialize
from fedweave.sites.flare.memory import Store
from fedweave.sites.flare.policy import PolicyViolation

# Keys of the store: paths and steps in JSON, and the numbers by place among the paths.
_PATHS, _STEPS, _LAST = "paths", "steps", "last"


class Downloads:
    """The last numbers of each path in a run's messages to any step. A site keeps them if its policy bounds the change
    to the next message. If the run goes back to an earlier round, the site still compares with the last message that
    came: otherwise the server could choose the message to compare with, and the bound would not hold.

    folder: the run's folder. bound: the largest L2 norm of a change; None keeps nothing. per_step: whether messages are
    compared only with messages to the same step, because steps get representations of different lists of nodes under
    the same path. persistent: see `Store`.
    """

    def __init__(self, folder: Path, bound: float | None, per_step: bool = False, persistent: bool = True) -> None:
        self._folder, self._per_step, self._persistent = folder, per_step, persistent
        self._store: Store | None = None
        self.tighten(bound)

    def tighten(self, bound: float | None) -> None:
        """Set the bound from the next message on. If there was no bound before, that message is the first to compare
        with."""
        self._bound = bound
        if bound is not None and self._store is None:
            self._store = Store(self._folder, "download", "download-before-", self._persistent)

    def check(self, step: str, message: Tree) -> None:
        """Refuse a message to `step` that is not finite, or that differs too much from the messages before."""
        path = not_finite(message)
        if path:
            raise CallRefused(f"{path} of what {step} is sent {NOT_FINITE}")
        if self._store is None or self._bound is None:
            return
        steps, last = self._read(self._store.tree)
        within = f"{step}/" if self._per_step else ""
        now = {within + path: leaf for path, leaf in comparable_leaves(message).items()}
        moved = change(last, now, {within + path for path, _ in leaves(message)})
        if step in steps and set(steps[step]) != now.keys():
            moved = torch.inf
        if moved > self._bound:
            raise PolicyViolation(
                f"policy.max_change: what {step} is sent has changed by {moved:.4g} since the run's last message with "
                f"the same keys, and {self._bound:g} is allowed"
            )
        steps[step] = [*now]
        last |= now
        numbers = {str(place): leaf for place, leaf in enumerate(last.values())}
        self._store.keep({_PATHS: json.dumps([*last]), _STEPS: json.dumps(steps), _LAST: numbers})

    @staticmethod
    def _read(tree: Tree) -> tuple[dict[str, list[str]], dict[str, Tensor]]:
        """The paths of each step's last message, and each path's last numbers."""
        if not tree:
            return {}, {}
        paths, numbers = json.loads(tree[_PATHS]), tree.get(_LAST, {})
        return json.loads(tree[_STEPS]), {path: numbers[str(place)] for place, path in enumerate(paths)}


def comparable_leaves(message: Tree) -> dict[str, Tensor]:
    """{path: numbers} of a message to compare: all floating-point leaves, and the integer leaves under the same first
    key as one of these, because they could be weights, too."""
    pairs = ((path, leaf) for path, leaf in leaves(message) if not isinstance(leaf, str))
    tensors = {path: torch.as_tensor(materialize(leaf), device="cpu") for path, leaf in pairs}
    heads = {path.split("/")[0] for path, leaf in tensors.items() if leaf.is_floating_point()}
    return {path: leaf for path, leaf in tensors.items() if path.split("/")[0] in heads}


def change(before: dict[str, Tensor], after: dict[str, Tensor], there: set[str]) -> float:
    """L2 norm of the change of all numbers that were in the message before. Infinite if a path that is still `there`
    has another shape, or no numbers to compare any more."""
    both = before.keys() & there
    if any(path not in after or after[path].shape != before[path].shape for path in both):
        return torch.inf
    squares = [((after[path].double() - before[path].double()) ** 2).sum() for path in sorted(both)]
    return float(sum(squares) ** 0.5) if squares else 0.0

"""What a site checks of a message before a step sees it."""

import json
from pathlib import Path

import torch
from torch import Tensor

from fedweave.core.tree import Tree, leaves, not_finite
from fedweave.deploy.flare.policy.policy import PolicyViolation
from fedweave.deploy.flare.site.memory import Store
from fedweave.errors import NOT_FINITE, CallRefused
from fedweave.ops.touched import materialize

# Of the store: names in JSON, and the numbers by place among the paths.
_PATHS, _STEPS, _LAST = "paths", "steps", "last"


class Downloads:
    """The last numbers of each path in a run's messages, whatever step they were for, kept where the policy bounds how
    much the next ones may differ. They are the last that came, also where the run goes on from an earlier round: a
    server that could choose what its messages are compared with would be bound by nothing.

    folder: of the run. bound: the largest L2 norm of a change; None keeps nothing. apart: steps get representations of
    other lists of nodes under the same path, so that each step's messages are compared among themselves.
    lasting: see `Store`.
    """

    def __init__(self, folder: Path, bound: float | None, apart: bool = False, lasting: bool = True) -> None:
        self._folder, self._apart, self._lasting = folder, apart, lasting
        self._store: Store | None = None
        self.tighten(bound)

    def tighten(self, bound: float | None) -> None:
        """Bound messages so, from the next one on; where none was bounded yet, that is the first to compare with."""
        self._bound = bound
        if bound is not None and self._store is None:
            self._store = Store(self._folder, "download", "download-before-", self._lasting)

    def check(self, step: str, message: Tree) -> None:
        """Refuse a message of `step` that is not finite, or too far from those before.

        Raises:
            CallRefused: names the leaf. PolicyViolation: names the bound.
        """
        if path := not_finite(message):
            raise CallRefused(f"{path} of what {step} is sent {NOT_FINITE}")
        if self._store is None or self._bound is None:
            return
        steps, last = self._kept(self._store.tree)
        within = f"{step}/" if self._apart else ""
        now = {within + path: leaf for path, leaf in compared(message).items()}
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
    def _kept(tree: Tree) -> tuple[dict[str, list[str]], dict[str, Tensor]]:
        """The paths of each step's last message, and each path's last numbers."""
        if not tree:
            return {}, {}
        paths, numbers = json.loads(tree[_PATHS]), tree.get(_LAST, {})
        return json.loads(tree[_STEPS]), {path: numbers[str(place)] for place, path in enumerate(paths)}


def compared(message: Tree) -> dict[str, Tensor]:
    """{path: numbers} of a message: those that are floating-point, and whole ones beside such under the same first key,
    which could be weights as well."""
    told = ((path, leaf) for path, leaf in leaves(message) if not isinstance(leaf, str))
    found = {path: torch.as_tensor(materialize(leaf), device="cpu") for path, leaf in told}
    heads = {path.split("/")[0] for path, leaf in found.items() if leaf.is_floating_point()}
    return {path: leaf for path, leaf in found.items() if path.split("/")[0] in heads}


def change(before: dict[str, Tensor], after: dict[str, Tensor], there: set[str]) -> float:
    """L2 norm of the change of all numbers that had been before; infinite where one has another shape, or is no such
    number any more, though its path is `there`."""
    both = before.keys() & there
    if any(path not in after or after[path].shape != before[path].shape for path in both):
        return torch.inf
    squares = [((after[path].double() - before[path].double()) ** 2).sum() for path in sorted(both)]
    return float(sum(squares) ** 0.5) if squares else 0.0

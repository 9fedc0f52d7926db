"""What a site checks of a message before a step sees it."""

from pathlib import Path

import torch

from fedweave.core.tree import Tree, not_finite, numbers
from fedweave.deploy.flare.policy import PolicyViolation
from fedweave.deploy.flare.store import Store
from fedweave.errors import CallRefused


class Downloads:
    """The last message of each step of a run, kept where the policy bounds how much the next one may differ. It is the
    last that came, also where the run goes on from an earlier round: a server that could choose what its messages are
    compared with would be bound by nothing.

    folder: of the run. bound: the largest L2 norm of a change; None keeps nothing.
    """

    def __init__(self, folder: Path, bound: float | None) -> None:
        self._bound = bound
        self._last = Store(folder, "download", "download-before-") if bound is not None else None

    def check(self, step: str, message: Tree) -> None:
        """Refuse a message of `step` that is not finite, or too far from the one before.

        Raises:
            CallRefused: names the leaf. PolicyViolation: names the bound.
        """
        if path := not_finite(message):
            raise CallRefused(f"{path} of what {step} is sent holds numbers that are not finite")
        if self._last is None or self._bound is None:
            return
        before = self._last.tree.get(step)
        if before is not None and (moved := change(before, message)) > self._bound:
            raise PolicyViolation(
                f"policy.max_change: what {step} is sent has changed by {moved:.4g} since its last call, and "
                f"{self._bound:g} is allowed"
            )
        self._last.keep({**self._last.tree, step: message})


def change(before: Tree, after: Tree) -> float:
    """L2 norm of the change of all floating-point numbers; infinite where one has come, gone or got another shape."""
    old, new = dict(numbers(before)), dict(numbers(after))
    if {path: leaf.shape for path, leaf in old.items()} != {path: leaf.shape for path, leaf in new.items()}:
        return torch.inf
    return float(sum(((new[path].double() - old[path].double()) ** 2).sum() for path in new) ** 0.5) if new else 0.0

"""Modules that plug-ins of earlier versions import under other names."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# {name up to 0.5: name now} of the modules that docs/extending.md named.
MOVED = {
    "fedweave.core.arrays": "fedweave.core.graph",
    "fedweave.core.carried": "fedweave.core.edge_attributes",
    "fedweave.core.portions": "fedweave.core.replies",
    "fedweave.core.round": "fedweave.core.algorithm",
    "fedweave.datasets.download": "fedweave.datasets.public",
    "fedweave.metrics.between_groups": "fedweave.metrics.groups",
    "fedweave.metrics.group_fairness": "fedweave.metrics.groups",
    "fedweave.metrics.judging": "fedweave.metrics.selection",
    "fedweave.partition.pooling": "fedweave.partition.client_data",
    "fedweave.privacy.spent": "fedweave.privacy.accountant",
}


class _Moved(MetaPathFinder, Loader):
    """Finds a module by its earlier name and gives the present one."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        present = MOVED[spec.name]
        warnings.warn(f"{spec.name} has moved; import {present}", DeprecationWarning, stacklevel=2)
        module = import_module(present)
        alias = ModuleType(spec.name, module.__doc__)
        alias.__dict__.update({name: value for name, value in vars(module).items() if not name.startswith("__")})
        return alias

    def exec_module(self, module: ModuleType) -> None:
        """Everything is there already."""


def find_moved_modules() -> None:
    """Let imports by earlier names succeed from now on, with a DeprecationWarning."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())

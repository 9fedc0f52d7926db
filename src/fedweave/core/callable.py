"""A package that you can call like its main function: `fedweave.sweep(…)`."""

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A module that can be called. A call imports and runs the function that `CALLED` names, "module:function"."""

    CALLED: str

    @property
    def function(self) -> Callable[..., Any]:
        """The function that a call runs."""
        module, _, name = self.CALLED.partition(":")
        result: Callable[..., Any] = getattr(import_module(module), name)
        return result

    def __call__(self, *arguments: object, **named: object) -> Any:
        """The result of the function."""
        return self.function(*arguments, **named)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.function)


def make_callable(module: str, function: str) -> None:
    """Make a module callable as a function, "module:function"."""
    package = sys.modules[module]
    package.__class__ = CallableModule
    package.CALLED = function  # type: ignore[attr-defined]

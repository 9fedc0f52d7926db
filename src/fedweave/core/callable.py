"""A package that can be called like the function that it is about: `fedweave.sweep(…)`."""

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A module whose class is this one is called as the function that it names in `CALLED`, "module:function", which is
    imported then."""

    CALLED: str

    @property
    def function(self) -> Callable[..., Any]:
        """What it is called as."""
        module, _, name = self.CALLED.partition(":")
        result: Callable[..., Any] = getattr(import_module(module), name)
        return result

    def __call__(self, *arguments: object, **named: object) -> Any:
        """What the function gives."""
        return self.function(*arguments, **named)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.function)


def make_callable(module: str, function: str) -> None:
    """Let a module be called as a function, "module:function"."""
    package = sys.modules[module]
    package.__class__ = CallableModule
    package.CALLED = function  # type: ignore[attr-defined]

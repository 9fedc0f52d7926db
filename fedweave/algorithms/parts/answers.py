"""What the hooks of parts give, checked where it is taken, so that a slip in somebody's own part is told by the part's
and the hook's name. Only forms are looked at, no values, so that steps can be recorded."""

from typing import Any

from torch import Tensor

from fedweave.core.tree import Tree, check, leaves
from fedweave.errors import ConfigError, ReplyRefused
from fedweave.ops.sparsified import Sparsified
from fedweave.ops.touched import TouchedRows


def tree_of(where: str, what: str, found: Any) -> Tree:
    """`found`, which the hook `where` gives as `what`.

    Raises:
        ConfigError: it is no tree.
    """
    try:
        return check(found, f"{where}: is to give {what}, a tree; what it gives")
    except ReplyRefused as refused:
        raise ConfigError(str(refused)) from refused


def state_of(where: str, found: Any) -> Tree:
    """A part's state (see `tree_of`)."""
    return tree_of(where, "the part's state", found)


def alike(where: str, what: str, found: Any, like: Tree) -> Tree:
    """A tree with the leaves, shapes and dtypes of another.

    Raises:
        ConfigError: names the first leaf that is something else.
    """
    there, due = dict(leaves(tree_of(where, what, found))), dict(leaves(like))
    faults = [f"{path!r} is missing" for path in due if path not in there]
    faults += [f"{path!r} is not among the weights" for path in there if path not in due]
    for path in due if not faults else ():
        if _form(there[path]) != _form(due[path]):
            faults.append(f"{path!r} is {_form(there[path])}, not {_form(due[path])}")
        elif there[path].dtype != due[path].dtype:
            faults.append(f"{path!r} is {_named(there[path].dtype)}, not {_named(due[path].dtype)}")
    if faults:
        raise ConfigError(f"{where}: is to give {what}, with the leaves of the weights; {faults[0]}")
    return found


def numbers(where: str, found: Any, count: int, whose: str) -> Tensor:
    """A tensor [count].

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(found, Tensor) or found.shape != (count,):
        due = f"a tensor of {count} numbers, one of each {whose}"
        raise ConfigError(f"{where}: is to give {due}; it gives {_form(found)}")
    return found


def _form(found: Any) -> str:
    if found is None:
        return "None"
    if not isinstance(found, Tensor | TouchedRows | Sparsified):
        return f"a {type(found).__name__}"
    return f"a tensor of shape {list(found.shape)}"


def _named(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")

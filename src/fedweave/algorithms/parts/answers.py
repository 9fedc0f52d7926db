"""What the hooks of parts give, checked where it is taken, so that a slip in somebody's own part is told by the part's
and the hook's name. Only forms are looked at, no values, so that steps can be recorded."""

from torch import Tensor

from fedweave.core.tree import Tree, check, leaves
from fedweave.errors import ConfigError, ReplyRefused
from fedweave.ops.sparsified import Sparsified
from fedweave.ops.touched import TouchedRows


def tree_of(where: str, what: str, found: object) -> Tree:
    """`found`, which the hook `where` gives as `what`.

    Raises:
        ConfigError: it is no tree.
    """
    try:
        return check(found, f"{where}: is to give {what}, a tree; what it gives")
    except ReplyRefused as refused:
        raise ConfigError(str(refused), code="config.hook") from refused


def state_of(where: str, found: object) -> Tree:
    """A part's state (see `tree_of`)."""
    return tree_of(where, "the part's state", found)


def alike(where: str, what: str, found: object, like: Tree, dtypes: bool = True) -> Tree:
    """A tree with the leaves and shapes of another, and its dtypes unless these may differ.

    Raises:
        ConfigError: names the first leaf that is something else.
    """
    tree = tree_of(where, what, found)
    there, due = dict(leaves(tree)), dict(leaves(like))
    faults = [f"{path!r} is missing" for path in due if path not in there]
    faults += [f"{path!r} is not among the weights" for path in there if path not in due]
    for path in due if not faults else ():
        if _form(there[path]) != _form(due[path]):
            faults.append(f"{path!r} is {_form(there[path])}, not {_form(due[path])}")
        elif dtypes and there[path].dtype != due[path].dtype:
            faults.append(f"{path!r} is {_named(there[path].dtype)}, not {_named(due[path].dtype)}")
    if faults:
        raise ConfigError(
            f"{where}: is to give {what}, with the leaves of the weights; {faults[0]}", code="config.hook"
        )
    return tree


def numbers(where: str, found: object, count: int, whose: str) -> Tensor:
    """A tensor [count].

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(found, Tensor) or found.shape != (count,):
        due = f"a tensor of {count} numbers, one of each {whose}"
        raise ConfigError(f"{where}: is to give {due}; it gives {_form(found)}", code="config.hook")
    return found


def term(where: str, found: object) -> Tensor | float:
    """A term of what a client trains for: a scalar, or a plain number.

    Raises:
        ConfigError: it is something else, such as one loss of each node, which a batch of clients would add up, padding
            and other splits included.
    """
    if isinstance(found, Tensor) and found.dim():
        remedy = ". Add it up (.sum()), or take the mean over the training examples"
    elif isinstance(found, Tensor | float | int):
        return found
    else:
        remedy = ""
    raise ConfigError(f"{where}: is to give a term of the training loss, a scalar; it gives {_form(found)}{remedy}")


def rows(where: str, found: object, count: int) -> Tree:
    """A tree for `count` clients, of which each gets its row.

    Raises:
        ConfigError: it is no tree, or a leaf has not one row for each.
    """
    tree = tree_of(where, "what each client gets", found)
    for path, leaf in leaves(tree):
        if not isinstance(leaf, Tensor | Sparsified) or leaf.shape[:1] != (count,):
            raise ConfigError(
                f"{where}: is to give each of the {count} called clients its row, leaves [{count}, …]; {path!r} is "
                f"{_form(leaf)}",
                code="config.hook",
            )
    return tree


def download(where: str, found: object, count: int, weights: bool) -> tuple[Tree, ...]:
    """What all called clients get, and what each of them does; and what each gets in the place of the global weights,
    if that (`weights`) is the part's to say (`Part.download`).

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(found, tuple) or len(found) != 2 + weights:
        besides = ", and, as the part has `receive`, what each gets instead of the global weights" if weights else ""
        raise ConfigError(
            f"{where}: is to give {2 + weights} trees, what all clients get and what each does ({{}} if nothing)"
            f"{besides}; it gives {_form(found)}",
            code="config.hook",
        )
    return tree_of(where, "what all clients get", found[0]), *(rows(where, each, count) for each in found[1:])


def of_clients(where: str, found: object, count: int) -> dict[str, Tensor]:
    """{name: a number of each client} of what a part measures (`Part.measures`), not what is of every two or all.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(found, dict):
        raise ConfigError(
            f"{where}: is to give {{name: a number of each client}}; it gives {_form(found)}", code="config.hook"
        )
    of_all = {name for name, known in found.items() if isinstance(known, int | float)}
    pairs = {name for name, known in found.items() if isinstance(known, Tensor) and known.shape == (count, count)}
    own = {name: known for name, known in found.items() if name not in of_all | pairs}
    return {name: numbers(where, known, count, f"client as {name!r}") for name, known in own.items()}


def _form(found: object) -> str:
    if found is None:
        return "None"
    if not isinstance(found, Tensor | TouchedRows | Sparsified):
        return f"a {type(found).__name__}"
    return f"a tensor of shape {list(found.shape)}"


def _named(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def odd(found: object, waiting: bool) -> bool:
    """Whether numbers are not finite. A device is not waited for in the middle of a round, where what they break shows
    at its end, unless `waiting`."""
    if not isinstance(found, Tensor) or not (waiting or found.device.type == "cpu"):
        return False
    return not bool(found.isfinite().all())

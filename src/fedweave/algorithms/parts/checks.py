"""Checks of what the hooks of parts return, so that an error in a user's own part names the part and the hook.

They look only at shapes and types, not at values, so that steps can be traced.

All raise a ConfigError whose message begins with `where`, such as "Median.aggregate".
"""

from torch import Tensor

from fedweave.core.tree import Tree, check, leaves
from fedweave.errors import ConfigError, ReplyRefused
from fedweave.ops.sparsified import Sparsified
from fedweave.ops.tape import without_tape
from fedweave.ops.touched_rows import TouchedRows


def check_tree(where: str, what: str, value: object) -> Tree:
    """The `value` of the hook `where`, checked to be a tree; what: its meaning, for the error."""
    try:
        return check(value, f"{where}: is to give {what}, a tree; what it gives")
    except ReplyRefused as refused:
        raise ConfigError(str(refused), code="config.hook") from refused


def check_leaves(where: str, what: str, value: object, like: Tree, dtypes: bool = True) -> Tree:
    """A tree with the leaves and shapes of another, and its dtypes unless these may differ."""
    tree = check_tree(where, what, value)
    actual, expected = dict(leaves(tree)), dict(leaves(like))
    faults = [f"{path!r} is missing" for path in expected if path not in actual]
    faults += [f"{path!r} is not among the weights" for path in actual if path not in expected]
    if not faults:
        for path, leaf in expected.items():
            if _form(actual[path]) != _form(leaf):
                faults.append(f"{path!r} is {_form(actual[path])}, not {_form(leaf)}")
            elif dtypes and actual[path].dtype != leaf.dtype:
                faults.append(f"{path!r} is {actual[path].dtype}, not {leaf.dtype}".replace("torch.", ""))
    if faults:
        message = f"{where}: is to give {what}, with the leaves of the weights; {faults[0]}"
        raise ConfigError(message, code="config.hook")
    return tree


def check_numbers(where: str, value: object, count: int, whose: str) -> Tensor:
    """A tensor [count]."""
    if not isinstance(value, Tensor) or value.shape != (count,):
        message = f"{where}: is to give a tensor of {count} numbers, one of each {whose}; it gives {_form(value)}"
        raise ConfigError(message, code="config.hook")
    return value


def check_term(where: str, value: object) -> Tensor | float:
    """A term of what a client trains for: a scalar, or a plain number. A batch of clients would add up one loss per
    node over padding and other splits."""
    if isinstance(value, Tensor) and value.dim():
        remedy = ". Add it up (.sum()), or take the mean over the training examples"
    elif isinstance(value, Tensor | float | int):
        return value
    else:
        remedy = ""
    raise ConfigError(f"{where}: is to give a term of the training loss, a scalar; it gives {_form(value)}{remedy}")


def check_download(where: str, value: object, count: int, weights: bool) -> tuple[Tree, ...]:
    """A part's download: a tree for all called clients, and a tree with a row for each; with `weights`, also each
    client's weights instead of the global ones (`Part.download`)."""
    if not isinstance(value, tuple) or len(value) != 2 + weights:
        third = ", and, as the part has `receive`, what each gets instead of the global weights" if weights else ""
        raise ConfigError(
            f"{where}: is to give {2 + weights} trees, what all clients get and what each does ({{}} if nothing)"
            f"{third}; it gives {_form(value)}",
            code="config.hook",
        )
    trees = [check_tree(where, "what all clients get", value[0])]
    for rows in value[1:]:
        tree = check_tree(where, "what each client gets", rows)
        for path, leaf in leaves(tree):
            if not isinstance(leaf, Tensor | Sparsified) or leaf.shape[:1] != (count,):
                raise ConfigError(
                    f"{where}: is to give each of the {count} called clients its row, leaves [{count}, …]; {path!r} is "
                    f"{_form(leaf)}",
                    code="config.hook",
                )
        trees.append(tree)
    return tuple(trees)


def check_measures(where: str, value: object, count: int) -> dict[str, Tensor]:
    """{name: a number per client} among a part's measures (`Part.measures`), without values per pair or for all."""
    if not isinstance(value, dict):
        message = f"{where}: is to give {{name: a number of each client}}; it gives {_form(value)}"
        raise ConfigError(message, code="config.hook")
    result = {}
    for name, measured in value.items():
        of_all = isinstance(measured, int | float)
        of_pairs = isinstance(measured, Tensor) and measured.shape == (count, count)
        if not of_all and not of_pairs:
            result[name] = check_numbers(where, measured, count, f"client as {name!r}")
    return result


def is_not_finite(value: object, waiting: bool) -> bool:
    """Whether numbers are not finite. On a device other than the CPU the check is skipped unless `waiting`, so that a
    round does not wait for it; the end of the round then shows the fault. A round that is recorded as a whole is
    checked when it is recorded; later its engine runs it again as written where its results are not finite."""
    if not isinstance(value, Tensor) or not (waiting or value.device.type == "cpu"):
        return False
    with without_tape():
        return not bool(value.isfinite().all())


def _form(value: object) -> str:
    if value is None:
        return "None"
    if not isinstance(value, Tensor | TouchedRows | Sparsified):
        return f"a {type(value).__name__}"
    return f"a tensor of shape {list(value.shape)}"

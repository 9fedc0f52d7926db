"""Trees: the only thing that crosses a boundary (process, disk, client, metric).

A `Tree` is a dict whose values are tensors, numbers, strings or further trees. Keys are non-empty strings without "/",
so that "layer/weight" names one leaf. An empty subtree carries nothing and equals an absent one.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, TypeAlias

import torch
from safetensors.torch import load, save
from torch import Tensor

from fedweave.errors import ReplyRefused
from fedweave.ops.sparsified import Sparsified
from fedweave.ops.touched_rows import TouchedRows, elementwise, materialize, move_leaf, total

Leaf: TypeAlias = Tensor | TouchedRows | Sparsified | float | int | str
Tree: TypeAlias = dict[str, Any]  # dict[str, Tree | Leaf]; the recursive form cannot be narrowed by type checkers

_DTYPES = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
}  # fmt: skip
_SPARSE = "sparse "
_FILLED = 512_000_000  # bytes; a message of few bytes must not make its receiver allocate more
_ENCODINGS: dict[tuple[object, ...], "Encoding"] = {}


def leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ("path/of/leaf", leaf) in the tree's own order."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value


def nest(flat: Tree) -> Tree:
    """Undo `leaves`: a dict of paths becomes a tree."""
    tree: Tree = {}
    for path, leaf in flat.items():
        *above, name = path.split("/")
        node = tree
        for key in above:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                raise ValueError(f"{path!r} is both under a leaf and a leaf")
        node[name] = leaf
    return tree


def is_statistic(path: str) -> bool:
    """Whether a leaf of a model's weights is a running statistic, such as batch norm's mean: by its name, which begins
    with "running_" or is "num_batches_tracked", as in PyTorch. It has no gradient; training sets it."""
    name = path.rpartition("/")[2].rpartition(".")[2]
    return name.startswith("running_") or name == "num_batches_tracked"


def map_leaves(function: Callable[..., object], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` to every leaf of `tree` and the leaves at the same path in `others`; partly stored leaves
    (`TouchedRows`) are filled in first."""
    result = Tree()
    for key, value in tree.items():
        if isinstance(value, dict):
            result[key] = map_leaves(function, value, *[other[key] for other in others])
        else:
            result[key] = function(materialize(value), *[materialize(other[key]) for other in others])
    return result


def clone(tree: Tree) -> Tree:
    """The tree with tensors of its own."""
    return map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, tree)


def map_stored(function: Callable[..., object], tree: Tree) -> Tree:
    """Apply `function` to every leaf as it is stored."""
    result = Tree()
    for key, value in tree.items():
        result[key] = map_stored(function, value) if isinstance(value, dict) else function(value)
    return result


def _map_all(function: Callable[..., object], trees: Sequence[Tree]) -> Tree:
    result = Tree()
    for key, value in trees[0].items():
        values = [tree[key] for tree in trees]
        result[key] = _map_all(function, values) if isinstance(value, dict) else function(*values)
    return result


def device_of(tree: Tree) -> torch.device:
    """Where the tensors of a tree lie, which is the same device for all of them; the host, if it has none."""
    stored = (leaf for _, leaf in leaves(tree) if isinstance(leaf, Tensor | TouchedRows | Sparsified))
    return next((leaf.device for leaf in stored), torch.device("cpu"))


def to(tree: Tree, device: torch.device | str) -> Tree:
    """The tree with its tensors on a device, stored as they were; tensors that lie there already are the same."""
    return map_stored(lambda leaf: move_leaf(leaf, device), tree)


def add(one: Tree, other: Tree) -> Tree:
    """one + other, leaf by leaf; leaves stay partly stored where `elementwise` can leave them so."""
    return _map_all(partial(elementwise, torch.add), (one, other))


def sub(one: Tree, other: Tree) -> Tree:
    """one − other, leaf by leaf; as `add`."""
    return _map_all(partial(elementwise, torch.sub), (one, other))


def scale(tree: Tree, factor: float | Tensor) -> Tree:
    """factor · tree, for a number or a scalar tensor, which is rounded to the leaves' dtype."""

    def multiply(leaf: Tensor) -> Tensor:
        return leaf * (factor.to(leaf.dtype) if isinstance(factor, Tensor) else factor)

    return _map_all(partial(elementwise, multiply), (tree,))


def dot(one: Tree, other: Tree) -> Tensor:
    """Inner product of two trees as flat vectors, a float64 scalar; 0 of empty trees."""
    there = dict(leaves(other))
    products = [total(elementwise(torch.mul, leaf, there[path])) for path, leaf in leaves(one)]
    return sum(products, torch.zeros((), dtype=torch.float64, device=device_of(one)))


def squared_distance(one: Tree, other: Tree) -> Tensor:
    """‖one − other‖² of trees as flat vectors, a scalar of their dtype; 0 of an empty `one`."""
    there = dict(leaves(other))
    squares = [((leaf - there[path]) ** 2).sum() for path, leaf in leaves(one)]
    result: Tensor = sum(squares[1:], squares[0]) if squares else torch.zeros((), device=device_of(other))
    return result


def norm(tree: Tree) -> Tensor:
    """L2 norm of a tree as a flat vector, a float64 scalar."""
    return dot(tree, tree).sqrt()


def ravel(tree: Tree) -> Tensor:
    """All leaves as one vector [D], in the order of their sorted paths; undone by `unravel`."""
    flat = [materialize(leaf).reshape(-1) for _, leaf in sorted(leaves(tree), key=lambda item: item[0])]
    return torch.cat(flat) if flat else torch.zeros(0, device="cpu")


def unravel(vector: Tensor, like: Tree) -> Tree:
    """The tree with the shapes and dtypes of `like` whose `ravel` is `vector` [D]; for vectors [P, D], leaves [P, …].

    Raises:
        ValueError: `like` has another number of elements.
    """
    flat = dict(leaves(like))
    sizes = {path: math.prod(flat[path].shape) for path in sorted(flat)}
    if vector.shape[-1:] != (sum(sizes.values()),):
        raise ValueError(f"a vector of shape {list(vector.shape)} is not a tree of {sum(sizes.values())} elements")
    cut = dict(zip(sizes, vector.split(list(sizes.values()), -1), strict=True)) if sizes else {}
    rows = vector.shape[:-1]
    return nest({path: cut[path].reshape((*rows, *leaf.shape)).to(leaf.dtype) for path, leaf in flat.items()})


def check(tree: object, what: str) -> Tree:
    """Return `tree` if it may cross a boundary.

    Raises:
        ReplyRefused: `what` is not a dict, or a key or leaf is of the wrong kind; names the path.
    """
    if not isinstance(tree, dict):
        raise ReplyRefused(f"{what} is a {type(tree).__name__}; return a dict of tensors, numbers and strings.")
    _check_below(tree, what, "")
    return tree


def _check_below(tree: Tree, what: str, place: str) -> None:
    for key, value in tree.items():
        if not isinstance(key, str) or not key or "/" in key:
            under = f" under {place[:-1]!r}" if place else ""
            raise ReplyRefused(f"{what} has the key {key!r}{under}; keys are non-empty strings without '/'.")
        if isinstance(value, dict):
            _check_below(value, what, f"{place}{key}/")
            continue
        fault = _fault(value)
        if fault:
            raise ReplyRefused(
                f"{what} holds {fault} at {place + key!r}; only dense tensors, float, int, str and dicts of them cross."
            )


def _fault(leaf: object) -> str:
    """What is wrong with a leaf; empty if nothing is."""
    if isinstance(leaf, TouchedRows | Sparsified):
        return ""
    if isinstance(leaf, Tensor):
        dense = leaf.layout == torch.strided and leaf.dtype in _DTYPES
        return "" if dense else f"a tensor of {leaf.layout} and {leaf.dtype}"
    if isinstance(leaf, str):
        is_unicode = leaf.isascii() or leaf.encode("utf-8", "replace").decode() == leaf
        return "" if is_unicode else "a string that is not Unicode"
    if isinstance(leaf, int):
        return "" if -(2**63) <= leaf < 2**63 else f"an integer beyond 64 bits ({leaf.bit_length()})"
    return "" if isinstance(leaf, float) else f"a {type(leaf).__name__}"


def encode(tree: Tree) -> bytes:
    """Serialize to the pickle-free wire and disk form.

    A safetensors blob with one tensor per leaf, named by its path; numbers and strings are 0-d float64/int64 and 1-d
    uint8 tensors whose Python type is noted in the metadata field "python", and so are `Sparsified` leaves. The length
    depends only on names, shapes and dtypes (and on a string's length and the number of sparse entries), never on
    values.
    """
    tensors, python = wire_form(tree)
    # cloned, because views of one stack share memory
    cloned = {path: tensor if path in python else tensor.clone() for path, tensor in tensors.items()}
    return save(cloned, {"python": json.dumps(python, sort_keys=True)})


def wire_form(tree: Tree) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What `encode` writes: {path: a tensor on the host}, and {path: the kind} of leaves that are not dense tensors.

    Raises:
        ReplyRefused: the tree may not cross a boundary.
    """
    tensors: dict[str, Tensor] = {}
    python: dict[str, str] = {}
    for path, leaf in leaves(check(tree, "the tree")):
        if isinstance(leaf, Tensor | TouchedRows):
            tensors[path] = materialize(leaf).detach().cpu().contiguous()
        elif isinstance(leaf, Sparsified):
            python[path] = _SPARSE + leaf.form
            tensors[path] = leaf.pack().cpu()
        else:
            python[path] = _kind(leaf)
            if isinstance(leaf, str):
                tensors[path] = torch.tensor(list(leaf.encode()), dtype=torch.uint8, device="cpu")
            else:
                dtype = torch.float64 if isinstance(leaf, float) else torch.int64
                tensors[path] = torch.tensor(leaf, dtype=dtype, device="cpu")
    return tensors, python


def with_digest(blob: bytes) -> bytes:
    """A blob of `encode`, with a digest of all of it in the metadata field "digest"; `decode` reads both forms."""
    header, body = _parts(blob)
    header["__metadata__"]["digest"] = _digest(header, body)
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)  # tensors stay aligned
    return b"".join((len(words).to_bytes(8, "little"), words, body))


def has_its_digest(blob: bytes) -> bool:
    """Whether the content is unchanged since `with_digest`."""
    header, body = _parts(blob)
    digest = header["__metadata__"].pop("digest", None)
    return bool(digest == _digest(header, body))


def _parts(blob: bytes) -> tuple[dict[str, Any], memoryview]:
    """The header of a safetensors blob, and its tensors' bytes."""
    end = 8 + int.from_bytes(blob[:8], "little")
    return json.loads(blob[8:end]), memoryview(blob)[end:]


def _digest(header: dict[str, Any], body: memoryview) -> str:
    digest = sha256(json.dumps(header, sort_keys=True).encode())
    digest.update(body)
    return digest.hexdigest()


def decode(blob: bytes, filled: int = _FILLED, device: torch.device | str = "cpu") -> Tree:
    """Parse a blob of `encode`.

    filled: bytes that all its sparse leaves together may take once they are filled in. device: where its tensors are to
        lie, independent of where they were encoded.

    Raises:
        ReplyRefused: the bytes are not such a blob.
    """
    try:
        tensors = load(blob)
        head, _ = _parts(blob)
        python = json.loads(head["__metadata__"]["python"])
        absent = python.keys() - tensors.keys()
        if absent:
            raise ValueError(f"its header lists leaves that it does not have: {sorted(absent)[:3]}")
        forms = [kind.removeprefix(_SPARSE) for kind in python.values() if kind.startswith(_SPARSE)]
        size = sum(map(Sparsified.bytes_of, forms))
        if size > filled:
            raise ValueError(f"its sparse leaves take {size} bytes, and {filled} are allowed")
        flat = Tree()
        for path, tensor in sorted(tensors.items()):
            kind = python.get(path)
            if kind is None:
                flat[path] = tensor
            elif kind.startswith(_SPARSE):
                flat[path] = Sparsified.unpack(tensor, kind.removeprefix(_SPARSE))
            elif kind == "str":
                flat[path] = bytes(tensor.tolist()).decode()
            else:
                flat[path] = {"float": float, "int": int, "bool": bool}[kind](tensor.item())
        return to(check(nest(flat), "the tree"), device)
    except Exception as error:  # a hostile blob may raise any error in the parser
        raise ReplyRefused(f"not a tree in fedweave's encoding ({len(blob)} bytes): {error}") from error


def numbers(tree: Tree) -> Iterator[tuple[str, Tensor]]:
    """(path, tensor) of every leaf with floating-point numbers, in any form: dense, sparse, or a single number."""
    for path, leaf in leaves(tree):
        tensor = torch.tensor(leaf, device="cpu") if isinstance(leaf, float) else leaf
        if isinstance(tensor, Tensor | TouchedRows | Sparsified) and tensor.dtype.is_floating_point:
            yield path, materialize(tensor)


def not_finite(tree: Tree) -> str | None:
    """The path of the first leaf with a number that is not finite; None if there is none."""
    for path, leaf in numbers(tree):
        # The sum shows a number that is not finite in an eighth of the time; large finite numbers can also overflow it.
        if not leaf.sum().isfinite() and not leaf.isfinite().all():
            return path
    return None


class Encoding:
    """The size in bytes of trees of one structure as `encode` writes them. The contents of sparse leaves change numbers
    in the header's text."""

    def __init__(self, like: Tree) -> None:
        def without_entries(leaf: Any) -> Any:
            if not isinstance(leaf, Sparsified):
                return leaf
            return Sparsified(torch.zeros(leaf.shape, dtype=leaf.dtype, device="cpu"))

        blob = encode(map_stored(without_entries, like))
        header = blob[8 : 8 + int.from_bytes(blob[:8], "little")].rstrip()
        self._text, self._spans = len(header), list[tuple[str, int]]()
        for path, entry in json.loads(header).items():
            if path != "__metadata__":
                start, end = entry["data_offsets"]
                self._spans.append((path, end - start))
                self._text -= len(f"{start}{end}")

    def size(self, sparse: Mapping[str, int]) -> int:
        """sparse: bytes of each sparse leaf."""
        text, end = self._text, 0
        for path, size in self._spans:
            start, end = end, end + sparse.get(path, size)
            text += len(f"{start}{end}") + (len(str(end - start)) - 1 if path in sparse else 0)
        return 8 + -(-text // 8) * 8 + end


def encoding(tree: Tree) -> Encoding:
    """The `Encoding` of trees with this structure, computed once."""
    forms = list[object]()
    for path, leaf in leaves(tree):
        if isinstance(leaf, Tensor | TouchedRows):
            forms.append((path, tuple(leaf.shape), leaf.dtype))
        elif isinstance(leaf, Sparsified):
            forms.append((path, leaf.form))
        else:
            forms.append((path, _kind(leaf), len(leaf.encode()) if isinstance(leaf, str) else 8))
    structure = tuple(forms)
    if structure not in _ENCODINGS:
        _ENCODINGS[structure] = Encoding(tree)
    return _ENCODINGS[structure]


def encoded_size(tree: Tree) -> int:
    """len(encode(tree)) in bytes, computed once per structure."""
    return encoding(tree).size({path: leaf.nbytes for path, leaf in leaves(tree) if isinstance(leaf, Sparsified)})


def _kind(leaf: float | int | str) -> str:
    """The Python type that a leaf comes back as; NumPy's numbers are subclasses."""
    return next(kind.__name__ for kind in (str, bool, int, float) if isinstance(leaf, kind))

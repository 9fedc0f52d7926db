"""The stacked inputs and outputs of a step that runs for a whole batch of clients at once."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave.core.federation import Client
from fedweave.core.graph import Graph
from fedweave.core.tree import Tree, check, leaves, nest
from fedweave.engines.calls import check_permanent, of_client
from fedweave.engines.data import CurrentGraphs
from fedweave.engines.executor import Work
from fedweave.engines.states import Group, Leaves, States
from fedweave.errors import StepFailed
from fedweave.learn.touched_features import restore_touched_rows
from fedweave.ops.csr import StackedCsr
from fedweave.ops.identity import once
from fedweave.ops.recording import ResultForm, form_of
from fedweave.ops.sparse import Sparse
from fedweave.ops.sparsified import Sparsified
from fedweave.ops.touched_rows import STACKED, TouchedRows, materialize_stacked


class Flat(NamedTuple):
    """Operands: their leaves, the function that rebuilds them, the clients' axis of each leaf, and the properties of
    each leaf that must be equal wherever a recording is played."""

    leaves: list[Any]
    whole: Callable[[list[Any]], Any]
    dims: tuple[Any, ...]
    forms: tuple[Any, ...]
    paths: tuple[str, ...] = ()

    @classmethod
    def of(cls, operands: object, per_client: bool) -> "Flat":
        """Flatten operands that each client has separately (`per_client`), or that all clients share."""
        flat, spec = pytree.tree_flatten(operands)
        dims = batch_dims(operands) if per_client else (None,) * len(flat)
        return cls(flat, partial(pytree.tree_unflatten, treespec=spec), dims, tuple(map(form_of, flat)))

    @classmethod
    def of_tensor(cls, tensor: Tensor) -> "Flat":
        """Flatten one tensor that all clients share."""
        return cls([tensor], itemgetter(0), (None,), (form_of(tensor),))

    @classmethod
    def of_leaves(cls, by_path: Mapping[str, Any], batched: bool) -> "Flat":
        """Flatten the tree with these leaves by path; rebuilding it takes a fraction of the time."""
        layout, flat, each = *Layout.of(by_path), 0 if batched else None
        dims = [each if isinstance(leaf, Tensor) else None for leaf in flat]
        for at in layout.shared:
            dims[at] = None
        return cls(flat, layout.tree, tuple(dims), tuple(map(form_of, flat)), tuple(layout.kinds))


class Layout:
    """Positions of trees' leaves in a list, and the parts of partly stored or sparsified leaves that are not tensors.

    kinds: {path: function that rebuilds the leaf}. shared: positions of values that all clients of a batch share.
    """

    def __init__(self, kinds: dict[str, Callable[[Iterator[Any]], Any]], shared: list[int]) -> None:
        self.kinds, self.shared = kinds, shared

    @classmethod
    def of(cls, by_path: Mapping[str, Any]) -> tuple["Layout", list[Any]]:
        """The layout of leaves by path, and the list."""
        kinds, flat, shared = dict[str, Callable[[Iterator[Any]], Any]](), list[Any](), list[int]()
        for path, leaf in by_path.items():
            if isinstance(leaf, TouchedRows):
                kinds[path] = partial(_take_touched_rows, matrix=leaf.matrix)
                shared.append(len(flat))
                flat += leaf.rest, leaf.rows, leaf.values
            elif isinstance(leaf, Sparsified):
                kinds[path] = _take_sparsified
                flat.append(leaf.dense)
            else:
                kinds[path] = next
                flat.append(leaf)
        return cls(kinds, shared), flat

    @property
    def form(self) -> tuple[object, ...]:
        """Equal for layouts that read lists in the same way."""
        form = list[object]()
        for path, kind in self.kinds.items():
            has_matrix = isinstance(kind, partial) and kind.keywords["matrix"] is not None
            form.append((path, has_matrix, kind is next))
        return tuple(form)

    def leaves(self, flat: Iterable[Any]) -> dict[str, Any]:
        """{path: leaf}."""
        rest = iter(flat)
        return {path: kind(rest) for path, kind in self.kinds.items()}

    def tree(self, flat: Iterable[Any]) -> Tree:
        """The tree."""
        return nest(self.leaves(flat))


def _take_touched_rows(rest: Iterator[Any], matrix: object) -> TouchedRows:
    return TouchedRows(next(rest), next(rest), next(rest), matrix)


def _take_sparsified(rest: Iterator[Any]) -> Sparsified:
    return Sparsified(next(rest))


def run_batch(work: Work, parts: Sequence[Flat], operands: tuple[Any, ...]) -> list[Any]:
    """Layouts of the reply and the state, and the leaves of both, stacked; `operands` are the leaves of the `parts`:
    (graph, the word of its id), its state, its own message, the call's key, the shared message, and (test graph,
    members).

    Raises:
        StepFailed: the step draws from NumPy's own generator. A played recording does not call this function, so that
            only steps computed as written pay for the check (0.1 ms).
    """
    form, before = ResultForm(), _generator_state()

    def one(*flat: Any) -> tuple[Tensor, ...]:
        rest = iter(flat)
        # in the order of `parts`
        values = [part.whole(list(islice(rest, len(part.leaves)))) for part in parts]
        (graph, me), state, mine, call, shared, (test, members) = values
        key = of_client(call, "client", me)
        secret = of_client(call, "secret", me)
        view = Client(graph, state, key, secret, test, members=members, ranks=work.ranks)
        reply = check(work.step(view, shared | mine), f"the reply of {work.name}")
        new_state = check(view.state, f"the state that {work.name} keeps")
        check_permanent(work.name, work.info, reply, new_state)
        return form.flat((reply, new_state))

    dims = list[Any]()
    for part in parts:
        dims += part.dims
    results = form.whole(vmap(one, in_dims=tuple(dims))(*operands))
    if _generator_state() != before:
        raise StepFailed(
            f"step {work.name} draws from NumPy's own generator: in a batch that is one draw for all clients, and the "
            "same again each time a recording is played. Draw from client.key, in a part ctx.client.key "
            "(fedweave.core.random.uniform(key, shape), normal, …)."
        )
    reply_tree, state_tree = pytree.tree_map(_without_matrix, results, is_leaf=_is_partly_stored)
    reply, reply_leaves = Layout.of(dict(leaves(reply_tree)))
    state, state_leaves = Layout.of(dict(leaves(state_tree)))
    return [reply, state, len(reply_leaves), *reply_leaves, *state_leaves]


def memory_message(step: str, clients: int, device: torch.device, error: Exception) -> str:
    """The error message if memory is not enough for this number of clients at once."""
    reason = next(iter(str(error).strip().splitlines()), "no more is given")
    where = f"the memory of {device}" if device.type == "cuda" else "this machine's memory"
    if clients == 1:
        return f"step {step}: {where} is not enough for one client ({reason}). Take smaller data or a smaller model."
    return (
        f"step {step}: {where} is not enough for {clients:,} clients at once ({reason}). Set engine.chunk to "
        f"{clients // 2} or less."
    )


def remedy(error: Exception) -> str:
    """The remedy for a step that fails only for a batch, as far as PyTorch's message shows."""
    if ".item()" in str(error) or "control flow" in str(error):
        return (
            "Leave out .item(), int(), float() and `if` on tensors (torch.where chooses between two values), mark a "
            "step of your own @on_client(…, ragged=True), or set engine.mode = 'loop', which is slower."
        )
    if "dynamic shape" in str(error):
        return (
            "Multiply by a mask where rows are picked by one: shapes must not depend on data. Or mark a step of your "
            "own @on_client(…, ragged=True), or set engine.mode = 'loop', which is slower."
        )
    return "Mark it @on_client(…, ragged=True) if its shapes depend on data, or set engine.mode = 'loop'."


def stack_states(store: States, group: Group, graphs: Graph, copy: bool) -> Leaves:
    """The states of a batch, stacked; leaves that are `TouchedRows` refer to the batch's own matrix."""
    states, matrices = store.many(group, copy), (matrix_of(graphs), None)
    stale = any(isinstance(leaf, TouchedRows) and leaf.matrix not in matrices for leaf in states.values())
    if store.together(group) and not stale:
        return states
    whole = nest({path: materialize_stacked(leaf) for path, leaf in states.items()})
    return dict(leaves(restore_touched_rows(whole, graphs)))


def batch_dims(inputs: object) -> tuple[int | None, ...]:
    """`in_dims` of leaves that each client has separately: 0 for tensors, None for the rest."""
    flat = pytree.tree_leaves(inputs, is_leaf=_is_partly_stored)
    if not any(map(_is_partly_stored, flat)):
        return tuple(0 if isinstance(leaf, Tensor) else None for leaf in flat)

    def dim(leaf: object) -> Any:
        if isinstance(leaf, TouchedRows):
            return STACKED
        return 0 if isinstance(leaf, Tensor) else None

    dims = pytree.tree_map(dim, inputs, is_leaf=_is_partly_stored)
    return tuple(pytree.tree_leaves(dims))


def _is_partly_stored(leaf: object) -> bool:
    return isinstance(leaf, TouchedRows)


def matrix_of(graphs: Graph) -> StackedCsr | None:
    """The features of a batch, if they are sparse."""
    return graphs.x.blocks if isinstance(graphs.x, Sparse) else None


def _generator_state() -> Any:
    """The state of NumPy's own generator, which differs after each draw; draws nothing."""
    state = np.random.get_state()  # noqa: NPY002
    return (state[1].tobytes(), *state[2:]) if isinstance(state, tuple) else repr(state)


def _without_matrix(leaf: object) -> Any:
    """Replace a matrix by whether there is one, because a recording must not hold the matrix of its batch."""
    if not isinstance(leaf, TouchedRows):
        return leaf
    return TouchedRows(leaf.rest, leaf.rows, leaf.values, leaf.matrix is not None)


def client_rows(leaf: Any, clients: int, matrix: StackedCsr | None) -> Any:
    """A stacked leaf of the first `clients` of a batch, without the clients that filled it up. A part that all clients
    share, which `vmap` repeats, is stored once, with the batch's own matrix."""
    if isinstance(leaf, Tensor):
        return leaf if leaf.shape[0] == clients else leaf[:clients]
    if not isinstance(leaf, TouchedRows):
        return leaf
    if len(leaf.rows) == clients:
        return TouchedRows(leaf.rest[0], leaf.rows, leaf.values, matrix if leaf.matrix else None)
    return TouchedRows(leaf.rest[0], leaf.rows[:clients], leaf.values[:clients])


# Padded rows that run at once without a `chunk`: with hidden sizes of some hundred, well under a gigabyte.
_ROWS_AT_ONCE = 1 << 16
# Numbers per padded row in addition to its features on a GPU, and per feature for a client's weights: the memory of
# layers of some hundred units, their gradients and an optimizer. This is an estimate; if it is wrong, set `chunk`.
_PER_ROW, _PER_FEATURE = 8192, 1024
_CPU = torch.device("cpu")
# Bytes, by the same estimate; a larger batch is not faster, because the kernels of 8,000 clients of 50 nodes keep a
# card busy. The batch that runs at once is then smaller than all clients' data and states.
_ENOUGH = 16 << 30
_SHARE = 4  # one quarter of a GPU's free memory is for the clients that run at once, one for stacked batches
_MAX_PLANS = 64  # plans kept for reuse; every full round uses the same one
_MAX_BYTES = 1 << 30  # stacked batches kept for reuse
_ENTRY = 24  # bytes of an entry of a sparse matrix, stacked and with its transpose


class Batches:
    """Plans batches and keeps their stacked graphs.

    graphs: the clients' current graphs; call `renew` after a change. device: device of stacked graphs.
    algorithms: see `member_algorithms` of `Loop`.
    """

    def __init__(
        self,
        graphs: CurrentGraphs,
        chunk: int,
        device: torch.device = _CPU,
        algorithms: Mapping[str, object] | None = None,
    ) -> None:
        self._graphs, self._chunk, self._device, self._member_algorithms = graphs, chunk, device, algorithms or {}
        self._room = torch.cuda.mem_get_info(device)[0] // _SHARE if device.type == "cuda" else None
        self._max_bytes = self._room or _MAX_BYTES
        self._plans: OrderedDict[tuple[str, ...], list[tuple[str, ...]]] = OrderedDict()
        self._stacked: OrderedDict[tuple[str, ...], tuple[int, Graph]] = OrderedDict()
        self._sizes: dict[int, int] = {}  # bytes, by version
        self._last = 0  # version
        numbers = count()  # one for each algorithm of the clients; there may be one per client
        self._kind = once(lambda _: next(numbers), self._member_algorithms)

    def plan(self, clients: Sequence[str]) -> list[tuple[str, ...]]:
        """Split `clients` into batches, each in client order."""
        key = tuple(clients)
        if key not in self._plans:
            self._plans[key] = self._batches(key)
            while len(self._plans) > _MAX_PLANS:
                self._plans.popitem(last=False)
        return self._plans[key]

    def graph(self, batch: tuple[str, ...]) -> tuple[int, Graph]:
        """A version, which is unique to this stack, and the clients' graphs, stacked."""
        if batch not in self._stacked:
            graph = self._graphs.stack(batch).to(self._device)
            self._last += 1
            self._stacked[batch], self._sizes[self._last] = (self._last, graph), _bytes(graph)
            while len(self._stacked) > 1 and sum(self._sizes.values()) > self._max_bytes:
                _, (old, _) = self._stacked.popitem(last=False)
                del self._sizes[old]
        self._stacked.move_to_end(batch)
        return self._stacked[batch]

    def renew(self, clients: Collection[str]) -> None:
        """Forget values computed from the data of `clients`, which has changed."""
        self._plans.clear()
        for batch in [batch for batch in self._stacked if not set(clients).isdisjoint(batch)]:
            del self._sizes[self._stacked.pop(batch)[0]]

    def _batches(self, clients: tuple[str, ...]) -> list[tuple[str, ...]]:
        clients_by_size: dict[object, list[str]] = {}
        for client in clients:
            size = (*self._graphs.rows(client), self._kind.get(client))
            clients_by_size.setdefault(size, []).append(client)
        batches: list[tuple[str, ...]] = []
        for of_size in map(tuple, clients_by_size.values()):
            count = self.max_clients(of_size[0])
            if self._room is not None and not self._chunk:  # batches of one size share recordings and their buffers
                count = -(-len(of_size) // -(-len(of_size) // count))
            batches += [of_size[start : start + count] for start in range(0, len(of_size), count)]
        return batches

    def max_clients(self, client: str) -> int:
        """Number of clients of this client's size that run at once."""
        if self._chunk:
            return self._chunk
        if self._room is None:
            return max(1, _ROWS_AT_ONCE // self._graphs.rows(client)[0])
        graph = self._graphs[client]
        features = graph.x.shape[1]
        stored = 0 if isinstance(graph.x, Sparse) else 2 * features
        numbers = graph.nodes * (stored + _PER_ROW) + features * _PER_FEATURE
        return max(1, min(self._room, _ENOUGH) // (numbers * graph.x.dtype.itemsize))


def _bytes(graph: Graph) -> int:
    tensors = [graph.x, graph.y, graph.masks, graph.real, *graph.extra.values()]
    entries = graph.whole_edges.cache.entries
    if isinstance(graph.x, Sparse):
        entries += sum(map(len, graph.x.blocks.values))
    plain = sum(tensor.numel() * tensor.element_size() for tensor in tensors if isinstance(tensor, Tensor))
    result: int = plain + entries * _ENTRY
    return result

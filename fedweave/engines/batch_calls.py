"""The stacked inputs and outputs of a step that runs for a whole batch of clients at once."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave.core.federation import Client
from fedweave.core.graph import Graph
from fedweave.core.tree import Tree, check, leaves, nest
from fedweave.engines.calls import check_permanent
from fedweave.engines.executor import Work
from fedweave.engines.states import Group, States
from fedweave.errors import StepFailed
from fedweave.learn.narrow import share_again
from fedweave.ops.csr import StackedCsr
from fedweave.ops.recording import Form
from fedweave.ops.sparse import Sparse
from fedweave.ops.touched import STACKED, TouchedRows, materialize_stacked


def run_batch(work: Work, spec: Any, dims: tuple[Any, ...], operands: tuple[Any, ...]) -> Any:
    """Replies and states of a batch, stacked; `operands` flattened ((graph, state, key, secret, own message), shared
    message, test graph, members), `dims` where each has the clients' axis.

    Raises:
        StepFailed: the step draws from NumPy's own generator. This is not called where a recording is played, so that
            only steps computed as written pay for the look (0.1 ms).
    """
    form, before = Form(), _drawn()

    def one(*flat: Any) -> tuple[Tensor, ...]:
        (graph, state, key, secret, mine), shared, test, members = pytree.tree_unflatten(flat, spec)
        view = Client(graph, state, key, secret, test, members=members)
        reply = check(work.step(view, shared | mine), f"the reply of {work.name}")
        kept = check(view.state, f"the state that {work.name} keeps")
        check_permanent(work.name, work.info, reply, kept)
        return form.flat((reply, kept))

    found = form.whole(vmap(one, in_dims=dims)(*operands))
    if _drawn() != before:
        raise StepFailed(
            f"step {work.name} draws from NumPy's own generator: in a batch that is one draw for all clients, and the "
            "same again each time a recording is played. Draw from client.key, in a part ctx.client.key "
            "(fedweave.core.random.uniform(key, shape), normal, …)."
        )
    return pytree.tree_map(_without_matrix, found, is_leaf=lambda leaf: isinstance(leaf, TouchedRows))


def told_memory(step: str, clients: int, device: torch.device, error: Exception) -> str:
    """The message where memory is not enough for so many clients at once."""
    asked = next(iter(str(error).strip().splitlines()), "no more is given")
    where = f"the memory of {device}" if device.type == "cuda" else "this machine's memory"
    if clients == 1:
        return f"step {step}: {where} is not enough for one client ({asked}). Take smaller data or a smaller model."
    return (
        f"step {step}: {where} is not enough for {clients:,} clients at once ({asked}). Set engine.chunk to "
        f"{clients // 2} or less."
    )


def remedy(error: Exception) -> str:
    """What to do about a step that failed for a batch alone, as far as PyTorch's message tells."""
    if ".item()" in str(error) or "control flow" in str(error):
        return (
            "Leave out .item(), int(), float() and `if` on tensors (torch.where chooses between two values), mark a "
            "step of your own @on_client(…, ragged=True), or set engine.mode = 'loop', which is slower."
        )
    return "Mark it @on_client(…, ragged=True) if its shapes depend on data, or set engine.mode = 'loop'."


def stacked_states(kept: States, group: Group, graphs: Graph, copy: bool) -> Tree:
    """The states of a batch, stacked; leaves that are `TouchedRows` refer to the batch's own matrix."""
    states, known = kept.many(group, copy), (matrix_of(graphs), None)
    stale = any(isinstance(leaf, TouchedRows) and leaf.matrix not in known for _, leaf in leaves(states))
    if kept.together(group) and not stale:
        return states
    return share_again(nest({path: materialize_stacked(leaf) for path, leaf in leaves(states)}), graphs)


def batch_dims(inputs: object) -> tuple[int | None, ...]:
    """`in_dims` of the leaves that each client has for itself: 0 for tensors, None for the rest."""

    def dim(leaf: object) -> Any:
        return STACKED if isinstance(leaf, TouchedRows) else 0 if isinstance(leaf, Tensor) else None

    dims = pytree.tree_map(dim, inputs, is_leaf=lambda leaf: isinstance(leaf, TouchedRows))
    return tuple(pytree.tree_leaves(dims))


def matrix_of(graphs: Graph) -> StackedCsr | None:
    """The features of a batch, if they are sparse."""
    return graphs.x.blocks if isinstance(graphs.x, Sparse) else None


def _drawn() -> Any:
    """Something else after each draw from NumPy's own generator; nothing is drawn here."""
    state = np.random.get_state()  # noqa: NPY002
    return (state[1].tobytes(), *state[2:]) if isinstance(state, tuple) else repr(state)


def _without_matrix(leaf: object) -> Any:
    """Only whether there is a matrix, because a recording must not hold the matrix of the batch it was made with."""
    if not isinstance(leaf, TouchedRows):
        return leaf
    return TouchedRows(leaf.rest, leaf.rows, leaf.values, leaf.matrix is not None)


def settled(leaf: object, matrix: StackedCsr | None) -> Any:
    """`vmap` repeats what all clients share; keep it once, with the batch's own matrix."""
    if not isinstance(leaf, TouchedRows):
        return leaf
    return TouchedRows(leaf.rest[0], leaf.rows, leaf.values, matrix if leaf.matrix else None)

"""`fit` against loops written by hand; one client alone against the same client in a batch."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave.core import random
from fedweave.core.federation import on_client
from fedweave.core.graph import TRAIN, Graph, stack
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, dot, leaves, map_leaves, materialize, nest, ravel, squared_distance, sub, unravel
from fedweave.engines.simulation import Simulation
from fedweave.learn import Adam, Optimizer, Sgd, compute_on_server, fit, recording
from fedweave.learn.recording import record_part
from fedweave.ops.recording import Recordings, When
from fedweave.ops.touched_rows import TouchedRows
from tests.random_graphs import dims_of, padded_alike, replace_fields
from tests.stand_in import Replays

KEY = random.key(3)
ROWS = frozenset({"0/weight"})
SIZES = [5, 40, 33, 20]
OPTIMS = [Adam(0.03, 0.02), Sgd(0.2, 0.01)]
STATEFUL = [Adam(0.03, 0.02, (0.8, 0.99), 1e-6), Sgd(0.05, 0.01, 0.7), Sgd(0.05, 0.01)]
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def by_torch(optimizer: Any, tensors: list[Tensor], **options: Any) -> torch.optim.Optimizer:
    """The same optimizer, of torch.optim."""
    given = {field.name: getattr(optimizer, field.name) for field in fields(optimizer)}
    return {Adam: torch.optim.Adam, Sgd: torch.optim.SGD}[type(optimizer)](tensors, **given, **options)


def start(features: int, hidden: int = 5, dtype: torch.dtype = torch.float64) -> Tree:
    """Two layers and a bias of 7: a size that fills no vector register."""
    shapes = {"0": {"weight": (features, hidden), "bias": (hidden,)}, "1": {"weight": (hidden, 7), "bias": (7,)}}
    return {
        layer: {name: random.normal(random.key(7).add(len(shape)), shape).to(dtype) for name, shape in of.items()}
        for layer, of in shapes.items()
    }


def gcn_loss(w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
    adjacency = graph.edges.operator("gcn")
    h = torch.relu(adjacency @ (graph.x @ w["0"]["weight"]) + w["0"]["bias"])
    logits = adjacency @ (random.dropout(key, h, 0.25) @ w["1"]["weight"]) + w["1"]["bias"]
    mask = graph.masks[TRAIN].to(logits.dtype)
    return (
        args.get("scale", 1.0)
        * (F.cross_entropy(logits, graph.y.clamp(min=0), reduction="none") * mask).sum()
        / mask.sum()
    )


def pull(w: Tree, anchor: Tree, args: Tree) -> Tensor:
    return 0.5 * args["mu"] * squared_distance(w, anchor)


def by_hand(
    w: Tree, graph: Graph, optimizer: Any, steps: int, args: Tree, anchor: Tree | None = None
) -> tuple[Tree, Tensor]:
    """The loop as anyone would write it."""
    w = map_leaves(lambda leaf: leaf.clone().requires_grad_(), w)
    made = by_torch(optimizer, [leaf for _, leaf in leaves(w)])
    last = torch.zeros(())
    for step in range(steps):
        made.zero_grad()
        last = total = gcn_loss(w, graph, random.fold(KEY, step), args)
        if anchor is not None:
            total = last + pull(w, anchor, args)
        total.backward()
        made.step()
    return map_leaves(lambda leaf: leaf.detach(), w), last.detach()


def assert_trees_close(one: Tree, other: Tree, tolerance: float) -> None:
    there, here = dict(leaves(other)), dict(leaves(one))
    assert here.keys() == there.keys()
    for path in here:
        torch.testing.assert_close(materialize(here[path]), materialize(there[path]), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("optimizer", OPTIMS)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("anchored", [False, True])
def test_fit_is_the_loop_written_by_hand(
    make_graphs: Callable[..., Any], optimizer: Any, sparse: bool, anchored: bool
) -> None:
    graph, w = make_graphs([20], 9, sparse=sparse)["site0"], start(9)
    anchor = map_leaves(lambda leaf: leaf + 0.5, w) if anchored else None
    more: dict[str, Any] = {"penalty": pull, "anchor": anchor} if anchored else {}
    got, last, _ = fit(gcn_loss, w, graph, KEY, optimizer, 6, args={"mu": 0.7, "scale": 2.0}, rows=ROWS, **more)
    expected, loss = by_hand(w, graph, optimizer, 6, {"mu": 0.7, "scale": 2.0}, anchor)
    assert_trees_close(got, expected, 1e-12)
    torch.testing.assert_close(last, loss, rtol=1e-12, atol=0)
    assert not torch.equal(got["0"]["weight"], w["0"]["weight"])


def test_the_loss_is_the_last_steps_without_the_penalty(make_graphs: Callable[..., Any]) -> None:
    graph, w = make_graphs([12])["site0"], start(6)
    _, first, _ = fit(
        gcn_loss, w, graph, KEY, Sgd(), 1, args={"mu": 9.0}, penalty=pull, anchor=map_leaves(torch.zeros_like, w)
    )
    torch.testing.assert_close(first, gcn_loss(w, graph, random.fold(KEY, 0), {}))


def test_fit_leaves_its_start_alone(make_graphs: Callable[..., Any]) -> None:
    w = start(6)
    before = map_leaves(torch.clone, w)
    got, _, _ = fit(gcn_loss, w, make_graphs([12])["site0"], KEY, Adam(), 2)
    assert_trees_close(w, before, 0)
    assert not any(leaf.requires_grad for _, leaf in [*leaves(w), *leaves(got)])


def test_fit_cannot_be_differentiated_through(make_graphs: Callable[..., Any]) -> None:
    w = map_leaves(lambda leaf: leaf.requires_grad_(), start(6))
    got, last, _ = fit(gcn_loss, w, make_graphs([12])["site0"], KEY, Adam(), 2)
    assert not last.requires_grad
    assert not any(leaf.requires_grad for _, leaf in leaves(got))


@pytest.mark.parametrize("optimizer", STATEFUL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_optimizer_is_torchs(optimizer: Any, dtype: torch.dtype) -> None:
    """`update` over trees, bit for bit what torch.optim's fused kernels do over several steps."""
    w, state = start(6, dtype=dtype), optimizer.init(start(6, dtype=dtype))
    theirs = {path: leaf.clone() for path, leaf in leaves(w)}
    made = by_torch(optimizer, list(theirs.values()), fused=True)
    for step in range(5):
        gradient = map_leaves(lambda leaf: random.normal(random.fold(KEY, step), leaf.shape).to(dtype), w)  # noqa: B023
        before = map_leaves(torch.clone, w)
        after, state = optimizer.update(w, gradient, state)
        assert_trees_close(w, before, 0)
        w = after
        for path, leaf in leaves(gradient):
            theirs[path].grad = leaf
        made.step()
        assert all(torch.equal(leaf, theirs[path]) for path, leaf in leaves(w))
    assert state.get("steps", 5) == 5


@pytest.mark.parametrize("optimizer", STATEFUL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fits_that_keep_their_state_are_one_long_run(
    make_graphs: Callable[..., Any], optimizer: Any, dtype: torch.dtype
) -> None:
    """Three `fit`s from weights that change in between, against torch.optim with one optimizer all along."""
    graph, w = make_graphs([20], 9, sparse=True, dtype=dtype)["site0"], start(9, dtype=dtype)
    flat = {path: leaf.clone().requires_grad_() for path, leaf in leaves(w)}
    made = by_torch(optimizer, list(flat.values()))
    state: Tree | None = None
    for number, steps in enumerate((3, 1, 4)):
        key = random.fold(KEY, number)
        w, last, state = fit(gcn_loss, w, graph, key, optimizer, steps, state=state, rows=ROWS)
        for step in range(steps):
            made.zero_grad()
            loss = gcn_loss(nest(flat), graph, random.fold(key, step), {})
            loss.backward()
            made.step()
        assert_trees_close(w, nest({path: leaf.detach() for path, leaf in flat.items()}), TOLERANCE[dtype])
        torch.testing.assert_close(last, loss.detach())
        w = map_leaves(lambda leaf: leaf + 0.1, w)
        with torch.no_grad():
            for leaf in flat.values():
                leaf.add_(0.1)
    assert state.get("steps", 8) == 8


def test_adam_is_the_arithmetic_written_apart(make_graphs: Callable[..., Any], reference: Path) -> None:
    sys.path.insert(0, str(reference))
    try:
        import oracles  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(reference))
    graph, w = make_graphs([20], 9, sparse=True)["site0"], start(9)

    def plain(w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        adjacency = graph.edges.operator("gcn")
        h = torch.tanh(adjacency @ (graph.x @ w["0"]["weight"]) + w["0"]["bias"])
        logits = h @ w["1"]["weight"] + w["1"]["bias"]
        return F.cross_entropy(logits[graph.masks[TRAIN]], graph.y[graph.masks[TRAIN]])

    def gradient(flat: Any) -> Any:
        tree = unravel(torch.from_numpy(flat), w)
        return ravel(torch.func.grad(lambda w: plain(w, graph, KEY, {}))(tree)).numpy()

    adam, solver, state, there = Adam(0.02, 0.01, (0.8, 0.95), 1e-6), None, None, ravel(w).numpy()
    solver = oracles.Adam(0.02, 0.01, 0.8, 0.95, 1e-6)
    here = w
    for steps in (2, 3, 1):
        here, _, state = fit(plain, here, graph, KEY, adam, steps, state=state)
        there = solver(there, gradient, steps)
        torch.testing.assert_close(ravel(here), torch.from_numpy(there), rtol=0, atol=1e-12)


def test_the_state_of_another_optimizer_is_refused(make_graphs: Callable[..., Any]) -> None:
    graph, w = make_graphs([12])["site0"], start(6)
    state = fit(gcn_loss, w, graph, KEY, Adam(), 1).state
    with pytest.raises(ValueError, match=r"Sgd\(.*a state of m, v, steps"):
        fit(gcn_loss, w, graph, KEY, Sgd(momentum=0.5), 1, state=state)


class Batch:
    """`fit` for all clients at once; `each` names the arguments that are every client's own."""

    loss = staticmethod(gcn_loss)

    def __init__(
        self,
        graphs: dict[str, Graph],
        optimizer: Optimizer,
        rows: frozenset[str],
        *,
        penalty: bool = False,
        steps: int = 4,
    ) -> None:
        self.graphs, self.optimizer, self.rows, self.penalty, self.steps = (
            list(graphs.values()),
            optimizer,
            rows,
            penalty,
            steps,
        )
        self.stacked = stack(padded_alike(self.graphs))
        self.keys = random.fold(KEY, torch.arange(len(graphs)))

    def one(self, graph: Graph, key: Tensor, w: Tree, anchor: Tree | None, args: Tree) -> tuple[Tree, Tensor]:
        more: dict[str, Any] = {"penalty": pull, "anchor": anchor} if self.penalty else {}
        trained, last, _ = fit(self.loss, w, graph, key, self.optimizer, self.steps, args=args, rows=self.rows, **more)
        self.split = any(isinstance(leaf, TouchedRows) for _, leaf in leaves(trained))
        return map_leaves(lambda leaf: leaf, trained), last

    def run(
        self, w: Tree, anchor: Tree | None = None, args: Tree | None = None, *, each: str = ""
    ) -> list[tuple[Tree, Tensor]]:
        inputs = (self.stacked, self.keys, w, anchor, args or {})
        own = [True, True, "w" in each, "anchor" in each, "args" in each]
        dims = tuple(
            pytree.tree_map(lambda leaf: 0 if mine and isinstance(leaf, Tensor) else None, value)  # noqa: B023
            for value, mine in zip(inputs, own, strict=True)
        )
        trained, last = vmap(self.one, in_dims=dims)(*inputs)
        return [(map_leaves(lambda leaf: leaf[p], trained), last[p]) for p in range(len(self.graphs))]  # noqa: B023

    def loop(
        self, w: Tree, anchor: Tree | None = None, args: Tree | None = None, *, each: str = ""
    ) -> list[tuple[Tree, Tensor]]:
        def of(value: Any, name: str, p: int) -> Any:
            return map_leaves(lambda leaf: leaf[p], value) if name in each and value else value

        return [
            self.one(graph, self.keys[p], of(w, "w", p), of(anchor, "anchor", p), of(args or {}, "args", p))
            for p, graph in enumerate(self.graphs)
        ]


def per_client(tree: Tree, clients: int = len(SIZES)) -> Tree:
    """A tree of their own for each client, stacked."""
    return map_leaves(lambda leaf: torch.stack([leaf * (1 + 0.1 * p) for p in range(clients)]), tree)


@pytest.mark.parametrize("part", ["loss", "penalty"])
def test_a_loss_that_is_no_scalar_is_refused_alone_and_in_a_batch(make_graphs: Callable[..., Any], part: str) -> None:
    """In a batch its sum over all rows, padding included, would be trained on."""
    w, mu = start(9), {"mu": torch.tensor(0.7, dtype=torch.float64)}
    batch = Batch(make_graphs(SIZES, 9, dtype=torch.float64), Sgd(0.1), ROWS, penalty=part == "penalty")
    if part == "loss":
        batch.loss = lambda *given: gcn_loss(*given) * torch.ones(3)  # type: ignore[method-assign]
    else:
        mu["mu"] = torch.ones(1, dtype=torch.float64)
    for run in (batch.loop, batch.run):
        with pytest.raises(
            ValueError, match=rf"the {part} must be a scalar; it is a tensor of shape \[[13]\]\. Add it"
        ):
            run(w, w, mu)


CASES = ["", "w", "anchor", "args", "w anchor args"]


@pytest.mark.parametrize("each", CASES)
@pytest.mark.parametrize("features", [9, 400], ids=["all rows touched", "few rows touched"])
@pytest.mark.parametrize("optimizer", OPTIMS)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
def test_a_batch_trains_as_each_client_alone(
    make_graphs: Callable[..., Any], optimizer: Any, features: int, each: str, dtype: torch.dtype
) -> None:
    batch = Batch(make_graphs(SIZES, features, sparse=True, dtype=dtype), optimizer, ROWS, penalty=True)
    w = start(features, dtype=dtype)
    anchor, args = (
        map_leaves(lambda leaf: leaf + 0.5, w),
        {"mu": torch.tensor(0.7, dtype=dtype), "scale": torch.tensor(2.0, dtype=dtype)},
    )
    given = {"w": w, "anchor": anchor, "args": args}
    given = {name: per_client(tree) if name in each else tree for name, tree in given.items()}
    for (mine, last), (expected, loss) in zip(
        batch.run(**given, each=each), batch.loop(**given, each=each), strict=True
    ):
        assert_trees_close(mine, expected, 2e-5 if dtype == torch.float32 else 1e-12)
        torch.testing.assert_close(last, loss)


@pytest.mark.parametrize("optimizer", OPTIMS)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("features", [9, 400])
def test_a_batch_trains_bit_for_bit_as_each_client_alone(
    make_graphs: Callable[..., Any], optimizer: Any, sparse: bool, features: int
) -> None:
    batch = Batch(make_graphs(SIZES, features, sparse=sparse, dtype=torch.float32), optimizer, ROWS)
    # Hidden widths that are not a multiple of 8 leave a client's slice of a batch unaligned, and MKL's small products
    # then round differently; they are held to the last digits by the test above.
    w = start(features, 16, torch.float32)
    for (mine, last), (expected, loss) in zip(batch.run(w), batch.loop(w), strict=True):
        assert_trees_close(mine, expected, 0)
        assert torch.equal(last, loss)
    assert w["1"]["bias"].numel() == 7


@pytest.mark.parametrize("penalty", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMS)
def test_touched_rows_train_as_all_rows(make_graphs: Callable[..., Any], optimizer: Any, penalty: bool) -> None:
    graphs, w = make_graphs(SIZES, 400, sparse=True), start(400)
    few, everything = (Batch(graphs, optimizer, rows, penalty=penalty) for rows in (ROWS, frozenset()))
    given: dict[str, Any] = {"anchor": map_leaves(lambda leaf: leaf * 2, w), "args": {"mu": 0.7}} if penalty else {}
    for (mine, _), (expected, _) in zip(few.run(w, **given), everything.run(w, **given), strict=True):
        assert_trees_close(mine, expected, 1e-12)
    assert (few.split, everything.split) == (True, False)


def slope(w: Tree, anchor: Tree, args: Tree) -> Tensor:
    return dot(args["control"], w)


class Controlled(Batch):
    """Two trainings one after the other, the second along a tree like the weights that the first one left."""

    def one(self, graph: Graph, key: Tensor, w: Tree, anchor: Tree | None, args: Tree) -> tuple[Tree, Tensor]:
        def trained(control: Tree) -> Any:
            found = {"part": {"control": control}, "mu": args["mu"]}
            more: dict[str, Any] = {"penalty": lambda w, anchor, args: slope(w, anchor, args["part"]), "anchor": w}
            return fit(self.loss, w, graph, key, self.optimizer, self.steps, args=found, rows=self.rows, **more)

        first = trained(args["control"])
        control = sub(sub(args["control"], first.w), w)
        self.split = any(isinstance(leaf, TouchedRows) for _, leaf in leaves(control))
        after = trained(control)
        self.split &= any(isinstance(leaf, TouchedRows) for _, leaf in leaves(after.w))
        return map_leaves(lambda leaf: leaf, after.w), after.loss


@pytest.mark.parametrize("each", ["", "args"])
@pytest.mark.parametrize("optimizer", OPTIMS)
def test_a_control_variate_is_cut_to_the_touched_rows(
    make_graphs: Callable[..., Any], optimizer: Any, each: str
) -> None:
    """All rows are trained where clients' own differ in rows that they do not touch."""
    graphs, w = make_graphs(SIZES, 400, sparse=True), start(400)
    few, everything = (Controlled(graphs, optimizer, rows) for rows in (ROWS, frozenset()))
    args = {"control": map_leaves(lambda leaf: leaf / 3, w), "mu": torch.tensor(0.7)}
    args = per_client(args) if each else args
    trained = zip(few.run(w, w, args, each=each), everything.run(w, w, args, each=each), strict=True)
    for (mine, _), (expected, _) in trained:
        assert_trees_close(mine, expected, 1e-12)
    for (mine, _), (expected, _) in zip(few.run(w, w, args, each=each), few.loop(w, w, args, each=each), strict=True):
        assert_trees_close(mine, expected, 1e-12)
    few.run(w, w, args, each=each)
    assert (few.split, everything.split) == (not each, False)


def test_no_row_is_left_out_where_clients_start_apart(make_graphs: Callable[..., Any]) -> None:
    batch = Batch(make_graphs(SIZES, 400, sparse=True), Adam(), ROWS)
    batch.run(per_client(start(400)), each="w")
    assert not batch.split


def test_no_step_changes_nothing_in_a_batch_too(make_graphs: Callable[..., Any]) -> None:
    batch, w = Batch(make_graphs(SIZES), Adam(), ROWS, steps=0), start(6)
    for run in (batch.loop, batch.run):
        for mine, last in run(w):
            assert_trees_close(mine, w, 0)
            assert last == 0


@on_client(sends={"w": "weights", "loss": "loss"})
def fit_and_judge(client: Any, message: Tree) -> Tree:
    w, _, _ = fit(gcn_loss, message["w"], client.graph, client.key, Adam(), 2, rows=ROWS)
    w, _, _ = fit(gcn_loss, w, client.graph, client.key, Adam(), 2, rows=ROWS)
    return {"w": w, "loss": gcn_loss(w, client.graph, client.key, {})}


@on_client(sends={"w": "weights"})
def fit_and_keep(client: Any, message: Tree) -> Tree:
    client.state["w"], _, _ = fit(gcn_loss, message["w"], client.graph, client.key, Adam(), 2, rows=ROWS)
    return {"w": client.state["w"]}


@pytest.mark.parametrize("step", [fit_and_judge, fit_and_keep])
@pytest.mark.parametrize("features", [9, 400], ids=["all rows touched", "few rows touched"])
def test_trained_weights_are_weights_like_any_other(make_graphs: Callable[..., Any], step: Any, features: int) -> None:
    """They can be trained further, evaluated and kept, whichever rows were stored."""
    feds = [Simulation(make_graphs(SIZES, features, sparse=True), classes=3, mode=mode) for mode in ("loop", "vmap")]
    loop, batch = (fed.map(step, {"w": start(features)}) for fed in feds)
    same_replies(loop, batch)
    one, other = (fed.snapshot() for fed in feds)
    assert_trees_close(one, other, 1e-12)


class TrainWithState:
    """A step that trains with moments that are kept."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    @on_client(sends={"w": "weights"})
    def train(self, client: Any, message: Tree) -> Tree:
        own = client.state.get("optimizer")
        after = fit(gcn_loss, message["w"], client.graph, client.key, self.optimizer, 2, state=own, rows=ROWS)
        client.state["w"], client.state["optimizer"] = after.w, after.state
        return {"w": after.w}


# who takes part in each round: all, sometimes only some, some first and all later
PART = {
    "all": [None, None, None],
    "some, then all": [None, ["site0", "site2"], None, None],
    "some at first": [["site1", "site3"], None, ["site1", "site3"]],
}


@pytest.mark.often(
    *(f"dtype1-optimizer{at}-few rows touched-{part}" for at in (0, 1) for part in PART),
    *(f"dtype1-optimizer{at}-all rows touched-some, then all" for at in (0, 1)),
    "dtype1-optimizer2-few rows touched-all",
)
@pytest.mark.parametrize("part", PART)
@pytest.mark.parametrize("features", [9, 400], ids=["all rows touched", "few rows touched"])
@pytest.mark.parametrize("optimizer", STATEFUL)
@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64])
def test_a_batch_keeps_its_moments_as_each_client_alone(
    make_graphs: Callable[..., Any], optimizer: Any, features: int, part: str, dtype: torch.dtype
) -> None:
    graphs = make_graphs(SIZES, features, sparse=True, dtype=dtype)
    feds = [Simulation(graphs, classes=3, mode=mode) for mode in ("loop", "vmap")]
    for number, clients in enumerate(PART[part]):
        w = map_leaves(lambda leaf: leaf * (1 + 0.1 * number), start(features, dtype=dtype))  # noqa: B023
        for fed in feds:
            fed.begin(number)
            fed.map(TrainWithState(optimizer).train, {"w": w}, clients=clients)
    one, other = (fed.snapshot() for fed in feds)
    assert_trees_close(one, other, TOLERANCE[dtype])


def trained_federation(
    graphs: dict[str, Graph], rounds: Sequence[Any], optimizer: Optimizer, restore: int = -1
) -> Simulation:
    """A federation after rounds of kept training, each with the clients that take part; restored after one of them."""
    fed = Simulation(graphs, classes=3)
    for number, clients in enumerate(rounds):
        fed.begin(number)
        w = map_leaves(lambda leaf: leaf * (1 + 0.1 * number), start(400, dtype=torch.float32))  # noqa: B023
        fed.map(TrainWithState(optimizer).train, {"w": w}, clients=clients)
        if number == restore:
            saved, fed = fed.snapshot(), Simulation(graphs, classes=3)
            fed.restore(saved)
    return fed


def partly_stored(fed: Simulation) -> set[str]:
    """Paths under "optimizer" that are partly stored for some clients."""
    flat = [item for _, stack in fed.executor._states._stacks.values() for item in leaves(stack)]
    return {path for path, leaf in flat if isinstance(leaf, TouchedRows) and path.startswith("optimizer")}


SHARED = {"optimizer/m/0/weight", "optimizer/v/0/weight", "optimizer/steps"}


def test_untouched_rows_of_moments_are_stored_once_while_all_take_the_same_steps(
    make_graphs: Callable[..., Any],
) -> None:
    graphs = make_graphs(SIZES, 400, sparse=True, dtype=torch.float32)
    some = ["site0", "site2"]
    for rounds, stored_once in (
        ([None, None], SHARED),
        ([None, some], SHARED),  # two clients that took the same steps
        ([None, some, None], set()),
        ([None, some, ["site1", "site3"], None], {"optimizer/steps"}),  # as many steps, from other weights
    ):
        assert partly_stored(trained_federation(graphs, rounds, Adam())) == stored_once


@pytest.mark.parametrize("optimizer", STATEFUL[:2])
def test_a_restored_client_goes_on_to_the_same_bits(make_graphs: Callable[..., Any], optimizer: Any) -> None:
    graphs = make_graphs(SIZES, 400, sparse=True, dtype=torch.float32)
    straight, again = (trained_federation(graphs, [None] * 4, optimizer, restore=at) for at in (-1, 1))
    assert_trees_close(straight.snapshot(), again.snapshot(), 0)
    assert partly_stored(straight) == partly_stored(again) != set()


def test_moments_that_differ_where_no_feature_is_are_no_clients_rest(make_graphs: Callable[..., Any]) -> None:
    """Clients whose moments differ in rows that they do not touch, though they have taken as many steps."""
    graphs = make_graphs(SIZES, 400, sparse=True, dtype=torch.float32)
    feds = []
    for mode in ("loop", "vmap"):
        fed = Simulation(graphs, classes=3, mode=mode)
        fed.map(TrainWithState(Adam()).train, {"w": start(400, dtype=torch.float32)})
        saved = fed.snapshot()
        for p, client in enumerate(saved):
            saved[client]["optimizer"]["m"]["0"]["weight"][:] += p
        fed.restore(saved)
        fed.map(TrainWithState(Adam()).train, {"w": start(400, dtype=torch.float32)})
        feds.append(fed)
    assert_trees_close(*(fed.snapshot() for fed in feds), 2e-5)
    assert partly_stored(feds[1]) == {"optimizer/steps"}


def same_replies(one: Replies, other: Replies) -> None:
    for client in one.clients:
        assert_trees_close(one[client], other[client], 1e-12)


def test_clients_without_any_feature_train_their_other_weights(make_graphs: Callable[..., Any]) -> None:
    graphs = make_graphs([5, 9], 400, sparse=True)
    for graph in graphs.values():
        member = graph.x.blocks.members[0]
        empty = replace_fields(
            member, starts=torch.zeros_like(member.starts), columns=member.columns[:0], values=member.values[:0]
        )
        graph.x.blocks.members = (empty,)
    batch, w = Batch(graphs, Adam(), ROWS), start(400)
    for (mine, _), (expected, _) in zip(batch.run(w), batch.loop(w), strict=True):
        assert_trees_close(mine, expected, 1e-12)


def scaled(w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
    """A loss whose meaning depends on the names and shapes of what it is given."""
    plain = gcn_loss(w, graph, key, {}) * (3.0 if args.get("n") is True else 1.0)
    return plain * args["up"].sum() if "up" in args else plain / args["down"].sum()


def same_as_eager(calls: Sequence[Callable[..., Any]]) -> None:
    """Every call gives the same bits whether its steps are recorded at once or never."""
    runs, recordings = [[call() for call in calls]], Recordings("always")
    with recordings.activate():
        runs.append([call() for call in calls])
    assert recordings.played
    for eager, replayed in zip(*runs, strict=True):
        for (mine, last), (expected, loss) in zip(replayed, eager, strict=True):
            assert_trees_close(mine, expected, 0)
            assert torch.equal(last, loss)


@pytest.mark.parametrize("features", [9, 400], ids=["all rows touched", "few rows touched"])
def test_recorded_steps_give_the_same_bits_for_new_values(make_graphs: Callable[..., Any], features: int) -> None:
    batch = Batch(make_graphs([5, 9], features, sparse=True), Adam(), ROWS, penalty=True, steps=3)
    w = start(features)
    other = map_leaves(lambda leaf: leaf + 0.25, w)
    half, whole = {"mu": torch.tensor(0.5)}, {"mu": torch.tensor(1.0)}
    calls = [
        lambda w=w, a=a, mu=mu: batch.run(w, a, mu)
        for w, a, mu in ((w, other, half), (other, w, whole), (w, w, {"mu": 2.0}))
    ]  # type: ignore[misc]
    same_as_eager(calls)


TWO = torch.tensor([2.0, 3.0], dtype=torch.float64)
DIFFERENT_INPUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "names of arguments": ({"args": {"up": TWO}}, {"args": {"down": TWO}}),
    "a shared vector and each client's number": ({"args": {"up": TWO}}, {"args": {"up": TWO}, "each": "args"}),
    "shapes of weights": ({"args": {"up": TWO}}, {"w": start(6, 8), "args": {"up": TWO}}),
    "whole numbers and true": ({"args": {"up": TWO, "n": 1}}, {"args": {"up": TWO, "n": True}}),
}


@pytest.mark.parametrize("name", DIFFERENT_INPUTS)
def test_recorded_steps_tell_apart(make_graphs: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    batch = Batch(make_graphs([5, 9], sparse=True), Sgd(), ROWS, steps=3)
    monkeypatch.setattr(Batch, "loss", staticmethod(scaled))
    same_as_eager([lambda given=given: batch.run(**{"w": start(6)} | given) for given in DIFFERENT_INPUTS[name]])  # type: ignore[misc]


def part(graph: Graph, given: Tree) -> tuple[Tree, Tensor]:
    h = graph.edges.operator("gcn") @ (graph.x @ given["own"]["w"]) + given["common"]
    return {"h": h * given["n"]}, random.dropout(given["key"], h, 0.5)


@pytest.mark.parametrize("when", ["never", "always"])
def test_recorded_parts_are_the_function(make_graphs: Callable[..., Any], when: When) -> None:
    """Three calls of new values and a number that changes, against each client alone without recording."""
    recordings = Recordings(when)
    graphs = list(make_graphs([5, 9], sparse=True).values())
    both, keys = stack(padded_alike(graphs)), torch.stack([KEY, random.fold(KEY, 1)])
    dims = dims_of(both)
    for number in (2, 2, 3):
        w = random.normal(random.key(number), (2, graphs[0].x.shape[1], 4)).double()
        common = random.normal(random.key(number + 1), (4,)).double()

        def step(g: Graph, w: Tensor, key: Tensor, common: Tensor = common, n: int = number) -> tuple[Tree, Tensor]:
            return record_part(part, g, {"own": {"w": w}, "common": common, "key": key, "n": n})

        with recordings.activate():
            for _ in range(2):
                found, dropped = vmap(step, in_dims=(dims, 0, 0))(both, w, keys)
        for i, graph in enumerate(graphs):
            alone, lost = part(graph, {"own": {"w": w[i]}, "common": common, "key": keys[i], "n": number})
            rows = len(graph.y)
            assert torch.allclose(found["h"][i, :rows], alone["h"], atol=1e-12)
            assert torch.allclose(dropped[i, :rows], lost, atol=1e-12)
    assert (recordings.recorded, recordings.played) == ((2, 4) if when == "always" else (0, 0))


def test_recorded_parts_have_no_gradient(make_graphs: Callable[..., Any]) -> None:
    (graph,) = make_graphs([5]).values()
    w = torch.ones(graph.x.shape[1], 4, dtype=torch.float64, requires_grad=True)
    given = {"own": {"w": w}, "common": torch.zeros(4), "key": KEY, "n": 1}
    found, _ = record_part(part, graph, given)
    assert not found["h"].requires_grad


def test_what_a_server_computes_is_captured_for_each_graph_that_it_holds(
    make_graphs: Callable[..., dict[str, Graph]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, by = list[int](), Replays()

    def reached(given: Tree, graph: Graph) -> Tree:
        calls.append(1)
        return {"h": (graph.x @ given["weight"]).relu(), "y": graph.y}

    held, recordings = padded_alike([*make_graphs([20, 20]).values()]), Recordings("always", by)
    for at, times in ((0, 1.0), (1, 2.0), (0, 3.0), (1, 4.0)):
        given = {"weight": torch.full((6, 3), times, dtype=held[at].x.dtype)}
        with recordings.activate():
            found = compute_on_server(reached, given, held[at])
        assert torch.equal(found["h"], (held[at].x @ given["weight"]).relu())
        assert torch.equal(found["y"], held[at].y)
    assert (len(calls), by.captured) == (1, 2)
    monkeypatch.setattr(recording, "_MAX_ELEMENTS", 17)  # of 18 numbers it is not recorded
    with recordings.activate():
        compute_on_server(reached, given, held[0])
    assert len(calls) == 2

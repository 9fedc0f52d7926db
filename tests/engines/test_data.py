"""What `replace_data` promises, in both modes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import FedAvg
from fedweave.algorithms.parts import CrossEntropy
from fedweave.core.edges import Edges
from fedweave.core.federation import DATA, Client, on_client
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.graph_arrays import graph_arrays, graph_like
from fedweave.core.replies import Replies
from fedweave.core.sizes import size_class
from fedweave.core.tree import Tree, decode, encode
from fedweave.engines.simulation import MODES, Simulation
from fedweave.errors import DataError, StepFailed
from fedweave.experiment.rounds import train
from fedweave.learn import cross_entropy
from fedweave.models import MODELS
from tests.random_graphs import replace_fields
from tests.refusals import refusal

SIZES = [5, 40, 20, 70]
Make = Callable[..., Simulation]


@pytest.fixture(params=MODES)
def make(request: pytest.FixtureRequest, make_graphs: Callable[..., dict[str, Graph]]) -> Make:
    def made(sizes: Any = SIZES, *, sparse: bool = False, sensitive: bool = False, **options: Any) -> Simulation:
        graphs = make_graphs(sizes, sparse=sparse)
        if sensitive:
            graphs = {client: replace_fields(g, sensitive=torch.where(g.real, 0, -1)) for client, g in graphs.items()}
        return Simulation(graphs, **{"classes": 3, "mode": request.param} | options)

    return made


@on_client(sends={"n": "nodes", "e": "edges"})
def look(client: Client, message: Tree) -> Tree:
    ones = torch.ones(len(client.graph.y), 1, dtype=client.graph.x.dtype)
    return {"n": client.graph.real.sum(), "e": (client.graph.edges.operator("sum") @ ones).sum()}


@on_client(sends={"n": "nodes before"}, replaces_data=True)
def add_isolated_nodes(client: Client, message: Tree) -> Tree:
    x, edges, y, masks, *_ = graph_arrays(client.graph)
    more = int(message.get("nodes", 1))
    new = replace_fields(
        graph_arrays(client.graph),
        x=np.concatenate([x, np.ones((more, x.shape[1]))]),
        y=np.pad(y, (0, more), constant_values=-1),
        masks=np.pad(masks, ((0, 0), (0, more))),
        edges=edges[:, :0] if message.get("cut") else edges,
    )
    return {DATA: graph_like(client.graph, new), "n": len(y)}


WRITES: dict[str, tuple[str, Callable[[Client], Any]]] = {
    "all labels": ("graph.y", lambda client: client.graph.y.fill_(0)),
    "some": ("graph.y", lambda client: client.graph.y[1:3].mul_(2)),
    "one": ("graph.y", lambda client: client.graph.y.__setitem__(0, 1)),
    "splits": ("graph.masks", lambda client: client.graph.masks[0].logical_or_(client.graph.masks[2])),
    "groups": ("graph.sensitive", lambda client: client.graph.sensitive.add_(1)),  # type: ignore[union-attr]
    "features": ("graph.x", lambda client: client.graph.x.mul_(2)),  # type: ignore[union-attr]
    "a test set": ("test.y", lambda client: client.test.y.zero_()),  # type: ignore[union-attr]
}


@pytest.mark.parametrize("record", ["always", "never"])
@pytest.mark.parametrize("case", WRITES)
def test_a_step_that_writes_into_its_clients_data_is_refused(
    make: Make, make_graphs: Callable[..., dict[str, Graph]], case: str, record: str
) -> None:
    """The labels would stay so for all later steps, and for the evaluation."""
    name, write = WRITES[case]

    @on_client(sends={"x": "its first round"})
    def writes(client: Client, message: Tree) -> Tree:
        write(client)
        return {"x": client.graph.y.sum()}

    fed = make(sensitive=True, record=record, test=make_graphs([9])["site0"])
    fed.map(look)
    with pytest.raises(
        StepFailed, match=rf"writes changed client\.{name} of client.* 'site0'.* in place.*replaces_data"
    ):
        fed.map(writes)


def test_sparse_features_and_edges_cannot_be_written_to(make: Make) -> None:
    @on_client(sends={"x": "nothing"})
    def doubles(client: Client, message: Tree) -> Tree:
        client.graph.x.blocks.members[0].values.mul_(2)  # type: ignore[union-attr]
        return {"x": client.graph.y.sum()}

    @on_client(sends={"x": "nothing"})
    def rewires(client: Client, message: Tree) -> Tree:
        client.graph.whole_edges.members[0].index[:] = 0
        return {"x": client.graph.y.sum()}

    with pytest.raises(StepFailed, match=r"doubles changed client\.graph\.x of client.* 'site0'"):
        make(sparse=True).map(doubles)
    with refusal("step-failed", "'site0'", "read-only"):
        make().map(rewires)


def test_a_part_that_writes_into_the_labels_is_refused(make_graphs: Callable[..., dict[str, Graph]]) -> None:
    """In the loss, too, which is called from within training."""

    def objective(self: Any, outputs: Any) -> Any:
        return cross_entropy(outputs.logits, outputs.graph.y.zero_(), outputs.graph.masks[TRAIN].float())

    part = type("Relabels", (CrossEntropy,), {"objective": objective})()
    for options in ({"mode": "loop"}, {"mode": "vmap", "record": "always"}, {"mode": "vmap", "record": "never"}):
        fed = Simulation(make_graphs(SIZES), classes=3, **options)
        made = FedAvg(MODELS["gcn"](hidden=4).build(6, 3), parts=(part,))
        with refusal("step-failed", "FedAvg.train changed client.graph.y"):
            list(train(made, fed, 2))


@on_client(replaces_data=True)
def leave(client: Client, message: Tree) -> Tree:
    return {}


def nodes(replies: Replies) -> list[int]:
    return [int(reply["n"]) for reply in replies]


def edges(replies: Replies) -> list[int]:
    return [int(reply["e"]) for reply in replies]


def test_the_next_call_sees_the_new_data(make: Make) -> None:
    fed = make()
    before = edges(fed.map(look))
    assert nodes(fed.replace_data(add_isolated_nodes)) == SIZES
    assert nodes(fed.map(look)) == [6, 41, 21, 71]
    assert edges(fed.map(look)) == before
    fed.replace_data(add_isolated_nodes, {"cut": True}, clients=["site1", "site3"])
    assert nodes(fed.map(look)) == [6, 42, 21, 72]
    assert edges(fed.map(look)) == [before[0], 0, before[2], 0]


def test_each_client_gets_its_own_message_and_may_change_its_size(make: Make) -> None:
    fed = make()
    fed.map(look)
    fed.replace_data(add_isolated_nodes, each={client: {"nodes": 30 * i} for i, client in enumerate(fed.clients)})
    assert nodes(fed.map(look)) == [5, 70, 80, 160]
    assert [len(fed.graphs[client].y) for client in fed.clients] == [32, size_class(70), size_class(80), 160]


def test_only_what_is_replaced_is_kept_and_versions_count_every_call(make: Make) -> None:
    fed = make()
    assert fed.snapshot_data() == {}
    fed.replace_data(leave, clients=["site0", "site1"])
    fed.replace_data(add_isolated_nodes, clients=["site1"])
    data = fed.snapshot_data()
    assert {client: kept["version"] for client, kept in data.items()} == {"site0": 1, "site1": 2}
    assert {client: DATA in kept for client, kept in data.items()} == {"site0": False, "site1": True}


@pytest.mark.parametrize("sparse", [False, True])
def test_restoring_brings_back_replaced_data_and_what_was_loaded(make: Make, sparse: bool) -> None:
    @on_client(replaces_data=True)
    def reverse(client: Client, message: Tree) -> Tree:
        old = graph_arrays(client.graph)
        return {
            DATA: graph_like(client.graph, replace_fields(old, x=old.x[::-1], y=old.y[::-1], edges=old.edges[:, :0]))
        }

    fed, again = make(sparse=sparse), make(sparse=sparse)
    before = edges(fed.map(look))
    fed.replace_data(reverse, clients=["site2"])
    saved = decode(encode(fed.snapshot_data()))
    again.replace_data(reverse, clients=["site1", "site3"])
    assert edges(again.map(look))[1] == 0
    again.restore({}, saved)
    assert edges(again.map(look)) == [*before[:2], 0, before[3]]
    assert all(
        np.array_equal(*(made.toarray() if sparse and i == 0 else made for made in pair))
        for i, pair in enumerate(zip(*(graph_arrays(f.graphs["site2"])[:4] for f in (fed, again)), strict=True))
    )
    again.restore({})
    assert edges(again.map(look)) == before
    assert again.snapshot_data() == {}


def test_a_client_keeps_a_graph_of_its_own(make: Make) -> None:
    @on_client(replaces_data=True)
    def share(client: Client, message: Tree) -> Tree:
        client.state["y"] = client.graph.y
        return {DATA: replace_fields(client.graph, x=message["x"])}

    @on_client()
    def spoil(client: Client, message: Tree) -> Tree:
        client.state["y"].fill_(2)
        return {}

    fed, x = make(sizes=[32]), torch.ones(32, 6, dtype=torch.float64)
    y = fed.graphs["site0"].y.clone()
    fed.replace_data(share, {"x": x})
    x.fill_(5)
    fed.map(spoil)
    assert (fed.graphs["site0"].x == 1).all()  # type: ignore[union-attr]
    assert torch.equal(fed.graphs["site0"].y, y)


def test_steps_run_by_the_function_that_they_declare(make: Make) -> None:
    with refusal("step.way", "`map`", "`replace_d"):
        make().replace_data(look)
    with refusal("step.way", "client's", "`replace_data`"):
        make().map(leave)
    with pytest.raises(ValueError, match="make it two steps"):
        on_client(peers=True, replaces_data=True)


def test_other_steps_cannot_hand_over_data(make: Make) -> None:
    @on_client(sends={DATA: "all"}, ragged=True)
    def sneak(client: Client, message: Tree) -> Tree:
        return {DATA: client.graph}

    with refusal("reply-refused", "'graph'"):
        make().map(sneak)


def broken(**changes: Callable[[Graph], Any]) -> Callable[[Graph], Graph]:
    return lambda graph: replace_fields(graph, **{name: change(graph) for name, change in changes.items()})


def edge_list(*index: tuple[int, int]) -> Callable[[Graph], Graph]:
    return lambda graph: graph_like(graph, replace_fields(graph_arrays(graph), edges=np.array(index).T))


def at(name: str, index: Any, value: Any) -> Callable[[Graph], Graph]:
    def change(graph: Graph) -> Graph:
        changed = getattr(graph, name).clone()
        changed[index] = value
        return replace_fields(graph, **{name: changed})

    return change


REFUSED: dict[str, tuple[Callable[[Graph], Any], str]] = {
    "no graph": (lambda graph: graph.y, "it is a Tensor, not a Graph"),
    "arrays": (graph_arrays, "it is a GraphArrays, not a Graph"),
    "features": (broken(x=lambda g: g.x[:, 1:]), r"x is dense float64 \[32, 5\], not dense float64 \[32, 6\]"),
    "dtype": (broken(x=lambda g: g.x.float()), r"x is dense float32 \[32, 6\], not dense float64"),
    "rows": (broken(y=lambda g: g.y[:31]), r"y is dense int64 \[31\], not dense int64 \[32\]"),
    "classes of another type": (broken(y=lambda g: g.y.int()), "y is dense int32"),
    "masks": (broken(masks=lambda g: g.masks[:2]), r"masks is dense bool \[2, 32\], not dense bool \[3, 32\]"),
    "sens gone": (broken(sensitive=lambda g: None), "sensitive is absent, unlike before"),
    "real": (at("real", 3, False), "its real nodes are not the first of whole blocks"),
    "padding has features": (at("x", (31, 0), 1.0), "x does not end with 0 after its 20 real nodes"),
    "padding has labels": (at("y", 31, 0), "y does not end with -1"),
    "padding is used": (at("masks", (0, 31), True), "masks does not end with 0"),
    "infinite": (at("x", (2, 3), np.inf), "x, row 2, column 3: inf is not finite"),
    "label": (at("y", 4, 3), r"y, row 4: label 3 is not in 0\.\.2"),
    "unlabeled in a split": (at("y", 0, -1), "the split, row 0: the node has no label"),
    "two splits": (at("masks", (1, 0), True), "the split, row 0: the node is in two of train, val and test"),
    "sens": (at("sensitive", 1, -2), "sens, row 1: -2 is below 0"),
    "edge out of range": (edge_list((0, 20), (20, 0)), "edge 0 -> 20 names a node that is not in 0..19"),
    "one direction": (edge_list((0, 1)), "edge 0 -> 1 lacks its reverse"),
    "self loop": (edge_list((3, 3)), "edge 3 -> 3 is a self loop"),
    "twice": (edge_list((0, 1), (1, 0), (0, 1)), "edge 0 -> 1 is listed twice"),
    "edges of another size": (
        broken(edges=lambda g: Edges.of([type(g.edges.members[0])(g.edges.members[0].index, 64)])),
        "its edges do not belong to one client with 32 rows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_a_broken_graph_is_refused_with_client_and_fault(make: Make, fault: str) -> None:
    change, said = REFUSED[fault]

    @on_client(replaces_data=True)
    def spoil(client: Client, message: Tree) -> Tree:
        return {DATA: change(client.graph)} if int(client.graph.real.sum()) == 20 else {}

    fed = make(sensitive=True)
    with pytest.raises(DataError, match=rf"the graph that spoil made for 'site2': .*{said}"):
        fed.replace_data(spoil)
    assert nodes(fed.map(look)) == SIZES
    assert fed.snapshot_data().keys().isdisjoint({"site2"})


@pytest.mark.parametrize("sparse", [False, True])
def test_columns_come_behind_the_features_where_the_step_says_so(make: Make, sparse: bool) -> None:
    def wider(client: Client, message: Tree) -> Tree:
        own = graph_arrays(client.graph)
        x = np.hstack([own.x.toarray() if sparse else own.x, np.ones((len(own.y), 2))])
        return {DATA: graph_like(client.graph, replace_fields(own, x=x))}

    fed = make(sparse=sparse)
    with pytest.raises(DataError, match=r"\[32, 8\], not .* \[32, 6\]"):
        fed.replace_data(on_client(replaces_data=True)(wider))
    with pytest.raises(DataError, match=r"\[32, 6\], not .* \[32, 8\]"):
        fed.replace_data(on_client(replaces_data=True, columns=2)(lambda client, message: {DATA: client.graph}))
    fed.replace_data(on_client(replaces_data=True, columns=2)(wider))
    kept, again = fed.snapshot_data(), make(sparse=sparse)
    again.restore(again.snapshot(), decode(encode(kept)))
    for own in (fed, again):
        graph = own.executor.data.graphs["site2"]
        assert graph.x.shape == (32, 8)
        assert float(graph.x.sum() if not sparse else (graph.x @ torch.eye(8).double()[:, 6:]).sum()) != 0


def test_features_stay_sparse(make: Make) -> None:
    @on_client(replaces_data=True)
    def spread(client: Client, message: Tree) -> Tree:
        return {DATA: replace_fields(client.graph, x=torch.zeros(client.graph.x.shape, dtype=client.graph.x.dtype))}

    with pytest.raises(DataError, match=r"x is dense float64 \[32, 6\], not sparse float64 \[32, 6\]"):
        make(sparse=True).replace_data(spread)


def test_a_failing_step_changes_nothing(make: Make) -> None:
    @on_client(replaces_data=True)
    def fail(client: Client, message: Tree) -> Tree:
        raise ValueError("no")

    fed = make()
    with refusal("step-failed", "'site0'"):
        fed.replace_data(fail)
    assert fed.snapshot_data() == {}

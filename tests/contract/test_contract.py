"""What every registered algorithm owes its users. An algorithm is covered by being registered."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.config import own_parameters
from fedweave.contract.subject import everything
from fedweave.contract.wire import Recorder as Recorder
from fedweave.core import model as models
from fedweave.core.tree import decode, encode, map_leaves
from fedweave.engines.simulation import Simulation
from fedweave.errors import ClientsMissing, ConfigError
from fedweave.rounds import SERVER, RoundResult, train
from tests.contract.federations import (
    FEATURES,
    PEOPLE,
    SIZES,
    BytesEngine,
    algorithm,
    arrays,
    classes,
    distance,
    federation,
    global_test,
    graphs,
    model,
    people,
    places,
)

ROUNDS = 4  # steps are recorded in their second round and played from the third
SLOW = pytest.mark.slow
# Algorithms whose server does more than to average, so that one client alone is not ordinary training.
OTHER_STEPS = {
    "qfedavg": "scaled by the loss",
    "dp_fedavg": "of a clipped update with noise",
    "fedavgm": "one with momentum",
    "fedadam": "one of Adam",
    "cgsv": "a reward from normalised updates",
    "dw": "a reward from normalised updates",
    "eu": "a reward from normalised updates",
    "rffl": "a reward on top of what the client trained",
    "cffl": "a reward of what others trained",
    "graphfl": "one of Adam",
    "fedstar": "that of a part of a model of small graphs",
    "fedpub": "a mix of what clients train with masks",
    "fairgraphfl": "a reward by value",
    "fairaug": "a mean, but of training on augmented graphs",
    "fairgfl": "longer by the worst loss",
}
PLAIN = {"f2gnn": {"alpha": 0.0}}  # without further terms of the objective
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


def run(made: Any, fed: Simulation, rounds: int = ROUNDS, resume: Any = None, summary: Any = None) -> RoundResult:
    *_, last = train(made, fed, rounds, eval_every=2, resume=resume, summary=summary)
    return last


def evaluated(step: RoundResult) -> list[dict[str, Any]]:
    """The rows of an evaluation, without what the server knows after every round."""
    return [] if step.metrics is None else [row for row in step.metrics.to_pylist() if row["split"] != SERVER]


def outcome(name: str, rounds: int = ROUNDS, made: Any = None, **options: Any) -> dict[str, Any]:
    fed = federation(name=name, **options)
    return everything(run(made or algorithm(name), fed, rounds), fed)


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, str], dict[str, Any]]:
    return {}


@pytest.fixture
def specified(name: str, outcomes: dict[tuple[str, str], Any]) -> dict[str, Any]:
    """What the loop engine, the specification, gives; run once per algorithm."""
    if (name, "loop") not in outcomes:
        outcomes[name, "loop"] = outcome(name, mode="loop")
    return outcomes[name, "loop"]


@pytest.fixture
def unrecorded(name: str, outcomes: dict[tuple[str, str], Any]) -> dict[str, Any]:
    """What all clients at once give where nothing is recorded; run once per algorithm."""
    if (name, "vmap") not in outcomes:
        outcomes[name, "vmap"] = outcome(name, mode="vmap", record="never")
    return outcomes[name, "vmap"]


@every_algorithm
def test_vectorised_equals_loop(name: str, unrecorded: Any, specified: Any) -> None:
    assert distance(unrecorded, specified) <= 1e-5


@every_algorithm
@pytest.mark.parametrize(
    ("chunk", "record"),
    [(2, "always"), pytest.param(1, "always", marks=SLOW), pytest.param(3, "never", marks=SLOW)],
)
def test_vectorised_in_chunks_equals_loop(name: str, chunk: int, record: str, specified: Any) -> None:
    assert distance(outcome(name, mode="vmap", chunk=chunk, record=record), specified) <= 1e-5


@every_algorithm
def test_recorded_equals_unrecorded(name: str, unrecorded: Any, caplog: pytest.LogCaptureFixture) -> None:
    fed = federation(name=name, mode="vmap", record="always")
    assert distance(everything(run(algorithm(name), fed), fed), unrecorded) == 0
    assert fed.recordings.played
    assert not caplog.messages  # of steps that could not be recorded


@every_algorithm
def test_vectorised_equals_loop_in_double_precision(name: str) -> None:
    made = algorithm(name, **({"local_steps": 3} if "local_steps" in own_parameters(ALGORITHMS[name]) else {}))
    loop, fast = (outcome(name, made=made, mode=mode, dtype=torch.float64) for mode in ("loop", "vmap"))
    assert distance(loop, fast) <= 1e-9


@every_algorithm
@pytest.mark.parametrize("mode", [pytest.param("loop", marks=SLOW), "vmap"])
def test_order_of_clients_does_not_matter(name: str, mode: str, specified: Any) -> None:
    backwards = outcome(name, mode=mode, clients=dict(reversed(graphs(name=name).items())))
    backwards["server"] = map_leaves(_reversed, backwards["server"])
    assert distance(backwards, specified) <= 1e-5


def _reversed(leaf: Any) -> Any:
    """What the server holds for each client, in the order of clients, the other way round."""
    if not isinstance(leaf, torch.Tensor) or leaf.shape[:1] != (len(SIZES),):
        return leaf
    return leaf.flip(0, 1) if leaf.shape == (len(SIZES),) * 2 else leaf.flip(0)


@every_algorithm
def test_only_bytes_pass(name: str, specified: Any) -> None:
    assert distance(outcome(name, engine=BytesEngine), specified) <= 1e-5


@every_algorithm
def test_metered_bytes_are_the_serialised_ones(name: str) -> None:
    wired, fast = federation(engine=BytesEngine, name=name), federation(mode="vmap", name=name)
    for fed in (wired, fast):
        run(algorithm(name), fed, 3)
    for fed in (wired, fast):
        metered = {way: getattr(fed.ledger, f"bytes_{way}") for way in ("up", "down", "peer")}
        assert metered == wired.passed
        table = fed.ledger.table()
        for way, total in wired.passed.items():
            rows = [
                b for b, direction in zip(*table.select(["bytes", "direction"]), strict=True) if str(direction) == way
            ]
            assert sum(size.as_py() for size in rows) == total


@every_algorithm
def test_same_seed_same_run_other_seed_other_run(name: str) -> None:
    first, again, other = (outcome(name, rounds=3, seed=seed) for seed in (1, 1, 2))
    assert distance(first, again) == 0
    models = ({key: end[key] for key in ("server", "clients")} for end in (first, other))
    assert distance(*models) > 1e-3


@every_algorithm
def test_evaluating_more_often_changes_nothing(name: str) -> None:
    ends = []
    for eval_every in (1, 0):
        fed = federation(name=name)
        *_, last = train(algorithm(name), fed, 3, eval_every=eval_every)
        last.summary = {name: value for name, value in last.summary.items() if not name.startswith("best_")}
        ends.append(everything(last, fed))
    assert distance(*ends) == 0


@every_algorithm
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_clients_are_isolated(name: str, mode: str) -> None:
    """Other data at client 3 changes no other client's reply in the calls up to the first that differs."""
    heard = []
    for changed in (None, 3):
        fed = federation(engine=Recorder, clients=graphs(changed=changed, name=name), mode=mode)
        made = algorithm(name)
        fed.begin(0)
        state = made.init(fed)
        fed.begin(1)
        made.round(state, fed)
        if not any(
            len(reply) for reply in fed.heard[-1]
        ):  # an algorithm whose training sends nothing: look at the scores
            made.evaluate(state, fed)
        heard.append(fed.heard)
    for before, after in zip(*heard, strict=True):
        others = [client for client in before.clients if client != "site-3"]
        assert all(distance(before[client], after[client]) == 0 for client in others)
        if distance(*(map_leaves(lambda t: t.double(), r["site-3"]) for r in (before, after))) > 0:
            return
    pytest.fail("the changed client replied as before")


@every_algorithm
@pytest.mark.parametrize("mode", [pytest.param("loop", marks=SLOW), "vmap"])
def test_resumed_equals_uninterrupted(name: str, mode: str) -> None:
    made = algorithm(name)
    whole = federation(mode=mode, name=name)
    expected = everything(run(made, whole), whole)
    first = federation(mode=mode, name=name)
    half = run(made, first, ROUNDS // 2)
    saved = encode({"state": half.state, "clients": first.snapshot(), "data": first.snapshot_data()})
    second = federation(mode=mode, name=name)
    tree = decode(saved)
    second.restore(tree.get("clients", {}), tree.get("data"))
    resumed = run(made, second, ROUNDS, (ROUNDS // 2, tree.get("state", {})), half.summary)
    assert distance(everything(resumed, second), expected) == 0


@every_algorithm
def test_a_missing_client_is_named(name: str) -> None:
    fed = federation(
        absent=lambda number, client: "cable cut" if (number, client) == (2, "site-1") else None, name=name
    )
    with pytest.raises(ClientsMissing, match=r"site-1: cable cut") as caught:
        run(algorithm(name), fed, 3)
    assert caught.value.missing == {"site-1": "cable cut"}


@every_algorithm
def test_a_quorum_carries_the_round_and_the_client_rejoins(name: str) -> None:
    if "quorum" not in own_parameters(ALGORITHMS[name]):
        pytest.skip(f"{name} needs every client: each holds a part of every node")
    fed = federation(
        absent=lambda number, client: "cable cut" if (number, client) == (2, "site-1") else None, name=name
    )
    steps = list(train(algorithm(name, quorum=0.8), fed, 3))
    present = [{row["client"] for row in evaluated(step)} - {"global"} for step in steps]
    assert [len(clients) for clients in present] == [5, 4, 5]
    assert "site-1" not in present[1]


@every_algorithm
def test_unknown_hyperparameters_are_refused(name: str) -> None:
    from fedweave.config import resolve

    with pytest.raises(ConfigError) as caught:
        resolve({"data": {"name": "digits"}, "algorithm": {"name": name, "learning_rate_of_the_moon": 1}})
    names = [key for key in own_parameters(ALGORITHMS[name]) if key != "model"]
    assert all(word in str(caught.value) for word in ["learning_rate_of_the_moon", *names])


@every_algorithm
def test_more_rounds_lower_the_training_loss(name: str) -> None:
    fed, losses = federation(name=name), []
    for step in train(algorithm(name, dropout=0.0), fed, 24, eval_every=8):
        if rows := [row for row in evaluated(step) if row["client"] != "global" and row["split"] == "train"]:
            losses.append(sum(row["value"] for row in rows if row["metric"] == "loss"))
    assert all(later < earlier for earlier, later in pairwise(losses))
    assert losses[-1] < 0.995 * losses[0]


@every_algorithm
@pytest.mark.parametrize("optimizer_state", ["kept", "fresh"])
def test_one_client_is_centralised_training(name: str, optimizer_state: str) -> None:
    """With one client and one local step per round, what remains is ordinary training, written out here."""
    known = set(own_parameters(ALGORITHMS[name]))
    if not {"local_steps", "optimizer"} <= known or "batch" in known:
        pytest.skip(f"{name} has no full-batch local steps of a chosen optimiser; its own tests say what it computes")
    if name in OTHER_STEPS:
        pytest.skip(f"the server's step of {name} is {OTHER_STEPS[name]}")
    x, edges, y, masks, *sens = (people if name in PEOPLE else arrays)(SIZES[1], 1)
    from fedweave.core.graph import make_graph

    graph = make_graph(x, edges, y, masks, *sens, dtype=torch.float64)
    net = model(dropout=0.0, classes=classes(name))
    clients = {"only": graph}
    test = global_test(torch.float64, name)
    fed = Simulation(clients, classes=classes(name), test=test, places=places(clients))
    adam = {"optimizer": "adam", "lr": 0.01, "weight_decay": 5e-4, "optimizer_state": optimizer_state}
    made = ALGORITHMS[name](net, local_steps=1, **adam, **PLAIN.get(name, {}))
    begun = run(made, fed, 1)
    w, moments = held(begun, fed), fed.snapshot()["only"].get("optimizer")
    assert (moments is None) == (optimizer_state == "fresh")
    flat = [tensor.requires_grad_() for layer in w.values() for tensor in layer.values()]
    optimiser = torch.optim.Adam(flat, lr=0.01, weight_decay=5e-4)
    if moments is not None:
        for layer, tensors in w.items():
            for key, tensor in tensors.items():
                past = {"exp_avg": moments["m"][layer][key], "exp_avg_sq": moments["v"][layer][key]}
                optimiser.state[tensor] = {"step": moments["steps"].float()} | past
    ended = run(made, fed, 6, resume=(1, begun.state))
    a_hat = graph.edges.operator("gcn").blocks.members[0].scipy().toarray()
    a_hat, dense = torch.tensor(a_hat)[: len(y), : len(y)], torch.tensor(x.toarray()).double()
    for _ in range(5):
        if moments is None:
            optimiser = torch.optim.Adam(flat, lr=0.01, weight_decay=5e-4)
        optimiser.zero_grad()
        (w1, b1), (w2, b2) = flat[:2], flat[2:]
        logits = a_hat @ torch.relu(a_hat @ dense @ w1 + b1) @ w2 + b2
        torch.nn.functional.cross_entropy(logits[masks[0]], torch.tensor(y)[masks[0]]).backward()
        optimiser.step()
    assert distance(held(ended, fed), map_leaves(lambda tensor: tensor.detach(), w)) <= 1e-9
    assert models.apply(net, w, graph).shape == (64, classes(name))
    assert dense.shape[1] == FEATURES


def held(step: RoundResult, fed: Simulation) -> Any:
    """The one model: the server's, or the client's own."""
    tree = step.state if "w" in step.state else fed.snapshot()["only"]
    return {layer: {key: tensor.clone() for key, tensor in tensors.items()} for layer, tensors in tree["w"].items()}

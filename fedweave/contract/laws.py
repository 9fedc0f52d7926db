"""The laws: what holds for every algorithm, whatever it computes. A law raises `Broken` where it does not hold."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from fedweave.contract.subject import CHANGED, CLIENTS, ROUNDS, Subject, distance, everything, graphs, run
from fedweave.contract.wire import BytesEngine, Recorder
from fedweave.core.graph import TRAIN
from fedweave.core.tree import Tree, decode, encode, map_leaves
from fedweave.errors import ClientsMissing
from fedweave.rounds import SERVER, train

Law = Callable[[Subject], None]


class Broken(Exception):
    """A law does not hold; says by how much, or for whom."""


def all_clients_at_once_give_the_loops_numbers(subject: Subject) -> None:
    """Clients run together give what clients give one after the other, to 1e-9 in double precision."""
    loop, fast = (subject.outcome(mode=mode, dtype=torch.float64) for mode in ("loop", "vmap"))
    _equal(fast, loop, 1e-9, "vmap and loop")


def recorded_steps_give_the_same_bits(subject: Subject) -> None:
    """What is recorded and played again, in batches of two clients, gives the same as what is computed as written."""
    played = subject.outcome(mode="vmap", chunk=2, record="always")
    _equal(played, subject.outcome(mode="vmap", chunk=2, record="never"), 0.0, "recorded and unrecorded")


def the_order_of_clients_does_not_matter(subject: Subject) -> None:
    """Clients in the opposite order leave the same models, to 1e-5."""
    backwards = subject.outcome(clients=dict(reversed(graphs().items())))
    backwards["server"] = map_leaves(_reversed, backwards["server"])
    _equal(backwards, subject.outcome(), 1e-5, "one order and the other")


def nothing_but_bytes_passes(subject: Subject) -> None:
    """Messages, replies and private state may be written and read in between, and the ledger counts their bytes."""
    fed: Any = subject.federation(BytesEngine)
    _equal(everything(run(subject.made(), fed), fed), subject.outcome(), 1e-5, "bytes and objects")
    metered = {way: getattr(fed.ledger, f"bytes_{way}") for way in ("up", "down", "peer")}
    if metered != fed.passed:
        raise Broken(f"the ledger says {metered}, but {fed.passed} passed")


def the_same_seed_gives_the_same_run(subject: Subject) -> None:
    """A run again with the same seed leaves the same; with another seed it does not."""
    first, again, other = (subject.outcome(rounds=2, seed=seed) for seed in (1, 1, 2))
    _equal(again, first, 0.0, "a run and the same again")
    if distance(first, other) == 0:
        raise Broken("another seed gives the same run")


def evaluating_more_often_changes_nothing(subject: Subject) -> None:
    """Training does not depend on how often models are judged."""
    ends = []
    for every in (1, 0):
        fed = subject.federation()
        ends.append(everything(run(subject.made(), fed, 3, eval_every=every), fed))
    for end in ends:
        end["summary"] = {name: value for name, value in end["summary"].items() if not name.startswith("best_")}
    _equal(ends[0], ends[1], 0.0, "often and rarely evaluated")


def clients_are_isolated(subject: Subject) -> None:
    """Other data at one client changes no other client's reply in the calls up to the first that differs."""
    for mode in ("loop", "vmap"):
        heard = [_heard(subject, mode, changed) for changed in (None, CHANGED)]
        for before, after in zip(*heard, strict=True):
            for client in [client for client in before.clients if client != CHANGED]:
                if distance(before[client], after[client]) > 0:
                    raise Broken(f"{client}'s reply in mode {mode!r} depends on the data of {CHANGED}")
            if distance(before[CHANGED], after[CHANGED]) > 0:
                break
        else:
            raise Broken(f"{CHANGED} replied as before, although its data was another")


def a_resumed_run_gives_the_same(subject: Subject) -> None:
    """A run that is stopped, saved and continued elsewhere ends like one that was not."""
    whole, first, second = (subject.federation() for _ in range(3))
    expected = everything(run(subject.made(), whole), whole)
    half = run(subject.made(), first, ROUNDS // 2)
    saved = encode({"state": half.state, "clients": first.snapshot(), "data": first.snapshot_data()})
    tree = decode(saved)
    second.restore(tree.get("clients", {}), tree.get("data"))
    resumed = run(subject.made(), second, ROUNDS, (ROUNDS // 2, tree.get("state", {})), half.summary)
    _equal(everything(resumed, second), expected, 0.0, "resumed and uninterrupted")


def a_missing_client_is_named(subject: Subject) -> None:
    """A client that does not reply stops the round by name; with a quorum the round goes on without it."""
    absent: dict[str, Any] = {
        "absent": lambda number, client: "cable cut" if (number, client) == (2, CHANGED) else None
    }
    try:
        run(subject.made(), subject.federation(**absent), 3)
    except ClientsMissing as error:
        if error.missing != {CHANGED: "cable cut"}:
            raise Broken(f"it names {error.missing}") from error
    else:
        raise Broken(f"the run went on without {CHANGED}, which nobody allowed")
    if subject.takes("quorum"):
        made, fed = subject.made(quorum=(CLIENTS - 1) / CLIENTS), subject.federation(**absent)
        present = [_evaluated(step.metrics) for step in train(made, fed, 3)]
        if [CHANGED in clients for clients in present] != [True, False, True]:
            raise Broken(f"with a quorum, {CHANGED} was not left out of the second round alone")


def training_lowers_the_loss(subject: Subject) -> None:
    """The mean training loss of the clients falls over 24 rounds."""
    losses = [step.metrics for step in train(subject.made(dropout=0.0), subject.federation(), 24, eval_every=8)]
    sums = [_training_loss(metrics) for metrics in losses if metrics is not None and _evaluated(metrics)]
    if not all(later < earlier for earlier, later in pairwise(sums)):
        raise Broken(f"the losses are {', '.join(f'{value:.4f}' for value in sums)}")


def one_client_is_ordinary_training(subject: Subject) -> None:
    """With one client and one step of SGD a round, what remains is gradient descent on that client's loss."""
    if not subject.takes("local_steps", "optimizer", "lr", "weight_decay"):
        return
    steps = {"local_steps": 1, "optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0}
    clients = {"client-0": graphs(torch.float64)["client-0"]}
    made, fed = subject.made(dropout=0.0, **steps), subject.federation(clients=clients)
    begun, graph = run(made, fed, 1), clients["client-0"]
    if "w" not in begun.state:
        raise Broken("the server's state has no weights 'w'")
    w = map_leaves(lambda leaf: leaf.clone().requires_grad_(), begun.state["w"])
    operator = graph.edges.operator("gcn")
    for _ in range(3):
        h = torch.relu(operator @ (graph.x @ w["0"]["weight"]) + w["0"]["bias"])
        logits = operator @ (h @ w["1"]["weight"]) + w["1"]["bias"]
        mask = graph.masks[TRAIN]
        flat = [w[layer][name] for layer in w for name in w[layer]]
        gradients = torch.autograd.grad(torch.nn.functional.cross_entropy(logits[mask], graph.y[mask]), flat)
        for leaf, gradient in zip(flat, gradients, strict=True):
            leaf.data -= 0.1 * gradient
    ended = run(made, fed, 4, (1, begun.state))
    _equal(ended.state["w"], map_leaves(lambda leaf: leaf.detach(), w), 1e-9, "federated and ordinary training")


LAWS: dict[str, Law] = {
    law.__name__: law
    for law in (
        all_clients_at_once_give_the_loops_numbers,
        recorded_steps_give_the_same_bits,
        the_order_of_clients_does_not_matter,
        nothing_but_bytes_passes,
        the_same_seed_gives_the_same_run,
        evaluating_more_often_changes_nothing,
        clients_are_isolated,
        a_resumed_run_gives_the_same,
        a_missing_client_is_named,
        training_lowers_the_loss,
        one_client_is_ordinary_training,
    )
}


def _heard(subject: Subject, mode: str, changed: str | None) -> list[Any]:
    """The replies of the first round and its evaluation."""
    fed: Any = subject.federation(Recorder, clients=graphs(changed=changed), mode=mode)
    made = subject.made()
    fed.begin(0)
    state = made.init(fed)
    fed.begin(1)
    made.evaluate(made.round(state, fed), fed)
    return fed.heard


def _equal(found: Tree, expected: Tree, most: float, what: str) -> None:
    gap = distance(found, expected)
    if not gap <= most:
        raise Broken(f"{what} differ by {gap:.2g}, more than {most:g}")


def _reversed(leaf: Any) -> Any:
    """What the server holds for each client, in the order of clients, the other way round."""
    if not isinstance(leaf, torch.Tensor) or leaf.shape[:1] != (CLIENTS,):
        return leaf
    return leaf.flip(0, 1) if leaf.shape == (CLIENTS,) * 2 else leaf.flip(0)


def _evaluated(metrics: Any) -> set[str]:
    """The clients that an evaluation judged."""
    return {row["client"] for row in metrics.to_pylist() if row["split"] != SERVER}


def _training_loss(metrics: Any) -> float:
    rows = [row for row in metrics.to_pylist() if (row["split"], row["metric"]) == ("train", "loss")]
    return sum(row["value"] for row in rows if row["client"] != "global")

"""The laws: conformance tests that hold for every algorithm. A law raises `Broken` if it does not hold.

Runs that several laws need are made once (`Subject.run`). If an algorithm lacks the subject of a law, the law does not
hold either: the algorithm's class lists the law with a reason in `exempt_laws`.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import torch

from fedweave.algorithms.deployment import Deployable, Which
from fedweave.algorithms.parts.composition import Composition
from fedweave.algorithms.scoring import measure
from fedweave.contract.single_client import NoGcn, train_both
from fedweave.contract.subject import (
    BATCHES,
    EVERY,
    ROUNDS,
    SAVED,
    TOGETHER,
    ContractRun,
    Subject,
    distance,
    everything,
)
from fedweave.core.algorithm import Algorithm, Engine, capabilities, recording_obstacle
from fedweave.core.federation import Step, is_step, step_name
from fedweave.core.tree import Tree, decode, map_leaves
from fedweave.core.types import Record, Values
from fedweave.engines.simulation import Simulation
from fedweave.errors import ClientsMissing, ConfigError
from fedweave.experiment.rounds import SERVER, train
from fedweave.ops.recording import When

ORDINARY = "one_client_is_ordinary_training"
Law = Callable[[Subject], None]
CHANGED, ABSENT, IDLE = 3, "site-1", 2
REPEATS = 10  # the first rounds run as written and record their steps, then rounds are recorded as a whole and played


class Broken(Exception):
    """A law does not hold; the message gives the size of the difference, or the client."""


def clients_in_batches_give_the_loops_numbers(subject: Subject) -> None:
    """Clients run together give the same as clients one after the other, to 1e-5 in single precision."""
    _check_equal(subject.batch_run().final, subject.loop_run().final, 1e-5, "vmap and loop")


def all_clients_at_once_do_in_double_precision(subject: Subject) -> None:
    """The same to 1e-9 in double precision after two rounds, where clients lack half of the features: weights of absent
    features are trained once for all clients, by weight decay and the objective. If an algorithm has local steps, it
    takes three a round: at the first step a penalty on the distance from the received weights has no gradient."""
    tried = {"local_steps": 3, "weight_decay": 0.05}
    settings = {name: value for name, value in tried.items() if subject.takes(name)}
    options: Record = {"settings": settings, "halved": True, "dtype": torch.float64, "record": "never"}
    loop = subject.run(SAVED + 1, mode="loop", **options)
    vmap = subject.run(SAVED + 1, mode="vmap", **options)
    _check_equal(vmap.final, loop.final, 1e-9, "vmap and loop in double precision")


def recorded_steps_give_the_same_bits(subject: Subject) -> None:
    """Recorded and played steps give the same as steps computed as written, and every step can be recorded."""
    run = subject.replay_run()
    _check_equal(run.final, subject.batch_run().final, 0.0, "recorded and unrecorded")
    if not run.fed.recordings.played:
        raise Broken("nothing was played again")
    if run.warnings:
        raise Broken(f"some steps could not be recorded: {'; '.join(run.warnings)}")


def recorded_rounds_give_the_same_bits(subject: Subject) -> None:
    """Where the algorithm and its parts declare `recorded`, rounds and evaluations that are recorded as a whole leave
    the same bits, summaries and ledger as those that run as written. Whether Python code does the same each time, only
    its author can know; the law shows where it does not within the first `REPEATS` rounds."""
    algorithm = subject.build()
    obstacles = recording_obstacle(algorithm.round), recording_obstacle(algorithm.evaluate)
    if all(obstacles):
        return
    whole = _run_and_evaluate(subject, "always")
    written = _run_and_evaluate(subject, "never")
    what = "rounds recorded as a whole and as written"
    _check_equal(whole.final, written.final, 0.0, what)
    if whole.summaries != written.summaries:
        raise Broken(f"{what} differ in their evaluations")
    if not whole.ledger.equals(written.ledger):
        raise Broken(f"{what} differ in their ledgers")
    if not obstacles[0] and "round" not in whole.methods:
        raise Broken("it declares `recorded`, but its rounds could not be recorded as a whole")


class EvaluatedRun(NamedTuple):
    """A run in which each round is evaluated: the results of its last round, its summaries by round as texts, its
    ledger without times, and the methods that were played from recordings."""

    final: Tree
    summaries: list[dict[str, str]]
    ledger: pa.Table
    methods: frozenset[str]


def _run_and_evaluate(subject: Subject, record: When) -> EvaluatedRun:
    fed, summaries = subject.federation(Simulation, mode="vmap", record=record), list[dict[str, str]]()
    for step in train(subject.build(), fed, REPEATS, 1):
        summaries.append({name: str(value) for name, value in step.summary.items()})
    ledger = fed.ledger.table().drop_columns(["seconds", "at"])
    return EvaluatedRun(everything(step, fed), summaries, ledger, fed.whole_methods)


def the_order_of_clients_does_not_matter(subject: Subject, mode: str = "vmap") -> None:
    """Clients in the opposite order leave the same models, to 1e-5."""
    run = subject.run(backwards=True, mode=mode, record="never")
    server = map_leaves(_reverse_clients(len(run.fed.clients)), run.final["server"])
    _check_equal(run.final | {"server": server}, subject.loop_run().final, 1e-5, "one order and the other")


def nothing_but_bytes_passes(subject: Subject) -> None:
    """Messages, replies and private state may be serialized and parsed in between."""
    _check_equal(subject.bytes_run().final, subject.loop_run().final, 1e-5, "bytes and objects")


def shards_give_the_same_bits(subject: Subject) -> None:
    """Clients dealt to one executor or to three, each with its own algorithm, leave the same as batches."""
    for shards in (1, 3):
        run = subject.shard_run(shards)
        _check_equal(run.final, subject.batch_run().final, 0.0, f"{shards} executors and one")
        if not run.fed.passed:
            raise Broken("nothing passed between the executors and the engine")


def the_ledger_counts_the_bytes_that_pass(subject: Subject) -> None:
    """In every engine the ledger's totals and rows are the serialized bytes."""
    passed = subject.bytes_run().fed.passed
    for run in (subject.bytes_run(), subject.replay_run()):
        ledger = run.fed.ledger
        metered = {way: getattr(ledger, f"bytes_{way}") for way in passed}
        listed = dict.fromkeys(passed, 0)
        for row in ledger.table().select(["bytes", "direction"]).to_pylist():
            listed[row["direction"]] += row["bytes"]
        if not metered == listed == passed:
            raise Broken(f"the ledger says {metered} and lists {listed}, but {passed} passed")


def the_same_seed_gives_the_same_run(subject: Subject) -> None:
    """A run again with the same seed leaves the same; with another seed, other models."""
    first, second, other = subject.replay_run(), subject.batch_run(), subject.run(SAVED, seed=2, **TOGETHER)
    _check_equal(second.final, first.final, 0.0, "a run and the same again")
    if not distance(decode(other.saved), decode(first.saved)) > 1e-3:
        raise Broken("another seed gives the same run")


def evaluating_more_often_changes_nothing(subject: Subject) -> None:
    """Training does not depend on how often models are evaluated."""
    ends = [run.final | {"summary": _last(run)} for run in (subject.vmap_run(), subject.run(every=0, **TOGETHER))]
    _check_equal(ends[0], ends[1], 0.0, "often and rarely evaluated")


def clients_are_isolated(subject: Subject) -> None:
    """Other data at one client changes no other client's reply in the calls up to the first reply that differs."""
    changed = f"site-{CHANGED}"
    for before in (subject.loop_run(), subject.vmap_run()):
        fed = subject.federation(clients=subject.graphs(changed=CHANGED), **TOGETHER | {"mode": before.fed.mode})
        for _ in train(subject.build(), fed, ROUNDS, EVERY):
            differs = False
            for one, two in zip(before.fed.heard, fed.heard, strict=False):
                for client in one.clients:
                    if client != changed and distance(one[client], two[client]) > 0:
                        raise Broken(f"{client}'s reply in mode {fed.mode!r} depends on the data of {changed}")
                differs = changed in one.clients and distance(one[changed], two[changed]) > 0
                if differs:
                    break
            if differs:
                break
        else:
            raise Broken(f"{changed} replied as before, although its data had changed")


def a_resumed_run_gives_the_same(subject: Subject, mode: str = "vmap") -> None:
    """A run that is stopped, saved and continued elsewhere ends like an uninterrupted run."""
    whole = subject.batch_run() if mode == "vmap" else subject.loop_run()
    *_, (last, fed) = subject.resume(whole, subject.build(), **BATCHES | {"mode": mode})
    _check_equal(everything(last, fed), whole.final, 0.0, "resumed and uninterrupted")


def a_missing_client_is_named(subject: Subject) -> None:
    """A client that does not reply stops the round, and the error names it."""
    try:
        list(subject.resume(subject.vmap_run(), subject.build(), absent=_absent))
    except ClientsMissing as error:
        if error.missing != {ABSENT: "cable cut"} or f"{ABSENT}: cable cut" not in str(error):
            raise Broken(f"it names {error.missing} and says {error}") from error
    else:
        raise Broken(f"the run continued without {ABSENT}, although no quorum allows it")


def a_quorum_carries_the_round(subject: Subject) -> None:
    """With a quorum the round continues without a missing client, which joins again in the next round."""
    if not subject.takes("quorum"):
        raise Broken("it has no setting `quorum`")
    evaluated = []
    for step, fed in subject.resume(subject.vmap_run(), subject.build(quorum=0.8), every=1, absent=_absent):
        evaluated.append([client for client in fed.clients if client in _clients_of(step.metrics)])
    without_absent = [client for client in fed.clients if client != ABSENT]
    if evaluated != [without_absent, [*fed.clients]]:
        raise Broken(f"{ABSENT} was to be left out of only one round, but the evaluated clients were {evaluated}")


def a_client_without_training_examples_keeps_what_it_receives(subject: Subject) -> None:
    """Such a client does not train: its trained model, in its scores and as deployed, is one that it received before
    the round or after it, and no weight decay or pull moves it."""
    settings = {"weight_decay": 0.5} if subject.takes("weight_decay") else {}
    algorithm = subject.build(**settings)
    if not isinstance(algorithm, Deployable):  # then no client has a whole model
        return
    fed = subject.federation(clients=subject.graphs(idle=IDLE), **TOGETHER)
    client, received = f"site-{IDLE}", []
    state = algorithm.init(fed)
    for round in (1, 2):
        received.append(_model_at_client(algorithm, state, fed, "personal", client))
        fed.begin(round)
        state = algorithm.round(state, fed)
    received = [*received[1:], _model_at_client(algorithm, state, fed, "personal", client)]
    trained_model = _model_at_client(algorithm, state, fed, "trained", client)
    gap = min(distance(trained_model, model) for model in received)
    if not gap <= 1e-6:
        raise Broken(f"the trained model of {client}, which has no training examples, is {gap:.2g} off what it got")
    scores = algorithm.evaluate(state, fed).clients[client].get("trained", {})
    expected = measure(algorithm.net, trained_model, fed.graphs[client], whole=False)
    gap = distance(scores, {name: expected[name] for name in scores})
    if not gap <= 1e-4:
        raise Broken(f"the scores of {client}'s trained model are {gap:.2g} off the scores of the deployed model")


def training_lowers_the_loss(subject: Subject) -> None:
    """The sum of the clients' training losses falls over 12 rounds, by half a percent at least. If only some clients
    take part in a round, the sum may rise in between, with clients that the last rounds did not call."""
    algorithm = subject.build(dropout=0.0)
    steps = train(algorithm, subject.federation(), 12, eval_every=4)
    losses = [_training_loss(step.metrics) for step in steps if step.evaluated]
    falls = all(later < earlier for earlier, later in pairwise(losses)) or (algorithm.participation < 1)
    if not (falls and losses[-1] < 0.995 * losses[0]):
        text = ", ".join(f"{value:.4f}" for value in losses)
        raise Broken(
            f"they must fall, by half a percent at least, but are {text}; `test_settings` may set a larger step"
        )


def one_client_is_ordinary_training(subject: Subject) -> None:
    """With one client and one local step a round, training equals PyTorch's own optimizer, to 1e-9."""
    if subject.needs.graph_level or not subject.takes("local_steps", "optimizer", "lr", "weight_decay"):
        raise Broken("it has no full-batch local steps of a chosen optimizer on nodes")
    adam: Record = {"local_steps": 1, "optimizer": "adam", "lr": 0.01, "weight_decay": 5e-4}
    choices: list[Record] = [{"local_steps": 1, "optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0}]
    if subject.takes("optimizer_state"):
        for state_kind in ("kept", "fresh"):
            settings = adam | {"optimizer_state": state_kind}
            if _accepts(subject, settings):
                choices.append(settings)
    for settings in choices:
        try:
            trained, expected = train_both(subject, settings)
        except NoGcn as error:
            raise Broken(f"{error}; give the reason in exempt_laws") from error
        try:
            _check_equal(trained, expected, 1e-9, "federated and ordinary training")
        except Broken as error:
            raise Broken(f"{error}. {_why_not_ordinary(subject)}") from error


def _why_not_ordinary(subject: Subject) -> str:
    """The declaration for an intended exception, and the part that decides the server's step, if there is one."""
    algorithm = subject.build()
    owner = algorithm.composed.owner("step") if isinstance(algorithm.composed, Composition) else ""
    cause = f"its part {owner} decides the server's step" if owner else "what it does beyond ordinary training"
    return f'If that is intended, declare it in the class: exempt_laws = {{"{ORDINARY}": "{cause}"}}'


def _accepts(subject: Subject, settings: Values) -> bool:
    """Whether an algorithm accepts these optimizer settings."""
    try:
        subject.build(**settings)
    except ConfigError:
        return False
    return True


def it_runs_the_steps_that_it_declares(subject: Subject) -> None:
    """In each round a site receives the steps of `calls`, in their order; it may be left out of some."""
    run, algorithm = subject.batch_run(), subject.build()
    calls = algorithm.calls(len(run.fed.clients))
    if calls is None:
        raise Broken("it has no `calls(clients)`, without which no site can take part")
    scores = capabilities(algorithm).evaluation
    due = {0: calls.setup, 1: calls.round, EVERY: (*calls.round, *calls.evaluation)}
    for round, steps in due.items():
        _check_order(run.fed.ran.get(round, []), steps, f"in round {round}")
    undeclared = {step.__name__ for step in calls.evaluation} - {*scores}
    if undeclared:
        raise Broken(f"its evaluation has {undeclared}, which `capabilities` does not name")
    misplaced = {step.__name__ for step in (*calls.setup, *calls.round)} & {*scores}
    if misplaced:
        raise Broken(f"{misplaced} are steps of the evaluation, but are run to train")
    missing = [name for name in scores if not is_step(getattr(algorithm, name))]
    if missing:
        raise Broken(f"`capabilities` names {missing}, which are not steps")
    if capabilities(algorithm).predicts != (type(algorithm).predict is not Algorithm.predict):
        raise Broken("`capabilities.predicts` is not whether it has `predict`")
    if capabilities(algorithm).predicts:
        fed = subject.federation()
        state = algorithm.init(fed)
        fed.ran.clear()
        algorithm.predict(state, fed)
        _check_order(fed.ran[0], calls.prediction, "in prediction")


_ALL_LAWS: tuple[Law, ...] = (
    clients_in_batches_give_the_loops_numbers,
    all_clients_at_once_do_in_double_precision,
    recorded_steps_give_the_same_bits,
    recorded_rounds_give_the_same_bits,
    the_order_of_clients_does_not_matter,
    nothing_but_bytes_passes,
    shards_give_the_same_bits,
    the_ledger_counts_the_bytes_that_pass,
    the_same_seed_gives_the_same_run,
    evaluating_more_often_changes_nothing,
    clients_are_isolated,
    a_resumed_run_gives_the_same,
    a_missing_client_is_named,
    a_quorum_carries_the_round,
    a_client_without_training_examples_keeps_what_it_receives,
    it_runs_the_steps_that_it_declares,
    training_lowers_the_loss,
    one_client_is_ordinary_training,
)
LAWS: dict[str, Law] = {law.__name__: law for law in _ALL_LAWS}


def _model_at_client(algorithm: Deployable, state: Tree, fed: Engine, which: Which, client: str) -> Tree:
    """The model that is stored at a client for its owner; the clients' states do not change."""
    before, data = fed.snapshot(), fed.snapshot_data()
    algorithm.deploy(state, fed, which)
    model: Tree = fed.snapshot()[client].get("model", {})
    fed.restore(before, data)
    return model


def _check_equal(actual: Tree, expected: Tree, tolerance: float, what: str) -> None:
    gap = distance(actual, expected)
    if not gap <= tolerance:
        raise Broken(f"{what} differ by {gap:.2g}, more than {tolerance:g}")


def _check_order(ran: list[str], due: Sequence[Step], when: str) -> None:
    """Check that steps run in the declared order, and none more often; steps may be left out."""
    names = iter(step_name(step) for step in due)
    if not all(name in names for name in ran) or (due and not ran):
        raise Broken(f"{when} {ran} ran, but `calls` declares {[step_name(step) for step in due]}")


def _reverse_clients(count: int) -> Callable[[object], object]:
    """A function that reverses the server's values for each of its clients, which are in the order of clients."""

    def reverse(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor) or leaf.shape[:1] != (count,):
            return leaf
        return leaf.flip(0, 1) if leaf.shape == (count,) * 2 else leaf.flip(0)

    return reverse


def _absent(round: int, client: str) -> str | None:
    return "cable cut" if (round, client) == (SAVED + 1, ABSENT) else None


def _last(run: ContractRun) -> dict[str, float]:
    """The last evaluation, without values that depend on earlier evaluations."""
    return {name: value for name, value in run.final["summary"].items() if not name.startswith("best_")}


def _clients_of(metrics: pa.Table) -> set[str]:
    """The clients of an evaluation."""
    return {row["client"] for row in metrics.to_pylist() if row["split"] != SERVER}


def _training_loss(metrics: pa.Table) -> float:
    rows = [row for row in metrics.to_pylist() if (row["split"], row["metric"]) == ("train", "loss")]
    result: float = sum(row["value"] for row in rows if row["client"] != "global")
    return result

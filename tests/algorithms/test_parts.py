"""What parts may do, on parts made up here."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedweave.algorithms import ALGORITHMS, PARTS, FedAvg
from fedweave.algorithms.parts import (
    BySize,
    Clip,
    Context,
    MixedStart,
    Needs,
    Outputs,
    Part,
    Round,
    TrainedModel,
    Uniform,
)
from fedweave.algorithms.parts.conflicts import EXAMPLES
from fedweave.algorithms.parts.part import has
from fedweave.algorithms.preset import Preset, preset_of
from fedweave.core import model as models
from fedweave.core.graph import Graph
from fedweave.core.tree import Tree, leaves, map_leaves, ravel, squared_distance
from fedweave.engines.simulation import Simulation
from fedweave.errors import ConfigError, StepFailed
from fedweave.experiment.rounds import train
from fedweave.reports.listing import meanings
from tests.contract.federations import CLASSES, algorithm, distance, federation, graphs, model
from tests.random_graphs import replace_fields
from tests.refusals import refusal

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.5, "weight_decay": 0.0}


def after(algorithm: FedAvg, rounds: int = 3, **options: Any) -> tuple[Tree, Any]:
    """The server's state and the federation after some rounds."""
    fed = federation(dtype=torch.float64, **options)
    *_, last = train(algorithm, fed, rounds)
    return last.state, fed


@dataclass(frozen=True)
class Mix(Part):
    """Personal models mixed by a fixed matrix."""

    matrix: tuple[tuple[float, ...], ...]
    needs: ClassVar[Needs] = Needs(models=("personal",))

    def weigh(self, state: Tree, round: Round) -> Tensor:
        return torch.tensor(self.matrix, dtype=torch.float64)[round.at][:, round.at]


def rows(*groups: tuple[int, ...]) -> tuple[tuple[float, ...], ...]:
    """Means within groups of the five clients."""
    own = {i: group for group in groups for i in group}
    return tuple(tuple(1 / len(own[i]) if j in own[i] else 0.0 for j in range(5)) for i in range(5))


def test_clients_are_judged_by_what_their_training_left() -> None:
    """The federation learns as without the part; "local" is then "trained", the global test a mean over clients."""
    rounds = 2
    plain, apart = (
        [*train(FedAvg(model(), parts=parts, **SGD), federation(dtype=torch.float64), rounds)]
        for parts in ((), (TrainedModel(),))
    )
    for one, other in zip(plain, apart, strict=True):
        assert distance(one.state["w"], other.state["w"]) == 0
        assert other.summary["local/accuracy"] == one.summary["trained/accuracy"]
        assert other.summary["local/loss"] != one.summary["local/loss"]
    fed = federation(dtype=torch.float64)
    [*_] = train(FedAvg(model(), parts=(TrainedModel(),), **SGD), fed, rounds)
    losses = []
    for state in fed.snapshot().values():
        logits = models.apply(model(), state["w"], fed.test)
        tested = fed.test.masks[2]
        losses.append(float(torch.nn.functional.cross_entropy(logits[tested], fed.test.y[tested])))
    assert apart[-1].summary["global/loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-6)


def test_a_matrix_of_equal_weights_is_the_plain_mean() -> None:
    mixed, _ = after(FedAvg(model(), parts=(Mix(rows(tuple(range(5)))),), **SGD))
    plain, _ = after(FedAvg(model(), parts=(Uniform(),), **SGD))
    for at in range(5):
        own = map_leaves(lambda leaf, at=at: leaf[at], mixed["own"])
        assert distance(own, plain["w"]) <= 1e-12


def test_a_diagonal_matrix_is_training_alone() -> None:
    mixed, fed = after(FedAvg(model(0.0), parts=(Mix(rows(*((i,) for i in range(5)))),), **SGD))
    for at, state in enumerate(fed.snapshot().values()):
        assert distance(map_leaves(lambda leaf, at=at: leaf[at], mixed["own"]), state["w"]) <= 1e-12


def test_clusters_learn_apart() -> None:
    """What a cluster holds depends on its own clients alone."""
    both, _ = after(FedAvg(model(0.0), parts=(Mix(rows((0, 1, 2), (3, 4))),), **SGD))
    other, _ = after(FedAvg(model(0.0), parts=(Mix(rows((0, 1, 2), (3,), (4,))),), **SGD))
    first, second = (ravel(map_leaves(lambda leaf: leaf[:3], s["own"])) for s in (both, other))
    assert (first - second).abs().max() <= 1e-12
    assert distance(*(map_leaves(lambda leaf: leaf[4], s["own"]) for s in (both, other))) > 1e-3


@pytest.mark.often("fedpub")
@pytest.mark.parametrize("name", ["fedprox", "fedpub"])
def test_a_pull_that_one_local_step_leaves_without_a_gradient_is_told(name: str) -> None:
    """The gradient of ‖w − w_t‖, squared or not, is 0 at w_t, where training starts, so its strength is all the same
    after one step; not after two, nor where training starts elsewhere."""
    strength, part = {"fedprox": ("mu", "proximal"), "fedpub": ("pull", "sparse_masks")}[name]

    def end(value: float, **more: Any) -> tuple[Tree, list[str]]:
        made = ALGORITHMS[name](model(), optimizer="sgd", lr=0.5, **{strength: value}, **more)
        *_, last = train(made, federation(dtype=torch.float64), 3)
        return {key: last.state[key] for key in ("w", "own") if key in last.state}, made.notes

    (weak, told), (strong, _) = (end(value, local_steps=1) for value in (0.0, 10.0))
    assert distance(weak, strong) == 0
    assert [note.partition(" training")[0] for note in told] == [f"{part}: with local_steps = 1"]
    (weak, told), (strong, _) = (end(value, local_steps=2) for value in (0.0, 10.0))
    assert distance(weak, strong) > 1e-3
    assert not told
    if name == "fedprox":
        elsewhere = {"local_steps": 1, "parts": (MixedStart(0.5),)}
        assert distance(end(0.0, **elsewhere)[0], end(10.0, **elsewhere)[0]) > 1e-3
        assert not end(0.0, **elsewhere)[1]


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("pfedme", {"optimizer": "adam", "lr": 0.01}, "moreau_envelope is made for steps of sgd"),
        ("pfedme", {"lam": 15.0, "outer_lr": 0.05, "lr": 0.2}, "along a pull of strength 15"),
        ("ditto", {"optimizer": "sgd", "lr": 1.0, "lam": 2.5}, "along a pull of strength 2.5"),
        ("fedprox", {"optimizer": "sgd", "lr": 1.0, "mu": 3.0}, "along a pull of strength 3"),
        ("fednova", {"lr": 1.0, "mu": 3.0}, "along a pull of strength 3"),
        ("feddyn", {"lr": 1.0, "alpha": 3.0}, "along a pull of strength 3"),
    ],
)
def test_settings_that_a_part_cannot_live_with_are_noted(name: str, options: dict[str, Any], told: str) -> None:
    """Of steps too long for a pull, and of another optimizer than the part is made for; presets' own have no note."""
    assert [told in note for note in ALGORITHMS[name](model(), local_steps=2, **options).notes] == [True]
    assert not ALGORITHMS[name](model(), local_steps=2).notes


def test_clients_that_were_not_sampled_keep_their_weights() -> None:
    algorithm = FedAvg(model(), participation=0.4, parts=(Mix(rows((0, 1, 2, 3, 4))),), **SGD)
    fed = federation(dtype=torch.float64)
    fed.begin(0)
    before = algorithm.init(fed)
    fed.begin(1)
    own = algorithm.round(before, fed)["own"]
    moved = [distance(*(map_leaves(lambda leaf, at=at: leaf[at], t) for t in (own, before["own"]))) for at in range(5)]
    assert sum(move > 0 for move in moved) == 2


def test_only_shared_leaves_cross_and_the_others_stay_the_clients_own() -> None:
    state, fed = after(FedAvg(model(0.0), share=("0/*",), parts=(Uniform(),), **SGD), rounds=1)
    assert {path.split("/")[0] for path, _ in leaves(state["w"])} == {"0"}
    table = fed.ledger.table().to_pylist()
    crossed = {row["key"] for row in table if row["key"].startswith(("w/", "update/"))}
    assert crossed
    assert all(key.split("/")[1] == "0" for key in crossed)
    own = [client["w"] for client in fed.snapshot().values()]
    assert distance(own[0]["1"], own[1]["1"]) > 1e-3
    mean = map_leaves(lambda *parts: torch.stack(parts).mean(0), own[0], *own[1:])
    assert distance(state["w"], {"0": mean["0"]}) <= 1e-12


@dataclass(frozen=True)
class Shift(Part):
    """Every client gets a number of its own and starts that much off."""

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        return {"scale": torch.tensor(0.1, dtype=torch.float64)}, {"by": at.double()}

    def start(self, ctx: Context) -> Tree:
        return map_leaves(lambda w: w + ctx.downloaded["scale"] * ctx.downloaded["by"], ctx.received)

    def report(self, ctx: Context) -> Tree:
        ctx.keep({"by": ctx.downloaded["by"], "calls": ctx.memory.get("calls", torch.tensor(0)) + 1})
        return {}


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_what_differs_between_clients_reaches_each(mode: str) -> None:
    _, fed = after(FedAvg(model(0.0), parts=(Shift(),), **SGD), mode=mode)
    memory = [client["Shift"] for client in fed.snapshot().values()]
    assert [float(m["by"]) for m in memory] == [0, 1, 2, 3, 4]
    assert all(int(m["calls"]) == 3 for m in memory)


def test_stacked_downloads_give_the_same_in_both_modes() -> None:
    ends = [after(FedAvg(model(), parts=(Shift(),)), mode=mode, chunk=chunk) for mode, chunk in
            (("loop", 0), ("vmap", 0), ("vmap", 2))]  # fmt: skip
    for state, fed in ends[1:]:
        assert distance(state, ends[0][0]) <= 1e-9
        assert distance(fed.snapshot(), ends[0][1].snapshot()) <= 1e-9


@pytest.mark.parametrize(
    ("both", "what"),
    [
        ((BySize(), Uniform()), "by_size and uniform both decide how updates count"),
        ((MixedStart(), Shift()), "mixed_start and Shift both decide where training starts"),
        (
            (Uniform(), Uniform()),
            "uniform is there 2 times, with what the algorithm has by itself, and decides how updates",
        ),
    ],
)
def test_two_parts_that_decide_the_same_are_refused_by_name(both: tuple[Part, ...], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        FedAvg(model(), parts=both)


@dataclass(frozen=True)
class Odd(Part):
    sends: ClassVar = {"n": "number of neighbors"}

    def report(self, ctx: Context) -> Tree:
        return {"n": ctx.examples}


def test_two_meanings_of_one_key_are_refused() -> None:
    with pytest.raises(ValueError, match="by_size and Odd both report 'n' with other meanings"):
        FedAvg(model(), parts=(BySize(), Odd()))


@dataclass(frozen=True)
class Bare(Part):
    sends: ClassVar = {"count": "number of training examples"}

    def report(self, ctx: Context) -> Any:
        return ctx.examples


@pytest.mark.parametrize(
    ("method", "meant"),
    [
        ("weight", "weigh"),
        ("count", "counts"),
        ("warn", "warns"),
        ("attack", "attacks"),
        ("more_score", "more_scores"),
        ("min_example", "min_examples"),
        ("tell_peer", "tell_peers"),
        ("trains", "train"),
        ("change", "changes"),
    ],
)
def test_a_method_that_nothing_calls_is_refused_with_the_hook_that_was_meant(method: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"nothing calls Slip\.{method}; did you mean {meant}\?"):
        FedAvg(model(), parts=(slip(method, scalars),))


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_a_report_that_is_no_tree_is_refused_by_the_parts_name(mode: str) -> None:
    with refusal("step-failed", "Bare.report:", "{key: tensor}"):
        after(FedAvg(model(), parts=(Bare(),)), 1, mode=mode)


def test_parts_of_a_preset_are_a_tuple() -> None:
    @dataclass(frozen=True)
    class Paper:
        def parts(self) -> Any:
            return Uniform()

    with pytest.raises(
        TypeError, match=r"Paper\.parts: is to give a tuple of parts, such as \(Part\(\),\); it gives Uniform"
    ):
        Preset(Paper)(model())


def test_a_part_that_needs_another_is_refused_without_it() -> None:
    said = "sparse_reward needs another part that decides what an update is worth; add one, such as cosine_value"
    with pytest.raises(ValueError, match=said):
        FedAvg(model(), parts=(PARTS["sparse_reward"](),))
    for hook, named in EXAMPLES.items():
        for name in named:
            assert has(PARTS[name](), hook)


def test_a_server_step_needs_one_model() -> None:
    with pytest.raises(ValueError, match="server_momentum makes one global step"):
        ALGORITHMS["fedavgm"](model(), parts=(Mix(rows((0, 1, 2, 3, 4))),))


def test_releases_follow_each_other_in_order() -> None:
    """Clipped to 1 and then to 0.1 is clipped to 0.1, and the ledger says both."""
    state, fed = after(FedAvg(model(), parts=(Clip(1.0), Clip(0.1))), rounds=1)
    start = FedAvg(model()).init(federation(dtype=torch.float64))["w"]
    moved = float((ravel(state["w"]) - ravel(start)).norm())
    assert 0 < moved <= 0.1 + 1e-9
    words = {row["mechanism"] for row in fed.ledger.table().to_pylist() if row["key"].startswith("update/")}
    assert all("1" in word and "0.1" in word for word in words)


def test_a_preset_takes_its_papers_fields_and_fedavgs() -> None:
    made = ALGORITHMS["qfedavg"](model(), q=2.0, lr=0.25, local_steps=7)
    assert (made.lr, made.local_steps, made.optimizer) == (0.25, 7, "sgd")
    assert made.composed["FairByLoss"].lipschitz == 4.0
    with pytest.raises(TypeError, match="momentum"):
        ALGORITHMS["qfedavg"](model(), momentum=0.9)


@dataclass(frozen=True)
class Pulled(Part):
    """A penalty with a strength of each client's own."""

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        return {}, {"mu": 0.1 + at.double()}

    def penalty(self, w: Tree, received: Tree, given: Tree) -> Tensor:
        return 0.5 * given["mu"] * squared_distance(w, received)

    def objective(self, outputs: Outputs) -> Tensor:
        return 0.1 * outputs.inputs["mu"] * sum((leaf**2).sum() for _, leaf in leaves(outputs.w))


@pytest.mark.often("ditto")
@pytest.mark.parametrize("name", ["ditto", "gcfl_plus", "graphfl"])
def test_further_training_finds_what_each_client_was_sent(name: str) -> None:
    ends = []
    for mode in ("loop", "vmap"):
        made = ALGORITHMS[name](model(0.0), parts=(Pulled(),))
        _, fed = after(made, rounds=2, mode=mode)
        ends.append(fed.snapshot())
    assert distance(*ends) <= 1e-12


@dataclass(frozen=True)
class Weighing(Part):
    """Updates count by a number made up here."""

    made: Any

    def weigh(self, state: Tree, round: Round) -> Any:
        return self.made(len(round.at))


def test_weights_that_are_none_are_refused_and_more_than_a_mean_is_noted_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for made in (lambda n: [1 / n] * n, lambda n: torch.ones(n - 1), lambda n: torch.full((n,), torch.nan)):
        with refusal("config.weighing", "Weighing.weigh:"):
            after(FedAvg(model(), parts=(Weighing(made),)), rounds=1)
    sizes = iter((0.5, 0.6, 0.7))  # another sum in every round
    after(FedAvg(model(), parts=(Weighing(lambda n: torch.full((n,), next(sizes), dtype=torch.float64)),)))
    [note] = [record.getMessage() for record in caplog.records]
    assert re.search(r"Weighing\.weigh.* 2\.5", note)


@dataclass(frozen=True)
class Stepping(Part):
    """The server's step as made up here."""

    made: Any

    def step(self, state: Tree, w: Tree, delta: Tree) -> Any:
        return self.made(w)


def test_a_step_that_gives_something_else_is_refused_by_name() -> None:
    for made in (lambda w: w, lambda w: (w, None), lambda w: (w, w, w)):
        with refusal("config.step", "Stepping.step:"):
            after(FedAvg(model(), parts=(Stepping(made),)), rounds=1)
    for made in (lambda w: ({}, {}), lambda w: (map_leaves(lambda leaf: leaf[:1], w), {})):
        with refusal("config.step", "Stepping.step:"):
            after(FedAvg(model(), parts=(Stepping(made),)), rounds=1)


def slip(hook: str, made: Callable[..., Any], **declared: Any) -> Part:
    """A part `Slip` whose one hook gives what `made` makes of the hook's arguments."""
    return type("Slip", (Part,), {hook: lambda self, *given: made(*given), **declared})()


def scalars(state: Tree, round: Round) -> Tree:
    return map_leaves(lambda leaf: leaf.mean(), round.weighted())


def single(state: Tree, round: Round) -> Tree:
    return map_leaves(lambda leaf: leaf.float(), round.weighted())


@pytest.mark.parametrize(
    ("hook", "made", "what"),
    [
        ("aggregate", lambda *_: None, "the joint update, a tree; what it gives is a NoneType"),
        ("aggregate", lambda *_: {}, "the joint update, with the leaves of the weights; '0/"),
        ("aggregate", scalars, r"the joint update, .*; '0/\w+' is a tensor of shape \[\], not a tensor of shape"),
        ("aggregate", single, r"the joint update, .*; '0/\w+' is float32, not float64"),
        ("aggregate", lambda s, r: r.weighted() | {"2": torch.ones(1)}, "the joint update, .*; '2' is not among"),
        ("value", lambda *_: None, "a tensor of 5 numbers, one of each client that replied; it gives None"),
        ("value", lambda *_: torch.ones(2), r"a tensor of 5 numbers, .*; it gives a tensor of shape \[2\]"),
        ("limit", lambda *_: None, "a tensor of 5 numbers, one of each client that replied; it gives None"),
        ("limit", lambda *_: [1.0] * 5, "a tensor of 5 numbers, one of each client that replied; it gives a list"),
        *((hook, lambda *_: None, "the part's state, a tree; what it gives is a NoneType")
          for hook in ("init", "observe", "update")),
        *((hook, lambda *_: {"a": [1, 2]}, "the part's state, a tree; what it gives holds a list at 'a'")
          for hook in ("init", "observe", "update")),
        ("download", lambda *_: None, r"2 trees, what all clients get and what each does .*; it gives None"),
        ("download", lambda *_: ([], {}), "what all clients get, a tree; what it gives is a list"),
        ("download", lambda *_: ({}, {"e": torch.ones(2)}), r"each .* leaves \[5, …\]; 'e' is a tensor of shape \[2\]"),
        ("measures", lambda *_: {"a": torch.ones(2)}, "a tensor of 5 numbers, one of each client as 'a'; .* shape .2"),
        ("measures", lambda *_: None, "{name: a number of each client}; it gives None"),
        ("step", lambda s, w, d: (w, {"a": [1]}), "the part's state, a tree; what it gives holds a list at 'a'"),
    ],
)  # fmt: skip
def test_what_a_hook_of_the_server_gives_is_refused_by_name(hook: str, made: Callable[..., Any], what: str) -> None:
    with pytest.raises(ConfigError, match=rf"^Slip\.{hook}: is to give {what}"):
        after(FedAvg(model(), parts=(slip(hook, made),)), rounds=1)


class Rewards(Part):
    """Gives clients what are not weights."""

    def download(self, state: Tree, at: Tensor) -> Any:
        return {}, {}, None

    def receive(self, ctx: Context) -> Tree:
        return ctx.first


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (Rewards.download, "what each client gets, a tree; what it gives is a NoneType"),
        (lambda *_: ({}, {}), "3 trees, .* what each gets instead of the global weights; it gives a tuple"),
    ],
)
def test_what_clients_get_instead_of_weights_is_refused_by_name(made: Callable[..., Any], what: str) -> None:
    part = type("Slip", (Rewards,), {"download": made})()
    with pytest.raises(ConfigError, match=rf"^Slip\.download: is to give {what}"):
        after(FedAvg(model(), parts=(part,)), rounds=1)


@pytest.mark.parametrize("mode", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("made", "what"),
    [
        (lambda ctx, update: None, "the update, a tree; what it gives is a NoneType"),
        (lambda ctx, update: {"0": update["0"]}, r"the update, .*; '1/\w+' is missing"),
        (
            lambda ctx, update: map_leaves(lambda leaf: leaf.reshape(-1), update),
            r"the update, .*; '0/\w+' is a tensor of shape \[\d+\], not a tensor of shape \[\d+, \d+\]",
        ),
    ],
)
def test_an_update_of_another_form_is_refused_by_name(mode: str, made: Callable[..., Any], what: str) -> None:
    with pytest.raises(StepFailed, match=rf"on client 'site-0'.*: Slip\.release: is to give {what}"):
        after(FedAvg(model(), parts=(slip("release", made),)), rounds=1, mode=mode)


def apart(logits: Tensor, graph: Graph) -> Tensor:
    return torch.nn.functional.cross_entropy(logits, graph.y.clamp(min=0), reduction="none")


@pytest.mark.parametrize("mode", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("hook", "made", "gives"),
    [
        ("objective", lambda outputs: apart(outputs.logits, outputs.graph), r"a tensor of shape \[32\]\. Add it up"),
        (
            "objective",
            lambda seen: apart(models.apply(seen.model, seen.w, seen.graph), seen.graph)[:, None],
            r"a tensor of shape \[32, 1\]\. Add it up \(\.sum\(\)\), or take the mean over the training examples",
        ),
        (
            "penalty",
            lambda w, received, given: w["0"]["weight"] - received["0"]["weight"],
            r"a tensor of shape \[60, 8\]",
        ),
        ("penalty", lambda w, received, given: w["0"]["bias"] ** 2, r"a tensor of shape \[8\]"),
        ("penalty", lambda w, received, given: None, "None$"),
    ],
)
def test_a_term_of_the_loss_that_is_no_scalar_is_refused_by_name(
    mode: str, hook: str, made: Callable[..., Any], gives: str
) -> None:
    """A batch of clients would train on its sum over all nodes, padding included."""
    with pytest.raises(
        StepFailed, match=rf"Slip\.{hook}: is to give a term of the training loss, .*; it gives {gives}"
    ):
        after(FedAvg(model(), parts=(slip(hook, made),)), rounds=1, mode=mode)


@dataclass(frozen=True)
class Told(Part):
    """Tells what the server hears in a round."""

    tell: Callable[[Round], None]

    def update(self, state: Tree, round: Round) -> Tree:
        self.tell(round)
        return state


@pytest.mark.parametrize("name", ["fedavg", "eu"])
def test_a_client_without_training_examples_brings_nothing(name: str) -> None:
    """Weight decay alone would be full steps of Adam; and 0 is near a short joint update, for which `eu` pays."""
    own = dict(list(graphs(torch.float64).items())[:3])
    empty = list(own)[1]
    own[empty] = replace_fields(own[empty], masks=torch.zeros_like(own[empty].masks))
    heard: list[Round] = []
    options = {"optimizer": "adam", "lr": 0.01, "weight_decay": 5e-4}
    made = algorithm(name, **options)
    parts = (Uniform(),) if name == "fedavg" else made.parts
    *_, last = train(
        replace(made, parts=(*parts, Told(heard.append))), Simulation(own, classes=CLASSES), 3, eval_every=0
    )
    norms = heard[-1].updates.norm(dim=1)
    assert norms[1] == 0
    assert all(norms[[0, 2]] > 0)
    if name == "eu":
        values = last.state["parts"]["EuclideanValue"]["r"]
        assert values.argmin() == 1


@dataclass(frozen=True)
class Small(Part):
    """A term on logits and embeddings.

    size: how strong it is.
    """

    size: float = 0.1
    passes: ClassVar[list[int]] = []

    def objective(self, outputs: Outputs) -> Tensor:
        self.passes.append(id(outputs.forward.layers))
        assert outputs.embeddings[-1] is outputs.logits
        return self.size * (outputs.logits.square().mean() + outputs.embedding.square().mean())


def test_all_terms_read_one_forward_pass() -> None:
    Small.passes.clear()
    made = FedAvg(model(0.0), parts=(Small(), Small(0.2)), local_steps=1)
    after(made, rounds=1, mode="loop")
    one, other = Small.passes[::2], Small.passes[1::2]
    assert one == other


def test_a_preset_takes_fields_defaults_and_meanings_from_its_parts() -> None:
    @preset_of(Small, Clip, without=("norm",))
    class Paper:
        """A paper.

        lr: its pace.
        """

        lr: float = 0.25

    made = Paper(model(), size=0.7)
    assert (made.lr, made.composed["Small"], made.composed["Clip"]) == (0.25, Small(0.7), Clip())
    assert list(Paper.fields)[:3] == ["model", "size", "lr"]
    assert not {"norm"} & set(Paper.fields)
    told = meanings(Paper)
    assert (told["size"], told["lr"]) == ("how strong it is.", "its pace.")
    with pytest.raises(TypeError, match="norm"):
        Paper(model(), norm=2.0)

"""The part secure_sum of the FedAvg family: the mean of plain FedAvg, in words; what it cannot go with."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedweave.algorithms import ALGORITHMS, PARTS, FedAvg
from fedweave.algorithms.parts import Clip, Context, Drift, MemberNoise, MixedStart, Part, SecureSum, Uniform
from fedweave.core import random
from fedweave.core.federation import Client
from fedweave.core.graph import TRAIN
from fedweave.core.mechanism import Clipped, PrivacyAccount, read_applied
from fedweave.core.mechanism import SecureSum as Applied
from fedweave.core.tree import leaves, map_leaves, nest, ravel
from fedweave.errors import FedweaveError
from fedweave.experiment.rounds import train
from fedweave.privacy.accountant import bounds
from fedweave.privacy.secure_sum import BEYOND
from fedweave.reports.notes import notes
from tests.contract.federations import distance, federation, model
from tests.refusals import refusal

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.5, "weight_decay": 0.0, "local_steps": 1}


def after(*parts: Any, rounds: int = 3, dtype: torch.dtype = torch.float64, **options: Any) -> tuple[Any, Any]:
    fed = federation(dtype=dtype, **options)
    *_, last = train(FedAvg(model(), parts=parts, **SGD), fed, rounds)
    return last.state, fed


@pytest.mark.often("part1-plain1-1e-13")
@pytest.mark.parametrize(
    ("part", "plain", "gap"),
    [
        (SecureSum(fraction=28), (), 3e-8),
        (SecureSum(bits=64, fraction=48), (), 1e-13),
        (SecureSum(weights="equal", bits=64, fraction=48), (Uniform(),), 1e-13),
    ],
)
def test_the_mean_is_that_of_fedavg(part: SecureSum, plain: Any, gap: float) -> None:
    """Up to a half word of each of five clients in each of three rounds, of weights that depend on the ones before."""
    secure, _ = after(part)
    assert 0 < distance(secure["w"], after(*plain)[0]["w"]) < gap


@pytest.mark.slow
def test_loop_and_vectorized_add_up_the_same_words() -> None:
    assert distance(after(SecureSum(), mode="loop")[0]["w"], after(SecureSum(), mode="vmap")[0]["w"]) == 0


def test_those_who_replied_make_up_the_mean() -> None:
    """Of four of five clients, without one that counts much; two are fewer than half."""
    away = {"absent": lambda round, client: "away" if round == 2 and client == "site-3" else None}
    exact = SecureSum(bits=64, fraction=48, require_all=False, accomplices=0)
    fed, other = federation(dtype=torch.float64, **away), federation(dtype=torch.float64, **away)
    options = SGD | {"quorum": 0.5}
    *_, secure = train(FedAvg(model(), parts=(exact,), **options), fed, 3)
    *_, plain = train(FedAvg(model(), **options), other, 3)
    assert distance(secure.state["w"], plain.state["w"]) < 1e-13
    few = federation(absent=lambda round, client: "away" if round == 2 and client > "site-1" else None)
    with refusal("clients-missing", "3 are needed"):
        list(train(FedAvg(model(), parts=(exact,), **options | {"quorum": 0.1}), few, 3))


@pytest.mark.parametrize("mode", ["loop", "vmap"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_client_that_diverged_is_named_and_hides_in_no_sum(mode: str, value: float) -> None:
    """As a word it would be one like any other, and move every weight by up to the bound."""

    examples = {name: int(graph.masks[TRAIN].sum()) for name, graph in federation().graphs.items()}
    most = max(examples, key=examples.__getitem__)
    assert list(examples.values()).count(examples[most]) == 1

    class Diverging(Part):
        """The update of the client with most examples is not finite."""

        def release(self, ctx: Context, update: Any) -> Any:
            return map_leaves(lambda leaf: torch.where(ctx.examples == examples[most], value, leaf), update)

    with pytest.raises(FedweaveError, match=f"training diverged: update.* of '{most}' holds numbers that are not fin"):
        after(Diverging(), SecureSum(), mode=mode)


def test_what_leaves_is_declared_and_is_words() -> None:
    _, fed = after(Clip(0.5), SecureSum(), rounds=1)
    sent = [row for row in fed.ledger.table().to_pylist() if row["applied"]]
    assert {row["step"] for row in sent} == {"SecureSum.count", "FedAvg.train"}
    said = {row["key"].split("/")[0]: read_applied(row["applied"]) for row in sent}
    assert said["update"].mechanisms == (Clipped(0.5), Applied(everyone=True, fraction=24))
    assert said["n"].mechanisms == (Applied(everyone=True, bits=64, fraction=0),)
    assert all(row["reveals"].startswith("nothing by itself; with the others' the ") for row in sent)
    assert {row["shape"].split()[-1] for row in sent} == {"int32", "int64"}
    plain = {path: leaf.numel() for path, leaf in leaves(after(rounds=1)[0]["w"])}
    assert sum(row["bytes"] for row in sent if row["key"].startswith("update")) == 5 * 4 * sum(plain.values())


@pytest.mark.parametrize("name", sorted({"krum", "median", "trimmed_mean", "fair_by_loss", "cosine_value", "size_value",
                                         "euclidean_value", "reputation", "credibility", "clusters", "pareto_descent",
                                         "overlap_weights", "group_weights", "norm_bound"} & PARTS.keys()))  # fmt: skip
def test_what_reads_single_updates_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=rf"parts: .*({name}.*secure_sum|secure_sum.*{name})"):
        FedAvg(model(), parts=(SecureSum(), PARTS[name]()))


@pytest.mark.parametrize("name", ["qfedavg", "cgsv", "fairfed", "fcfl", "fedpub", "rffl"])
def test_algorithms_that_read_single_updates_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"parts: .*secure_sum.* is a part of {name} itself"):
        ALGORITHMS[name](model(), parts=(SecureSum(),))


class Remembering(Part):
    """Keeps something at clients."""

    def report(self, ctx: Context) -> Any:
        ctx.keep({"calls": ctx.memory.get("calls", 0) + 1})
        return {}


@pytest.mark.parametrize(
    ("settings", "parts", "said"),
    [
        ({}, (), r"optimizer_state = 'kept' \(take 'fresh'\) uses earlier ones; change that, or set require_all"),
        ({"optimizer": "sgd", "share": ("0/*",)}, (), r"what clients keep of their own model \(share"),
        (SGD, (MixedStart(0.5),), "mixed_start lets clients train from more than the present message"),
        (SGD, (Drift(0.1),), "drift lets clients train from more than the present message"),
    ],
)
def test_where_clients_may_be_missing_a_term_is_of_the_present_message_alone(
    settings: dict[str, Any], parts: tuple[Part, ...], said: str
) -> None:
    """The others would remember what a server told them alone."""
    FedAvg(model(), parts=(*parts, SecureSum()), **settings)
    with pytest.raises(ValueError, match=said):
        FedAvg(model(), parts=(*parts, SecureSum(require_all=False)), **settings)


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_where_clients_may_be_missing_a_part_finds_nothing_that_it_kept(mode: str) -> None:
    assert after(Remembering(), SecureSum(), mode=mode)
    with refusal("step-failed", "secure_sum"):
        after(Remembering(), SecureSum(require_all=False), mode=mode)


@pytest.mark.often("loop")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_where_clients_may_be_missing_a_step_finds_no_state(mode: str) -> None:
    """Adam begins anew in each round, whatever it was asked to."""
    settings: dict[str, Any] = {"lr": 0.05, "local_steps": 2, "weight_decay": 0.0}
    fresh, forced = (
        FedAvg(model(0.0), parts=(SecureSum(require_all=everyone),), optimizer_state="fresh", **settings)
        for everyone in (True, False)
    )
    object.__setattr__(forced, "optimizer_state", "kept")
    ends = [[*train(made, federation(dtype=torch.float64, mode=mode), 3)][-1].state["w"] for made in (fresh, forced)]
    assert distance(*ends) == 0


def test_a_sum_of_everyone_is_of_no_sample() -> None:
    with pytest.raises(
        ValueError, match=r"secure_sum with require_all = true needs all clients, and participation is 0.5"
    ):
        FedAvg(model(), participation=0.5, parts=(SecureSum(),))


def test_a_sum_is_of_no_data_that_each_client_was_told_otherwise_to_change() -> None:
    with pytest.raises(
        ValueError, match="changes clients' data by messages that differ between clients, and secure_sum"
    ):
        FedAvg(model(), parts=(PARTS["missing_neighbours"](), SecureSum()))


def test_what_changes_an_update_comes_before_it_and_reports_stay_at_home() -> None:
    with pytest.raises(ValueError, match="list clip before secure_sum"):
        FedAvg(model(), parts=(SecureSum(), Clip()))
    told = r"proximal reads each client's reply, which secure_sum hides.*; proximal is a part of fedprox"
    with pytest.raises(ValueError, match=told):
        ALGORITHMS["fedprox"](model(), adaptive=True, parts=(SecureSum(),))
    assert ALGORITHMS["fedprox"](model(), parts=(SecureSum(),)).composed.owner("aggregate") == "SecureSum"


def test_noise_goes_into_the_sum_with_its_bound() -> None:
    noised, equal = MemberNoise(clip=0.5, sigma=0.1), SecureSum(weights="equal", bits=64, fraction=40)
    plain, hidden = after(Uniform(), noised), after(noised, equal)
    assert 0 < distance(hidden[0]["w"], plain[0]["w"]) < 1e-9  # the same noise, in words
    one, other = (bounds(fed.ledger.table()) for _, fed in (hidden, plain))
    assert [(own.per, own.epsilon) for own in one] == [(own.per, own.epsilon) for own in other]
    assert len(one) == 1
    with pytest.raises(ValueError, match="list dp before secure_sum"):
        FedAvg(model(), parts=(equal, noised))


@pytest.mark.parametrize("weights", ["size", "equal"])
def test_no_client_adds_more_than_the_bound(weights: Any) -> None:
    """Whatever its update is: a sum of all stays within what words can hold."""

    class Huge(Part):
        def release(self, ctx: Context, update: Any) -> Any:
            return map_leaves(lambda leaf: torch.full_like(leaf, 1e9), update)

    state, _ = after(Huge(), SecureSum(bound=0.25, weights=weights), rounds=1)
    start = FedAvg(model(), **SGD).init(federation(dtype=torch.float64))["w"]
    moved = [leaf for _, leaf in leaves(map_leaves(torch.sub, state["w"], start))]
    due = 0.25 if weights == "equal" else 5 * 0.25
    assert all(torch.allclose(leaf, torch.full_like(leaf, due), atol=1e-9) for leaf in moved)


@pytest.mark.often("size-options1")
@pytest.mark.parametrize("options", [{"mode": "loop"}, {"mode": "vmap", "record": "always"}])
@pytest.mark.parametrize("weights", ["size", "equal"])
def test_how_many_values_were_cut_is_said_of_all_together(weights: Any, options: dict[str, Any]) -> None:
    """In each of three rounds every client's term is 1, 2, 3, … along a bias of 8, on a bound of 2.5."""

    class Rising(Part):
        def release(self, ctx: Context, update: Any) -> Any:
            share = 1.0 if weights == "equal" else ctx.examples.double() / examples
            flat = {path: torch.zeros_like(leaf) for path, leaf in leaves(update)}
            flat["0/bias"] = torch.arange(1, len(flat["0/bias"]) + 1).double() / share
            return nest(flat)

    examples = sum(int(graph.masks[TRAIN].sum()) for graph in federation().graphs.values())
    made = FedAvg(model(), parts=(Rising(), SecureSum(bound=2.5, bits=64, weights=weights)), **SGD)
    fed = federation(dtype=torch.float64, **options)
    *_, last = train(made, fed, 3)
    count = sum(leaf.numel() for _, leaf in leaves(last.state["w"]))
    wide = len(last.state["w"]["0"]["bias"])
    told = {name: value for name, value in last.summary.items() if name.startswith("secure_sum/")}
    assert told == {f"secure_sum/{name}": value for name, value in
                    {"cut": 3 * 5 * (wide - 2), "values": 3 * 5 * count, "sums": 3, "bound": 2.5}.items()}  # fmt: skip
    assert re.search(r"±2\.5", notes(last.summary)["cut"])
    own = [row for row in fed.ledger.table().to_pylist() if row["key"] == BEYOND]
    assert len(own) == 3 * 5
    assert all(Applied(everyone=True, bits=64, fraction=0) in read_applied(row["applied"]).mechanisms for row in own)


def test_where_nothing_is_cut_nothing_is_said() -> None:
    *_, last = train(FedAvg(model(), parts=(SecureSum(),), **SGD), federation(), 1)
    assert not [name for name in last.summary if name.startswith("secure_sum/")]
    assert "cut" not in notes(last.summary)


def test_the_count_of_what_was_cut_costs_no_epsilon_beside_the_noised_update() -> None:
    """It is made of the noised numbers alone."""
    _, fed = after(MemberNoise(clip=0.5, sigma=0.1), SecureSum(weights="equal"), rounds=1)
    rows = [row["applied"] for row in fed.ledger.table().to_pylist() if row["client"] == "site-0" and row["applied"]]
    account = PrivacyAccount()
    for applied in sorted(set(rows)):
        account = account.after(read_applied(applied))
    assert account.cost.unbounded == 0
    assert account.cost.squared_mu == pytest.approx((2 * 0.5 / (0.1 * 0.5)) ** 2)


def test_the_number_of_examples_is_in_a_sum_of_as_many_clients() -> None:
    assert SecureSum(require_all=False, minimum=4).sends["n"].mechanisms == (Applied(4, False, 64, 0, 1),)


def test_no_number_of_all_examples_makes_the_sum_one_clients() -> None:
    """Whatever N the server tells all clients alike, the largest one's words are hardly more of the sum than its
    examples of all."""
    fed = federation(dtype=torch.float64)
    algorithm = FedAvg(model(), parts=(SecureSum(),), **SGD)
    state, graphs = algorithm.init(fed), list(fed.graphs.values())
    sizes = [int(graph.masks[TRAIN].sum()) for graph in graphs]

    def share(n: int) -> float:
        told = {"w": state["w"], "SecureSum": {"n": torch.tensor(n)}}
        clients = [Client(graph, {}, random.key(1), random.key(2)) for graph in graphs]
        sent = [ravel(algorithm.train(client, told)["update"]).abs().double().sum() for client in clients]
        return float(sent[sizes.index(max(sizes))] / sum(sent))

    assert max(share(2**k) for k in range(0, 63, 2)) < share(sum(sizes)) + 0.1


def test_words_that_could_overflow_are_refused() -> None:
    made = FedAvg(model(), parts=(SecureSum(bound=64.0),), **SGD)
    with refusal("user.overflow", "secure_sum:", "64 of 5"):
        made.init(federation())
    for odd in ({"bound": 0.0}, {"bits": 16}, {"fraction": 31}, {"minimum": 1}):
        with pytest.raises(ValueError, match=next(iter(odd))):
            replace(SecureSum(), **odd)

"""Parts and settings that would do nothing, or something else than they are named for, are refused; others go together
as they should."""

from typing import Any

import pytest
import torch

from fedweave.algorithms import ALGORITHMS, PARTS, FedAvg
from fedweave.algorithms.parts import Part
from fedweave.core import model as models
from fedweave.core.tree import leaves
from fedweave.experiment.rounds import train
from fedweave.models import MODELS
from tests.contract.federations import FEATURES, algorithm, federation, model
from tests.refusals import refusal

MLP = MODELS["mlp"](hidden=4, layers=2, dropout=0.0).build(FEATURES, 3)
SGD: dict[str, Any] = {"optimizer": "sgd", "weight_decay": 0.0}


def made(*names: str, net: Any = None, **settings: Any) -> FedAvg:
    parts: tuple[Part, ...] = tuple(PARTS[name]() for name in names)
    return FedAvg(model() if net is None else net, parts=parts, **settings)


@pytest.mark.parametrize(
    ("names", "remedy"),
    [
        (("clip", "meta_gradient"), "list meta_gradient before clip"),
        (("clip", "dp_examples"), "leave out one of them"),
        (("clip", "top_k"), "list top_k before clip"),
        (("quantize", "top_k"), "list top_k before quantize"),
        (("dp", "clip"), "list clip before dp"),
        (("secure_sum", "dp"), "list dp before secure_sum"),
        (("top_k", "dp"), "leave out one of them"),
        (("drift", "missing_neighbours"), "leave out one of them"),
        (("cross_entropy", "sampled_cross_entropy"), "keep one of them"),
        (("cross_entropy", "meta_gradient"), "keep one of them"),
    ],
)
def test_parts_that_cannot_be_combined_are_rejected_with_a_remedy(names: tuple[str, ...], remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        made(*names, net=MLP)


@pytest.mark.parametrize(
    "names", [("meta_gradient", "clip", "dp"), ("top_k", "quantize", "clip"), ("clip", "dp", "secure_sum")]
)
def test_releases_may_follow_each_other_in_order(names: tuple[str, ...]) -> None:
    assert len(made(*names).parts) == 3


def test_what_sends_something_else_may_be_clipped_behind() -> None:
    assert [type(part).__name__ for part in made("meta_gradient", "clip").parts] == ["MetaGradient", "Clip"]


@pytest.mark.parametrize("name", ["local", "dfedgnn"])
def test_training_alone_takes_no_part_that_needs_a_server(name: str) -> None:
    assert not ALGORITHMS["local"].takes_part(PARTS["meta_gradient"])
    assert ALGORITHMS["local"].takes_part(PARTS["sampled_cross_entropy"])
    with refusal("config.contract", "meta_gradient"):
        algorithm(name, parts=(PARTS["meta_gradient"](),))


@pytest.mark.parametrize("name", ["fair_by_loss", "pareto_descent"])
def test_the_reciprocal_of_the_learning_rate_is_that_of_the_learning_rate(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} needs the reciprocal .*: set lipschitz = 4, which is"):
        FedAvg(model(), parts=(PARTS[name](),), lr=0.25, **SGD)
    FedAvg(model(), parts=(PARTS[name](lipschitz=4.0),), lr=0.25, **SGD)


def test_a_pattern_that_names_no_weight_is_refused() -> None:
    with refusal("config.share", "share: '9/*'"):
        FedAvg(model(), share=("0/*", "9/*")).init(federation())


def test_a_server_that_judges_models_needs_all_their_weights() -> None:
    with refusal("config.contract", "credibility"):
        algorithm("cffl", share=("0/*",))


@pytest.mark.often("cgsv")
@pytest.mark.parametrize("name", ["cgsv", "dw", "eu", "rffl", "fairgraphfl"])
def test_rewards_are_of_the_shared_weights_and_the_others_stay_a_clients_own(name: str) -> None:
    fed = federation(name=name, dtype=torch.float64)
    own = algorithm(name, dropout=0.0)
    first = next(path for path, _ in leaves(models.init(own.model, fed.key("init"), fed.dtype)))
    pattern = f"{first.partition('/')[0]}/*"
    *_, last = train(algorithm(name, dropout=0.0, share=(pattern,)), fed, 3)
    assert {path.partition("/")[0] for path, _ in leaves(last.state["parts"])} != set()
    trained = [dict(leaves(state["w"])) for state in fed.snapshot().values()]
    assert all(leaf.isfinite().all() for weights in trained for leaf in weights.values())
    away = [path for path in trained[0] if not path.startswith(pattern[:-1])]
    assert away
    assert any((trained[0][path] - trained[1][path]).abs().max() > 1e-6 for path in away)

"""Settings that are given in Python are held against the types that their fields declare, as those in TOML are."""

import copy
import inspect
import pickle
import pydoc
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_origin

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS, PARTS, FedAvg, FedProx
from fedweave.algorithms.parts import Part
from fedweave.algorithms.preset import Preset
from fedweave.core.settings import Settings, check_settings, meanings, plain_type
from fedweave.errors import ConfigError
from fedweave.experiment.config import field_parameters, registry, resolve
from fedweave.metrics.stopping import Stopping
from tests.contract.federations import algorithm, model
from tests.refusals import refusal

DATA = {"data": {"name": "digits"}}


@pytest.mark.parametrize(
    ("values", "code", "named"),
    [
        ({"optimizer": "adamax"}, "config.value", "optimizer"),
        ({"local_steps": 1.5}, "config.value", "local_steps"),
        ({"local_steps": True}, "config.value", "local_steps"),
        ({"lr": "0.1"}, "config.value", "lr"),
        ({"lr": float("nan")}, "config.value", "lr"),
        ({"share": "0/*"}, "config.value", "share"),
        ({"muu": 1.0}, "config.unknown-key", "'mu'"),
        ({"mu": [1.0]}, "config.value", "mu"),
        ({"scores": "all"}, "config.value", "scores"),
        ({"parts": ["proximl"]}, "config.unknown-name", "'proximal'"),
        ({"parts": [{"name": "clip", "nrm": 1.0}]}, "config.unknown-key", "'norm'"),
    ],
)
def test_python_refuses_what_toml_refuses(values: dict[str, Any], code: str, named: str) -> None:
    with refusal(code, named):
        FedProx(model(), **values)
    with pytest.raises(ConfigError) as told:
        resolve(DATA | {"algorithm": {"name": "fedprox"} | values})
    assert told.value.code == code


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_refuses_a_setting_that_it_does_not_have_and_names_the_nearest(name: str) -> None:
    own = [key for key in field_parameters(ALGORITHMS[name]) if key not in ("model", "parts")]
    with pytest.raises(ConfigError, match=f"Did you mean {own[-1]!r}") as told:
        ALGORITHMS[name](model(), **{f"{own[-1]}_": 1})
    assert told.value.code == "config.unknown-key"
    assert isinstance(told.value, TypeError)  # what Python's own constructors raise


@pytest.mark.parametrize("name", PARTS)
def test_every_part_refuses_a_setting_that_it_does_not_have(name: str) -> None:
    with refusal("config.unknown-key"):
        PARTS[name](setting_of_the_moon=1)


def test_numbers_of_numpy_are_numbers() -> None:
    made = FedAvg(model(), local_steps=np.int64(2), lr=np.float32(0.5), share=["0/*"])  # type: ignore[arg-type]
    assert (made.local_steps, made.lr) == (2, 0.5)
    with refusal("config.value"):
        FedAvg(model(), local_steps=np.float64(1.5))  # type: ignore[arg-type]


@pytest.mark.parametrize("listed", ["proximal", ["proximal"], [{"name": "proximal"}], PARTS["proximal"]()])
@pytest.mark.parametrize("name", ["fedavg", "fedsage"])
def test_parts_by_name_are_those_parts(name: str, listed: Any) -> None:
    made = algorithm(name, parts=listed)
    assert made.parts[-1] == PARTS["proximal"]()
    assert replace(made, lr=0.5).parts == made.parts


@pytest.mark.parametrize("listed", [[PARTS["proximal"]], [3], [None], [{"mu": 1.0}]])
def test_what_is_no_part_is_refused(listed: Any) -> None:
    with pytest.raises(ConfigError, match="parts"):
        FedAvg(model(), parts=listed)


@dataclass(frozen=True)
class Odd(Settings):
    kind: Literal["a", "b"]
    net: torch.nn.Module | None = None
    size: int = 1


class Bare(Odd):
    """With an __init__ of its own, which takes what it likes."""

    def __init__(self, anything: object) -> None:
        object.__setattr__(self, "kind", anything)


@dataclass(frozen=True)
class OwnPart(Part):
    weights: "dict[str, Unknown]"  # type: ignore[name-defined]  # noqa: F821


def test_what_no_setting_is_of_is_left_to_its_owner() -> None:
    net = torch.nn.Linear(1, 1)
    assert Odd("a", net).net is net
    with refusal("config.value", "Odd.size"):
        Odd("a", net, 1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="kind"):
        Odd()  # type: ignore[call-arg]
    assert vars(Bare(3)) == {"kind": 3}
    assert OwnPart({"a": 3}).weights == {"a": 3}  # whose types nobody can look up


def test_copies_are_not_checked_again() -> None:
    made = Odd("b")
    assert copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made


def test_a_name_that_is_like_none_has_no_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"^((?!mean).)*$"):
        check_settings("Odd", {"zzzzzz": 1}, ["kind"], {})


def test_presets_check_their_papers_settings() -> None:
    """Those of FedAvg, too, and before any part is made."""
    assert isinstance(ALGORITHMS["fedprox"], Preset)
    for values in ({"mu": "x"}, {"local_steps": 0.5}):
        with refusal("config.value", f"FedProx.{next(iter(values))}"):
            FedProx(model(), **values)


IDLE = [
    ({"algorithm": {"name": "fedavg", "quantile": 0.9}}, ("algorithm.quantile", "number_loss")),
    ({"algorithm": {"name": "fedprox", "quantile": 0.9}}, ("algorithm.quantile", "number_loss")),
    ({"algorithm": {"name": "local", "quantile": 0.9, "number_loss": "mae"}}, ("algorithm.quantile", "number_loss")),
    ({"evaluation": {"min_delta": 0.1}}, ("evaluation.min_delta", "patience")),
]


@pytest.mark.parametrize(("changes", "named"), IDLE)
def test_what_does_nothing_without_another_setting_is_refused(changes: dict[str, Any], named: tuple[str, ...]) -> None:
    with refusal("config.idle", *named):
        resolve(DATA | {"algorithm": {"name": "fedavg"}} | changes)


@pytest.mark.parametrize("how", [{"patience": -1}, {"patience": 2, "min_delta": -0.1}, {"min_delta": float("inf")}])
def test_an_impossible_end_of_a_run_is_refused(how: dict[str, Any]) -> None:
    with refusal("config.value", "Stopping."):
        Stopping(**how)


def test_it_is_refused_in_python_and_taken_beside_that_setting() -> None:
    for kind in (FedAvg, FedProx, ALGORITHMS["local"]):
        with refusal("config.idle", "quantile"):
            kind(model(), quantile=0.9)  # type: ignore[operator]
        assert kind(model(), quantile=0.9, number_loss="quantile").quantile == 0.9  # type: ignore[operator]
        kind(model(), quantile=0.5)  # type: ignore[operator]
    resolve(DATA | {"algorithm": {"name": "fedavg"}, "evaluation": {"min_delta": 0.1, "patience": 3}})
    with refusal("config.idle", "min_delta"):
        Stopping(0, 0.1)


@pytest.mark.parametrize("family", ["algorithm", "model", "partition"])
def test_signature_and_docstring_have_every_setting(family: str) -> None:
    for kind in registry(family).values():
        signature = inspect.signature(kind)
        described = meanings([kind]) | meanings(getattr(kind, "documents", ()))
        missing = [name for name in signature.parameters if name not in described]
        assert missing == []
        assert all(get_origin(parameter.annotation) is not Annotated for parameter in signature.parameters.values())
        initializers = [line for line in pydoc.render_doc(kind).splitlines() if "__init__(self" in pydoc.plain(line)]
        assert all("Annotated" not in line for line in initializers)


def test_limits_are_left_out_of_a_plain_type() -> None:
    limited = Annotated[float, "above 0"]
    assert plain_type(tuple[limited, limited] | None) == tuple[float, float] | None
    assert plain_type(dict[str, limited]) == dict[str, float]
    assert plain_type(Literal["a", "b"]) == Literal["a", "b"]

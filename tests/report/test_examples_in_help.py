"""The examples in `help` of algorithms run as they are printed."""

import inspect
from textwrap import dedent

import pytest

import fedweave
from fedweave.algorithms import ALGORITHMS, GROUPS


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "ditto", "fedego", "glasu", "centralized"])
def test_an_example_runs(name: str) -> None:
    text = inspect.cleandoc(ALGORITHMS[name].__doc__)
    example = dedent(text.split("Example:\n")[1].split("\n\n")[0])
    assert len(example.strip().splitlines()) == 3
    data = fedweave.datasets.load("digits")
    vertical = name in GROUPS["Parties with the same nodes"]
    cut = fedweave.partition.Vertical(clients=3) if vertical else fedweave.partition.Dirichlet(clients=3, alpha=0.5)
    scope = {"fedweave": fedweave, "data": data, "cut": cut.cut(data, seed=0)}
    exec(example, scope)
    (step,) = fedweave.train(scope["algorithm"], scope["fed"], rounds=1)
    assert step.round == 1


@pytest.mark.parametrize("name", sorted(name for name, kind in ALGORITHMS.items() if hasattr(kind, "paper")))
def test_the_model_of_an_example_suits_the_algorithm(name: str) -> None:
    text = inspect.cleandoc(ALGORITHMS[name].__doc__)
    model, algorithm, _ = dedent(text.split("Example:\n")[1].split("\n\n")[0]).strip().splitlines()
    exec(f"{model}\n{algorithm}", {"fedweave": fedweave, "data": fedweave.datasets.load("digits")})


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_help_says_where_an_algorithm_comes_from(name: str) -> None:
    kind = ALGORITHMS[name]
    if not hasattr(kind, "paper"):
        pytest.skip("a class, whose file names the paper")
    assert "\nSource: " in kind.__doc__
    assert f"fedweave.algorithms.{kind.__name__}(model" in kind.__doc__

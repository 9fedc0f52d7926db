"""Members with models of their own: the same numbers on every engine, and what is made of such a run."""

from pathlib import Path
from typing import Any

import pytest
import torch

import fedweave
from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.deployment import deployable
from fedweave.apply import predictions
from fedweave.core import model as models
from fedweave.core.tree import leaves
from fedweave.engines.engine import LocalEngine
from fedweave.engines.sharded import Shard, Sharded
from fedweave.errors import ConfigError
from fedweave.experiment import build
from fedweave.experiment.config import Config, dumps, resolve
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.run import run
from fedweave.experiment.runs.trained import finished_config, load_trained
from fedweave.experiment.runs.warm import begin
from fedweave.export.source import source
from fedweave.python.training import Silent
from tests.contract.federations import distance
from tests.refusals import refusal
from tests.runs.test_predictions import accuracies, columns

GCN: dict[str, Any] = {"name": "gcn", "hidden": 4}
EACH = [GCN, {"name": "sage", "hidden": 4}, {"name": "mlp", "hidden": 4, "layers": 3}]


def config(algorithm: str = "fedproto", model: Any = None, mode: str = "vmap", rounds: int = 3, **more: Any) -> Config:
    document: dict[str, Any] = {
        "seed": 3,
        "rounds": rounds,
        "data": {"name": "synthetic", "nodes": 120, "classes": 3, "features": 8},
        "partition": {"clients": 5},
        "model": {"each": EACH} if model is None else model,
        "algorithm": {"name": algorithm, "local_steps": 1},
        "engine": {"mode": mode, "threads": 1, "dtype": "float64"},
    }
    return resolve(document | more)


def ended(how: Config) -> tuple[Any, Any]:
    built = build.build(how)
    *_, last = train(built.algorithm, built.fed, how.general.rounds)
    return last, built


@pytest.mark.often("fedproto")
@pytest.mark.parametrize("name", ["fedproto", "fedtgp", "local"])
def test_members_in_batches_are_members_one_by_one(name: str) -> None:
    (one, of_one), (other, of_other) = (ended(config(name, mode=mode)) for mode in ("vmap", "loop"))
    states = of_one.fed.snapshot()
    assert distance(one.state, other.state) < 1e-9
    assert distance(states, of_other.fed.snapshot()) < 1e-9
    assert one.summary == pytest.approx(other.summary, abs=1e-9, nan_ok=True)
    for client, own in states.items():  # each trains the model that it was dealt
        net = of_one.algorithm_of(client).model
        assert [path for path, _ in leaves(own["w"])] == [path for path, _ in leaves(models.init(net, torch.tensor(0)))]
    assert [len(own["w"]) for own in states.values()] == [2, 2, 3, 2, 2]


@pytest.mark.often("fedproto")
@pytest.mark.parametrize("name", ["fedproto", "local"])
def test_one_model_for_all_gives_the_numbers_without_a_table(name: str) -> None:
    plain, of_plain = ended(config(name, GCN))
    for table in ({"each": [GCN]}, GCN | {"members": {"client-1": {}, "client-3": GCN}}):
        same, of_same = ended(config(name, table))
        assert not of_same.member_algorithms
        assert distance(same.state, plain.state) == 0
        assert distance(of_same.fed.snapshot(), of_plain.fed.snapshot()) == 0
        assert same.summary == pytest.approx(plain.summary, abs=0, nan_ok=True)


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_an_algorithm_of_ones_own_with_the_same_model_changes_no_bit(mode: str) -> None:
    plain, of_plain = ended(config(model=GCN, mode=mode))
    built = build.build(config(model=GCN, mode=mode))
    fed = build.Simulation(
        built.fed.graphs,
        classes=3,
        mode=mode,
        seed=3,
        test=built.fed.test,
        member_algorithms={"client-2": ALGORITHMS["fedproto"](built.algorithm.model, local_steps=1)},
    )
    *_, last = train(built.algorithm, fed, 3)
    assert distance(last.state, plain.state) == 0
    assert distance(fed.snapshot(), of_plain.fed.snapshot()) == 0


@pytest.mark.slow
def test_workers_that_get_the_document_have_the_members_models() -> None:
    how = config()
    expected, built = ended(how)

    def shard(clients: list[str]) -> Shard:
        worker = build.worker(how.plain(), clients)

        def channel(method: str, *blobs: bytes) -> Any:
            answer = worker.answer(method, *blobs)
            return lambda: answer

        return Shard(clients, channel)

    clients = list(built.fed.clients)
    executor = Sharded(clients, [shard(clients[:2]), shard(clients[2:])])
    fed = LocalEngine(executor, classes=3, dtype=torch.float64, test=built.fed.test, seed=3)
    *_, last = train(built.algorithm, fed, 3)
    assert distance(last.state, expected.state) == 0
    assert distance(fed.snapshot(), built.fed.snapshot()) == 0


def test_a_run_goes_on_predicts_and_is_exported(tmp_path: Path) -> None:
    straight, out = tmp_path / "straight", tmp_path / "resumed"
    expected = run(config(), straight, Silent(), False)["metrics"]
    run(config(rounds=2), out, Silent(), False)
    assert run(config(), out, Silent(), True)["metrics"] == pytest.approx(expected, abs=0, nan_ok=True)

    again = load_trained(out, finished_config(out), "")
    told = accuracies(columns(predictions.predict_examples(again)), again.built.data.y)
    assert len(told) == 5
    assert sum(told.values()) / 5 == pytest.approx(expected["local/accuracy"], abs=1e-12)
    for client, name in zip(again.built.fed.clients, ["gcn", "sage", "mlp", "gcn", "sage"], strict=True):
        found = source(out, None, client)
        assert found.description()["model"] == name
        assert len(deployable(again.built.algorithm_of(client)).net) == (3 if name == "mlp" else 2)


def test_tables_resolve_to_themselves() -> None:
    """One without a name is [model] with other values; the first that is dealt stands for a [model] without any."""
    table = GCN | {"members": {"client-1": {"dropout": 0.1}, "client-0": {"name": "sage"}}, "each": [{}, {"hidden": 9}]}
    how, clients = config(model=table), ["client-0", "client-1", "client-2", "client-3"]
    own = [how.of_member(client, clients).model for client in clients]
    told = [(one.name, one.values["hidden"], one.values["dropout"]) for one in own]
    assert told == [("sage", 64, 0.5), ("gcn", 4, 0.1), ("gcn", 4, 0.5), ("gcn", 9, 0.5)]
    assert resolve(how.plain()) == how
    assert "each" in dumps(how.plain())
    assert config().model.plain() == config(model=GCN).model.plain()


@pytest.mark.parametrize(
    ("name", "model", "code"),
    [
        ("local", {"each": [{"name": "gcn", "hiden": 4}]}, "config.unknown-key"),
        ("local", {"members": {"client-0": "sage"}}, "config.value"),
        ("local", {"each": ["sage"]}, "config.value"),
    ],
)
def test_what_cannot_be_is_refused(name: str, model: Any, code: str) -> None:
    with refusal(code):
        build.build(config(name, model))


def test_different_widths_that_arrive_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody could look before, as between sites."""
    monkeypatch.setattr(build, "check_widths", lambda *inputs: None)
    with refusal("model.width"):
        ended(config(model=GCN | {"members": {"client-1": {"hidden": 5}}}))


def in_python(name: str = "fedproto", members: Any = None, lr: float = 0.01) -> tuple[Any, Any]:
    """The same federation as `config`'s, put together from objects, and its algorithm."""
    data = fedweave.datasets.load("synthetic", nodes=120, classes=3, features=8, seed=3)
    gcn, sage = (kind(hidden=4).build(8, 3) for kind in (fedweave.models.GCN, fedweave.models.SAGE))
    mlp = fedweave.models.MLP(hidden=4, layers=3).build(8, 3)
    made = ALGORITHMS[name](gcn, local_steps=1, lr=lr)
    of = {"client-1": sage, "client-4": sage, "client-2": mlp} if members is None else members
    cut = fedweave.partition.Louvain(clients=5).cut(data, 3)
    return fedweave.federation(data, cut, made, seed=3, dtype=torch.float64, members=of), made


@pytest.mark.often("fedproto")
@pytest.mark.parametrize("name", ["fedproto", "local"])
def test_from_python_it_is_the_run_of_the_file_and_can_be_begun_from(name: str, tmp_path: Path) -> None:
    expected, built = ended(config(name))
    fed, made = in_python(name)
    *_, last = fedweave.train(made, fed, 3, out=tmp_path / "feb")
    assert distance(fed.snapshot(), built.fed.snapshot()) == 0
    assert last.summary == pytest.approx(expected.summary, abs=0, nan_ok=True)
    kept = load_trained(tmp_path / "feb", finished_config(tmp_path / "feb"), "")
    nets = [len(deployable(kept.built.algorithm_of(client)).net) for client in kept.built.fed.clients]
    assert nets == [2, 2, 3, 2, 2]
    again, made = in_python(name)
    assert begin(again, made, again.origin.data, tmp_path / "feb", again.origin.member_algorithms).notes == ()
    for client, state in again.snapshot().items():  # and nothing else of what they kept
        assert distance(state, {"w": fed.snapshot()[client]["w"]}) == 0
    again, made = in_python(name)
    *_, first = fedweave.train(made, again, 1, init_from=tmp_path / "feb", out=tmp_path / "mar")
    again, made = in_python(name)
    *_, plain = fedweave.train(made, again, 1, init_from=tmp_path / "feb")
    filed = fedweave.run(config(name, rounds=1).plain() | {"init_from": str(tmp_path / "feb")}, tmp_path / "apr")
    assert plain.summary == pytest.approx(first.summary, abs=0, nan_ok=True)
    trained_alike = {name: value for name, value in filed.summary["metrics"].items() if not name.startswith("shelf/")}
    assert trained_alike == pytest.approx(first.summary, abs=0, nan_ok=True)


def test_what_python_cannot_have_is_refused(tmp_path: Path) -> None:
    fed, _ = in_python()
    _, other = in_python(lr=0.5)
    with pytest.raises(ConfigError, match="federation received"):
        list(fedweave.train(other, fed, 1))

"""A cluster's workers give what one process gives, also when some of them die."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedweave.contract.subject import distance, everything
from fedweave.engines.ray_workers import _ATTEMPTS, RayWorkers
from fedweave.errors import ConfigError
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.run import Quiet
from fedweave.experiment.runs.run import run as run_of
from fedweave.experiment.sharding import write_shards
from fedweave.experiment.shelf.runs import shelf_of_document
from tests.refusals import refusal

ray = pytest.importorskip("ray", reason="needs the extra `ray`")

OF_MEMBERS = {"name": "gcn", "hidden": 8, "each": [{}, {"name": "sage", "hidden": 8}]}
HERE: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=3, _node_ip_address="127.0.0.1", **HERE)
    yield
    ray.shutdown()


def experiment(algorithm: str = "fedavg", model: Any = None, partition: Any = None, **engine: Any) -> Any:
    return resolve(
        {
            "seed": 1,
            "rounds": 4,
            "data": {"name": "synthetic", "nodes": 300},
            "partition": partition or {"name": "random", "clients": 6},
            "model": model or {"name": "gcn", "hidden": 8},
            "algorithm": {"name": algorithm},
            "engine": {"name": "ray", "workers": 2, **engine},
        }
    )


def run(config: Any, between: Any = None) -> Any:
    """What a run leaves; `between` is called after its second round."""
    built = build(config)
    for step in train(built.algorithm, built.fed, config.general.rounds):
        if step.round == 2 and between:
            between(built)
    left = everything(step, built.fed)
    built.close()
    return left


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_two_workers_give_the_numbers_of_one_process() -> None:
    config = experiment()
    assert distance(run(config), run(config.in_process())) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ("fedego", {"model": {"name": "ego"}}),
        ("fairgfl", {"partition": {"name": "overlap", "clients": 3}}),
        ("dfedgnn", {}),
        ("fedpub", {}),
        ("fedproto", {"model": OF_MEMBERS}),
        ("fedtgp", {"model": OF_MEMBERS}),
    ],
)
def test_other_algorithms_too(algorithm: str, more: Any) -> None:
    config = experiment(algorithm, **more)
    assert distance(run(config), run(config.in_process())) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_worker_that_is_killed_costs_no_number() -> None:
    def kill(built: Any) -> None:
        actors = [actor for actor in ray.util.list_named_actors(all_namespaces=True) if "fedweave" in actor["name"]]
        ray.kill(ray.get_actor(actors[0]["name"], namespace=actors[0]["namespace"]))

    config = experiment()
    assert distance(run(config, kill), run(config.in_process())) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_workers_that_open_their_clients_shards_give_the_numbers_of_the_source(tmp_path: Path) -> None:
    config = experiment()
    write_shards(config, tmp_path / "shards")
    document = {name: value for name, value in config.plain().items() if name != "partition"}
    sharded = resolve(document | {"data": {"name": "shards", "path": str(tmp_path / "shards")}})
    assert distance(run(sharded), run(config.in_process())) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_cluster_measures_from_shards_what_members_reach_on_their_own(tmp_path: Path) -> None:
    document = experiment().plain() | {"evaluation": {"shelf": True, "alone": True}}
    write_shards(resolve(document), tmp_path / "shards")
    here = {name: value for name, value in document.items() if name not in ("partition", "engine")}
    run_of(resolve(document).in_process(), tmp_path / "source", Quiet())
    data = {"name": "shards", "path": str(tmp_path / "shards")}
    run_of(resolve(here | {"data": data, "engine": document["engine"]}), tmp_path / "cluster", Quiet())
    one, other = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("source", "cluster"))
    assert one["metrics"] == other["metrics"]
    assert {"shelf/pooled/accuracy", "alone/local/accuracy"} <= other["metrics"].keys()
    assert one["shelf"]["local"] == other["shelf"]["local"]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_what_a_process_of_the_cluster_raises_and_its_loss_are_errors() -> None:
    workers = RayWorkers("local", 60.0)
    with refusal("config", "model"):
        workers.call(shelf_of_document, True, {}, [], document={"model": {"name": "none"}})
    with refusal("worker-lost"):
        workers.call(os._exit, document=1)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_more_workers_than_cores_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.workers"):
        build(experiment(workers=64))


@pytest.mark.slow
def test_a_node_that_dies_costs_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes' three cores have three workers; then there are two cores, and the third worker shares one."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    monkeypatch.setattr("ray._private.services.get_node_ip_address", lambda *asked: "127.0.0.1")  # not another card's
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "node_ip_address": "127.0.0.1"})
    lost = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1")
    ray.init(address=cluster.address, **HERE)
    try:
        config = experiment(workers=3)
        found = run(config, lambda built: cluster.remove_node(lost, allow_graceful=False))
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert distance(found, run(config.in_process())) == 0


def test_a_cluster_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        assert os.environ[_ATTEMPTS] == "1"  # Ray would ask for a quarter of an hour
        raise ConnectionError("nobody listens")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with refusal("user", "engine.address"):
        RayWorkers("127.0.0.1:1", 1.0)
    assert _ATTEMPTS not in os.environ


def test_a_machine_that_is_too_busy_for_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def times_out(**given: Any) -> None:
        raise Exception("The current node timed out during startup")

    monkeypatch.setattr(ray, "init", times_out)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with refusal("user.ray-start", "timed out during startup", "simulation"):
        RayWorkers("local", 1.0)


LISTENING = """
import json, os
from pathlib import Path
from fedweave.engines.ray_workers import RayWorkers
from fedweave.sites.operation.processes import descendants

workers, at = RayWorkers("local", 60.0), dict()
everyone = [os.getpid(), *descendants(os.getpid())]
for pid in everyone:
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            name = os.readlink(link)
        except OSError:
            continue
        at |= {name[8:-1]: pid} if name.startswith("socket:") else {}
rows = [row.split() for family in ("tcp", "tcp6") for row in Path(f"/proc/net/{family}").read_text().splitlines()[1:]]
hosts = [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in at]
keys = [dict(one.split("=", 1) for one in Path(f"/proc/{pid}/environ").read_text().split("\\0") if "=" in one)
        for pid in everyone[1:]]
print(json.dumps({"hosts": hosts, "keys": [key.get("RAY_AUTH_TOKEN", "") for key in keys],
                  "modes": [key.get("RAY_AUTH_MODE", "") for key in keys]}))
workers.close()
"""


@pytest.mark.slow
def test_a_cluster_of_this_machine_listens_to_it_alone_and_asks_for_a_token() -> None:
    """Nobody of the network reaches it, and of this machine nobody without the token, which is in no file."""
    told = [json.loads(subprocess.run([sys.executable, "-c", LISTENING], capture_output=True, text=True, check=True)
                       .stdout.splitlines()[-1]) for _ in range(2)]  # fmt: skip
    for found in told:
        assert found["hosts"]
        assert {host[-8:] for host in found["hosts"]} == {"0100007F"}  # 127.0.0.1, as the kernel writes it
        assert {len(key) for key in found["keys"]} - {0} == {64}  # one whose title Ray has set shows less of it
        assert {*found["modes"]} - {""} == {"token"}
    assert not ({*told[0]["keys"]} & {*told[1]["keys"]}) - {""}

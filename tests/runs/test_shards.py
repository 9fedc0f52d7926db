"""A folder of shards gives a run the data and the cut of its source, to the bit, and nothing else does."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from torch import float32

from fedweave.contract.subject import distance, everything
from fedweave.core.edge_attributes import ROWS, EdgeAttributes
from fedweave.core.model import init
from fedweave.core.random import key
from fedweave.datasets import Dataset, load, shards
from fedweave.datasets.contents import digests
from fedweave.datasets.shards import MANIFEST, VERSION, ShardFolder
from fedweave.engines.sharded import Shard, Sharded, deal, pack
from fedweave.errors import WorkerLost
from fedweave.experiment.build import build, ingredients, worker
from fedweave.experiment.config import resolve
from fedweave.experiment.loading import facts_of_shards, load_data, reads_own_shards
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.run import run
from fedweave.experiment.runs.trained import finished_config, load_trained
from fedweave.experiment.sharding import write_shards
from fedweave.partition import ShardClients
from fedweave.partition.client_data import shares
from fedweave.python.training import Silent
from fedweave.reports.clients import header
from tests import commands
from tests.refusals import refusal

Document = dict[str, Any]
SMALL: Document = {
    "seed": 3,
    "rounds": 2,
    "data": {"name": "synthetic", "nodes": 90, "features": 6},
    "partition": {"name": "random", "clients": 3},
    "model": {"name": "gcn", "hidden": 4},
    "algorithm": {"name": "fedavg", "local_steps": 1},
}


def tables(root: Path, of_edges: bool = False, nodes: int = 60) -> str:
    """Nodes with amounts, a group, a number and a time, and directed payments with amounts, labels and times."""
    rng = np.random.default_rng(5)
    at = np.arange(nodes)
    table = {"id": [f"n{i}" for i in at], "label": at % 3, "sens": at % 2, "size": rng.normal(50, 9, nodes)}
    ends = rng.integers(0, nodes, (2, 4 * nodes))
    ends = ends[:, ends[0] != ends[1]]
    count = ends.shape[1]
    edges = {"source": [f"n{i}" for i in ends[0]], "target": [f"n{i}" for i in ends[1]]}
    edges |= {"amount": rng.lognormal(3, 1, count), "time": np.arange(count), "label": rng.integers(0, 2, count)}
    root.mkdir(parents=True)
    columns = ["id", "size"] if of_edges else ["id", "label", "sens", "size", "joined"]
    pd.DataFrame(table | {"joined": at})[columns].to_csv(root / "nodes.csv", index=False)
    pd.DataFrame(edges).to_csv(root / "edges.csv", index=False)
    return str(root)


def small_graphs(root: Path) -> str:
    """24 rings of three to six nodes with labels."""
    root.mkdir(parents=True)
    sizes = [3 + at % 4 for at in range(24)]
    node = [(f"v{graph}-{at}", f"g{graph}", "CNO"[at % 3]) for graph, size in enumerate(sizes) for at in range(size)]
    edge = [(f"v{g}-{at}", f"v{g}-{(at + 1) % size}", at % 2) for g, size in enumerate(sizes) for at in range(size)]
    graphs = pd.DataFrame({"id": [f"g{at}" for at in range(24)], "label": [size % 2 for size in sizes]})
    graphs.to_csv(root / "graphs.csv", index=False)
    pd.DataFrame(node, columns=["id", "graph", "label"]).to_csv(root / "nodes.csv", index=False)
    pd.DataFrame(edge, columns=["source", "target", "label"]).to_csv(root / "edges.csv", index=False)
    return str(root)


PLAIN = ["edges.amount", "edges.time", "edges.label"]
PAID: Document = {
    "directed": True,
    "edge_features": ["amount"],
    "edge_time": "time",
}
OF_EDGES = PAID | {"task": "edges"}
OF_NODES = PAID | {"ignore": ["joined", "edges.label"]}
# {case: what differs from `SMALL`; [data] of a folder gets its path}
CASES: dict[str, Document] = {
    "random": {},
    "communities, scaled over all": {
        "data": {"name": "folder", "normalize": "standard", "ignore": ["joined", *PLAIN]},
        "partition": {"name": "louvain", "clients": 3},
    },
    "pooled": {"algorithm": {"name": "centralized"}},
    "global test": {"partition": {"name": "ego_networks", "hops": 1, "clients": 3, "incomplete": "keep"}},
    "shared nodes": {"partition": {"name": "overlap", "clients": 3}},
    "noise": {"noise": {"features": 0.5}},
    "sparse features by rows": {"data": {"name": "synthetic", "nodes": 90, "features": 40}},
    "numbers": {
        "data": {
            "name": "folder",
            "target": "number",
            "targets": ["size"],
            "ignore": ["label", "sens", *PLAIN],
        },
    },
    "edges with attributes": {"data": {"name": "folder", "structure": ["degree"], **OF_NODES}},
    "edges with attributes, by time": {
        "data": {
            "name": "folder",
            "edge_normalize": "standard",
            "node_time": "joined",
            **PAID,
            "ignore": ["edges.label"],
        },
        "partition": {"name": "random", "clients": 2, "split": "time"},
    },
    "edges as examples": {
        "data": {"name": "folder", **OF_EDGES},
        "partition": {"name": "edges", "clients": 3},
        "model": {"name": "gine", "hidden": 4},
    },
    "small graphs": {
        "data": {"name": "graphs"},
        "partition": {"name": "graphs_iid", "clients": 3},
        "model": {"name": "gin", "hidden": 4},
    },
}


def source(case: Document, root: Path) -> Document:
    """The document of a case; its tables are below `root`."""
    document = SMALL | case
    name = document["data"]["name"]
    if name in ("folder", "graphs"):
        make = tables if name == "folder" else small_graphs
        of_edges = {"of_edges": True} if document["data"].get("task") == "edges" else {}
        path = make(root / "tables", **of_edges)
        document["data"] = document["data"] | {"path": path}
    return document


def sharded(document: Document, folder: Path, **data: Any) -> Document:
    """The document that runs from shards."""
    rest = {name: value for name, value in document.items() if name != "partition"}
    return rest | {"data": {"name": "shards", "path": str(folder), **data}}


def results(document: Document) -> tuple[Any, list[Any]]:
    """All results after the last round, and the metrics and messages of all rounds without times of the clock."""
    config = resolve(document)
    built = build(config)
    rows = []
    for step in train(built.algorithm, built.fed, config.general.rounds):
        rows.append(step.metrics)
    messages = built.fed.ledger.table()
    return everything(step, built.fed), [*rows, messages.drop_columns(["seconds", "at"])]


@pytest.mark.parametrize("case", CASES)
def test_a_run_from_shards_has_the_bits_of_the_run_from_its_source(tmp_path: Path, case: str) -> None:
    document = source(CASES[case], tmp_path)
    write_shards(resolve(document), tmp_path / "shards")
    expected, rows = results(document)
    found, same_rows = results(sharded(document, tmp_path / "shards"))
    assert distance(found, expected) == 0
    assert all(one.equals(other) for one, other in zip(same_rows, rows, strict=True))


def test_the_files_of_a_run_from_shards_are_those_of_its_source(tmp_path: Path) -> None:
    document = source(CASES["communities, scaled over all"], tmp_path)
    document |= {"evaluation": {"shelf": True}}
    write_shards(resolve(document), tmp_path / "shards")
    for name, one in (("source", document), ("again", sharded(document, tmp_path / "shards"))):
        run(resolve(one), tmp_path / name, Silent())
    for file in ("metrics.parquet", "columns.parquet", "partition.parquet"):
        one, other = (pq.read_table(tmp_path / name / file) for name in ("source", "again"))
        assert one.equals(other), file
    for entry in ("metrics", "dataset", "classes", "features", "clients"):
        one, other = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("source", "again"))
        assert one.get(entry) == other.get(entry), entry


def test_settings_of_the_source_are_the_defaults_and_may_differ(tmp_path: Path) -> None:
    document = source(CASES["communities, scaled over all"], tmp_path)
    write_shards(resolve(document), tmp_path / "shards")
    assert resolve(sharded(document, tmp_path / "shards")).data.values["normalize"] == "standard"
    other = document | {"data": document["data"] | {"normalize": "minmax"}}
    found, _ = results(sharded(document, tmp_path / "shards", normalize="minmax"))
    assert distance(found, results(other)[0]) == 0


def test_python_reads_shards_as_their_source_was_read(tmp_path: Path) -> None:
    document = source(CASES["communities, scaled over all"], tmp_path)
    write_shards(resolve(document), tmp_path / "shards")
    data = load("shards", str(tmp_path / "shards"))
    expected, partition, _ = load_data(resolve(document))
    assert digests(data) == digests(expected)
    for part, other in zip(ShardClients().cut(data, 0).parts, partition.parts, strict=True):
        np.testing.assert_array_equal(part.nodes, other.nodes)
        np.testing.assert_array_equal(part.masks, other.masks)


def test_arrays_are_mapped_into_memory_and_small(tmp_path: Path) -> None:
    write_shards(resolve(SMALL), tmp_path / "shards")
    folder = ShardFolder.open(tmp_path / "shards")
    for at in range(3):
        arrays = folder.client(at)
        assert all(type(array) is np.memmap and not array.flags.writeable for array in arrays.values())
        assert arrays["edges_starts"].dtype == arrays["edges_targets"].dtype == np.int32
        assert len(arrays["edges_starts"]) == len(arrays["nodes"]) + 1
    assert len(folder.server()["nodes"]) == 0


def test_some_clients_are_read_without_the_files_of_others(tmp_path: Path) -> None:
    """Each of them has what it has of the whole data."""
    document = source(CASES["edges with attributes"], tmp_path)
    write_shards(resolve(document), tmp_path / "shards")
    data, partition, _ = load_data(resolve(document))
    for other in ("clients/1", "server"):
        for file in (tmp_path / "shards" / other).iterdir():
            file.unlink()
    config = resolve(sharded(document, tmp_path / "shards"))
    some, cut, _ = load_data(config, clients=("client-0", "client-2"))
    assert some.nodes == len(partition.parts[0].nodes) + len(partition.parts[2].nodes)
    assert [len(part.nodes) for part in cut.parts] == [len(part.nodes) for part in partition.parts]
    places = (0, 2)
    expected = shares(data, [partition.parts[at] for at in places])
    for one, other in zip(shares(some, [cut.parts[at] for at in places]), expected, strict=True):
        assert digests(one) == digests(other)
        assert one.ids == other.ids


def test_a_worker_of_a_cluster_opens_the_shards_of_its_clients_only(tmp_path: Path) -> None:
    write_shards(resolve(SMALL), tmp_path / "shards")
    of_cluster = {"engine": {"name": "ray"}}
    whole = worker(resolve(SMALL | of_cluster).plain(), ["client-0", "client-2"])
    for other in ("clients/1", "server"):
        for file in (tmp_path / "shards" / other).iterdir():
            file.unlink()
    config = resolve(sharded(SMALL, tmp_path / "shards") | of_cluster)
    own = worker(config.plain(), ["client-0", "client-2"])
    model = resolve(SMALL).model.make().build(6, build(resolve(SMALL)).data.outputs)
    w = init(model, key(3), float32)
    question = pack({"number": 0, "clients": json.dumps(["client-0", "client-2"]), "begin": 0, "count": 1})
    one, other = (each.answer("example_outputs", question, pack({"w": w})) for each in (own, whole))
    assert one == other


class InThisProcess:
    """Workers of a cluster, but in this process; `at_worker` is whether one of them works."""

    at_worker = False

    def __init__(self, *settings: object) -> None:
        pass

    def count(self, workers: object) -> int:
        return 2

    def executor(self, make: Any, document: Document, sizes: dict[str, int], workers: int) -> Sharded:
        return Sharded(tuple(sizes), [self._shard(make, document, clients) for clients in deal(sizes, workers)])

    def _shard(self, make: Any, document: Document, clients: Any) -> Shard:
        made = self._work(lambda: make(json.loads(json.dumps(document)), clients))

        def channel(method: str, *blobs: bytes) -> Callable[[], bytes]:
            answer = self._work(lambda: made.answer(method, *blobs))
            return lambda: answer

        return Shard(clients, channel)

    def call(self, function: Any, *arguments: object, document: Document) -> Any:
        text = json.dumps([document, *arguments])
        return self._work(lambda: json.loads(json.dumps(function(*json.loads(text)))))

    def close(self) -> None:
        pass

    def _work(self, function: Callable[[], Any]) -> Any:
        InThisProcess.at_worker = True
        try:
            return function()
        finally:
            InThisProcess.at_worker = False


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster whose main process may open no client's shard."""
    open_files = ShardFolder.client

    def client(folder: ShardFolder, at: int) -> Any:
        assert InThisProcess.at_worker
        return open_files(folder, at)

    monkeypatch.setattr(ShardFolder, "client", client)
    monkeypatch.setattr("fedweave.engines.ray_workers.RayWorkers", InThisProcess)


OF_CLUSTER: dict[str, Document] = {
    "random": {},
    "sparse features by rows": {"data": {"name": "synthetic", "nodes": 90, "features": 40}},
    "evaluated by sample": {"evaluation": {"shelf": True, "clients": 2}},
    "edges with attributes": CASES["edges with attributes"],
    "edges as examples": CASES["edges as examples"],
    "small graphs": {**CASES["small graphs"], "partition": {"name": "graph_skew", "clients": 3}},
}


@pytest.mark.parametrize("case", OF_CLUSTER)
def test_the_main_process_of_a_cluster_opens_no_shard(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Its files and what it prints are those of a run from the source in one process."""
    document = source({"evaluation": {"shelf": True}} | OF_CLUSTER[case], tmp_path)
    document["evaluation"] = document["evaluation"] | {"alone": False}
    write_shards(resolve(document), tmp_path / "shards")
    here = sharded(document, tmp_path / "shards")
    run(resolve(document), tmp_path / "source", Silent())
    texts = [header_of(here)]
    request.getfixturevalue("cluster")
    on_cluster = here | {"engine": {"name": "ray"}}
    run(resolve(on_cluster), tmp_path / "cluster", Silent())
    texts.append(header_of(on_cluster))
    assert texts[0] == texts[1]
    for file in ("metrics.parquet", "columns.parquet", "partition.parquet"):
        one, other = (pq.read_table(tmp_path / name / file) for name in ("source", "cluster"))
        assert one.equals(other), file
        assert one.schema.metadata == other.schema.metadata
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("source", "cluster")]
    for of_clock in ("seconds", "seconds_per_round", "peak_rss_mb", "shelf", "alone_seconds", "devices"):
        for one in summaries:
            one.pop(of_clock, None)
    assert summaries[0] == summaries[1]
    assert any(name.startswith("shelf/pooled/") for name in summaries[1]["metrics"])
    monkeypatch.undo()
    directory = tmp_path / "cluster"
    assert load_trained(directory, finished_config(directory), "").built.data.nodes > 0  # it finds nothing changed


def test_a_shelf_whose_process_is_lost_is_left_out_after_one_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    attempts = list[str]()

    def lose(workers: InThisProcess, function: Any, *arguments: object, document: Document) -> Any:
        attempts.append(function.__name__)
        raise WorkerLost("out of memory")

    monkeypatch.setattr(InThisProcess, "call", lose)
    document = source({"evaluation": {"shelf": True, "alone": False}}, tmp_path)
    write_shards(resolve(document), tmp_path / "shards")
    request.getfixturevalue("cluster")
    summary = run(
        resolve(sharded(document, tmp_path / "shards") | {"engine": {"name": "ray"}}), tmp_path / "run", Silent()
    )
    assert attempts == ["shelf_of_document"]
    assert "shelf" not in summary


def header_of(document: Document) -> str:
    """What is printed of an experiment before it runs, without the first line, which names the engine."""
    text, config = StringIO(), resolve(document)
    header(Console(file=text, width=200), config, build(config))
    return text.getvalue().partition("\n")[2]


def test_shards_note_few_validation_examples_of_the_positive_class(tmp_path: Path) -> None:
    for positive in (0, 1):
        document = SMALL | {"data": {"name": "synthetic", "nodes": 60, "classes": 2, "features": 4}}
        document["evaluation"] = {"positive": positive}
        folder = tmp_path / f"shards-{positive}"
        write_shards(resolve(document), folder)
        facts, text = facts_of_shards(resolve(sharded(document, folder))), header_of(document)
        assert facts is not None
        assert [note in text for note in facts.notes if f" of class {positive}: " in note] == [True]


def test_the_main_process_opens_shards_where_it_needs_more_than_they_state(tmp_path: Path) -> None:
    document = source(CASES["edges with attributes"], tmp_path)
    write_shards(resolve(document), tmp_path / "shards")
    base = sharded(document, tmp_path / "shards")
    assert facts_of_shards(resolve(base)) is not None
    for other in (
        {"data": base["data"] | {"normalize": "row"}},
        {"data": base["data"] | {"structure": []}},
        {"algorithm": {"name": "centralized"}},
        {"noise": {"features": 0.5}},
        {"evaluation": {"joint_columns": 2}},
        {"model": {"name": "gine", "ports": True}},
    ):
        assert facts_of_shards(resolve(base | other)) is None


def test_requirements_hold_where_no_shard_is_opened(tmp_path: Path) -> None:
    """Scaling by each client's own nodes is outside of an ε of one example, also where nothing shows these nodes."""
    document = source(CASES["edges with attributes"], tmp_path)
    write_shards(resolve(document), tmp_path / "shards")
    noisy = {"name": "fedavg", "local_steps": 1, "parts": ["uniform", {"name": "dp_examples", "sigma": 1.0}]}
    noisy_run = {"algorithm": noisy, "model": {"name": "mlp", "hidden": 4}}
    config = resolve(sharded(document, tmp_path / "shards") | noisy_run)
    facts = facts_of_shards(config)
    assert facts is not None
    with refusal("config.scaling", "data.normalize"):
        ingredients(config)
    with refusal("config.scaling", "data.normalize"):
        ingredients(config, (), facts)
    nothing_to_scale = replace(facts, amounts=False)
    with refusal("config.scaling", "data.edge_normalize"):
        ingredients(config, (), nothing_to_scale)


def test_a_process_reads_a_file_once_for_its_digest_unless_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(resolve(SMALL), tmp_path / "shards")
    files, digest = list[str](), hashlib.file_digest

    def read(file: Any, *how: Any) -> Any:
        files.append(file.name)
        return digest(file, *how)

    monkeypatch.setattr(hashlib, "file_digest", read)
    config = resolve(sharded(SMALL, tmp_path / "shards"))
    load_data(config)
    load_data(config)
    assert len(files) == len({*files}) > 0
    flip(tmp_path / "shards" / "clients/1/y.npy")
    with refusal("data.shards-damaged", "y.npy"):
        load_data(config)


def test_a_worker_opens_all_shards_where_features_come_over_edges_between_clients(tmp_path: Path) -> None:
    write_shards(resolve(SMALL), tmp_path / "shards")
    for external, own in {"refuse": True, "features": False, "exchange": False}.items():
        document = sharded(SMALL, tmp_path / "shards")
        document["data"] = document["data"] | {"external": external}
        assert reads_own_shards(resolve(document)) is own


def test_a_worker_finds_shards_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(resolve(SMALL), tmp_path / "shards")
    monkeypatch.setenv("HOME", str(tmp_path))
    config = resolve(sharded(SMALL, Path("~/shards")))
    assert reads_own_shards(config)
    assert load_data(config, clients=["client-0"])[0].nodes < load_data(config)[0].nodes


def test_every_field_of_a_data_set_is_described() -> None:
    described = {*shards.OF_NODES, *shards.OF_EXAMPLES, *shards.NAMES, *shards.SCALARS, *shards.UNSUPPORTED}
    others = {"x", "edges", "edge_labels", "edge_attrs", "public", "owner", "target_scale", "graph_columns"}
    assert {field.name for field in fields(Dataset)} == described | others | {"shards", "named"}
    lists = {"ends", "columns", "owners", "scaling", "split_times"}
    assert {*EdgeAttributes._fields} == {*ROWS, *shards.OF_ATTRIBUTES, *lists}


REFUSED: dict[str, tuple[Document, str]] = {
    "links": ({"data": {**SMALL["data"], "task": "links"}}, "config.not-sharded"),
    "learned features": ({"data": {**SMALL["data"], "features": "learned"}}, "config.not-sharded"),
    "edges to nodes elsewhere": (
        {"data": {"name": "folder", "external": "features", "ignore": ["joined", *PLAIN]}},
        "config.not-sharded",
    ),
    "columns of the same nodes": (
        {"partition": {"name": "vertical", "clients": 3}, "algorithm": {"name": "glasu"}, "model": {"name": "gcn"}},
        "config.not-sharded",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_shards_do_not_describe_is_refused_before_anything_is_written(tmp_path: Path, case: str) -> None:
    changes, code = REFUSED[case]
    with refusal(code):
        write_shards(resolve(source(changes, tmp_path)), tmp_path / "shards")
    assert not (tmp_path / "shards").exists()


def change(folder: Path, **values: Any) -> None:
    """Change entries of the manifest."""
    manifest = json.loads((folder / MANIFEST).read_text()) | values
    (folder / MANIFEST).write_text(json.dumps(manifest))


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))


DAMAGE: dict[str, tuple[Callable[[Path], object], str, tuple[str, ...]]] = {
    "not a folder of shards": (lambda at: (at / MANIFEST).unlink(), "data.shards", (MANIFEST,)),
    "another program's": (lambda at: change(at, format="other"), "data.shards", ("other",)),
    "another version": (lambda at: change(at, version=99), "data.shards-version", ("99", str(VERSION))),
    "a manifest cut off": (
        lambda at: (at / MANIFEST).write_text((at / MANIFEST).read_text()[:200]),
        "data.shards-damaged",
        (MANIFEST,),
    ),
    "a manifest without clients": (lambda at: change(at, clients=None), "data.shards-damaged", (MANIFEST,)),
    "a file changed": (lambda at: flip(at / "clients/1/y.npy"), "data.shards-damaged", ("y.npy",)),
    "a file removed": (lambda at: (at / "clients/2/nodes.npy").unlink(), "data.shards-damaged", ("nodes.npy",)),
    "a file of the server changed": (lambda at: flip(at / "server/crossing.npy"), "data.shards-damaged", ("crossing",)),
    "other files named": (
        lambda at: change(at, server={"../../nodes": "0"}),
        "data.shards-damaged",
        (MANIFEST,),
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_and_foreign_folders_are_refused(tmp_path: Path, case: str) -> None:
    damage, code, facts = DAMAGE[case]
    write_shards(resolve(SMALL), tmp_path / "shards")
    damage(tmp_path / "shards")
    with refusal(code, *facts):
        load_data(resolve(sharded(SMALL, tmp_path / "shards")))


def test_a_folder_is_there_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, save = list[str](), np.save

    def fail(file: Any, array: np.ndarray, **more: Any) -> None:
        saved.append(file.name)
        if len(saved) > 12:
            raise OSError(28, "No space left on device")
        save(file, array, **more)

    monkeypatch.setattr(np, "save", fail)
    with refusal("disk-full"):
        write_shards(resolve(SMALL), tmp_path / "shards")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    write_shards(resolve(SMALL), tmp_path / "shards")
    with refusal("user.out", "shards"):
        write_shards(resolve(SMALL), tmp_path / "shards")


@pytest.mark.parametrize(
    "document",
    [SMALL | {"partition": {"name": "shards"}}, {**SMALL, "data": {"name": "shards", "path": "x"}}],
)
def test_shards_have_their_own_clients_and_no_others(document: Document) -> None:
    with refusal("config.shards"):
        resolve(document)


def test_the_command_writes_shards_that_run(tmp_path: Path) -> None:
    config, out = tmp_path / "e.toml", tmp_path / "shards"
    config.write_text(commands.SMALL)
    assert "3 clients" in commands.run("shard", config, "-o", out)
    text = commands.SMALL.split("[data]")[0] + f'[data]\nname = "shards"\npath = "{out}"\n[model]\nhidden = 4\n'
    config.write_text(text)
    commands.run("check", config)

"""A scorer, alone and from one file, gives the numbers of the run's `predict`; and refuses what it cannot score."""

import csv
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fedweave.apply.run_predictions import predictions
from fedweave.apply.scorer import Scorer, check_alone, scorer_at
from fedweave.cli import app
from fedweave.core.tree import decode, encode, with_digest
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.files import SCORER
from tests import commands
from tests.refusals import refusal
from tests.runs.test_edges_as_examples import tables as transfers
from tests.runs.test_external_runs import member
from tests.runs.test_predictions import made
from tests.runs.test_target_files import CUT, graphs_folder, nodes_folder, of_numbers

FAST: dict[str, Any] = {"name": "fedavg", "lr": 0.05}
JOBS = ("clerk", "driver", "nurse")
CUSTOMERS = {"name": "folder", "normalize": "auto", "categories": {"job": list(JOBS)}, "missing": ["debt"]}
SPLIT = {"name": "random", "clients": 2, "train": 0.5, "val": 0.2, "test": 0.3}


def customers(folder: Path, seed: int, count: int = 80, labelled: bool = True) -> Path:
    """Customers with jobs and, some, without a known debt; large debts are fraud."""
    draw = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    debt = draw.lognormal(8, 1, count)
    label = np.where(debt > np.quantile(debt, 0.8), "fraud", "fine")
    rows = [
        f"c{at},{draw.normal(40, 9):.3f},{'' if at % 9 == 4 else f'{debt[at]:.2f}'},{draw.choice(JOBS)}"
        + (f",{label[at]}" if labelled else "")
        for at in range(count)
    ]
    (folder / "nodes.csv").write_text("\n".join(["id,age,debt,job" + ",label" * labelled, *rows]) + "\n")
    ends = draw.integers(0, count, (2, 3 * count))
    pairs = [f"c{a},c{b}" for a, b in ends.T if a != b]
    (folder / "edges.csv").write_text("\n".join(["source,target", *pairs]) + "\n")
    return folder


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, an export of a client's model there, its tables, and new ones."""
    root = tmp_path_factory.mktemp("bank")
    data = CUSTOMERS | {"path": str(customers(root / "data", 0))}
    made(root / "run", FAST | {"name": "ditto"}, data, 2, partition=SPLIT, evaluation={"positive": "fraud"})
    customers(root / "new", 1, 40, labelled=False)
    commands.run("export", root / "run", "--model", "personal", "--client", "client-1", "--out", root / "export")
    shutil.copytree(root / "export", root / "alone")
    return root


def same(scores: Any, expected: Any) -> None:
    """The same rows, and numbers to 1e-5 of their size."""
    assert set(scores.column_names) - set(expected.column_names) == {"model", "run", "scored_at"}
    for name in expected.column_names:
        ours, theirs = (np.array(table[name].to_pylist()) for table in (scores, expected))
        if ours.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
        else:
            assert (ours == theirs).all(), name


def test_the_export_alone_scores_as_the_run_predicts(bank: Path, tmp_path: Path) -> None:
    """Without the run, its data, or the place where it was."""
    expected = predictions(bank / "run", bank / "new", "personal", "client-1")
    assert {"score", "flagged", "threshold"} <= {*expected.column_names}
    assert np.ptp(expected["score"].to_numpy()) > 1e-3
    hidden = (bank / "run").rename(bank / "hidden"), (bank / "data").rename(bank / "hidden-data")
    try:
        out = tmp_path / "scores.parquet"
        commands.run("score", bank / "alone", "--data", bank / "new", "--out", out)
    finally:
        for place, was in zip(hidden, ("run", "data"), strict=True):
            place.rename(bank / was)
    scores = pq.read_table(out)
    same(scores, expected)
    assert scores["id"].to_pylist() == [f"c{at}" for at in range(40)]
    assert len(set(scores["model"].to_pylist())) == len(set(scores["scored_at"].to_pylist())) == 1
    again = CliRunner().invoke(app, ["score", str(bank / "alone"), "--data", str(bank / "new"), "--out", str(out)])
    assert (again.exit_code, pq.read_table(out).equals(scores)) == (2, True)


def test_a_runs_folder_scores_with_the_model_that_is_asked_for(bank: Path) -> None:
    for asked in (("global", None), ("personal", "client-0")):
        same(scorer_at(bank / "run", *asked).score(bank / "new"), predictions(bank / "run", bank / "new", *asked))
    from fedweave.experiment.config import config_hash
    from fedweave.experiment.runs.reading import read_run

    assert scorer_at(bank / "alone").run == config_hash(read_run(bank / "run").config)


def test_edges_small_graphs_numbers_and_columns_of_outside_edges(tmp_path: Path) -> None:
    """Each as the run predicts the same tables."""
    of_edges = {"name": "folder", "path": str(transfers(tmp_path / "transfers")), "task": "edges", "directed": True}
    of_edges |= {"edge_features": ["amount"], "edge_time": "day", "loops": "keep", "unlabeled": "unknown"}
    of_edges |= {"owner": "bank", "edge_normalize": "standard", "groups": ["cash", "wire"]}
    of_graphs = {"name": "graphs", "path": str(graphs_folder(tmp_path / "graphs")), "target": "labels"}
    of_graphs |= {"targets": ["long", "warm", "cold"]}
    gin = {"name": "gin", "hidden": 8, "pool": "sum"}
    numbers = of_numbers(nodes_folder(tmp_path / "nodes"), "price", normalize="minmax")
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "transfers": (of_edges, {"partition": SPLIT, "model": {"name": "gine", "hidden": 8, "directed": "both"}}),
        "graphs": (of_graphs, {"partition": CUT, "model": gin}),
        "nodes": (numbers, {"partition": CUT, "model": {"name": "mlp", "hidden": 8}}),
    }
    for name, (data, more) in cases.items():
        made(tmp_path / f"run-{name}", FAST, data, 2, **more)
        scorer_at(tmp_path / f"run-{name}").save(tmp_path / name / SCORER)
        table = Scorer.load(tmp_path / name / SCORER).score(tmp_path / name)
        same(table, predictions(tmp_path / f"run-{name}", tmp_path / name))
    member(tmp_path / "m/a", "a1=1 a2=2 a3=4 a4=5 a5=7 a6=8", "a1,b1 b2,a2 a1,a2 c9,a3")
    member(tmp_path / "m/b", "b1=3 b2=6 b3=9 b4=9 b5=1 b6=2", "a1,b1 b2,a2 b3,b4")
    data = {"name": "members", "path": str(tmp_path / "m"), "directed": True, "external": "features", "classes": 2}
    sage = {"name": "sage", "hidden": 4}
    made(tmp_path / "run", FAST, data, 2, partition={"name": "folders", "use_dataset_split": True}, model=sage)
    same(scorer_at(tmp_path / "run").score(tmp_path / "m/a"), predictions(tmp_path / "run", tmp_path / "m/a"))


@pytest.mark.parametrize(
    ("model", "algorithm", "code"),
    [
        ({"name": "pna"}, "fedavg", ""),
        ({"name": "gcn", "norm": "batch"}, "fedavg", ""),
        ({"name": "gat"}, "fedpub", ""),
        ({"name": "gcn"}, "fedproto", ""),
        ({"name": "gcn"}, "adafgl", "score.model"),
    ],
)
def test_models_that_no_export_has_and_those_that_algorithms_change(
    bank: Path, tmp_path: Path, model: dict[str, Any], algorithm: str, code: str
) -> None:
    """Layers with norms, masks and prototypes; two models put together are refused, and nothing is written."""
    data = CUSTOMERS | {"path": str(bank / "data")}
    made(tmp_path / "run", FAST | {"name": algorithm}, data, 1, partition=SPLIT, model=model)
    asked = ("personal", "client-0")
    if code:
        with refusal(code):
            scorer_at(tmp_path / "run", *asked).save(tmp_path / SCORER)
        assert not (tmp_path / SCORER).exists()
        return
    scorer_at(tmp_path / "run", *asked).save(tmp_path / SCORER)
    same(scorer_at(tmp_path).score(bank / "new"), predictions(tmp_path / "run", bank / "new", *asked))


@pytest.mark.parametrize(
    "document",
    [
        {"data": {"name": "synthetic", "task": "links"}, "algorithm": {"name": "fedavg"}},
        {"partition": {"name": "vertical", "clients": 3}, "algorithm": {"name": "glasu"}},
    ],
)
def test_runs_whose_models_cannot_score_alone_are_refused(document: dict[str, Any]) -> None:
    usual = {"data": {"name": "digits"}, "partition": {"name": "random", "clients": 3}, "model": {"name": "gcn"}}
    with refusal("score.alone"):
        check_alone(resolve(usual | document))


def changed(folder: Path, to: Path, **cells: str) -> Path:
    """The tables with other text in nodes.csv: {old: new}, of the first row that has it."""
    shutil.copytree(folder, to)
    text = (to / "nodes.csv").read_text()
    for old, new in cells.items():
        assert old in text
        text = text.replace(old, new, 1)
    (to / "nodes.csv").write_text(text)
    return to


@pytest.mark.parametrize(
    ("cells", "facts"),
    [
        ({",job": ",work"}, ("nodes.csv", "job")),
        ({"c3,": "c3,old"}, ("nodes.csv", "age")),
        ({"clerk": "pilot"}, ("nodes.csv", "pilot")),
        ({"c5,": "c4,"}, ("nodes.csv", "c4")),
        ({"id,age": "id,extra,age"}, ("nodes.csv",)),
    ],
)
def test_tables_of_another_form_are_refused(
    bank: Path, tmp_path: Path, cells: dict[str, str], facts: tuple[str, ...]
) -> None:
    new = changed(bank / "new", tmp_path / "new", **cells)
    with refusal("data.unlike", *facts):
        scorer_at(bank / "alone").score(new)
    out = tmp_path / "scores.csv"
    said = CliRunner().invoke(app, ["score", str(bank / "alone"), "--data", str(new), "--out", str(out)])
    assert (said.exit_code, out.exists()) == (2, False)


def test_an_empty_table_is_refused(bank: Path, tmp_path: Path) -> None:
    new = changed(bank / "new", tmp_path / "new")
    (new / "nodes.csv").write_text("id,age,debt,job\n")
    with refusal("data.unlike", "nodes.csv", "no rows"):
        scorer_at(bank / "alone").score(new)


def test_a_file_that_was_changed_or_is_of_another_version_is_refused(bank: Path, tmp_path: Path) -> None:
    """The cheat changes one weight, one word of the recipe, or cuts the file; another version writes another format."""
    blob = (bank / "alone" / SCORER).read_bytes()
    file = tmp_path / SCORER
    for place in (len(blob) - 3, len(blob) // 3):
        file.write_bytes(blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :])
        with refusal("score.damaged", str(file)):
            scorer_at(tmp_path)
    for part in (b"", blob[:100], blob[:-1]):
        file.write_bytes(part)
        with refusal("score.damaged", str(file)):
            scorer_at(file)
    tree = decode(blob)
    about = json.loads(tree["about"])
    code = tmp_path / "net.py"
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    for field, value, code_of in (
        ("format", 2, "score.format"),
        ("model", {**about["model"], "name": f"{code}:Net"}, "score.model"),
        ("model", {**about["model"], "hidden": 99}, "score.model"),
    ):
        file.write_bytes(with_digest(encode({**tree, "about": json.dumps({**about, field: value})})))
        with refusal(code_of):
            scorer_at(file).score(bank / "new")
    assert not (tmp_path / "ran").exists()
    with refusal("score.no-model", str(bank / "new")):
        scorer_at(bank / "new")
    with refusal("score.client", "client-0", "client-1"):
        scorer_at(bank / "alone", client="client-0")


def test_the_file_says_nothing_of_where_data_was(bank: Path) -> None:
    blob = (bank / "alone" / SCORER).read_bytes()
    assert str(bank).encode() not in blob
    assert not re.search(rb"\bc17\b", blob)  # an id; in a digest the letters may occur


# --- serve


class Server:
    """`fedweave serve` on a free port of loopback, in a thread."""

    def __init__(self, scorer: Scorer, token: str | None = None, most: int = 200_000) -> None:
        from fedweave.export import serving

        serving.check_installed()
        self._listening = serving.listening("127.0.0.1", 0)
        self.listener = self._listening.__enter__()
        names = serving.names_of("127.0.0.1") if token is None else ()
        self._server = serving.server(serving.application(scorer, token, most, names))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self.listener]})
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.port = self.listener.getsockname()[1]

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listening.__exit__(None, None, None)

    def ask(self, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """The status and what is replied."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        try:
            with urllib.request.urlopen(request) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def server(bank: Path) -> Iterator[Server]:
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    pytest.importorskip("fastapi", reason="needs the extra serve")
    running = Server(scorer_at(bank / "alone"))
    yield running
    running.close()


def rows(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The tables as JSON."""
    with (folder / "nodes.csv").open() as nodes, (folder / "edges.csv").open() as edges:
        cells = [
            {name: cell if name in ("id", "job") else float(cell) for name, cell in row.items() if cell}
            for row in csv.DictReader(nodes)
        ]
        return {"nodes": cells, "edges": list(csv.DictReader(edges))}


def test_serve_gives_the_numbers_of_score(bank: Path, server: Server) -> None:
    expected = scorer_at(bank / "alone").score(bank / "new")
    status, reply = server.ask("/score", rows(bank / "new"))
    assert status == 200, reply
    assert (reply["model"], reply["run"]) == (expected["model"][0].as_py(), expected["run"][0].as_py())
    for name in ("score", "threshold", "p_fraud", "p_fine"):
        np.testing.assert_allclose([row[name] for row in reply["rows"]], expected[name].to_numpy(), atol=1e-5)
    assert [(row["id"], row["flagged"]) for row in reply["rows"]] == list(
        zip(expected["id"].to_pylist(), expected["flagged"].to_pylist(), strict=True)
    )
    alone = server.ask("/score", {"nodes": rows(bank / "new")["nodes"][:1]})
    assert (alone[0], len(alone[1]["rows"])) == (200, 1)


@pytest.mark.parametrize("carried", [("edge_attr",), ("edge_weight",), ("edge_attr", "edge_weight"), ()])
@pytest.mark.parametrize("directed", [True, False])
def test_serve_takes_rows_for_a_model_that_learned_on_an_archive_with_loops(
    tmp_path: Path, carried: tuple[str, ...], directed: bool
) -> None:
    """An archive names no column of edges: tables have the features by their names, and the weight as edge_weight."""
    from fedweave.export import serving

    draw, n = np.random.default_rng(0), 40
    source = draw.integers(0, n, 120)
    ends = np.stack([source, (source + draw.integers(1, n, 120)) % n])
    loops = np.tile(np.arange(5 * (directed or bool(carried))), (2, 1))  # undirected pairs alone have none
    ends = np.concatenate([ends, loops], 1)
    amount, weight = (draw.lognormal(0, 1, ends.shape[1]).astype(np.float32) for _ in range(2))
    edges: dict[str, Any] = {"edge_attr": amount[:, None], "edge_weight": weight}
    edges = {name: edges[name] for name in carried} | {"directed": np.array(directed)}
    edges |= {"edge_feature_names": np.array(["amount"])} if "edge_attr" in carried else {}
    index = ends
    if not directed:  # an archive has them in both directions, loops once
        index = np.concatenate([ends, ends[::-1, :120]], 1)
        edges |= {name: np.concatenate([edges[name], edges[name][:120]]) for name in carried}
    x = draw.normal(size=(n, 2)).astype(np.float32)
    arrays = {"x_data": x.ravel(), "x_indices": np.tile([0, 1], n), "x_indptr": np.arange(0, 2 * n + 1, 2)}
    arrays |= {"x_shape": np.array([n, 2]), "y": np.arange(n) % 2, "edge_index": index, **edges}
    np.savez(tmp_path / "bank.npz", **arrays)
    data = {"name": "npz", "path": str(tmp_path / "bank.npz"), "loops": "keep", "normalize": "none"}
    model = {"name": "gine" if "edge_attr" in carried else "gcn", "hidden": 8}
    made(tmp_path / "run", FAST, data, 1, partition=SPLIT, model=model)
    scorer = scorer_at(tmp_path / "run")
    scorer.save(tmp_path / SCORER)
    scorer = Scorer.load(tmp_path / SCORER)
    expected = scorer.score(tmp_path / "bank.npz")
    names = [f"n{at}" for at in range(n)]
    nodes = [
        {"id": name, **dict(zip(scorer.before.columns, map(float, row), strict=True))}
        for name, row in zip(names, x, strict=True)
    ]
    rows_of_edges = [
        {"source": names[a], "target": names[b]}
        | ({"amount": float(amount[at])} if "edge_attr" in carried else {})
        | ({"edge_weight": float(weight[at])} if "edge_weight" in carried else {})
        for at, (a, b) in enumerate(ends.T)
    ]
    reply = serving.answer(scorer, json.dumps({"nodes": nodes, "edges": rows_of_edges}).encode())
    np.testing.assert_allclose([row["p_1"] for row in reply["rows"]], expected["p_1"].to_numpy(), atol=1e-5)
    assert len(serving.answer(scorer, json.dumps({"nodes": nodes[:2]}).encode())["rows"]) == 2


def test_serve_says_what_it_is(server: Server) -> None:
    assert server.ask("/health") == (200, {"status": "ok"})
    assert server.ask("/model")[1]["columns"] == ["age", "debt", *(f"job = {job}" for job in JOBS), "debt is missing"]
    assert server.ask("/version")[1].keys() == {"fedweave", "format", "model"}


def test_serve_refuses_with_a_status_and_a_code(bank: Path, server: Server) -> None:
    nodes = rows(bank / "new")["nodes"]
    node = nodes[0]
    cases: list[tuple[str, object, int, str]] = [
        ("/score", {"nodes": [{"id": "a", "debt": 1.0}]}, 422, "data"),  # no age
        ("/score", {"nodes": [{"age": 1.0}]}, 422, "score.column"),
        ("/score", {"nodes": [node], "edges": [{"source": node["id"]}]}, 422, "score.column"),
        ("/score", {"nodes": [{}]}, 422, "score.body"),
        ("/score", {"nodes": [node, {}]}, 422, "score.body"),
        ("/score", {"nodes": [{"id": None, "age": None}]}, 422, "score.body"),
        ("/score", {"nodes": [node], "edges": [{}]}, 422, "score.body"),
        ("/score", {"graphs": [{"id": "a"}]}, 400, "score.body"),
        ("/score", {"nodes": [node, node]}, 422, "data.unlike"),
        ("/score", {"nodes": [node | {"job": "pilot"}]}, 422, "data.unlike"),
        ("/score", {"nodes": [node | {"age": "old"}]}, 422, "data.unlike"),
        ("/score", {"nodes": [node], "edges": [{"source": node["id"], "target": "nobody"}]}, 422, "data.unlike"),
        ("/score", {"nodes": [node, nodes[1] | {"age": "old"}]}, 422, "score.body"),
        ("/score", {"nodes": [node | {"age": [1]}]}, 400, "score.body"),
        ("/score", {"nodes": []}, 400, "score.body"),
        ("/score", {"nodes": [node], "path": "/etc/passwd"}, 400, "score.body"),
        ("/score", {"nodes": "all"}, 400, "score.body"),
        ("/score", {"nodes": [node | {f"c{at}": 0 for at in range(5000)}]}, 422, "score.body"),
        ("/score", b"[" * 100_000, 400, "score.body"),
        ("/score", b'{"nodes": [{"id": "a", "age": NaN}]}', 400, "score.body"),
        ("/score", b" " * 300_000, 413, "score.size"),
        ("/score", None, 405, "score.path"),
        ("/elsewhere", None, 404, "score.path"),
    ]
    for path, body, status, code in cases:
        got = server.ask(path, body)
        assert (got[0], got[1]["code"]) == (status, code), (body, got)
        assert "/tmp" not in got[1]["error"]
        assert "/dev/shm" not in got[1]["error"]
    assert server.ask("/model", Host="evil.example") == (403, server.ask("/model", Host="evil.example")[1])
    chunked = HTTPConnection("127.0.0.1", server.port)
    chunked.request("POST", "/score", iter([b" " * 100_000] * 5), encode_chunked=True)
    assert chunked.getresponse().status == 413
    chunked.close()
    assert server.ask("/health")[0] == 200


def test_what_is_null_in_all_rows_may_be_left_out(server: Server) -> None:
    """The same score whether another row has the column, this one says null, or no row has it; also of categories."""
    full, gaps = {"id": "a", "age": 41.0, "debt": 900.0, "job": "clerk"}, {"id": "b", "age": 30.0}
    bodies = [[full, gaps], [gaps], [gaps | {"debt": None, "job": None}], [gaps | {"debt": None}]]
    replies = [server.ask("/score", {"nodes": nodes}) for nodes in bodies]
    assert [status for status, _ in replies] == [200] * 4
    assert len({round(reply["rows"][-1]["score"], 5) for _, reply in replies}) == 1


def test_molecules_are_scored_over_http_as_from_a_table(tmp_path: Path) -> None:
    pytest.importorskip("rdkit", reason="needs RDKit")
    smiles = ("CCO", "CCCO", "CC(=O)C", "CCOC(=O)C", "CC(C)CO", "CNN", "Oc1ccccc1", "Nc1ccccc1")
    for folder, lines in (("data", [f"{text},{at % 2}" for at, text in enumerate(smiles)]), ("new", ["CCN,", "CC,"])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "graphs.csv").write_text("\n".join(["smiles,label", *lines]) + "\n")
    data = {"name": "graphs", "path": str(tmp_path / "data")}
    cut = {"name": "random", "clients": 2}
    made(tmp_path / "run", FAST, data, 1, partition=cut, model={"name": "gin", "hidden": 4, "layers": 2})
    scorer = scorer_at(tmp_path / "run")
    expected = scorer.score(tmp_path / "new")["p_1"].to_pylist()
    for more in ({}, {"nodes": [], "edges": []}):
        body = {"graphs": [{"id": "a", "smiles": "CCN"}, {"id": "b", "smiles": "CC"}], **more}
        assert [row["p_1"] for row in answered(scorer, body)] == pytest.approx(expected, abs=1e-6)
    for odd, code in (
        ({"graphs": [{"smiles": "C("}]}, "data.unlike"),
        ({"graphs": [{"smiles": None}]}, "score.body"),
        ({"graphs": [{}]}, "score.body"),
        ({"graphs": []}, "score.body"),
        ({"nodes": [{"id": "a"}]}, "score.column"),
    ):
        with refusal(code):
            answered(scorer, odd)


def answered(scorer: Scorer, body: object) -> Any:
    from fedweave.export.serving import answer

    return answer(scorer, json.dumps(body).encode())["rows"]


def connected(server: Server, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.sendall(sent)
    return connection


def seconds_open(connection: socket.socket) -> float:
    """How long a connection to which a letter is sent now and then stays open, 5 at most."""
    began = time.monotonic()
    with suppress(OSError):  # closed or reset, as the system has it
        while time.monotonic() - began < 5:
            connection.sendall(b"G")
            time.sleep(0.1)
    return time.monotonic() - began


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_silent_connections_block_nobody(server: Server, sent: bytes) -> None:
    """Of more than the server takes, the oldest gives way."""
    silent = [connected(server, sent) for _ in range(40)]
    assert [server.ask("/health")[0] for _ in range(3)] == [200] * 3
    assert seconds_open(silent[0]) < 3
    for connection in silent:
        connection.close()


def test_a_header_has_a_time_limit(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the connection on, however slowly it trickles; also of a second request. A body has its own limit."""
    monkeypatch.setattr("fedweave.export.serving.HEADER_PATIENCE", 0.4)
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    whole = head + b"\r\n"
    for first in (b"", whole):
        connection = connected(server, first)
        if first:
            assert connection.recv(4000).startswith(b"HTTP/1.1 200")
        assert seconds_open(connection) < 3
        connection.close()
    body = connected(server, b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n")
    time.sleep(0.8)
    body.sendall(b"{}")
    assert body.recv(4000).startswith(b"HTTP/1.1 400")
    body.close()


def test_a_token_is_needed_where_there_is_one(bank: Path, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    from fedweave.export import serving

    running = Server(scorer_at(bank / "alone"), token="0123456789abcdef")
    try:
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer 0123456789abcdeg"}, 401),
            ({"Authorization": "Basic 0123456789abcdef"}, 401),
            ({"Authorization": "Bearer 0123456789abcdef"}, 200),
        ):
            assert running.ask("/score", {"nodes": rows(bank / "new")["nodes"]}, **headers)[0] == status
        assert [running.ask(path)[0] for path in ("/health", "/model", "/version")] == [200, 401, 401]
    finally:
        running.close()
    for host in ("0.0.0.0", "192.0.2.1", "bank.example", "::"):
        with refusal("score.token", host):
            serving.check_address(host, None)
    for host in ("127.0.0.1", "127.1.2.3", "localhost", "::1"):
        serving.check_address(host, None)
    file = tmp_path / "token"
    for text, mode in (("0123456789abcdef\n", 0o644), ("short", 0o600), ("0123456789 abcdef", 0o600)):
        file.write_text(text)
        file.chmod(mode)
        with refusal("score.token", str(file)):
            serving.read_token(file)
    file.write_text("0123456789abcdef\n")
    assert serving.read_token(file) == "0123456789abcdef"


def test_scoring_loads_no_server(bank: Path, tmp_path: Path) -> None:
    """Neither NVFlare nor what serves: a site scores with a plain installation."""
    words = ["score", str(bank / "alone"), "--data", str(bank / "new"), "--out", str(tmp_path / "o.csv")]
    program = (
        f"import sys; from fedweave.cli import app; app({words!r}, standalone_mode=False)\n"
        "sys.exit(any(name in sys.modules for name in ('nvflare', 'fastapi', 'uvicorn')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert (tmp_path / "o.csv").read_text().startswith('"client"')

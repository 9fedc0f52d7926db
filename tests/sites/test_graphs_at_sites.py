"""Small graphs between organizations: the simulation's numbers, from files and tables of the sites' own."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.algorithms.fairgraphfl.vocabulary import MOTIFS
from fedweave.core.ledger import Ledger
from fedweave.core.tree import encode
from fedweave.errors import UserError
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT
from fedweave.sites.flare.agreement import check_names
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.requests import pin
from fedweave.sites.flare.sitefile import FINE, SITE_FILE, read_site_file, write_site_file
from fedweave.sites.operation.comparison import compare
from fedweave.sites.operation.experiments import split
from fedweave.sites.operation.findings import Findings
from fedweave.sites.operation.running import run
from fedweave.sites.operation.site_check import check_site
from tests.contract.small_graphs import arrays
from tests.refusals import check_facts, refusal
from tests.sites.projects import (
    SITES,
    InProcess,
    call_request,
    check_equal,
    check_private,
    cut_again,
    experiment,
    job_of,
    join_request,
    joined,
    set_policy,
)
from tests.sites.test_sites import Watcher

KINDS = ["C", "H", "N", "O", "P", "S", "Z"]
FRAMING = "(names and framing)"
COUNT = 120
GIN = {"name": "gin", "hidden": 8, "layers": 2, "pool": "sum"}
STAR = {"name": "star", "hidden": 8, "layers": 2, "pool": "mean"}
CUT = {"name": "graphs_iid", "clients": 3, "server_val": 0.1, "train": 0.65, "val": 0.0, "test": 0.35}
BATCHES = {"parts": [{"name": "graph_cross_entropy", "batch": 10}, "by_size"]}
OF_GRAPHS = [
    ("fairgraphfl", GIN, {}),
    ("fedavg", GIN, BATCHES),
    ("fedstar", STAR, {}),
    ("gcfl", GIN, {"eps1": 10.0, "eps2": 0.0}),
    ("gcfl_plus", GIN, {"eps1": 10.0, "eps2": 0.0, "length": 2}),
    ("cffl", GIN, {}),
    ("eu", GIN, {}),
]


def write_tables(root: Path, own: dict[str, Any], chosen: Sequence[int], masks: np.ndarray | None = None) -> None:
    """The `chosen` graphs of `own` (`small_graphs.arrays`) as tables, their nodes' labels as names."""
    kinds = np.asarray(own["x"].argmax(1)).ravel()
    nodes = [v for v, graph in enumerate(own["graph_of"]) if graph in set(chosen)]
    fates = [] if masks is None else [("train", "val", "test")[int(masks[:, at].argmax())] for at in range(len(chosen))]
    lines = {
        "graphs": [["id", "label", *(["split"] if fates else [])]]
        + [[graph, int(own["y"][graph]), *fates[at : at + 1]] for at, graph in enumerate(chosen)],
        "nodes": [["id", "graph", "label"], *([v, own["graph_of"][v], KINDS[kinds[v]]] for v in nodes)],
        "edges": [["source", "target"], *([u, v] for u, v in own["edges"].T if u < v and u in set(nodes))],
    }
    root.mkdir(parents=True, exist_ok=True)
    for stem, rows in lines.items():
        with (root / f"{stem}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small graphs."""
    root = tmp_path_factory.mktemp("graphs") / "data"
    write_tables(root, arrays(COUNT, 5), range(COUNT))
    return root


def of_graphs(name: str, root: Path, model: dict[str, Any] = GIN, rounds: int = 3, **settings: Any) -> Config:
    """An experiment on them, cut for three sites."""
    data = {"name": "graphs", "path": str(root), "node_labels": KINDS}
    plain = experiment("fedavg", rounds=rounds, data=data, partition=CUT).plain()
    return resolve(plain | {"model": model, "algorithm": {"name": name} | settings})


def bring_tables(project: Path, config: Config, **about: Any) -> None:
    """Each site's part as tables of its own."""
    cut_again(project, config)
    _, partition = split(config, SITES)
    for site, part in zip(SITES, partition.parts, strict=True):
        given, _ = read_site_file(project / site / SITE_FILE)
        write_tables(project / site / "tables", arrays(COUNT, 5), part.examples.tolist(), part.masks)
        named = {"path": "tables", "test": "test.npz", "classes": 2, "node_labels": KINDS, "random_id": given.random_id}
        write_site_file(project / site / SITE_FILE, named | about, measures=list(FINE))


def pad_request(config: Config) -> str:
    """What an honest server asks once all sites have said how long their lists are."""
    return json.dumps({"kind": "pad", "pin": pin(config.plain(), list(SITES)), "round": -1})


def train_equally(project: Path, config: Config) -> Flare:
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, config.general.rounds)
    _, sim = check_equal(last, config)
    check_private(project, sim)
    return fed


@pytest.mark.often("fairgraphfl")
@pytest.mark.parametrize(("name", "model", "settings"), OF_GRAPHS, ids=[name for name, *_ in OF_GRAPHS])
def test_sites_with_small_graphs_give_the_numbers_of_the_simulation(
    project: Path, whole: Path, name: str, model: dict[str, Any], settings: dict[str, Any]
) -> None:
    config = of_graphs(name, whole, model, **settings)
    made = cut_again(project, config)
    for site in SITES if settings is BATCHES else ():  # an epoch's last mini-batch is of one graph
        set_policy(made, f"measures = {[*FINE]}\nmin_nodes = 1", site)
    train_equally(made, config)


def test_values_payoffs_and_weights_from_tables_of_the_sites_own(project: Path, whole: Path) -> None:
    """And the ledger says what left for the lists to be of one length: a number a site, no list, and nothing else."""
    config = of_graphs("fairgraphfl", whole)
    bring_tables(project, config)
    fed = train_equally(project, config)
    rows = [row for row in fed.ledger.table().to_pylist() if "sizes" in row["key"] or row["step"] == "(pad)"]
    told = {(row["step"], row["direction"], row["key"]): row for row in rows}
    framing = {("(pad)", way, FRAMING) for way in ("up", "down")}
    assert told.keys() - framing == {("(join)", "up", "sizes/motifs"), ("(pad)", "down", "motifs")}
    check_facts(told["(join)", "up", "sizes/motifs"]["reveals"], "lists")
    assert not [row for row in fed.ledger.table().to_pylist() if row["key"] != FRAMING and not row["reveals"]]


def test_a_site_learns_the_longest_list_alone_and_none_but_blocks(project: Path, whole: Path) -> None:
    config = of_graphs("fairgraphfl", whole)
    _, _, link = joined(cut_again(project, config), config)
    graphs = [job_of(link.members[site]).graph for site in SITES]
    own = [int((graph.precomputed(MOTIFS) >= 0).sum()) for graph in graphs]
    assert len(set(own)) > 1
    assert {len(graph.precomputed(MOTIFS)) for graph in graphs} == {-(-max(own) // 32) * 32}


@pytest.mark.parametrize("told", [{"motifs": 32}, {"motifs": 1 << 18}, {"motifs": 200}, {"other": 64}, {}])
def test_lengths_that_cannot_be_are_refused(project: Path, whole: Path, told: dict[str, int]) -> None:
    config = of_graphs("fairgraphfl", whole)
    member = InProcess(cut_again(project, config)).members["bank-a"]
    assert not member.answer(join_request(config), b"").refusal
    check_facts(member.answer(pad_request(config), encode(told)).refusal, "length")


def test_no_step_runs_before_lengths_are_agreed_and_they_are_agreed_once(project: Path, whole: Path) -> None:
    config = of_graphs("fairgraphfl", whole)
    cut_again(project, config)
    early, asked = (InProcess(project).members["bank-a"] for _ in range(2))
    pad_asked = pad_request(config)
    assert not early.answer(join_request(config, "early"), b"").refusal
    check_facts(early.answer(call_request(config, "FedAvg.train"), encode({})).refusal, "joined")
    assert not asked.answer(join_request(config), b"").refusal
    assert not asked.answer(pad_asked, encode({"motifs": 320})).refusal
    check_facts(asked.answer(pad_asked, encode({"motifs": 320})).refusal, "once")


def test_a_policy_may_keep_the_length_back_and_then_nothing_runs(project: Path, whole: Path) -> None:
    config = of_graphs("fairgraphfl", whole)
    set_policy(cut_again(project, config), 'deny = ["sizes"]')
    with pytest.raises(UserError, match=r"bank-b: .*`sizes`"):
        joined(project, config)


def test_labels_whose_order_nobody_gave_or_gave_otherwise_are_refused(project: Path, whole: Path) -> None:
    config = of_graphs("fairgraphfl", whole)
    bring_tables(project, config, node_labels=KINDS[::-1])
    write_site_file(project / "bank-a" / SITE_FILE, {"path": "tables", "classes": 2, "node_labels": KINDS})
    replies = Flare(InProcess(project), SITES, ledger=Ledger()).join(config.plain(), "r1", -1)
    with refusal("user.names-differ", "bank-b, bank-c"):
        check_names(replies)
    told = Findings(forms={site: {} for site in SITES})
    for site in SITES:
        check_site(project / site, config, SITES, told)
    compare(told, False)
    assert [(site, what[:19]) for site, what in told.faults] == [("bank-a", "columns: column 1 i")]
    write_site_file(project / "bank-a" / SITE_FILE, {"path": "tables", "classes": 2})
    with refusal("clients-missing", "bank-a:"):
        Flare(InProcess(project), SITES, ledger=Ledger()).join(config.plain(), "r2", -1)


@pytest.mark.slow
def test_fairgraphfl_between_processes(owned: Path, whole: Path, tmp_path: Path) -> None:
    config = of_graphs("fairgraphfl", whole)
    bring_tables(owned, config)
    summary = run(config, owned, tmp_path / "out", False, Watcher())
    expected, _ = check_equal(Checkpoint.load(tmp_path / "out" / CHECKPOINT), config)
    assert summary["metrics"] == pytest.approx(expected.summary, abs=1e-5)

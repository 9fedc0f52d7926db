"""Edges to other sites' nodes: what sites make of them, tell each other over them, and keep from the server."""

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.cli import app
from fedweave.core.graph_arrays import graph_arrays
from fedweave.core.ledger import Ledger
from fedweave.core.tree import decode, encode, leaves
from fedweave.errors import ClientsMissing
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.rounds import train
from fedweave.sites.flare.exchange import Exchange
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.sitefile import SITE_FILE, write_site_file
from fedweave.sites.operation.checking import examine
from fedweave.sites.operation.experiments import hand_out, split
from fedweave.sites.operation.project import read_project
from fedweave.sites.operation.running import run
from tests.contract.federations import distance
from tests.refusals import refusal
from tests.sites.projects import SITES, InProcess, experiment, job_of, joined, simulated
from tests.sites.test_carrying_at_sites import bank
from tests.sites.test_prediction_at_home import predict
from tests.sites.test_sites import Watcher

EDGES = {"directed": True, "edge_features": "amount", "edge_weight": "amount", "loops": "keep"}


def across(path: Path, external: str, least: int = 1, holdout: bool = False, **data: Any) -> Config:
    """Three banks and the transfers between them."""
    own = {"name": "folder", "path": str(path), "external": external, "min_external": least, **EDGES, **data}
    cut = {"name": "louvain", "clients": 3, "holdout": True} if holdout else {"name": "random", "clients": 3}
    document = experiment(rounds=2).plain()
    return resolve({**document, "data": own, "partition": cut, "model": {"name": "sage", "hidden": 8}})


def handed(project: Path, config: Config) -> Path:
    (project / "server/test.npz").unlink(missing_ok=True)
    hand_out(*split(config, SITES), project, SITES, config)
    return project


@pytest.mark.often("exchange-2-timed")
@pytest.mark.parametrize(
    ("external", "least", "holdout", "data"),
    [
        pytest.param("features", 1, False, {}, id="features"),
        pytest.param("exchange", 1, True, {"normalize": "row"}, id="exchange-holdout"),
        pytest.param("exchange", 2, False, {"normalize": "row", "edge_time": "amount"}, id="exchange-2-timed"),
    ],
)
def test_sites_give_the_numbers_of_the_simulation(
    project: Path, tmp_path: Path, external: str, least: int, holdout: bool, data: dict[str, Any]
) -> None:
    nodes = 400 if holdout else 160
    config = across(bank(tmp_path / "data", nodes=nodes), external, least, holdout, **data)
    fed, algorithm, link = joined(handed(project, config), config)
    expected, sim = simulated(config)
    for site, client in zip(SITES, sim.clients, strict=True):
        here, there = (graph_arrays(graph).x for graph in (job_of(link.members[site]).graph, sim.graphs[client]))
        np.testing.assert_allclose(dense(here), dense(there), atol=1e-6)
        assert (dense(here)[:, -3:] != 0).any()
    *_, last = train(algorithm, fed, 2)
    assert distance(last.state, expected.state) <= 1e-5
    assert last.summary == pytest.approx(expected.summary, abs=1e-5)


def dense(x: Any) -> np.ndarray:
    return x.toarray() if hasattr(x, "toarray") else x


# Accounts of three banks: age of each, and transfers as each bank's own records name them.
AGES = {"bank-a": {"a1": 1, "a2": 2, "a3": 3}, "bank-b": {"b1": 10, "b2": 20, "b3": 30}, "bank-c": {"c1": 7, "c2": 9}}
TRANSFERS = {
    "bank-a": ["a1,b1", "b2,a1", "c1,a1", "a2,a3", "a2,x1"],
    "bank-b": ["a1,b1", "b2,a1", "b1,x1", "b2,x1", "b3,x1"],
    "bank-c": ["c1,a1", "c1,a1", "c1,c2"],
}


RULES = ("data.external", "policy.exchange", "policy.deny", "policy.epsilon")


class Watched(InProcess):
    """What passes through the server is kept; `change` is what it makes of what it sends."""

    def __init__(self, project: Path, change: Any = lambda message: message) -> None:
        super().__init__(project)
        self.seen, self.change = list[bytes](), change

    def exchange(self, request: str, blobs: Any) -> Any:
        sent = {site: encode(self.change(decode(blob, 1 << 24))) for site, blob in blobs.items()}
        answers, lost = super().exchange(request, sent)
        self.seen += [request.encode(), *sent.values(), *(answer.blob for answer in answers.values())]
        return answers, lost


def joins(project: Path, config: Config, link: InProcess | None = None, run: str = "r1") -> tuple[Flare, Any]:
    link = link or InProcess(project)
    fed = Flare(link, SITES, ledger=Ledger())
    fed.join(config.plain(), run, -1)
    return fed, link


def tables(project: Path, ages: Any = AGES, external: str = "exchange", **policy: Any) -> Config:
    """Every site with its own accounts and transfers, and the experiment for them."""
    for site, own in ages.items():
        rows = [f"iban-{name},{age},{at % 2},{('train', 'test')[at % 2]}" for at, (name, age) in enumerate(own.items())]
        (project / site / "own").mkdir(exist_ok=True)
        (project / site / "own/nodes.csv").write_text("\n".join(["id,age,label,split", *rows]) + "\n")
        ends = [f"iban-{pair.replace(',', ',iban-')}" for pair in TRANSFERS[site]]
        (project / site / "own/edges.csv").write_text("\n".join(["source,target", *ends]) + "\n")
        about = {"path": "own", "classes": 2, "directed": True, "external": external, "normalize": "none"}
        write_site_file(project / site / SITE_FILE, about, **({"min_nodes": 1, "exchange": True} | policy))
    (project / "server/test.npz").unlink(missing_ok=True)
    data = {"name": "digits", "external": "exchange"}
    return resolve({**experiment(rounds=1).plain(), "data": data, "model": {"name": "sage", "hidden": 4}})


def heard(link: Any, site: str) -> dict[str, dict[str, float]]:
    """{column: {node: what the site knows of it}}."""
    job = job_of(link.members[site])
    data = job.holdings.data
    ids = [name.removeprefix("iban-") for name in data.ids]
    return {name: dict(zip(ids, own, strict=True)) for name, own in zip(data.columns, dense(data.x).T, strict=True)}


def test_who_has_an_edge_in_its_records_tells_of_its_node_whoever_holds_the_other_end(project: Path) -> None:
    config = tables(project)
    fed, link = joins(project, config)
    assert not any(word in why for _, why in examine(project, read_project(project), config).faults for word in RULES)
    of_a, of_b, of_c = (heard(link, site) for site in SITES)
    assert of_a["exchanged in mean of age"] == {"a1": 13.5, "a2": 0, "a3": 0}  # c1 pays twice
    assert of_a["exchanged in log neighbors"]["a1"] == pytest.approx(np.log(3))
    assert of_a["exchanged out mean of age"]["a1"] == 10
    assert of_b["exchanged in mean of age"] == {"b1": 1, "b2": 0, "b3": 0}
    assert of_c["exchanged out mean of age"]["c1"] == 1
    counts = {"b1": 1, "b2": 2, "b3": 1}  # to x1 of nobody here, too
    assert of_b["external out log count"] == pytest.approx({node: np.log1p(count) for node, count in counts.items()})
    rows = [row for row in fed.ledger.table().to_pylist() if row["step"] == "(exchange)" and row["direction"] == "up"]
    assert all("secure sum of all clients" in row["mechanism"] for row in rows if row["key"] == "sums")
    assert {row["key"] for row in rows} == {"sums", "(names and framing)"}


def test_a_site_tells_only_of_as_many_nodes_at_once_as_its_policy_asks_for(project: Path) -> None:
    """Bank A claims x1, an account of a bank that takes no part, to hear who pays into it."""
    claims = {**AGES, "bank-a": AGES["bank-a"] | {"x1": 0}}
    config = tables(project, claims)
    site = project / "bank-b" / SITE_FILE
    for exchange, told in (("3", 20.0), ("4", 0.0)):
        site.write_text(site.read_text().replace("exchange = true", f"exchange = {exchange}"))
        _, link = joins(project, config, run=f"r{exchange}")
        assert heard(link, "bank-a")["exchanged in mean of age"]["x1"] == told
        site.write_text(site.read_text().replace(f"exchange = {exchange}", "exchange = true"))
    _, link = joins(project, replace(config, min_external=4), run="r5")
    assert heard(link, "bank-a")["exchanged in mean of age"]["x1"] == 0


def test_an_id_that_two_sites_claim_stops_all_before_anything_is_told(project: Path) -> None:
    link = Watched(project)
    with refusal("user", "bank-a and bank-c: 1"):
        joins(project, tables(project, {**AGES, "bank-c": AGES["bank-c"] | {"a1": 0}}), link)
    assert not any(b'"kind": "match"' in blob or b'"kind": "exchange"' in blob for blob in link.seen)


@pytest.mark.parametrize(
    ("policy", "external", "said"),
    [
        ({"exchange": False}, "exchange", "policy.exchange"),
        ({}, "features", "data.external"),
        ({"deny": ["sums"]}, "exchange", "policy.deny"),
        ({"epsilon": 1.0, "unbounded": ["ids", "owned"]}, "exchange", "policy.epsilon"),
    ],
)
def test_nothing_is_told_that_an_owner_does_not_allow(
    project: Path, policy: Any, external: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = tables(project, external=external, **policy)
    with pytest.raises(ClientsMissing):
        joins(project, config)
    assert said in caplog.text
    found = examine(project, read_project(project), config)
    assert all(any(site == whose and said in why for whose, why in found.faults) for site in SITES), found.faults


def test_a_policy_allows_no_exchange_unless_it_says_so(project: Path) -> None:
    config = tables(project)
    site = project / "bank-b" / SITE_FILE
    site.write_text(site.read_text().replace("exchange = true\n", ""))
    with refusal("clients-missing", "bank-b:", "policy.exchange"):
        joins(project, config)


def test_the_server_learns_neither_ids_nor_what_is_told_of_them(project: Path) -> None:
    """It sees how many points are on two lists; names, ages and counts are in nothing that passes through it, and what
    it hands out is another each time."""
    config, totals = tables(project), list[np.ndarray]()
    for number in ("r1", "r2"):
        _, link = joins(project, config, Watched(project), number)
        told = [decode(blob, 1 << 24) for blob in link.seen if b'"kind"' not in blob]
        totals.append(np.concatenate([tree["totals"].numpy().ravel() for tree in told if "totals" in tree]))
        assert heard(link, "bank-a")["exchanged in mean of age"]["a1"] == 13.5
        assert not any(b"iban" in blob for blob in link.seen)
    assert (totals[0] != totals[1]).all()
    assert np.abs(totals[0].astype(float)).min() > 2.0**40  # no count, no age, no sum is among them


def test_a_server_that_hands_out_other_nodes_sums_is_found_out(project: Path) -> None:
    """Nobody can read what was told of a node without its id, nor change it unseen without the sites' key."""

    def swapped(message: dict[str, Any]) -> dict[str, Any]:
        return message | {"totals": message["totals"].flip(0)} if "totals" in message else message

    def raised(message: dict[str, Any]) -> dict[str, Any]:
        if "totals" in message:
            message["totals"][:, -1] += 1 << 24
        return message

    for number, change in enumerate((swapped, raised)):
        with refusal("clients-missing", "exchange"):
            joins(project, tables(project), Watched(project, change), f"r{number}")


# --- a server and a site that attack an exchange together, or by themselves


GUESSES = [f"iban-{letter}{number}" for letter in "abcdxyz" for number in range(1, 10)]


def opened(exchange: Exchange, key: bytes, totals: np.ndarray) -> dict[str, np.ndarray]:
    """{guess: the sums sent for it} of the guesses that a checksum confirms, tried on every row that passed."""
    adversary = copy(exchange)
    adversary.meeting = copy(exchange.meeting)
    adversary.meeting.key = key
    found = {}
    for name in GUESSES:
        pad, weights = adversary._pad(name)
        for row in totals.view(np.uint64):
            for tellers in range(1, len(SITES) + 1):
                values = row - np.uint64(tellers) * pad
                if (values[:1] - values @ weights == tellers).all():
                    found[name] = values[1:].view(np.int64)
    return found


def totals_of(link: Watched) -> np.ndarray:
    """int64 [rows, w]: the sums that the server handed out."""
    trees = [decode(blob, 1 << 24) for blob in link.seen if b'"kind"' not in blob]
    return np.concatenate([tree["totals"].numpy() for tree in trees if "totals" in tree])


def test_who_has_the_key_and_what_passes_tries_out_ids_and_who_lacks_the_key_does_not(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dictionary of 63 account numbers: bank C, which has the key, and the server find those that both sides have.
    No setting stops it (docs/security.md); the key is what stops the server by itself."""
    exchanges, greeting = list[Exchange](), Exchange.greeting
    monkeypatch.setattr(Exchange, "greeting", lambda self: exchanges.append(self) or greeting(self))
    _, link = joins(project, tables(project), Watched(project))
    accomplice = next(one for one in exchanges if one.meeting.name == "bank-c")
    found = opened(accomplice, accomplice.meeting.key, totals_of(link))
    assert found.keys() == {"iban-a1", "iban-b1", "iban-b2", "iban-c1"}  # each has edges at two banks
    assert not opened(accomplice, bytes(32), totals_of(link))


def test_sums_of_an_earlier_job_are_refused_in_the_next(project: Path) -> None:
    first = Watched(project)
    joins(project, tables(project), first, "r1")
    old = [tree for blob in first.seen if b'"kind"' not in blob and "totals" in (tree := decode(blob, 1 << 24))]

    def replayed(message: dict[str, Any]) -> dict[str, Any]:
        same = [tree for tree in old if "totals" in message and tree["totals"].shape == message["totals"].shape]
        return same[0] if same else message

    with refusal("clients-missing", "exchange"):
        joins(project, tables(project), Watched(project, replayed), "r2")


def test_no_blinded_id_of_one_job_is_seen_in_another(project: Path) -> None:
    """A server that keeps all that passes cannot say that an account of one job is an account of the next."""

    def words(link: Watched) -> set[bytes]:
        trees = [decode(blob, 1 << 24) for blob in link.seen if b'"kind"' not in blob]
        kinds = ("ids", "points", "totals")
        tensors = [leaf for tree in trees for path, leaf in leaves(tree) if path.split("/")[-1] in kinds]
        return {row.tobytes() for leaf in tensors for row in leaf.reshape(len(leaf), -1).numpy() if row.nbytes >= 16}

    jobs = []
    for number in ("r1", "r2"):
        _, link = joins(project, tables(project), Watched(project), number)
        jobs.append(words(link))
    assert min(map(len, jobs)) > 10
    assert not jobs[0] & jobs[1]


def test_forged_edges_bring_their_forger_nothing_and_change_what_others_hear(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bank A claims that its account a2 pays every account of B and C: it hears no more, since only their own records
    decide what they tell of; what they hear of its account is its word (docs/security.md: not promised)."""
    _, link = joins(project, tables(project), run="r1")
    honest = {site: heard(link, site) for site in SITES}
    forged = [f"a2,{account}" for site in SITES[1:] for account in AGES[site]]
    monkeypatch.setitem(TRANSFERS, "bank-a", TRANSFERS["bank-a"] + forged)
    _, link = joins(project, tables(project), run="r2")
    told = {site: heard(link, site) for site in SITES}
    columns = [name for name in told["bank-a"] if name.startswith("exchanged")]
    assert columns
    assert all(told["bank-a"][name] == honest["bank-a"][name] for name in columns)
    assert honest["bank-b"]["exchanged in mean of age"]["b3"] == 0
    assert told["bank-b"]["exchanged in mean of age"]["b3"] == 2  # the age of a2


@pytest.mark.slow
def test_a_restarted_server_and_prediction_exchange_anew_and_find_the_same(project: Path, tmp_path: Path) -> None:
    config = across(bank(tmp_path / "data", nodes=160), "exchange")
    fed, algorithm, link = joined(handed(project, config), config)
    steps = train(algorithm, fed, 2)
    first = next(steps)
    saved, was = fed.snapshot(), {site: dense(graph_arrays(job_of(link.members[site]).graph).x) for site in SITES}
    again, algorithm, link = joined(project, config, after=1)
    for site in SITES:
        np.testing.assert_array_equal(dense(graph_arrays(job_of(link.members[site]).graph).x), was[site])
    again.restore(saved)
    *_, last = train(algorithm, again, 2, resume=(1, first.state), summary=first.summary)
    assert last.summary == pytest.approx(simulated(config)[0].summary, abs=1e-5)
    ledger = predict(project, config, algorithm, last.state, "global")
    assert {row["step"] for row in ledger.table().to_pylist() if row["direction"] == "up"} >= {"(exchange)", "(join)"}
    assert all((project / site / "runs/r1/predictions.parquet").exists() for site in SITES)


@pytest.mark.slow
def test_processes_exchange_as_the_simulation_does(owned: Path, tmp_path: Path) -> None:
    config = across(bank(tmp_path / "data", nodes=160), "exchange")
    summary = run(config, handed(owned, config), tmp_path / "out", False, Watcher())
    expected, _ = simulated(config)
    assert summary["metrics"] == pytest.approx(expected.summary, abs=1e-5)
    for about in (owned / "bank-b", tmp_path / "out"):
        told = CliRunner().invoke(app, ["ledger", str(about)], env={"COLUMNS": "300"})
        assert told.exit_code == 0, told.output
        assert "exchange" in told.output

"""Links between sites: the simulation's numbers, a split that no server has a say in, and what evaluations tell."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.ledger import Ledger
from fedweave.core.links import Links
from fedweave.core.types import FRAMING
from fedweave.errors import ClientsMissing
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT
from fedweave.models.edges import model_of_form
from fedweave.sites.flare.agreement import common_form
from fedweave.sites.flare.compliance import of_site
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.joining import FORM
from fedweave.sites.flare.journal import entries
from fedweave.sites.flare.site_data import training_graph
from fedweave.sites.flare.sitefile import FINE, SITE_FILE, SiteData, read_site_file, write_site_file
from fedweave.sites.operation.checking import examine
from fedweave.sites.operation.experiments import hand_out, split
from fedweave.sites.operation.project import read_project
from fedweave.sites.operation.running import run
from tests.contract.federations import distance
from tests.refusals import check_facts, refusal
from tests.sites.projects import SITES, InProcess, copied, experiment, renamed, set_policy, simulated
from tests.sites.test_sites import Watcher, noted


@pytest.fixture
def project(provisioned: Path, tmp_path: Path) -> Path:
    """A copy of the project that the test may change."""
    target = copied(provisioned, tmp_path / "project")
    (target / "server/test.npz").unlink(missing_ok=True)
    return target


def tables(folder: Path, nodes: int = 90, kinds: tuple[str, ...] = (), label: bool = False, split: str = "") -> Path:
    """People in three groups, most of whose edges stay inside; `split` names a column of edges."""
    rng = np.random.default_rng(2)
    x = rng.normal(0, 1, (nodes, 3)) + np.eye(3)[np.arange(nodes) % 3]
    drawn = [
        (int(u), int(v)) for u, v in rng.integers(0, nodes, (nodes * 20, 2)) if u % 3 == v % 3 or rng.random() < 0.1
    ]
    pairs = sorted({(u, v) if not kinds or u % 2 == 0 else (v, u) for u, v in drawn if u != v})
    pairs = [(u, v) for u, v in pairs if (u % 2 == 0 and v % 2 == 1 if kinds else u < v)]
    header = ["id", *(["kind"] if kinds else []), "a", "b", "c"]
    rows = [[f"n{i}", *([kinds[i % 2]] if kinds else []), *map(str, x[i])] for i in range(nodes)]
    more = [*(["label"] if label else []), *([split] if split else [])]
    edges = [
        [
            f"n{u}",
            f"n{v}",
            *([("likes", "knows", "pays")[(u + v) % 3]] if label else []),
            *([("train", "train", "val", "test")[at % 4]] if split else []),
        ]
        for at, (u, v) in enumerate(pairs)
    ]
    folder.mkdir(parents=True)
    for name, lines in (("nodes", [header, *rows]), ("edges", [["source", "target", *more], *edges])):
        (folder / f"{name}.csv").write_text("".join(",".join(line) + "\n" for line in lines))
    return folder


def of_links(folder: Path, algorithm: str = "fedavg", **changes: Any) -> Any:
    """An experiment on the links of these tables, cut for three sites."""
    data = {
        "name": "folder",
        "path": str(folder),
        "task": "links",
        "rank_negatives": 10,
        "ratios": [0.6, 0.2, 0.2],
    } | changes.pop("data", {})
    model = {"decoder": "dot"} | changes.pop("model", {})
    return experiment(
        algorithm,
        rounds=2,
        data=data,
        partition=changes.pop("partition", {"name": "edges", "by": "random", "clients": 3}),
        model=model,
        algorithm_settings=changes.pop("algorithm_settings", {}),
        **changes,
    )


def joined(project: Path, config: Any, link: InProcess | None = None, **options: Any) -> tuple[Flare, Any, Any]:
    link = link or InProcess(project)
    fed = Flare(link, SITES, ledger=Ledger(), seed=config.general.seed, **options)
    replies = fed.join(config.plain(), "r1", -1, False)
    fed.begin(1)
    fed.classes = 2
    form, features = common_form(replies), replies[SITES[0]]["features"]
    return fed, config.algorithm.make(model_of_form(config.model.make(), form, features, 2, config.decoder)), link


CASES: dict[str, dict[str, Any]] = {
    "dot": {},
    "relations": {"label": True, "model": {"decoder": "distmult"}},
    "items": {"kinds": ("user", "item"), "data": {"users": "user", "items": "item", "rank_negatives": "all"}},
    "messages": {"data": {"disjoint": 0.3, "message": "train+val"}, "model": {"name": "sage", "decoder": "mlp"}},
    "sums": {"algorithm_settings": {"scores": "sum", "parts": ["secure_sum"]}},
}


@pytest.mark.parametrize("case", CASES)
def test_sites_give_the_numbers_of_the_simulation(project: Path, tmp_path: Path, case: str) -> None:
    settings = dict(CASES[case])
    config = of_links(
        tables(tmp_path / "d", kinds=settings.pop("kinds", ()), label=settings.pop("label", False)), **settings
    )
    hand_out(*split(config, SITES), project, SITES, config)
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    expected, sim = simulated(config)
    assert distance(last.state, renamed(expected.state, sim)) <= 1e-5
    assert {"global/mrr", "global/auc", "global/hits_at_10"} <= last.summary.keys()
    told = {key: value for key, value in last.summary.items() if "pooled/" not in key}
    assert told.keys() == expected.summary.keys()
    assert told == pytest.approx(expected.summary, abs=1e-3)
    assert (case == "sums") == ("pooled/auc" in last.summary)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["dot", "relations", "items"])
def test_sites_in_processes_of_their_own_give_the_numbers_of_the_simulation(
    owned: Path, tmp_path: Path, case: str
) -> None:
    settings = dict(CASES[case])
    kinds, label = settings.pop("kinds", ()), settings.pop("label", False)
    config = of_links(tables(tmp_path / "d", kinds=kinds, label=label), **settings)
    (owned / "server/test.npz").unlink()  # the fixture writes it again
    hand_out(*split(config, SITES), owned, SITES, config)
    summary = run(config, owned, tmp_path / "out", False, Watcher())
    expected, sim = simulated(config)
    reached = Checkpoint.load(tmp_path / "out" / CHECKPOINT).state
    assert distance(reached, renamed(expected.state, sim)) <= 1e-5
    last = {key: value for key, value in expected.summary.items() if key.startswith(("global/", "local/"))}
    assert {"global/mrr", "global/auc"} <= last.keys()
    assert {key: summary["metrics"][key] for key in last} == pytest.approx(last, abs=1e-3)
    assert noted(tmp_path / "out") == {}


# ----------------------------------------------------------------------------------------------------
# Sites with tables of their own: no server has a say in which split a link is in.


def own(project: Path, folder: Path, site: str = SITES[0], **about: Any) -> Path:
    """The site's file, for these tables."""
    policy = about.pop("policy", {"measures": list(FINE)})
    write_site_file(project / site / SITE_FILE, {"path": str(folder), "task": "links", **about}, **policy)
    return project / site


def split_at(site: Path, seed: int = 0, **links: Any) -> dict[frozenset[str], int]:
    """{ends: split} of a site's links."""
    about, _ = read_site_file(site / SITE_FILE)
    data = training_graph(about, site, links=Links(seed=seed, **links))
    ends = np.array(data.node_ids)[data.edge_attrs.ends]
    return {
        frozenset(pair): int(at) for pair, at in zip(ends.T.tolist(), np.asarray(data.public).argmax(0), strict=True)
    }


def test_a_link_that_two_sites_know_is_in_the_same_split_at_both_by_their_key_alone(
    project: Path, tmp_path: Path
) -> None:
    whole = tables(tmp_path / "a")
    part = tables(tmp_path / "b")
    header, *rows = (part / "edges.csv").read_text().splitlines()
    turned = [",".join(reversed(row.split(","))) for row in rows[::-2]]  # the other way round, in another order
    (part / "edges.csv").write_text("\n".join([header, *turned]) + "\n")
    first, second = own(project, whole), own(project, part, SITES[1])
    known, some = split_at(first), split_at(second)
    assert len(some) > 50
    assert {pair: known[pair] for pair in some} == some
    assert split_at(first, seed=5, ratios=(0.1, 0.1, 0.8)) == known  # whatever a server writes into the experiment
    shares = np.bincount([*known.values()], minlength=3) / len(known)
    assert shares == pytest.approx([0.85, 0.05, 0.1], abs=0.06)
    (second / "ids.key").write_text(bytes(range(32)).hex())
    assert split_at(second) != some
    own(project, whole, shares=[0.5, 0.25, 0.25], split="hash")
    assert np.bincount([*split_at(first).values()], minlength=3)[1] > 0.15 * len(known)


def test_a_split_of_ones_own_comes_first(project: Path, tmp_path: Path) -> None:
    site = own(project, tables(tmp_path / "d", split="split"))
    assert np.bincount([*split_at(site).values()]) / len(split_at(site)) == pytest.approx([0.5, 0.25, 0.25], abs=0.01)
    own(project, tmp_path / "d", split="hash")
    with refusal("data.split-twice"):
        split_at(site)


def test_sites_with_tables_of_their_own_train_and_predict_pairs(project: Path, tmp_path: Path) -> None:
    folder, names = tables(tmp_path / "d", label=True), ["knows", "likes", "pays"]
    header, *rows = (folder / "edges.csv").read_text().splitlines()
    for at, site in enumerate(SITES):  # each has links of two relations alone
        shutil.copytree(folder, tmp_path / site)
        held = [row for row in rows if not row.endswith(names[at])]
        (tmp_path / site / "edges.csv").write_text("\n".join([header, *held]) + "\n")
        (tmp_path / site / "asked.csv").write_text("head,tail,label\nn1,n4,pays\nn1,nobody,knows\n")
        about = {
            "labels": names,
            "shares": [0.6, 0.2, 0.2],
            "split": "hash",
            "pairs": str(tmp_path / site / "asked.csv"),
        }
        own(project, tmp_path / site, site, **about)
    config = of_links(folder, data={"labels": names}, model={"decoder": "distmult"})
    found = examine(project, read_project(project), config)
    assert not found.faults
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2, judging=config.evaluation)
    assert {"judged/mrr", "best_val/val/mrr"} <= last.summary.keys()
    assert 0 < last.summary["global/mrr"] < 1
    assert {row["key"] for row in fed.ledger.table().to_pylist() if row["key"].startswith("own/")} >= {"own/mrr"}
    fed.snapshot()
    again = Flare(InProcess(project), SITES, ledger=Ledger(), seed=config.general.seed)
    again.join(config.plain(), "r1", 2, predict=True)
    again.restore({"round": 2})
    again.begin(2)
    algorithm.deploy(last.state, again, "personal")
    for site in SITES:
        table = pq.read_table(project / site / "runs/r1/predictions.parquet").to_pandas()
        assert set(table["true"]) == {"link", "no link"}
        assert set(table["split"]) == {"train", "val", "test"}
        pairs = pq.read_table(project / site / "runs/r1/pairs.parquet").to_pandas()
        assert pairs["relation"].tolist() == ["pays", "knows"]
        assert 0 < pairs["score"][0] < 1
        assert np.isnan(pairs["score"][1])
    sent = [row for row in again.ledger.table().to_pylist() if row["direction"] == "up"]
    assert {row["key"] for row in sent} <= {*FORM, FRAMING}


# ----------------------------------------------------------------------------------------------------
# What evaluations tell, and what is refused.


@pytest.mark.parametrize("scores", ["each", "sum"])
@pytest.mark.parametrize("measures", [[], [one for one in FINE if one != "ranks"]])
def test_ranks_that_no_policy_measures_are_undefined(
    project: Path, tmp_path: Path, scores: str, measures: list[str]
) -> None:
    config = of_links(tables(tmp_path / "d"), algorithm_settings={"scores": scores})
    hand_out(*split(config, SITES), project, SITES, config)
    for site in SITES:
        set_policy(project, f"measures = {measures}", site)
    noted = [note for _, note in examine(project, read_project(project), config).notes]
    assert any("ranks" in note and "MRR" in note for note in noted)
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2, judging=config.evaluation)
    assert last.summary["global/accuracy"] > 0
    assert not [name for name in last.summary if "mrr" in name.split("/")[-1] and not name.startswith("judged/")]
    assert ("global/auc" in last.summary) == bool(measures)
    assert "best_val/val/mrr" not in last.summary


@pytest.mark.parametrize("case", [{"task": "edges"}, {"users": "user", "items": "item"}, {"relation": False}])
def test_the_owner_says_what_is_predicted_and_not_the_server(
    project: Path, tmp_path: Path, case: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    config = of_links(tables(tmp_path / "d"))
    hand_out(*split(config, SITES), project, SITES, config)
    about = {"path": "data.npz", "task": "links", "loops": "keep", "classes": 1} | case
    write_site_file(project / SITES[0] / SITE_FILE, about)
    assert any("data." in why for whose, why in examine(project, read_project(project), config).faults)
    with pytest.raises(ClientsMissing):
        joined(project, config)
    check_facts(caplog.text, "site.toml")


SITE_FILES: list[tuple[str, dict[str, Any]]] = [
    ("config.idle", {"task": "nodes", "users": "user"}),
    ("config.idle", {"task": "edges", "relation": False}),
    ("config.links", {"task": "links", "test": "test.npz"}),
    ("config.links", {"task": "links", "external": "features"}),
    ("config.value", {"task": "links", "external": "predict"}),
    ("config.value", {"task": "links", "users": "user"}),
    ("config.value", {"task": "links", "split": "hash", "shares": (0.9, 0.2, 0.1)}),
]


@pytest.mark.parametrize(("code", "about"), SITE_FILES)
def test_site_files_that_mean_nothing(code: str, about: dict[str, Any]) -> None:
    with refusal(code):
        SiteData(path="data", **about)


def test_few_links_are_no_crowd(project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Pairs that are drawn beside links make no crowd of them: they are not records of anybody."""
    config = of_links(tables(tmp_path / "d"))
    hand_out(*split(config, SITES), project, SITES, config)
    least = min(np.bincount([*split_at(project / SITES[1]).values()]))
    for bound, refused in ((least, False), (least + 1, True)):
        set_policy(project, f"min_nodes = {bound}\nmeasures = ['ranks']", SITES[1])
        if refused:
            with pytest.raises(ClientsMissing):
                joined(project, config)
            check_facts(caplog.text, "policy.min_nodes")
        else:
            joined(project, config)


def test_randomized_labels_of_links_are_refused(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = of_links(tables(tmp_path / "d"))
    hand_out(*split(config, SITES), project, SITES, config)
    set_policy(project, "score_epsilon = 1.0", SITES[0])
    with pytest.raises(ClientsMissing):
        joined(project, config)
    check_facts(caplog.text, "policy.score_epsilon")


def test_the_compliance_report_of_links_lists_all_that_left(project: Path, tmp_path: Path) -> None:
    """Each key in the site's ledger is on its page, links are the examples, and no node's name is there."""
    folder = tables(tmp_path / "d")
    for site in SITES:
        own(project, folder, site, shares=[0.6, 0.2, 0.2], split="hash")
    fed, algorithm, _ = joined(project, config := of_links(folder))
    list(train(algorithm, fed, 2, judging=config.evaluation))
    [journal] = (project / SITES[0]).glob("ledgers/*.jsonl")
    found = of_site(project / SITES[0])
    [kinds] = [one.grid for one in found.sections if one.grid and "key" in one.grid.head]
    reveals = {}  # {key: what the receiver learns}
    for cells in kinds.rows:
        row = dict(zip(kinds.head, cells, strict=True))
        reveals |= dict.fromkeys(row["key"].split(", "), row["what the receiver learns"])
    sent = {line.key for entry in entries(journal) for line in entry.keys}
    assert {key.split("/")[0] for key in sent} == {key.split("/")[0] for key in reveals} - {""}
    assert [key for key, text in reveals.items() if "ranks the client's links" in text], reveals
    assert {"edges", "relations", "split"} <= reveals.keys()
    assert not re.search(r"\bn\d+\b", str(found))

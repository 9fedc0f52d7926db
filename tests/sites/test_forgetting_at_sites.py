"""A run between sites without examples or without a site: exact, and reported at the site."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

import torch

from fedweave.apply.forgetting_record import RECORD, digest
from fedweave.apply.scorer import Scorer
from fedweave.cli import app
from fedweave.core.ledger import Ledger
from fedweave.core.tree import leaves, sub
from fedweave.experiment.config import Config, to_toml
from fedweave.experiment.loading import read_and_cut
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT, SCORER
from fedweave.models.edges import model_of_form
from fedweave.partition.forgetting import Forget, names_of
from fedweave.sites.flare.admission import check_forget
from fedweave.sites.flare.agreement import common_form, server_graphs
from fedweave.sites.flare.alignment import max_features
from fedweave.sites.flare.audit import audit, describe_requests
from fedweave.sites.flare.compliance import read_report
from fedweave.sites.flare.data_marks import data_digest
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.folder import RUNS
from fedweave.sites.flare.forgetting import RunHere, report, run_before
from fedweave.sites.flare.holdings import Forgotten
from fedweave.sites.flare.policy_names import read_checked
from fedweave.sites.flare.site_data import training_graph
from fedweave.sites.flare.sitefile import SITE_FILE, SiteData, write_site_file
from fedweave.sites.operation import forgetting as sites_forget
from fedweave.sites.operation.checking import examine
from fedweave.sites.operation.experiments import hand_out, split
from fedweave.sites.operation.project import read_project
from fedweave.sites.operation.running import number_of, sites_of
from tests import commands
from tests.contract.federations import distance
from tests.refusals import check_facts, refusal
from tests.sites.projects import SITES, InProcess, experiment, simulated
from tests.sites.test_carrying_at_sites import bank, experiment_with

SITE = "bank-b"
ROUNDS = 2


def forget(project: Path, ids: list[str], site: str = SITE) -> None:
    """Let the owner of a site list ids."""
    (project / site / "forget.txt").write_text("\n".join(ids) + "\n")
    path = project / site / SITE_FILE
    if "forget = " not in path.read_text():
        path.write_text(path.read_text().replace("[data]\n", '[data]\nforget = "forget.txt"\n'))


def rounds(project: Path, config: Config, run: str = "r1", sites: tuple[str, ...] = SITES) -> Any:
    """A run of these sites, to its end."""
    graphs = server_graphs(project / "server", torch.float32)
    fed = Flare(InProcess(project), sites, ledger=Ledger(), seed=config.general.seed, graphs=graphs)
    replies = fed.join(config.plain(), run, -1)
    features, fed.classes = max_features(replies), replies[sites[0]]["classes"]
    fed.begin(1)
    model = model_of_form(config.model.make(), common_form(replies), features, fed.classes)
    *_, last = train(config.algorithm.make(model), fed, config.general.rounds)
    fed.snapshot()
    return last


def numbers(config: Config, at: int, count: int) -> tuple[list[str], list[str]]:
    """Twelve training examples of a client and every third of the others, as the site numbers them, and as the
    simulation does: fewer of training would be refused."""
    part = read_and_cut(config, config.data.values)[1].parts[at]
    train, others = np.flatnonzero(part.masks[0]), np.flatnonzero(~part.masks[0])
    rows = np.concatenate([train[:12], others[::3]])[:count]
    return [str(row) for row in rows], [str(number) for number in part.examples[rows]]


@pytest.mark.parametrize("name", ["fedavg", "ditto"])
def test_an_exact_rerun_gives_the_numbers_of_the_simulation(project: Path, name: str) -> None:
    """Without examples of one site, which no other member learns."""
    config = experiment(name, rounds=ROUNDS)
    here, there = numbers(config, SITES.index(SITE), 40)
    whole = rounds(project, config)
    forget(project, here)
    last = rounds(project, config, "r2")
    expected, _ = simulated(replace(config, forget=Forget(ids=tuple(there))))
    assert distance(last.state["w"], expected.state["w"]) <= 1e-5
    assert distance(last.state["w"], whole.state["w"]) > 1e-3


def state_of(project: Path, run: str) -> tuple[Any, Scorer]:
    """The site's data in plain tensors, and the model that a run left there."""
    return training_graph(read_checked(project / SITE / SITE_FILE)[0], project / SITE), Scorer.load(
        project / SITE / RUNS / run / SCORER
    )


def record_of(project: Path, *options: str, site: str = SITE) -> dict[str, Any]:
    """What `fedweave forget` writes at a site."""
    commands.run("forget", project / site, *options)
    last = max((project / site / "forgotten").iterdir(), key=lambda folder: int(folder.name))
    record = json.loads((last / RECORD).read_text())
    assert record["digest"] == digest(record)
    return record


def test_a_site_reports_what_its_models_still_show(project: Path) -> None:
    """By numbers that SciPy and plain PyTorch get from the same models, and with the site's own signature."""
    config = experiment(rounds=ROUNDS)
    here, _ = numbers(config, SITES.index(SITE), 150)
    rounds(project, config)
    whole, before = state_of(project, "r1")
    forget(project, here)
    rounds(project, config, "r2")
    rest, exact = state_of(project, "r2")
    record = record_of(project)
    one, about = record["models"]["before"], record["forgotten"]
    gone = np.array([*map(int, here)])
    train, _, test = np.asarray(whole.public)
    assert (about["examples"], about["training"]) == (150, int(train[gone].sum()))
    far, size = (
        np.concatenate([leaf.double().numpy().ravel() for _, leaf in leaves(tree)])
        for tree in (sub(before.weights, exact.weights), exact.weights)
    )
    assert one["parameters"] == pytest.approx(np.linalg.norm(far) / np.linalg.norm(size), rel=1e-5)
    p, q = (
        model.predict(rest).select([f"p_{c}" for c in range(10)]).to_pandas().to_numpy() for model in (before, exact)
    )
    at = np.asarray(rest.public)[2]
    assert one["predictions"] == pytest.approx(np.abs(p - q)[at].sum(1).mean() / 2, abs=1e-6)
    assert one["metric"] == pytest.approx((p.argmax(1) == rest.y)[at].mean())
    for name, model in (("before", before), ("exact", exact)):
        p = model.predict(whole).select([f"p_{c}" for c in range(10)]).to_pandas().to_numpy()
        loss = -np.log(p[np.arange(len(p)), whole.y])
        leaving, staying = np.zeros(len(p), bool), np.ones(len(p), bool)
        leaving[gone], staying[gone] = train[gone], False
        attack = record["models"][name]["attack"]
        expected = ks_2samp(loss[leaving], loss[test & staying], alternative="greater").statistic
        assert attack["advantage"] == pytest.approx(expected, abs=1e-9)
    lines = [describe_requests(one) for one in audit(project / SITE).runs]
    assert [any("150 examples" in line for line in one) for one in lines] == [False, True]
    folder = project / SITE / "forgotten/1"
    assert folder.stat().st_mode & 0o077 == 0
    assert not any(word in (folder / RECORD).read_text() for word in ("forget.txt", str(here)))
    report = read_report(folder / "forgetting-signed.json", project / SITE / "startup")
    assert [signature.name for signature in report.signatures] == [SITE]
    spoiled = json.loads((folder / "forgetting-signed.json").read_text())
    text = json.dumps(spoiled).replace(f"{one['metric']:.4f}", "0.9999")
    (folder / "forgetting-signed.json").write_text(text)
    with refusal("user", SITE):
        read_report(folder / "forgetting-signed.json", project / SITE / "startup")


def test_a_report_on_models_that_read_ports(project: Path, tmp_path: Path) -> None:
    config = experiment_with(bank(tmp_path / "data"), name="gine", directed="both", ports=True)
    hand_out(*split(config, SITES), project, SITES)
    rounds(project, config)
    whole, before = state_of(project, "r1")
    forget(project, [str(name) for name in np.array(names_of(whole))[whole.public[0]][:20]])
    rounds(project, config, "r2")
    rest, exact = state_of(project, "r2")
    record = record_of(project)
    ported = replace(rest, edge_attrs=rest.edge_attrs._replace(ports=True))
    p, q = (model.predict(ported).select(["p_0", "p_1"]).to_pandas().to_numpy() for model in (before, exact))
    at = np.asarray(rest.public)[2]
    expected = np.abs(p - q)[at].sum(1).mean() / 2
    assert expected > 0
    assert record["models"]["before"]["predictions"] == pytest.approx(expected, abs=1e-6)


def test_a_report_takes_no_run_with_another_list(project: Path) -> None:
    """It would say that an exact model never saw what it was trained on. Options of a simulation are refused."""
    config = experiment(rounds=1)
    rounds(project, config)
    forget(project, numbers(config, SITES.index(SITE), 40)[0])
    rounds(project, config, "r2")
    assert report(project / SITE, before="r1", exact="r2").record["configurations"].keys() == {"exact"}
    for options in ({"before": "r2", "exact": "r1"}, {"fast": "r1"}):
        with refusal("forget.other-list"):
            report(project / SITE, **options)
    for option in (["--rounds", "0"], ["--client", SITE]):
        result = CliRunner().invoke(app, ["forget", str(project / SITE), *option])
        assert (result.exit_code, isinstance(result.exception, SystemExit)) == (2, True)


def test_a_site_that_left_reports_with_the_model_of_the_others(project: Path) -> None:
    """It has no run without itself; the others say who is missing, and have nothing to infer."""
    config = experiment(rounds=ROUNDS)
    rounds(project, config)
    others = tuple(site for site in SITES if site != SITE)
    rounds(project, config, "r2", others)
    with refusal("forget.no-run"):
        report(project / SITE)
    whole = state_of(project, "r1")[0]
    record = record_of(project, "--exact", str(project / others[0] / RUNS / "r2" / SCORER))
    assert record["forgotten"]["clients"] == [SITE]
    assert record["forgotten"]["training"] == int(np.asarray(whole.public)[0].sum())
    assert record["models"]["before"]["attack"] is not None
    record = record_of(project, site=others[0])
    assert (record["run"], record["forgotten"]["examples"]) == ("r1", 0)
    assert any(SITE in note for note in record["notes"])
    assert record["models"]["before"]["attack"] is None


def test_a_site_alone_cannot_be_left_out_of_secure_sums(project: Path) -> None:
    """Also where the others have new lists: what they forget makes their data no new data."""
    config = experiment(rounds=1, algorithm_settings={"parts": ["secure_sum"], "local_steps": 1})
    rounds(project, config)
    for at, site in enumerate(SITES):
        forget(project, numbers(config, at, 20)[0], site)
    with refusal("clients-missing", "policy.min_difference", SITES[-1]):
        rounds(project, config, "r2", SITES[:2])


def refusals(project: Path, config: Config, sites: tuple[str, ...] = SITES) -> list[tuple[str, str]]:
    """(site, rule) of each refusal that `sites check` foresees."""
    faults = examine(project, replace(read_project(project), sites=sites), config).faults
    rules = "min_difference", "min_nodes"
    return [(whose, rule) for whose, what in faults for rule in rules if whose in sites and f"policy.{rule}" in what]


def test_the_check_foresees_that_a_run_differs_too_little(project: Path, tmp_path: Path) -> None:
    """By the journals of the sites that are here, and only where sums or lists differ. It is a fault, by the last line
    and the exit code, too."""
    config = experiment(rounds=1, algorithm_settings={"parts": ["secure_sum"], "local_steps": 1})
    assert refusals(project, config) == []
    rounds(project, config)
    assert refusals(project, config) == []
    assert refusals(project, config, SITES[:2]) == [(site, "min_difference") for site in SITES[:2]]
    assert refusals(project, config, SITES[:1]) == []  # two sites apart
    assert refusals(project, experiment(), SITES[:2]) == []  # without sums
    forget(project, numbers(config, 1, 4)[0])
    assert refusals(project, experiment()) == [(SITE, "min_nodes")]
    (tmp_path / "config.toml").write_text(to_toml(experiment().plain()))
    checked = commands.run("sites", "check", project, tmp_path / "config.toml", code=2)
    check_facts(checked, f"{SITE}:", "policy.min_nodes")
    assert (SITE, "min_difference") in refusals(project, config, SITES[:2])
    facts = examine(project, read_project(project), config).facts
    assert any(whose == SITE and "4 nodes left out" in what for whose, what in facts)
    forget(project, numbers(config, 1, 12)[0])
    assert refusals(project, config) == []


@pytest.mark.parametrize(
    ("began", "clients", "left"),
    [(SITES, (), SITES), (SITES[:2], (), SITES[:2]), (SITES, SITES[:1], SITES[1:]), (("gone", *SITES), (), SITES)],
)
def test_a_rerun_takes_the_sites_of_the_run(
    project: Path, monkeypatch: Any, began: tuple[str, ...], clients: tuple[str, ...], left: tuple[str, ...]
) -> None:
    """Also where the project has got a site since, or has lost one."""
    config, ran = experiment(rounds=1), list[tuple[str, ...]]()
    (project / "run").mkdir()
    (project / "run/run.json").write_text(json.dumps({"sites": began, "number": "r1"}))
    monkeypatch.setattr(sites_forget, "finished_config", lambda directory: config)
    monkeypatch.setattr(sites_forget, "read_summary", lambda path: {})

    def run(config: Any, project: Path, directory: Path, *rest: Any, without: Any) -> dict[str, Any]:
        ran.append(tuple(site for site in read_project(project).sites if site not in without))
        return {}

    monkeypatch.setattr(sites_forget, "run", run)
    sites_forget.rerun(project, project / "run", clients, rounds=0)
    assert ran == [left]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"task": "links"}, "forget.links"),
        ({"features": "learned"}, "forget.links"),
        ({"external": "features"}, "forget.scaling"),
    ],
)
def test_what_a_site_cannot_leave_out(settings: Any, code: str) -> None:
    with refusal(code):
        SiteData(path="data", forget="forget.txt", **settings)


def test_a_party_of_a_vertical_run_leaves_nothing_out() -> None:
    with refusal("forget.vertical"):
        check_forget(SiteData(path="data", forget="forget.txt"), experiment("glasu"))


@pytest.mark.parametrize(("content", "code"), [("", "forget.ids"), (None, "forget.ids")])
def test_a_list_that_cannot_be_read_is_refused(project: Path, content: str | None, code: str) -> None:
    """A list that is gone must not bring back what it lists."""
    forget(project, ["1"])
    file = project / SITE / "forget.txt"
    file.unlink() if content is None else file.write_text(content)
    with refusal(code):
        training_graph(read_checked(project / SITE / SITE_FILE)[0], project / SITE)


def test_ids_that_the_data_lacks_are_counted(project: Path) -> None:
    """The owner may remove the rows later, and leave the list."""
    forget(project, ["1", "2", "nobody"])
    forgotten = Forgotten.of(read_checked(project / SITE / SITE_FILE)[0], project / SITE)
    assert (forgotten.ids, forgotten.absent) == (("1", "2"), 1)


def test_columns_and_edges_are_scaled_by_what_is_left(tmp_path: Path) -> None:
    """As scikit-learn scales these rows alone; edges of what left are gone."""
    rng = np.random.default_rng(0)
    rows = [f"n{i},{'ab'[i % 2]},{('train', 'val', 'test')[i % 3]},{rng.normal(3, 2):.4f}" for i in range(60)]
    pairs = [(i, (i + 7) % 60, round(float(rng.exponential(9)), 3)) for i in range(60)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/nodes.csv").write_text("\n".join(["id,label,split,age", *rows]) + "\n")
    edges = [f"n{i},n{j},{amount}" for i, j, amount in pairs]
    (tmp_path / "data/edges.csv").write_text("\n".join(["source,target,amount", *edges]) + "\n")
    (tmp_path / "forget.txt").write_text("".join(f"n{i}\n" for i in range(0, 30)))
    about = {"path": "data", "labels": ["a", "b"], "normalize": "standard", "forget": "forget.txt"}
    write_site_file(tmp_path / SITE_FILE, about | {"edge_features": ["amount"], "edge_normalize": "standard"})
    data = training_graph(read_checked(tmp_path / SITE_FILE)[0], tmp_path)
    ported = replace(data, edge_attrs=data.edge_attrs._replace(ports=True))
    assert data_digest(ported) == data_digest(data)  # a server that asks for ports has no new data
    assert data_digest(data) == data_digest(replace(data, y=1 - data.y))  # nor has a site that names its classes
    other = data.edge_attrs._replace(features=data.edge_attrs.features * 2)
    fewer = ported.edge_attrs.select(np.arange(1, ported.edge_attrs.total))
    changed = [{"x": data.x * 2}, {"edge_attrs": other}, {"edge_attrs": fewer}, {"ids": ("n", *data.ids[1:])}]
    assert len({data_digest(replace(data, **change)) for change in [{}, *changed]}) == 5
    ages = np.array([[float(row.split(",")[3])] for row in rows[30:]])
    np.testing.assert_allclose(np.asarray(data.x), StandardScaler().fit_transform(ages), atol=1e-5)
    assert data.ids == tuple(f"n{i}" for i in range(30, 60))
    left = np.array([[amount] for i, j, amount in pairs if i >= 30 and j >= 30])
    np.testing.assert_allclose(
        np.sort(np.asarray(data.edge_attrs.features), 0), np.sort(StandardScaler().fit_transform(left), 0), atol=1e-5
    )


@pytest.mark.slow
def test_real_sites_forget_examples_and_a_site(owned: Path, tmp_path: Path) -> None:
    """By the commands of the documentation: exact and fast, three signed reports, and what the policy refuses."""

    def fedweave(*words: object, code: int = 0) -> str:
        result = CliRunner().invoke(app, [*map(str, words)])
        assert result.exit_code == code, result.output
        return result.output

    config, out = experiment(rounds=3), tmp_path / "run"
    (tmp_path / "exp.toml").write_text(to_toml(config.plain()))
    fedweave("sites", "run", tmp_path / "exp.toml", "--sites", owned, "-o", out)
    here, there = numbers(config, SITES.index(SITE), 60)
    forget(owned, here[:5])
    check_facts(fedweave("sites", "check", owned, tmp_path / "exp.toml", code=2), "policy.min_nodes")
    check_facts(fedweave("sites", "forget", out, "--sites", owned, "-o", tmp_path / "few", code=2), "policy.min_nodes")
    forget(owned, here)
    fedweave("sites", "forget", out, "--sites", owned, "--rounds", "1")
    expected, _ = simulated(replace(config, forget=Forget(ids=tuple(there))))
    exact = Checkpoint.load(out / "forgotten/1/exact" / CHECKPOINT)
    assert distance(exact.state["w"], expected.state["w"]) <= 1e-5
    record = record_of(owned)
    assert [*record["models"]] == ["before", "exact", "fast"]
    assert record["models"]["fast"]["rounds"] == 1
    assert record["run"] == number_of(out)
    others = [site for site in SITES if site != SITE]
    fedweave("sites", "forget", out, "--sites", owned, "--client", SITE, "--rounds", "0", "-o", tmp_path / "left")
    assert sites_of(tmp_path / "left/exact") == others
    (owned / SITE / SITE_FILE).write_text((owned / SITE / SITE_FILE).read_text().replace('forget = "forget.txt"\n', ""))
    fedweave("sites", "export", tmp_path / "left/exact", "--site", owned / SITE, "-o", tmp_path / "others")
    record = record_of(owned, "--before", number_of(out), "--exact", str(tmp_path / "others"))
    assert record["forgotten"]["clients"] == [SITE]
    assert record["models"]["exact"]["attack"] is not None
    record = record_of(owned, site=others[0])
    assert any(SITE in note for note in record["notes"])


@pytest.mark.parametrize(
    ("runs", "before"),
    [
        ([("a", "x", "AB", ""), ("b", "x", "ABC", ""), ("exact", "-", "AB", ""), ("fast", "-", "AB", "a")], "a"),
        ([("a", "x", "AB", ""), ("b", "x", "ABC", ""), ("exact", "-", "AB", "")], "a"),  # the same sites
        ([("a", "x", "ABC", ""), ("b", "x", "ABC", ""), ("exact", "-", "AB", "")], "b"),  # a site has left
        ([("exact", "-", "AB", "")], None),
    ],
)
def test_the_run_before_is_the_one_that_was_trained_again(
    runs: list[tuple[str, str, str, str]], before: str | None
) -> None:
    marks, model = frozenset("-"), SimpleNamespace(run="the same configuration")
    here = [
        RunHere(name, str(at), tuple(sites), marks if left == "-" else frozenset(), begun, model)
        for at, (name, left, sites, begun) in enumerate(runs)
    ]
    [exact] = [run for run in here if run.name == "exact"]
    found = run_before(here, exact, marks)
    assert (found and found.name) == before

"""`fedweave sites check` names each fault with its place and a remedy, before anything is started."""

import json
import shutil
import socket
import subprocess
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')
from scipy.sparse import csr_matrix
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.cli.init import example_experiments
from fedweave.cli.sites import Teller
from fedweave.core.algorithm import calls_of
from fedweave.core.ledger_columns import Entry
from fedweave.datasets import load, npz
from fedweave.errors import ClientsMissing, DataError, UserError
from fedweave.experiment import requirements
from fedweave.experiment.config import read, resolve
from fedweave.experiment.stages import Loaded
from fedweave.sites.flare.foresight import refusals
from fedweave.sites.flare.member import LOG
from fedweave.sites.flare.provision import provision
from fedweave.sites.flare.sitefile import SITE_FILE, read_site_file, write_site_file
from fedweave.sites.operation import processes, status
from fedweave.sites.operation.checking import examine
from fedweave.sites.operation.experiments import hand_out, positive_by_number, split, unknown_to_server, with_engine
from fedweave.sites.operation.issuing import renew
from fedweave.sites.operation.processes import SiteProcess, check_alive, last_error, last_record, local_reasons
from fedweave.sites.operation.project import Project, read_project
from tests import commands
from tests.refusals import check_facts, refusal
from tests.sites.projects import SITES, bring, experiment, joined, set_policy, tables
from tests.sites.test_refused_rounds import job

runner = CliRunner()


def test_a_project_without_a_fault_says_what_there_is(project: Path) -> None:
    said = commands.run("sites", "check", project)
    check_facts(said, "64 features, 10 classes")
    check_facts(said, "server, bank-a, bank-b, bank-c, admin: certificate valid until")
    assert not list(project.glob("*/process.log"))  # nothing was started


def _site_file(text: str) -> Callable[[Path], None]:
    def spoil(project: Path) -> None:
        (project / "bank-b/site.toml").write_text(text)

    return spoil


def _other_authority(project: Path) -> None:
    provision(project.parent / "other", ("bank-b",), "localhost", 4711)
    shutil.copy(project.parent / "other/bank-b/startup/client.crt", project / "bank-b/startup/client.crt")


def _damaged(project: Path) -> None:
    (project / "bank-b/data.npz").write_bytes(b"PK")


def _open_secret(project: Path) -> None:
    (project / "bank-b/privacy.secret").chmod(0o644)


def _open_key(project: Path) -> None:
    (project / "bank-b/startup/client.key").chmod(0o640)


def _other_kit(project: Path) -> None:
    provision(project.parent / "other", ("bank-b",), "localhost", 4711)
    shutil.copytree(project.parent / "other/bank-b/startup", project / "bank-b/startup", dirs_exist_ok=True)


def _other_key(project: Path) -> None:
    shutil.copy(project / "bank-a/startup/client.key", project / "bank-b/startup/client.key")


def _emptied(name: str) -> Callable[[Path], None]:
    def spoil(project: Path) -> None:
        (project / "bank-b" / name).write_bytes(b"")

    return spoil


@pytest.mark.parametrize(
    ("spoil", "where", "remedy"),
    [
        (_site_file('[data]\npath = "nowhere"\nclasses = 10\n'), "bank-b/nowhere", "Name the site's data"),
        (_site_file('[data]\npath = "data.npz"\nclasses = 12\n'), "classes: 12, and 10 at bank-a", "Give the same"),
        (_site_file('[data]\npath = "data.npz"\n[policy]\ndeny = ["lables"]\n'), "site.toml: policy.deny", "they send"),
        (
            _site_file('[data]\npath = "data.npz"\nclasses = 10\ngroups = ["f"]\n'),
            "data.groups: does not apply",
            "Remove it",
        ),
        (
            _site_file('[data]\npath = "data.npz"\nclasses = 10\n[site]\ndevice = "cuda:999"\n'),
            "site.toml: site.device: 'cuda:999' cannot be used",
            "Or set site.device = 'cpu'",
        ),
        (_damaged, "bank-b/data.npz", ""),
        (_other_authority, "bank-b/startup/client.crt was not signed by", "Take the whole folder startup"),
        (_open_secret, "bank-b/privacy.secret", "chmod 600"),
        (_open_key, "bank-b/startup/client.key can be read by others", "chmod 600"),
        (_other_kit, "authority: not the same as", "Take startup of one project"),
        (_other_key, "client.key is not the key of", "Ask the project's operator"),
        (_emptied("startup/client.key"), "client.key is not a private key", "Ask the project's operator"),
        (_emptied("startup/fed_client.json"), "fed_client.json is damaged", "Ask the project's operator"),
        (_emptied("local/comm_config.json"), "comm_config.json is damaged", "Ask the project's operator"),
    ],
)
def test_a_fault_is_named_with_its_place_and_remedy(
    project: Path, spoil: Callable[[Path], None], where: str, remedy: str
) -> None:
    spoil(project)
    said = commands.run("sites", "check", project, code=2)
    [fault] = [line for line in said.splitlines() if line.startswith("fault")]
    assert fault.startswith("fault  bank-b: ")
    assert where in fault
    assert remedy in fault


@pytest.mark.parametrize(("times", "noted"), [(100.0, True), (10.0, False)])
def test_a_column_in_another_unit_is_noted(project: Path, times: float, noted: bool) -> None:
    """Of the values that are not 0: a column with few of them is no other column."""
    path = project / "bank-b/data.npz"
    data = npz.read(path, "data")
    x = csr_matrix(data.x).toarray()
    x[:, 20] *= times
    x[40:, 21] = 0
    npz.write(replace(data, x=csr_matrix(x)), path)
    told = examine(project, read_project(project))
    found = [what for whose, what in told.notes if whose == "bank-b" and "times as large" in what]
    assert len(found) == noted
    assert not noted or "column 21 is " in found[0]


def test_what_the_authority_renewed_is_no_other_authority(project: Path) -> None:
    (project / "bank-b/startup/rootCA.pem").write_bytes(renew(project / "authority")[0])
    (project / "authority/cert.json").chmod(0o644)
    [(whose, what)] = examine(project, read_project(project)).faults
    assert (whose, "can be read by others" in what) == ("authority", True)


def test_numbers_that_no_policy_measures_are_named_before_the_run(project: Path, tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text('[data]\nname = "folder"\npath = "."\n[partition]\nclients = 3\n[algorithm]\nscores = "sum"\n')
    commands.run("sites", "check", project, path)
    for site in SITES:
        set_policy(project, "measures = []", site)
    said = " ".join(runner.invoke(app, ["sites", "check", str(project), str(path)]).output.split())
    check_facts(said, f"{', '.join(SITES)}: policy.measures", "loss, auc, histogram")


def test_an_experiment_that_sites_cannot_run_as_it_says_is_found_before(project: Path, tmp_path: Path) -> None:
    """One that pools data is a fault; scaling that is of simulations alone is noted at every site."""
    path = tmp_path / "experiment.toml"
    path.write_text('[data]\nname = "folder"\npath = "."\nnormalize = "standard"\n[partition]\nclients = 3\n')
    said = commands.run("sites", "check", project, path)
    told = " ".join(said.split())
    note = "bank-a, bank-b, bank-c: [data] normalize = 'standard' of the experiment applies only to simulations"
    check_facts(told, note, "because site.toml sets no scaling", "the configuration of `sites init --split`")
    (tmp_path / "own.py").write_text("from fedweave.algorithms import FedAvg\n")
    named = f"algorithm.name='{tmp_path}/own.py:FedAvg'"
    listed = " ".join(runner.invoke(app, ["sites", "check", str(project), str(path), "--set", named]).output.split())
    assert listed.count(f"policy.files: the job names {tmp_path}/own.py, which this site would run") == 3
    set_policy(project, 'algorithms = ["fedavg"]')
    made = runner.invoke(app, ["sites", "check", str(project), str(path), "--set", "algorithm.parts=['clip']"])
    told = " ".join(made.output.split())
    check_facts(told, f"bank-b: {project}/bank-b/site.toml: policy.parts", "fedavg", "clip")
    small = runner.invoke(
        app,
        [
            "sites",
            "check",
            str(project),
            str(path),
            "--set",
            "algorithm.parts=[{name='sampled_cross_entropy', batch=9}]",
        ],
    )
    assert small.output.count("policy.min_nodes: SampledCrossEntropy (batch) would train on fewer than 10") == 3
    refused = commands.run("sites", "check", project, path, "--set", "algorithm.name='centralized'", code=2)
    check_facts(refused, '"centralized"')


@pytest.mark.parametrize(
    ("settings", "faults"),
    [
        (
            {"name": "fedavg", "parts": ["fairfed_weights"]},
            [f'{site}: algorithm.name = "fedavg": needs a sensitive' for site in SITES],
        ),
        ({"name": "fairgfl"}, ["server: estimator = 'ldp' needs a public sample at the server"]),
        ({"name": "cffl"}, ["server: CFFL judges updates on validation examples of the server, which has none"]),
        ({"name": "fedgcn"}, ['experiment: algorithm.name = "fedgcn": needs to know which nodes of other sites']),
    ],
)
def test_data_that_an_algorithm_cannot_do_without_are_missed_before(
    project: Path, settings: dict[str, Any], faults: list[str]
) -> None:
    document = experiment().plain()
    told = examine(project, read_project(project), resolve(document | {"algorithm": settings}))
    found = [f"{whose}: {what}" for whose, what in told.faults]
    assert [fault[: len(begins)] for fault, begins in zip(found, faults, strict=True)] == faults


def test_one_more_requirement_is_met_at_the_doors_of_sites(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`tests/test_requirements.py` has the other doors."""
    more = (Loaded, lambda loaded: [("config.even", "data: odd. Add one.")])
    monkeypatch.setattr(requirements, "REQUIREMENTS", (*requirements.REQUIREMENTS, more))
    told = examine(project, read_project(project), experiment())
    assert {whose for whose, what in told.faults if what == "data: odd. Add one."} == set(SITES)
    with pytest.raises(ClientsMissing):
        joined(project, experiment())
    check_facts(caplog.text, "data: odd")


def test_every_fault_of_a_table_is_one_of_its_own(project: Path) -> None:
    tables(project.parent / "data")
    bring(project, project.parent / "data")
    nodes = project / "bank-a/data/nodes.csv"
    head, first, second, *rest = nodes.read_text().splitlines()
    cut = [row.rpartition(",")[0] + "," for row in (first, second)]
    nodes.write_text("\n".join([head, f"{cut[0]}x", f"{cut[1]}y", *rest]))
    said = runner.invoke(app, ["sites", "check", str(project)])
    faults = [line for line in said.output.splitlines() if line.startswith("fault  bank-a: ")]
    assert [f"nodes.csv: row {at}: " in fault for at, fault in zip((2, 3), faults, strict=True)] == [True, True]
    check_facts(said.stderr, f"{said.output.count('fault  ')} faults")


def test_a_label_beyond_the_classes_is_named_by_its_row(project: Path) -> None:
    site = project / "bank-b/site.toml"
    site.write_text('[data]\npath = "data.npz"\nclasses = 2\n')
    row = int((npz.read(project / "bank-b/data.npz", "data").y >= 2).argmax())
    told = examine(project, read_project(project))
    assert [f"data.npz: y, row {row}: label " in what for whose, what in told.faults if whose == "bank-b"] == [True]


def test_few_validation_examples_are_of_the_positive_class(project: Path) -> None:
    """By hand: five validation examples are of class 1, and every second training example."""
    for site in SITES:
        path = project / site / "data.npz"
        data = npz.read(path, "data")
        train, val, _ = map(np.flatnonzero, np.asarray(data.public))
        y = np.zeros_like(data.y)
        y[train[::2]] = y[val[:5]] = 1
        npz.write(replace(data, y=y, classes=2), path)
        (project / site / SITE_FILE).write_text('[data]\npath = "data.npz"\nclasses = 2\n')
    for positive, noted in ((None, True), (1, True), (0, False)):
        config = None
        if positive is not None:
            config = resolve({**experiment().plain(), "evaluation": {"positive": positive}})
        notes = [what for _, what in examine(project, read_project(project), config).notes]
        assert any(" of class 1: 5 at " in note for note in notes) == noted, positive


def test_a_site_that_trains_on_one_class_alone_is_noted(project: Path) -> None:
    tables(project.parent / "data")
    bring(project, project.parent / "data")
    assert not [what for _, what in examine(project, read_project(project)).notes if "of class" in what]
    nodes = project / "bank-a/data/nodes.csv"
    head, *rows = (line.split(",") for line in nodes.read_text().splitlines())
    for row in rows:
        if row[head.index("split")] == "train":
            row[head.index("label")] = "c1"
    nodes.write_text("\n".join(",".join(row) for row in (head, *rows)))
    noted = [(whose, what) for whose, what in examine(project, read_project(project)).notes if "of class" in what]
    assert noted == [("bank-a", "every train node is of class c1, so that a model learns only this class")]


def test_a_file_beside_a_sites_tables_is_noted_unless_it_is_the_global_test(project: Path) -> None:
    tables(project.parent / "data")
    bring(project, project.parent / "data")
    path = project / "bank-a/data/global.npz"
    path.write_bytes((project / "bank-b/data.npz").read_bytes())
    told = examine(project, read_project(project)).notes
    assert [whose for whose, what in told if what.endswith("global.npz is not read")] == ["bank-a"]
    site = project / "bank-a/site.toml"
    site.write_text(site.read_text().replace("[data]\n", '[data]\ntest = "data/global.npz"\n'))
    found = examine(project, read_project(project))
    check_facts(" ".join(what for _, what in found.faults), "data/global.npz")  # read, and of other columns
    assert not [what for _, what in found.notes if "is not read" in what]


def test_parties_with_unlike_splits_hear_which_nodes(project: Path) -> None:
    """The run would be refused, and could not say which: no site tells its ids."""
    config = experiment("glasu", **tables(project.parent / "data"))
    bring(project, project.parent / "data")
    assert not examine(project, read_project(project), config).faults
    nodes = project / "bank-c/data/nodes.csv"
    lines = nodes.read_text().splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("person7,"))
    lines[at] = lines[at].replace("val", "train")
    nodes.write_text("\n".join(lines))
    [(whose, fault)] = examine(project, read_project(project), config).faults
    assert (whose, fault[:67]) == ("bank-c", "the split of 1 of 60 common nodes differs from the other parties: '")
    check_facts(fault, "'person7'", "train", "val")


def test_gaps_need_two_classes(project: Path) -> None:
    config = experiment("f2gnn")
    hand_out(*split(config, SITES), project, SITES)
    assert not examine(project, read_project(project), config).faults
    site = project / "bank-b/site.toml"
    site.write_text(site.read_text().replace("classes = 2", "classes = 3"))
    faults = examine(project, read_project(project), config).faults
    assert [
        what for whose, what in faults if "has 3 classes: group fairness compares two" in what and whose == "bank-b"
    ]
    assert {whose for whose, _ in faults} == {"bank-b"}


def test_names_of_groups_that_joining_would_refuse_are_found_before(project: Path) -> None:
    config = experiment("f2gnn")
    hand_out(*split(config, SITES), project, SITES)
    for site, names in zip(SITES, (("f", "m"), ("m", "f"), ()), strict=True):
        own = npz.read(project / site / "data.npz", "data")
        npz.write(replace(own, groups=names), project / site / "data.npz")
    [(whose, fault)] = examine(project, read_project(project), config).faults
    assert (whose, "group names: not the same as at bank-a. Write the same groups" in fault) == ("bank-b", True)


def test_an_algorithm_of_small_graphs_is_none_for_sites_with_nodes(project: Path) -> None:
    document = experiment().plain()
    model = {"name": "gin", "pool": "sum"}
    config = resolve(document | {"model": model, "algorithm": {"name": "fairgraphfl"}})
    told = examine(project, read_project(project), config)
    assert {whose for whose, what in told.faults if "needs small graphs as examples" in what} == set(SITES)


def test_what_the_server_holds_is_seen_where_its_folder_is(project: Path) -> None:
    """A public sample there ends the fault, a damaged one is a fault, and without the folder nothing is said of it."""
    config = experiment("fairgfl")
    shutil.copy(project / "bank-a/data.npz", project / "server/public.npz")
    assert not examine(project, read_project(project), config).faults
    (project / "server/public.npz").write_bytes(b"PK")
    [(whose, fault)] = examine(project, read_project(project), config).faults
    assert (whose, "server/public.npz" in fault) == ("server", True)
    for site in SITES:
        shutil.rmtree(project / site)
    (project / "server/public.npz").unlink()
    [(whose, fault)] = examine(project, read_project(project), config).faults
    assert (whose, "needs a public sample" in fault) == ("server", True)


@pytest.mark.often(
    "columns-it has 63 features, but the sites' data 64-public",
    "classes-it has the label 12, but the sites' classes-test",
)
@pytest.mark.parametrize("role", ["public", "test"])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("columns", "it has 63 features, but the sites' data 64"),
        ("classes", "it has the label 12, but the sites' classes"),
    ],
)
def test_a_graph_of_the_server_that_is_unlike_the_sites_is_refused(
    project: Path, tmp_path: Path, role: str, fault: str, said: str
) -> None:
    """By the check, and by a run before its first round; not among parties, whose columns differ."""
    data = npz.read(project / "bank-a/data.npz", "data")
    y = data.y.copy()
    y[0] = 12
    odd = replace(data, x=data.x[:, :63]) if fault == "columns" else replace(data, y=y)
    npz.write(odd, project / f"server/{role}.npz")
    config = experiment("fedavg")
    assert [said in what for whose, what in examine(project, read_project(project), config).faults] == [True]
    with pytest.raises(DataError, match=f"{role}.npz: {said}"):
        job(project, tmp_path / "run", config)


@pytest.mark.parametrize(
    ("policy", "begins", "facts"),
    [
        ('deny = ["update"]', "fault", ("policy.deny: update", "FedAvg.train")),
        pytest.param('secure_sum = ["update"]', "fault", ("policy.secure_sum: update",), marks=pytest.mark.slow),
        pytest.param("epsilon = 1.0", "fault", ("policy.epsilon:", "update"), marks=pytest.mark.slow),
        pytest.param('deny = ["own"]', "fault", ("policy.deny: own", "FedAvg.score"), marks=pytest.mark.slow),
        ('deny = ["own/groups"]', "note", ("policy.deny: own/groups", "FedAvg.score")),
        ('deny = ["own/auc"]', "fault", ("policy.deny: own/auc", "policy.measures has 'auc'", "FedAvg.score")),
        ('deny = ["own/accuracy"]', "fault", ("policy.deny: own/accuracy", "policy.round_scores", "FedAvg.score")),
        ('deny = ["features"]', "fault", ("policy.deny", "features")),  # without which no model can be built
        pytest.param('deny = ["classes"]', "fault", ("policy.deny", "classes"), marks=pytest.mark.slow),
        ("min_sites = 4", "fault", ("policy.min_sites:", "3", "4")),
        (f'members = {{bank-a = "{"0f" * 32}"}}', "fault", ("policy.members: bank-c",)),
        ("", "fault", ("policy.lost: entry 1",)),  # of the site's accounts
    ],
)
def test_a_policy_that_would_end_every_run_is_found_before(
    project: Path, tmp_path: Path, policy: str, begins: str, facts: tuple[str, ...]
) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text('[data]\nname = "digits"\n[partition]\nclients = 3\n')
    set_policy(project, policy)
    if not policy:
        entry = Entry(1, 0, "FedAvg.train", ("bank-b",), "up", (), 0, 0.0)
        (project / "bank-b/ledgers").mkdir(exist_ok=True)
        line = json.dumps(vars(entry) | {"number": 2, "before": "0" * 32})
        (project / "bank-b/ledgers/r1.jsonl").write_text(line + "\n")
    told = commands.run("sites", "check", project, path, code=2 if begins == "fault" else 0)
    lines = [line for line in told.splitlines() if line.startswith(begins)]
    [found] = [line for line in lines if all(fact in line for fact in facts)]
    check_facts(found, "bank-b", *facts)


def test_parties_hear_before_of_mini_batches_and_splits_that_their_policies_refuse(
    project: Path, tmp_path: Path
) -> None:
    tables(tmp_path / "data")
    bring(project, tmp_path / "data")
    path = tmp_path / "experiment.toml"
    path.write_text(
        '[data]\nname = "parties"\npath = "."\n[partition]\nname = "parties"\n[model]\nname = "gcnii"\n'
        '[algorithm]\nname = "glasu"\n'
    )
    small = commands.run("sites", "check", project, path, "--set", "algorithm.batch=9", code=2)
    faults = [line for line in small.splitlines() if line.startswith("fault")]
    assert [fault.partition(": policy.min_nodes: GLASU (batch) would train")[0] for fault in faults] == [
        f"fault  {site}" for site in SITES
    ]
    nodes = project / "bank-b/data/nodes.csv"
    nodes.write_text(nodes.read_text().replace(",val,", ",train,", 16))
    few = runner.invoke(app, ["sites", "check", str(project), str(path), "--set", "algorithm.batch=10"])
    [fault] = [line for line in few.output.splitlines() if line.startswith("fault") and "min_nodes" in line]
    check_facts(fault, "val", "policy.min_nodes = 10")
    assert fault.startswith("fault  bank-b: ")


def test_where_updates_leave_by_themselves_the_check_says_so(project: Path) -> None:
    for settings, said in (({}, True), ({"parts": ["secure_sum"]}, False)):
        told = examine(project, read_project(project), experiment(algorithm_settings=settings))
        noted = [whose for whose, note in told.notes if "update of this site leaves by itself" in note]
        assert noted == (list(SITES) if said else [])


@pytest.mark.parametrize("names", ["a,b", "a,b,c"])
def test_three_sites_begin_with_secure_sums(tmp_path: Path, names: str) -> None:
    """With two, the sum and one's own term give the other's."""
    words = ["sites", "init", str(tmp_path / "p"), "--sites", names]
    commands.run(*words)
    _, rules = read_site_file(tmp_path / "p/a/site.toml")
    assert (rules.secure_sum, rules.min_sites) == ((("update",), 3) if len(names) > 3 else ((), 1))
    assert not rules.measures


@pytest.mark.parametrize("names", ["bank,clinic", "bank,clinic,shop"])
def test_a_vertical_project_starts_with_policies_that_the_template_can_run(tmp_path: Path, names: str) -> None:
    """And that refuse a model whose last aggregate is the predictions, and of three sites one without secure sums."""
    words = ["sites", "init", str(tmp_path / "p"), "--sites", names, "--vertical"]
    commands.run(*words)
    template, sites = tomllib.loads(example_experiments()["parties"]), names.split(",")
    for site in sites:
        about, rules = read_site_file(tmp_path / "p" / site / SITE_FILE)
        assert (about.split, about.normalize) == ("hash", "standard")
        assert {"auc", "average_precision", "classes", "loss"} <= {*rules.measures}

        def refused(**settings: Any) -> list[str]:
            document = template | {"algorithm": template["algorithm"] | settings.pop("algorithm", {})} | settings
            config = resolve(document)
            made = config.algorithm.make(config.model.make().build(4, 2))
            found = refusals(rules, calls_of(made, "glasu", len(sites)), True, len(sites))  # noqa: B023
            return [why.split(":")[0] for why, _, certain in found if certain]

        assert not refused()
        assert "policy.deny" in refused(model={"name": "gcn"})
        assert ("policy.secure_sum" in refused(algorithm={"secure_sum": False})) == (len(sites) == 3)


def test_a_taken_port_is_a_fault_of_the_server(project: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", read_project(project).port))
        taken.listen()
        said = runner.invoke(app, ["sites", "check", str(project)])
    assert said.exit_code == 2
    check_facts(said.output, f"server: port {read_project(project).port}")


def test_private_keys_are_ignored_by_git(project: Path) -> None:
    subprocess.run(["git", "init", "-q", str(project.parent)], check=True)
    Project(("a",), "localhost", 1).save(project)
    listed = subprocess.run(
        ["git", "-C", str(project.parent), "status", "--short", "--untracked-files=all"], capture_output=True, text=True
    )
    assert listed.returncode == 0
    assert "project" not in listed.stdout


def test_status_answers_in_time_without_a_server_and_says_how_far_the_run_was(project: Path) -> None:
    now = {"status": "running", "round": 12, "rounds": 40, "summary": {}, "lost": {"bank-b": "it is gone"}}
    (project / "admin/status.json").write_text(
        json.dumps(now | {"out": "runs/x", "waiting": ["bank-a"], "at": time.time()})
    )
    began = time.monotonic()
    said = runner.invoke(app, ["sites", "status", str(project)])
    assert time.monotonic() - began < 2.0
    assert said.exit_code == 1
    check_facts(said.output, "runs/x: running, 12 of 40 rounds", "bank-a")
    check_facts(said.output, "? server:")
    check_facts(said.output, "? bank-b:")
    check_facts(said.output, "it is gone")


def test_status_does_not_wait_for_a_server_that_says_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "_ask", lambda *about: time.sleep(5))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        about = Project(("bank-a",), "127.0.0.1", silent.getsockname()[1])
        began = time.monotonic()
        lights = status.ask(project, about, 0.3)
    assert time.monotonic() - began < 1.0
    assert lights.of("bank-a")[0] == lights.server[0] == status.UNKNOWN


def test_lights_tell_who_is_there() -> None:
    lights = status.Lights({"a", "b"}, {"a"})
    assert [lights.of(site)[0] for site in "abc"] == [status.THERE, status.AWAY, status.AWAY]
    assert lights.server == (status.THERE, "answers")


def test_a_process_that_ends_at_once_is_named_with_its_cause(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = SiteProcess(project / "bank-a")
    (site.folder / "process.log").write_text("ValueError: of an earlier start\n")
    monkeypatch.setitem(processes._MODULES, "client", "no_such_module")
    site.start()
    with refusal("process.failed", "bank-a:", "no_such_module"):
        check_alive([site], 20.0)
    assert last_error("a\nfoo.BarError: why\n  at x\nbye\n") == "foo.BarError: why"
    assert last_error("") == "nothing"


def test_a_failed_run_says_what_the_sites_here_noted(project: Path) -> None:
    assert processes.LOG == LOG
    log = project / "bank-b" / LOG
    log.write_text("2026-01-01 an earlier fault\n")

    def fail(noted: str) -> None:
        with local_reasons(project):
            log.write_text(log.read_text() + noted)
            raise UserError("0 of 3 replied")

    with refusal("user", "0 of 3", "bank-b: 2026-02-02 data.npz:"):
        fail("2026-02-02 data.npz: no split\n")
    with pytest.raises(UserError, match=r"^0 of 3 replied$"):
        fail("")


def test_the_administrator_hears_where_a_run_goes_on_and_who_is_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("fedweave.cli.sites.time.monotonic", lambda: clock[0])
    teller = Teller()
    now = {"status": "running", "round": 7, "rounds": 9, "seconds": 1.0, "summary": {}, "lost": {}, "after": 7}
    teller({"status": "waiting", "sites": ["bank-b"], "seconds": 60.0})
    for clock[0] in (1.0, 2.0, 8.0, 9.0):
        teller(now | {"waiting": ["bank-b"]})
    assert capsys.readouterr().out.splitlines() == [
        "bank-b: waiting until connected, 60 s at most",
        "continuing after round 7 of 9",
        "round 7/9  1.0 s",
        "round 8: waiting for bank-b",
    ]


def test_a_projects_port_is_none_that_the_system_gives_to_connections() -> None:
    """Else another program's connection may have it by the time that the server is started."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    drawn = {processes.free_port() for _ in range(20)}
    assert len(drawn) > 10
    assert max(drawn) < low


def test_the_last_message_of_a_log_is_told_in_whole() -> None:
    at = "2026-11-23 00:58:49 "
    faults = "nodes.csv: row 2: 'f' is 'x'.\nnodes.csv: row 3: split is 'dev'."
    assert last_record(f"{at}joined\n{at}{faults}\n") == faults.replace("\n", "\n    ")
    assert (
        last_record(f'{at}it failed\nTraceback (most recent call last):\n  File "a.py"\nValueError: no\n')
        == "ValueError: no"
    )


def test_a_run_that_nobody_follows_any_more_is_said_to_be() -> None:
    now = {"out": "runs/a", "status": "running", "round": 3, "rounds": 9, "at": time.time() - 100}
    check_facts(status.progress(now), "3 of 9", "not watched")
    assert "watched" not in status.progress(now | {"at": time.time()})
    ended = status.progress(now | {"status": "stopped", "lost": {"bank-b": "it is gone"}})
    check_facts(ended, "bank-b")
    check_facts(status.progress(now | {"status": "stopped"}), "--resume")


def test_what_is_noted_of_the_sites_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    teller = Teller()
    now = {"status": "running", "rounds": 9, "seconds": 1.0, "summary": {}, "lost": {}, "note": "of bank-c"}
    for at in (1, 2, 3):
        teller(now | {"round": at})
    assert capsys.readouterr().out.splitlines().count("note: of bank-c") == 1


def test_a_key_of_the_engine_of_sites_needs_no_engine_named(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text('[data]\nname = "digits"\n')
    chosen, _ = read(path, with_engine(["engine.quorum=0.6", "rounds=3"]))
    assert (chosen.engine.name, chosen.engine.values["quorum"], chosen.general.rounds) == ("flare", 0.6, 3)
    assert with_engine(["engine.threads=1", "rounds=3"]) == ["engine.threads=1", "rounds=3"]
    assert with_engine(["engine.mode='loop'"]) == ["engine.mode='loop'"]


NAMES, CLASSES = '["honest", "fraud"]', '["ordinary", "fraud"]'


@pytest.mark.parametrize(
    ("named", "positive", "found"),
    [
        ((f"labels = {NAMES}",) * 3, "fraud", 1),
        ((f"labels = {NAMES}",) * 3, 0, 0),
        ((f"labels = {NAMES}",) * 3, "laundering", None),
        ((f"labels = {NAMES}", f"labels = {CLASSES}", f"labels = {NAMES}"), "fraud", None),
        (("classes = 2",) * 3, "fraud", None),
        ((), "fraud", None),
    ],
)
def test_a_positive_class_is_found_by_what_the_sites_here_call_it(
    tmp_path: Path, named: tuple[str, ...], positive: str | int, found: int | None
) -> None:
    for site, text in zip(SITES, named, strict=False):
        (tmp_path / site).mkdir()
        (tmp_path / site / "site.toml").write_text(f'[data]\npath = "own"\n{text}\n')
    config = resolve({**experiment().plain(), "evaluation": {"positive": positive}})
    if found is None:
        with refusal("config.no-class", "evaluation.positive"):
            positive_by_number(config, tmp_path, SITES)
    else:
        assert positive_by_number(config, tmp_path, SITES).evaluation.positive == found


@pytest.mark.parametrize("positive", ["fraud", 10])
def test_check_finds_a_positive_class_that_no_site_has(project: Path, positive: str | int) -> None:
    config = resolve({**experiment().plain(), "evaluation": {"positive": positive}})
    told = examine(project, read_project(project), config)
    assert any("evaluation.positive" in what for _, what in told.faults)


def test_a_split_says_what_the_experiment_for_sites_is_to_say() -> None:
    config = resolve(tomllib.loads(example_experiments()["fraud"]))
    data = load("transfers", accounts=1000, transfers=4000)
    assert unknown_to_server(config, data) == ["[evaluation] positive = 1"]


def test_a_site_file_says_how_weak_an_exchange_of_one_is(tmp_path: Path) -> None:
    for policy, said in (({"exchange": 1}, True), ({}, False)):
        write_site_file(tmp_path / "site.toml", {"path": "own", "classes": 2}, **policy)
        assert ("# exchange" in (tmp_path / "site.toml").read_text()) == said

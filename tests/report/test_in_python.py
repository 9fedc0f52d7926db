"""Sweeps, comparisons and reports from Python give what the commands say, and objects show themselves in short."""

import csv
import dataclasses
import inspect
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedweave
from fedweave.algorithms import ALGORITHMS, PARTS
from fedweave.algorithms.preset import Preset
from fedweave.errors import FedweaveError, UserError
from fedweave.experiment.runs.reading import group_runs, read_runs
from fedweave.models import MODELS
from fedweave.partition import PARTITIONS
from fedweave.python.comparing import Comparison, ReportPage, rows_of
from fedweave.reports.tables import by_client, item_title
from fedweave.sweeps import scheduler
from fedweave.sweeps.in_python import Sweep
from tests.refusals import check_facts, refusal
from tests.sweep.test_sweep import in_process

DOCUMENT: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "synthetic", "nodes": 90, "classes": 3, "features": 6},
    "partition": {"clients": 3},
    "model": {"hidden": 4},
    "algorithm": {"name": "fedavg", "local_steps": 1},
    "engine": {"threads": 1},
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder = tmp_path_factory.mktemp("sweep")
    grid = {"algorithm.lr": [0.01, 0.1]}
    how: dict[str, Any] = {"seeds": [0, 1, 2], "algorithms": ["fedavg", "local"], "out": folder, "progress": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "execute", in_process)
        found: Sweep = fedweave.sweep(DOCUMENT, grid=grid, **how)
    return found


def test_a_sweep_has_a_row_per_run(swept: Sweep) -> None:
    rows = swept.runs.to_pylist()
    assert len(rows) == 2 * 2 * 3
    assert {(row["algorithm"], row["seed"], row["algorithm.lr"]) for row in rows} == {
        (name, seed, lr) for name in ("fedavg", "local") for seed in range(3) for lr in (0.01, 0.1)
    }
    with (swept.directory / "sweep.csv").open() as file:  # the command's
        lines = {line["run"]: line for line in csv.DictReader(file)}
    for row in rows:
        line = lines[Path(row["run"]).name]
        assert row["local/accuracy"] == float(line["local/accuracy"])
        assert row["chosen"] == bool(int(line["chosen"]))
    assert len(swept.chosen) == 2 * 3
    assert (swept.directory / "report.html").is_file()
    assert swept.failed == ()


def test_a_sweep_has_what_papers_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cuts, of which one has a setting that the other has not: table, LaTeX and figures."""
    monkeypatch.setattr(scheduler, "execute", in_process)
    cuts = [{"name": "random", "clients": 3}, {"name": "dirichlet", "clients": 3, "alpha": 0.5}]
    how: dict[str, Any] = {"seeds": [0], "algorithms": ["fedavg", "local"], "out": tmp_path, "progress": False}
    found = fedweave.sweep(DOCUMENT | {"rounds": 1}, grid={"partition": cuts}, **how)
    assert [(row["condition"], row["algorithm"]) for row in found.conditions.to_pylist()] == [
        (condition, name)
        for name in ("fedavg", "local")
        for condition in ("partition = random", "partition = dirichlet, alpha = 0.5")
    ]
    assert "& dirichlet, alpha = 0.5 &" in found.latex
    pytest.importorskip("matplotlib", reason="needs pip install 'fedweave[figures]'")
    names = {file.name for file in found.save_figures(tmp_path / "figures")}
    assert {"rounds-partition-random.pdf", "bytes-partition-random.pdf", "bytes-partition-random.tex"} <= names


def test_finished_runs_are_used_again(swept: Sweep) -> None:
    before = {path: path.stat().st_mtime_ns for path in swept.directory.rglob("summary.json")}
    again = fedweave.sweep(DOCUMENT, seeds="0-2", algorithms="fedavg,local", grid={"algorithm.lr": "0.01,0.1"},
                           out=swept.directory, progress=False)  # fmt: skip
    assert again.runs.equals(swept.runs)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def runs_of(swept: Sweep, algorithm: str, lr: float) -> dict[int, dict[str, Any]]:
    rows = swept.runs.to_pylist()
    return {row["seed"]: row for row in rows if (row["algorithm"], row["algorithm.lr"]) == (algorithm, lr)}


def test_a_comparison_is_paired_over_seeds(swept: Sweep) -> None:
    one, other = runs_of(swept, "fedavg", 0.1), runs_of(swept, "local", 0.1)
    found = fedweave.compare([row["run"] for row in (*one.values(), *other.values())])
    assert isinstance(found, Comparison)
    assert len(found.runs) == 6
    row = {row["metric"]: row for row in found.paired.to_pylist()}["local/accuracy"]
    differences = [other[seed]["local/accuracy"] - one[seed]["local/accuracy"] for seed in range(3)]
    assert row["difference"] == pytest.approx(statistics.fmean(differences), abs=1e-12)
    assert row["low"] <= row["difference"] <= row["high"]
    assert row["seeds"] == 3
    assert found.sentences
    assert set(found.figures) == {"curves", "clients", "bytes", "traffic"}
    each = [row for row in found.clients.to_pylist() if row["run"] == one[1]["run"]]
    assert [row["client"] for row in each] == ["client-0", "client-1", "client-2"]
    assert statistics.fmean(row["accuracy"] for row in each) == pytest.approx(one[1]["local/accuracy"], abs=1e-12)


def test_a_report_is_the_commands_page(swept: Sweep, tmp_path: Path) -> None:
    run = fedweave.load_run(swept.runs.to_pylist()[0]["run"])
    found = fedweave.report(run)
    assert isinstance(found, ReportPage)
    assert found.page.lower().startswith("<!doctype html")
    assert found.save(tmp_path / "page.html").read_text() == found.page
    assert "<svg" in found.figures["curves"]._repr_html_()
    assert found.figures["curves"].save(tmp_path / "curves.html").is_file()


def test_a_page_of_several_runs_shows_clients_side_by_side_and_names_classes(swept: Sweep) -> None:
    one, other = runs_of(swept, "fedavg", 0.1), runs_of(swept, "local", 0.1)
    groups = group_runs(read_runs([Path(row["run"]) for row in (*one.values(), *other.values())]))
    table = by_client(groups)
    assert [row[0].text for row in table.rows] == ["client-0", "client-1", "client-2"]
    mean = statistics.fmean(run.clients("accuracy")["client-1"] for run in groups[1].runs)
    assert table.rows[1][2].text.startswith(f"{mean:.4f} ± ")
    assert not by_client(groups[:1]).rows
    first = groups[0].first
    assert item_title(first, "per_class/f1/1") == "F1 of class 1"  # digits have no other names
    named = replace(first, summary=first.summary | {"classes": ["no", "fraud"], "targets": ["logS"]})
    assert item_title(named, "per_class/f1/1") == "F1 of fraud"
    assert item_title(named, "per_target/rmse/0") == "RMSE of logS"


def test_data_frames_are_those_of_pandas(swept: Sweep) -> None:
    pandas = pytest.importorskip("pandas")
    frame = swept.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["local/accuracy"].tolist() == swept.runs["local/accuracy"].to_pylist()


REFUSED: list[tuple[Any, str]] = [
    (lambda runs: fedweave.compare(runs[0]), "user.comparing"),
    (lambda runs: fedweave.compare(runs[:2]), "user.comparing"),  # two seeds of one experiment
    (lambda runs: fedweave.compare(), "user.comparing"),
    (lambda runs: fedweave.sweep(DOCUMENT, grid={"algorithm.lr": 0.1}, out="no"), "user.value"),
    (lambda runs: fedweave.sweep(DOCUMENT, grid={"algorithm.lrr": [1]}, out="no"), "config"),
    (lambda runs: fedweave.sweep(DOCUMENT, settings={"seed": 3}, out="no"), "config"),
    (lambda runs: fedweave.sweep(DOCUMENT, algorithms=["fedavgg"], out="no"), "config"),
]


@pytest.mark.parametrize(("call", "code"), REFUSED)
def test_what_cannot_be_done_is_refused(
    swept: Sweep, call: Any, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [row["run"] for row in runs_of(swept, "fedavg", 0.1).values()]
    with pytest.raises(UserError) as refused:
        call(runs)
    assert str(refused.value.code).startswith(code)


def test_progress_is_shown_where_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fedweave.run(DOCUMENT, out=tmp_path / "quiet")
    assert not capsys.readouterr().out
    fedweave.run(DOCUMENT, out=tmp_path / "told", progress=True)
    check_facts(capsys.readouterr().out, "3/3")


@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if isinstance(kind, Preset)])
def test_a_presets_signature_has_all_settings(name: str) -> None:
    preset = ALGORITHMS[name]
    parameters = inspect.signature(preset).parameters
    assert list(parameters) == list(preset.fields)
    assert all(one.annotation is not inspect.Parameter.empty for one in parameters.values())
    assert [key for key, one in parameters.items() if one.default is inspect.Parameter.empty] == ["model"]
    documented = {line.partition(":")[0] for line in preset.__doc__.splitlines()}
    assert set(parameters) - {"model"} <= documented


def test_the_class_of_presets_has_a_signature_of_its_own() -> None:
    assert list(inspect.signature(Preset).parameters) == ["paper", "made_of"]
    assert next(iter(inspect.signature(fedweave.sweep).parameters)) == "experiment"


def test_everything_shows_itself_in_a_line(tmp_path: Path) -> None:
    data = fedweave.datasets.load("digits")
    cut = fedweave.partition.Dirichlet(clients=5, alpha=0.3).cut(data, seed=0)
    model = fedweave.models.GCN(hidden=8).build(data.features, data.outputs)
    algorithm = fedweave.algorithms.FedProx(model, mu=0.3)
    fed = fedweave.federation(data, cut, algorithm)
    *_, last = fedweave.train(algorithm, fed, 1)
    run = fedweave.run(DOCUMENT, out=tmp_path / "run")
    graph = next(iter(fed.graphs.values()))
    scores = run.measure(lambda y, p: float((p.argmax(1) == y).mean()))
    results = (run.config, fed.ledger, fed.graphs, fedweave.client_graphs(data, cut), scores, fedweave.report(run))
    for shown in (data, cut, cut.parts[0], model, model[0], algorithm, fed, last, graph, run, *results):
        assert len(repr(shown)) < 250, type(shown)
        assert " at 0x" not in repr(shown)
    for shown in (data, cut, model, algorithm, fed, last, graph, run, run.config, fed.ledger, scores):
        assert shown._repr_html_().startswith("<"), type(shown)
    assert repr(model) == "GCN(hidden=8).build(64, 10)"
    names = {"FedProx": fedweave.algorithms.FedProx, "GCN": fedweave.models.GCN}
    again = eval(repr(algorithm), names)
    assert dataclasses.replace(again, model=model) == algorithm


@pytest.mark.parametrize("name", ["fedprox", "scaffold", "fedavgm", "apfl"])
def test_the_defaults_of_a_signature_are_those_of_what_is_made(name: str) -> None:
    parameters = inspect.signature(ALGORITHMS[name]).parameters
    algorithm = ALGORITHMS[name](MODELS["gcn"]().build(4, 3))
    shared = [key for key in parameters if key not in ("model", "parts") and hasattr(algorithm, key)]
    assert len(shared) >= 20
    assert all(getattr(algorithm, key) == parameters[key].default for key in shared)


@pytest.mark.parametrize("registry", [MODELS, PARTITIONS, PARTS, ALGORITHMS])
def test_unknown_settings_are_refused_with_the_nearest_name(registry: Any) -> None:
    for name, kind in registry.items():
        fields = list(kind.fields) if isinstance(kind, Preset) else [field.name for field in dataclasses.fields(kind)]
        needed = [MODELS["gcn"]().build(4, 3)] if registry is ALGORITHMS else []
        wrong = f"{fields[-1]}x" if fields else "x"
        with pytest.raises(FedweaveError) as refused:
            kind(*needed, **{wrong: 1})
        assert refused.value.code == "config.unknown-key", name
        if len(fields) > 1:
            check_facts(str(refused.value), f"{fields[-1]!r}")


def federated(**changes: Any) -> Any:
    data = fedweave.datasets.load("synthetic", nodes=90, classes=3, features=6)
    cut = fedweave.partition.Dirichlet(clients=2).cut(data, seed=0)
    model = fedweave.models.GCN(hidden=4).build(data.features, data.classes)
    parts = {"data": data, "partition": cut, "algorithm": fedweave.algorithms.FedAvg(model), **changes}
    return fedweave.federation(**parts)


def net() -> Any:
    return fedweave.models.GCN(hidden=4).build(4, 3)


WRONG: list[tuple[Any, str, str]] = [  # as on the command line: a code, and a suggestion or what is allowed
    (lambda: fedweave.algorithms.FedAvg(net(), lrr=0.1), "config.unknown-key", "Did you mean 'lr'?"),
    (lambda: fedweave.algorithms.FedAvg(net(), lr="fast"), "config.value", "must be a number"),
    (lambda: fedweave.algorithms.FedAvg(net(), lr=-1), "config.value", "must be a number above 0"),
    (lambda: fedweave.algorithms.FedAvg(net(), optimizer="adm"), "config.value", "'adamw'"),
    (lambda: fedweave.algorithms.FedAvg(net(), parts=["proximl"]), "config.unknown-name", "Did you mean 'proximal'?"),
    (lambda: fedweave.algorithms.FedAvg(net(), parts=[{"name": "proximal", "muu": 1}]), "config.unknown-key", "'mu'"),
    (lambda: fedweave.algorithms.Ditto(net(), lam=-1.0), "config.value", "at least 0"),
    (lambda: fedweave.models.GCN(hiden=3), "config.unknown-key", "Did you mean 'hidden'?"),
    (lambda: fedweave.models.GCN(hidden=-3), "config.value", "from 1 to"),
    (lambda: fedweave.partition.Dirichlet(clint=3), "config.unknown-key", "Did you mean 'clients'?"),
    (lambda: fedweave.partition.Dirichlet(alpha=-1), "config.value", "above 0"),
    (lambda: fedweave.datasets.load("dgits"), "config.unknown-name", "Did you mean 'digits'?"),
    (lambda: fedweave.datasets.load("digits", neigbors=3), "config.unknown-key", "Did you mean 'neighbors'?"),
    (lambda: fedweave.datasets.load("synthetic", nodes="x"), "config.value", "must be a whole number"),
    (lambda: federated(partition=fedweave.partition.Dirichlet(clients=2)), "config.value", ".cut(data, seed=0)"),
    (lambda: federated(mode="lop"), "config.unknown-name", "vmap, loop"),
    (lambda: fedweave.run(DOCUMENT | {"rouns": 3}), "config.unknown-key", "Did you mean 'rounds'?"),
    (lambda: fedweave.run(DOCUMENT | {"algorithm": {"name": "fedagv"}}), "config.unknown-name", "'fedavg'"),
    (lambda: fedweave.sweep(DOCUMENT, search=1, sampler="tpee"), "config.unknown-name", "Did you mean 'tpe'?"),
]


@pytest.mark.parametrize(("make", "code", "remedy"), WRONG)
def test_wrong_settings_fail_as_on_the_command_line(make: Any, code: str, remedy: str) -> None:
    with refusal(code, remedy):
        make()


def test_a_public_name_that_is_not_there_has_a_suggestion() -> None:
    with pytest.raises(AttributeError, match="Did you mean 'sweep'"):
        _ = fedweave.swep


def test_parts_are_named_as_in_a_document() -> None:
    one, other = (fedweave.algorithms.FedAvg(net(), parts=parts) for parts in (["proximal"], [PARTS["proximal"]()]))
    assert one.parts == other.parts


def test_a_column_of_several_types_is_text() -> None:
    table = rows_of([{"key": "auto", "n": 1}, {"key": 0.5}, {"key": None, "n": 2}])
    assert table["key"].to_pylist() == ["auto", "0.5", None]
    assert table["n"].to_pylist() == [1, None, 2]

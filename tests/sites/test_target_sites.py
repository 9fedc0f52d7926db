"""Numbers and several labels between sites: the simulation's numbers, each site's own units, what does not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.ledger import Ledger
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.models.edges import model_of_form
from fedweave.sites.flare.agreement import common_form, common_target
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.journal import entries
from fedweave.sites.flare.policy import Spent
from fedweave.sites.flare.site_data import form_at, load_unscaled
from fedweave.sites.flare.sitefile import SITE_FILE, SiteData, read_site_file, write_site_file
from fedweave.sites.operation.comparison import compare_measures
from fedweave.sites.operation.experiments import hand_out, split
from fedweave.sites.operation.findings import Findings
from fedweave.sites.operation.site_check import check_site
from tests.contract.federations import distance
from tests.refusals import check_facts, refusal
from tests.runs.test_target_files import nodes_folder
from tests.sites.projects import SITES, InProcess, experiment, renamed, simulated


def of_numbers(tmp_path: Path, **data: Any) -> Any:
    """An experiment on two numbers of nodes, in units that differ, or on whether these are high."""
    folder = nodes_folder(tmp_path / "d")
    if data.get("target") == "labels":
        head, *rows = (folder / "nodes.csv").read_text().splitlines()
        cells = [row.split(",") for row in rows]
        high = [[*own[:3], own[3] and str(int(float(own[3]) > 250_000)), str(int(float(own[4]) > 0))] for own in cells]
        (folder / "nodes.csv").write_text("\n".join([head, *map(",".join, high)]) + "\n")
    settings = {"name": "folder", "path": str(folder), "target": "number", "targets": ["price", "rent"]} | data
    cut = {"name": "random", "clients": 3, "train": 0.4, "val": 0.3, "test": 0.3}
    return experiment("fedavg", rounds=2, data=settings, partition=cut)


def joined(project: Path, config: Any) -> tuple[Flare, Any, Any]:
    fed = Flare(InProcess(project), SITES, ledger=Ledger(), seed=config.general.seed)
    replies = fed.join(config.plain(), "r1", -1, False)
    fed.begin(1)
    size = replies[SITES[0]]["features"], replies[SITES[0]]["classes"]
    return fed, config.algorithm.make(model_of_form(config.model.make(), common_form(replies), *size)), replies


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"target_normalize": "none"},
        {"targets": ["price"], "ignore": ["rent"], "target_log": True},
        {"target": "labels"},
    ],
    ids=["own", "none", "log", "labels"],
)
def test_sites_give_the_numbers_of_the_simulation(project: Path, tmp_path: Path, data: dict[str, Any]) -> None:
    config = of_numbers(tmp_path, **data)
    hand_out(*split(config, SITES), project, SITES, config)
    fed, algorithm, replies = joined(project, config)
    assert common_target(replies) == data.get("target", "number")
    *_, last = train(algorithm, fed, 2)
    expected, sim = simulated(config)
    assert distance(last.state, renamed(expected.state, sim)) <= 1e-5
    known = expected.summary.keys() & last.summary.keys()
    assert {"local/rmse", "global/rmse"} <= known or {"local/auc", "global/auc"} <= known
    areas = {key for key in known if "auc" in key or "precision" in key or "spearman" in key}
    for keys, within in ((areas, 1e-3), (known - areas, 1e-4)):
        assert {key: last.summary[key] for key in keys} == pytest.approx(
            {key: expected.summary[key] for key in keys}, rel=within, abs=within, nan_ok=True
        )


def test_a_sites_form_has_its_own_units(project: Path, tmp_path: Path) -> None:
    config = of_numbers(tmp_path)
    data, partition = split(config, SITES)
    hand_out(data, partition, project, SITES, config)
    for site, part in zip(SITES, partition.parts, strict=True):
        about, _ = read_site_file(project / site / SITE_FILE)
        scale = form_at(about, load_unscaled(about, project / site)).target_scale
        y = data.y[part.examples[part.masks[0]]]
        np.testing.assert_allclose(scale[:2], [np.nanmean(y, 0), np.nanstd(y, 0)])


def test_sites_that_predict_other_things_are_refused(project: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    numbers, labels = of_numbers(tmp_path), of_numbers(tmp_path / "other", target="labels")
    hand_out(*split(numbers, SITES), project, SITES, numbers)
    first = {name: (project / SITES[0] / name).read_bytes() for name in ("data.npz", SITE_FILE)}
    hand_out(*split(labels, SITES), project, SITES, labels)
    for name, content in first.items():
        (project / SITES[0] / name).write_bytes(content)
    _, _, replies = joined(project, numbers)
    with refusal("user.target-differs", "labels", "number"):
        common_target(replies)


def test_sites_exchange_nothing_to_scale_numbers(project: Path, tmp_path: Path) -> None:
    with refusal("config.target-normalise"):
        SiteData(path="data.npz", target="number", target_normalize="all")
    config = of_numbers(tmp_path, target_normalize="all")
    with refusal("config.target-scale"):
        hand_out(*split(config, SITES), project, SITES, config)


@pytest.mark.parametrize("measures", [[], ["loss"]])
def test_errors_of_numbers_leave_only_with_the_loss(project: Path, tmp_path: Path, measures: list[str]) -> None:
    """A sum of squares is the loss in other units; without it the run ends all the same, unless it is to stop by it,
    and no evaluation counts."""
    config = of_numbers(tmp_path)
    hand_out(*split(config, SITES), project, SITES, config)
    for site in SITES:
        about, _ = read_site_file(path := project / site / SITE_FILE)
        write_site_file(
            path, {name: value for name, value in vars(about).items() if value not in (None, ())}, measures=measures
        )
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    of_errors = {name for name in last.summary if name.startswith("local/") and name.endswith(("rmse", "mae", "loss"))}
    finite = {name for name in of_errors if np.isfinite(last.summary[name])}
    assert finite == ({"local/rmse", "local/mae", "local/loss"} if measures else set())
    assert Spent.of(entries(project / SITES[0] / "ledgers/r1.jsonl")).evaluations == (2 if measures else 0)

    patient = resolve(config.plain() | {"evaluation": {"patience": 5, "shelf": False, "alone": False}})
    findings = Findings(forms={site: {} for site in SITES})
    for site in SITES:
        check_site(project / site, patient, SITES, findings)
    compare_measures(findings, patient, SITES)
    if measures:
        assert not findings.faults
        return
    [(whose, what)] = findings.faults
    assert whose == ", ".join(SITES)
    check_facts(what, "policy.measures", "loss", "RMSE", "evaluation.patience = 5")
    with refusal("user.no-validation", "evaluation.patience = 5", '"loss"', "policy.measures"):
        patient.evaluation.stopping.update(1, None, last.summary)


def test_a_site_without_a_training_example_says_so(project: Path, tmp_path: Path) -> None:
    config = of_numbers(tmp_path)
    data, partition = split(config, SITES)
    hand_out(data, partition, project, SITES, config)
    path = project / SITES[0] / "data.npz"
    arrays = dict(np.load(path))
    arrays["y"][arrays["train_idx"], 0] = np.nan
    np.savez(path, **arrays)
    about, _ = read_site_file(project / SITES[0] / SITE_FILE)
    with refusal("data.target-scale", "'price'"):
        load_unscaled(about, project / SITES[0])


def test_a_sites_own_tables_have_numbers(project: Path, tmp_path: Path) -> None:
    """As an owner writes site.toml, with a column split."""
    config = of_numbers(tmp_path)
    folder = tmp_path / "d"
    head, *rows = (folder / "nodes.csv").read_text().splitlines()
    uses = ("train", "train", "val", "test")
    split_rows = [f"{row},{uses[at % 4] if row.split(',')[3] else ''}" for at, row in enumerate(rows)]
    (folder / "nodes.csv").write_text("\n".join([f"{head},split", *split_rows]) + "\n")
    for site in SITES:
        about = {"path": str(folder), "target": "number", "targets": ["price"], "ignore": ["rent"]}
        write_site_file(project / site / SITE_FILE, about, measures=["classes", "loss", "auc"])
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    assert np.isfinite(last.summary["local/rmse"])

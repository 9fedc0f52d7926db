"""A setting of a user's own data is written once, and whatever reads data of that form, or a site's file, has it."""

import re
from dataclasses import fields
from inspect import get_annotations
from pathlib import Path

import pytest

from fedweave.core.settings import meanings
from fedweave.datasets import DATASETS
from fedweave.datasets.settings import DataSettings
from fedweave.experiment.config.plugins import field_parameters
from fedweave.sites.flare.site_data import check_meant
from fedweave.sites.flare.sitefile import SiteData
from tests.refusals import refusal

OWN = ("folder", "members", "graphs", "parties", "npz", "tu")  # sources of users' own data
ALL = {field.name for field in fields(DataSettings)}
# An .npz file with links as examples says so itself; edges of the TU layout have no columns to list.
NARROWER = {("Archive", "task"), ("TU", "edge_features")}
# A value of each setting that not every source has, other than its default.
VALUES = {
    "sens_feature": True,
    "loops": "drop",
    "edge_normalize": "row",
    "classes": 2,
    "labels": ("a", "b"),
    "columns": {"label": "diagnosis"},
    "ignore": ("name",),
    "unlabeled": "unknown",
    "groups": ("f", "m"),
    "categories": {"job": ("clerk", "nurse")},
    "missing": ("income",),
    "directed": True,
    "edge_features": "amount",
    "edge_weight": "amount",
    "edge_time": "date",
    "parallel": "sum",
    "task": "edges",
    "node_time": "date",
    "external": "features",
    "node_labels": ("C", "N"),
    "edge_labels": ("1", "2"),
    "degrees": 8,
    "graph_features": ("dose",),
    "fingerprint": "morgan",
    "train_until": "2024-01-01",
    "structure": ("degree",),
}
FORMS = {  # files, and what reads them
    "data.npz": "npz",
    "data/nodes.csv": "folder",
    "data/graphs.csv": "graphs",
}
PASS = {"npz": {"classes", "labels", "external", "parallel", "train_until"}, "folder": {"train_until"}, "graphs": set()}


@pytest.mark.parametrize("name", OWN)
def test_no_source_writes_a_setting_again(name: str) -> None:
    kind = DATASETS[name]
    again = {
        (base.__name__, setting)
        for base in kind.__mro__
        if base.__module__ != DataSettings.__module__
        for setting in get_annotations(base)
        if setting in ALL
    }
    assert again <= NARROWER


@pytest.mark.parametrize("kind", [SiteData, *(DATASETS[name] for name in OWN)])
def test_every_setting_says_what_it_means(kind: type) -> None:
    assert field_parameters(kind).keys() - meanings(kind.__mro__).keys() == set()


@pytest.mark.parametrize("setting", sorted(ALL))
def test_the_pages_on_data_have_every_setting(setting: str) -> None:
    pages = (Path(__file__).parents[2] / "docs").glob("data-*.md")
    assert any(re.search(rf"`[^`\n]*\b{setting}\b", page.read_text()) for page in pages)


def test_a_site_takes_every_setting() -> None:
    assert {field.name for field in fields(SiteData)} >= ALL
    assert {name for name in ALL if not all(name in field_parameters(DATASETS[one]) for one in OWN)} <= VALUES.keys()


@pytest.mark.parametrize("file", FORMS)
@pytest.mark.parametrize("setting", VALUES)
def test_a_site_is_refused_settings_of_other_forms_of_data(tmp_path: Path, file: str, setting: str) -> None:
    path, name = tmp_path / file, FORMS[file]
    path.parent.mkdir(exist_ok=True)
    path.touch()
    until = {"val_until": "2024-02-01"} if setting == "train_until" else {}
    data = SiteData(path="data", **{setting: VALUES[setting]}, **until)
    there = path if path.suffix == ".npz" else path.parent
    if setting in field_parameters(DATASETS[name]).keys() | PASS[name]:
        check_meant(there, data)
    else:
        with refusal("config.other-form", setting):
            check_meant(there, data)

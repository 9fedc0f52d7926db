"""What a site's data calls its columns and classes, and how it is scaled, for its owner alone."""

from dataclasses import replace
from pathlib import Path

from fedweave.datasets.base import Dataset
from fedweave.datasets.features import OVER_NODES
from fedweave.deploy.flare.site.holdings import read_graph
from fedweave.deploy.flare.site.participation import RUNS
from fedweave.deploy.flare.site.sitefile import SiteData
from fedweave.deploy.flare.wire.requests import Join
from fedweave.experiment.runs.form import Form, form_of, read_form, write_form
from fedweave.export.source import HANDED_OUT


def form_at(site: SiteData, folder: Path, data: Dataset | None = None) -> Form:
    """The form of what a site trains on; data: that, if it has been read.

    Raises:
        DataError: it is absent or refused.
    """
    if data is None or site.normalise in OVER_NODES:
        data = read_graph(folder / site.path, replace(site, normalise="none"))
    handed_out = site.random_id is not None and site.normalise == "none"
    edges = HANDED_OUT if site.random_id is not None and site.edge_normalise == "none" else site.edge_normalise
    return form_of(data, HANDED_OUT if handed_out else site.normalise, data.x, edges)


def note_form(asked: Join, site: SiteData, folder: Path, data: Dataset) -> None:
    """Keep the form of the `data` that a site trains on in the run's folder there; what it predicts has the same."""
    if not asked.predict:
        write_form(folder / RUNS / asked.run, form_at(site, folder, data))


def noted_form(asked: Join, folder: Path) -> Form | None:
    """That form, where the models of the run are to predict."""
    return read_form(folder / RUNS / asked.run) if asked.predict else None

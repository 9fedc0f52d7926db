"""What a site's own tables say of the data that a model of a run between sites wants."""

from dataclasses import replace
from pathlib import Path

from fedweave.deploy.flare.holdings import marks, read_graph
from fedweave.deploy.flare.keys import read_checked
from fedweave.deploy.flare.participation import MARKS, RUNS, check_as_before, fitting
from fedweave.deploy.flare.sitefile import SITE_FILE
from fedweave.export.source import HANDED_OUT, Form, numbers


def form_of(site: Path, run: str = "") -> Form:
    """The form of the data in a site's folder; with a `run`, whose number that is, of the data that it was trained on.

    Raises:
        ConfigError: it has no valid `site.toml`. DataError: its data is absent or refused. FedweaveError: the site took
            part in the run with data of another form.
    """
    about, _ = read_checked(site / SITE_FILE)
    data = read_graph(site / about.path, replace(about, normalise="none"))
    if run and (path := site / RUNS / run / MARKS).exists():
        check_as_before(path, run, fitting(marks(data, about.normalise)))
    labels, scaling = data.labels, numbers(data.x, about.normalise)
    if about.draws_as is not None and about.normalise == "none":
        scaling = {"how": HANDED_OUT}
    return Form(data.features, data.classes, data.columns, labels, data.example, scaling)

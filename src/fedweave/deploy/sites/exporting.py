"""What a site says of the data that a model of a run between sites wants."""

from pathlib import Path

from fedweave.deploy.flare.policy.keys import read_checked
from fedweave.deploy.flare.site.forms import form_at
from fedweave.deploy.flare.site.participation import RUNS
from fedweave.deploy.flare.site.sitefile import SITE_FILE
from fedweave.deploy.sites.running import number_of
from fedweave.experiment.runs.files import RUN
from fedweave.experiment.runs.form import Form, read_form


def form_of(site: Path, directory: Path | None = None) -> Form:
    """The form of the data in a site's folder, as the site noted it of the run in `directory`, or as it is now.

    Raises:
        ConfigError: it has no valid `site.toml`. DataError: nothing was noted, and the data is absent or refused.
    """
    about, _ = read_checked(site / SITE_FILE)
    if directory is not None and (directory / RUN).exists():
        noted = read_form(site / RUNS / number_of(directory))
        return noted or form_at(about, site)
    return form_at(about, site)

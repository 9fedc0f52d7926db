"""The page on `site.toml`, a site's own file: its tables with every setting, from the settings' docstrings."""

from dataclasses import fields
from typing import Any

import reference

from fedweave.datasets.settings import DataSettings
from fedweave.experiment import config
from fedweave.reports.listing import meanings
from fedweave.sites.flare.machine import About, ServersMachine
from fedweave.sites.flare.sitefile import Rules, SiteData

_SHARED = {one.name for one in fields(DataSettings)}
_TABLES: tuple[tuple[str, str, Any], ...] = (
    (
        "[policy]",
        "What may leave. By default everything that an installed algorithm sends may leave. "
        "[Write a site's policy](../policy.md) has an example, and says how the rules act.",
        Rules,
    ),
    ("[site]", "The machine and its owner, all optional.", About),
    (
        "[server]",
        "The server has a file of its own, `server/server.toml`, which you write only if you need it.",
        ServersMachine,
    ),
)


def pages() -> dict[str, str]:
    """{path in the site: Markdown} of the page."""
    parameters, texts = config.field_parameters(SiteData), meanings(SiteData)
    own = {name: parameter for name, parameter in parameters.items() if name not in _SHARED}
    shared = {name: parameter for name, parameter in parameters.items() if name in _SHARED}
    lines = [
        "# `site.toml`",
        "Every site has this file in its folder. [Prepare a site's data](../site-data.md) shows one for three banks. "
        "A rule that you tighten holds from the site's next answer, all other changes from the next job; no change "
        "needs a restart.",
        "## [data]",
        "The site's data. The experiment's own `[data]` applies only to simulations.",
        reference.table(own, texts),
        "The same as in an experiment, of [tables](data.md#folder) or [small graphs](data.md#graphs):",
        f"{', '.join(f'`{name}`' for name in shared)}.",
    ]
    for title, about, kind in _TABLES:
        lines += [f"## {title}", about, reference.table(config.field_parameters(kind), meanings(kind))]
    return {"reference/site.md": "\n\n".join(lines) + "\n"}

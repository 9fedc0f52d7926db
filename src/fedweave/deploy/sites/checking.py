"""The command `fedweave sites check`: all that can be found wrong with a project before anything is started."""

import os
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np

from fedweave.core.algorithm import calls_of, capabilities
from fedweave.core.ledger import Ledger
from fedweave.core.records import Record
from fedweave.core.text import counted
from fedweave.deploy.flare.server.agreements import check_alike, uncompared
from fedweave.deploy.flare.server.provision import STATE
from fedweave.deploy.flare.server.server import federation
from fedweave.deploy.flare.site.folder import check_private
from fedweave.deploy.flare.site.sitefile import IDS_KEY, SECRET, read_secret
from fedweave.deploy.flare.wire.requests import ADMIN, AUTHORITY, Answer, release
from fedweave.deploy.sites.certificates import ROOT, certificate, check_startup, fingerprint
from fedweave.deploy.sites.experiments import check_experiment, for_sites, judged_by_number
from fedweave.deploy.sites.measuring import compare_measures
from fedweave.deploy.sites.processes import SiteProcess, found
from fedweave.deploy.sites.project import Closed, NoHost, Project, check_metrics_port, check_port, greet, reach
from fedweave.deploy.sites.site_check import Found, check_site
from fedweave.errors import ConfigError
from fedweave.experiment.config import Config
from fedweave.experiment.config.experiment import ANY_CLASSES, ANY_FEATURES
from fedweave.experiment.demands import check_own_models
from fedweave.models.edges import model_told

SOON = 30  # days that a certificate should still last
APART = 30  # times as large as at another site: more than units' and samples' usual differences
SHOWN = 5  # columns
PACKAGES = ("torch", "nvflare", "numpy", "pyarrow")


def examine(directory: Path, project: Project, config: Config | None = None) -> Found:
    """Look at all that is on this machine; starts and writes nothing. config: the experiment that is to be run."""
    told, here = Found(), found(directory)
    config = None if config is None else for_sites(config.plain())
    names = [member.folder.name for member in here]
    if absent := [name for name in ("server", *project.sites) if name not in names]:
        told.notes.append((", ".join(absent), "not on this machine, so not looked at"))
    for member in here:
        told.attempt(member.folder.name, partial(_member, member, project, config, told))
    if (directory / AUTHORITY).is_dir():
        told.attempt(AUTHORITY, partial(check_private, directory / AUTHORITY / STATE))
    if (directory / ADMIN / "startup").is_dir():
        told.attempt(ADMIN, partial(_certificate, directory / ADMIN, told))
    if "server" not in names and told.attempt("server", partial(_reach, project, told)):
        for name in told.forms:  # whose certificates are found to be good as far as that is known without the server
            told.attempt(name, partial(greet, directory / name / "startup/client.crt", project))
    if config is not None:
        told.attempt("experiment", partial(check_experiment, config))
        config = told.attempt("experiment", partial(judged_by_number, config, directory, project.sites)) or config
        if "server" in names and not any(whose == "experiment" for whose, _ in told.faults):
            told.attempt("server", partial(_begin, directory / "server", project, config, told))
    named = {name: form["columns"] for name, form in told.forms.items() if "columns" in form}
    if note := uncompared(named):
        told.notes.append((", ".join(name for name, has in named.items() if not has), note))
    compare(told, vertical=config is not None and capabilities(config.algorithm.kind).vertical)
    compare_splits(told)
    compare_scales(told)
    if config is not None:
        compare_measures(told, config, project.sites)
    return told


def versions() -> str:
    """What is installed here, to be compared with the other machines."""
    return ", ".join((f"fedweave {release()}", *(f"{name} {version(name)}" for name in PACKAGES)))


def _member(member: SiteProcess, project: Project, config: Config | None, told: Found) -> None:
    name, folder = member.folder.name, member.folder
    told.attempt(name, partial(_certificate, folder, told))
    if not os.access(folder, os.W_OK | os.X_OK):
        told.faults.append((name, f"{folder} cannot be written to. Make it the folder of the user who runs {name}."))
    if member.pid() is not None:
        told.facts.append((name, f"runs already, as process {member.pid()}"))
    told.attempt(name, partial(check_metrics_port, member))
    if member.kind == "server":
        told.attempt(name, partial(check_port, member, project.port))
        return
    told.attempt(name, partial(read_secret, folder / SECRET))
    form = told.forms.setdefault(name, {})
    form["key of ids"] = told.attempt(name, partial(read_secret, folder / IDS_KEY))
    told.attempt(name, partial(check_site, folder, config, project.sites, told))


def _begin(folder: Path, project: Project, config: Config, told: Found) -> None:
    """Let the algorithm begin as at the server, with what its `folder` holds; not if sites are called for that. Without
    a site here, the model is of any width.

    Raises:
        FedweaveError: a file is refused, or the algorithm refuses to begin.
    """
    fed = federation(config, folder, _Uncalled(), project.sites, Ledger())
    form = next((form for form in told.forms.values() if form.get("features") and form.get("classes")), {})
    features, classes = form.get("features", ANY_FEATURES), form.get("classes", ANY_CLASSES)
    if form and not capabilities(config.algorithm.kind).vertical:
        check_alike(folder, fed.held, features, classes)
    if form:
        config.evaluation.of(tuple(config.data.values.get("labels") or ()), classes)
    try:
        own, told_of = config.model.make(), form.get("edges carry")
        model = model_told(own, told_of, features, classes) if told_of else own.build(features, classes)
        algorithm = config.algorithm.make(model)
    except ConfigError:
        return  # as the sites have said
    check_own_models(config.own, algorithm, project.sites, config.algorithm.name)
    if not calls_of(algorithm, config.algorithm.name, len(project.sites)).setup:
        fed.classes = classes
        algorithm.init(fed)


class _Uncalled:
    """A `Link` to sites that are not to be called."""

    def __init__(self) -> None:
        self.late = Counter[str]()

    def unreachable(self) -> dict[str, str]:
        """None is."""
        return {}

    def exchange(self, request: str, blobs: Mapping[str, bytes]) -> tuple[dict[str, Answer], dict[str, str]]:
        """No answer: sites refuse such a call, too."""
        return {}, dict.fromkeys(blobs, "the algorithm calls it before the first round, which its `calls` do not say")


def _certificate(folder: Path, told: Found) -> None:
    """That it is valid now and of the project's authority, and how long still; its key, and the settings beside it."""
    path = check_startup(folder)
    own = certificate(path)
    days = (own.not_valid_after_utc - datetime.now(UTC)).days
    told.facts.append(
        (folder.name, f"certificate valid until {own.not_valid_after_utc:%Y-%m-%d}, {counted(days, 'day')}")
    )
    signer = certificate(path.with_name(ROOT)).public_key()  # the same before and after the authority renews its own
    told.forms.setdefault(folder.name, {})["authority"] = fingerprint(signer)
    told.attempt(folder.name, partial(check_private, path.with_suffix(".key")))
    if days < SOON:
        told.notes.append(
            (folder.name, f"its certificate ends in {counted(days, 'day')}; see “Certificates” in docs/deployment.md")
        )


def _reach(project: Project, told: Found) -> bool:
    """Whether something listens at the server's address.

    Raises:
        NoHost: it is none.
    """
    try:
        reach(project).close()
    except NoHost:
        raise
    except Closed as error:
        told.notes.append(("server", f"{error}; it may not be started yet"))
        return False
    told.facts.append(("server", f"{project.host}:{project.port} takes connections"))
    return True


def compare(told: Found, vertical: bool) -> None:
    """Note what must be the same at all and is not: against what most have, of equally many the first."""
    keys = {
        "features": "Give the same columns, and the same lists of categories, in the same order",
        "edges carry": "Say the same of edges in every site.toml (task, edge_features, edge_weight)",
        "columns": "Give the same columns, and the same lists of categories, in the same order",
        "classes": "Give the same [data] classes or labels",
    }
    keys |= {
        "class names": "Write the same labels = […] into every site.toml",
        "group names": "Write the same groups = […], in the same order, into every site.toml; an .npz has group_names",
        "authority": "Take startup of one project",
    }
    keys |= {"key of ids": "Copy one ids.key to all sites"} if vertical else {}
    for key, remedy in keys.items():
        values = {name: str(form[key]) for name, form in told.forms.items() if form.get(key) is not None}
        most = max(values.values(), key=list(values.values()).count, default="")
        same = next((name for name, value in values.items() if value == most), "")
        for name, value in values.items():
            if value != most and not (key == "columns" and _count(told, name) != _count(told, same)):  # said above
                told.faults.append((name, f"{key}: {_differ(told.forms, key, name, same)}. {remedy}."))


def compare_scales(told: Found) -> None:
    """Note columns whose values that are not 0 are, by their root mean square, more than `APART` times as large at one
    site as at another: they may be in other units."""
    scales = {name: form["scales"] for name, form in told.forms.items() if form.get("scales") is not None}
    if len({len(own) for own in scales.values()}) != 1 or len(scales) < 2:
        return
    names, table = list(scales), np.stack(list(scales.values()))
    least, most = np.where(table > 0, table, np.inf).min(0), table.max(0)
    apart = np.flatnonzero((most > 0) & (least < np.inf) & (most > APART * least))
    columns = next((form["columns"] for form in told.forms.values() if form.get("columns")), None)
    for at in apart[:SHOWN].tolist():
        what = f"column {columns[at]!r}" if columns else f"column {at + 1}"
        times, low = most[at] / least[at], names[int(np.flatnonzero(table[:, at] == least[at])[0])]
        said = f"{what} is {times:,.0f} times as large as at {low}. Give it the same unit at all sites, or scale it"
        told.notes.append((names[int(table[:, at].argmax())], said))
    if len(apart) > SHOWN:
        told.notes.append((", ".join(names), f"{len(apart) - SHOWN:,} more columns are of such unlike scales"))


def compare_splits(told: Found) -> None:
    """Note parties that have some of the common nodes in another split than most parties have them."""
    splits = {name: form["splits"] for name, form in told.forms.items() if form.get("splits")}
    common = sorted(set.intersection(*map(set, splits.values()))) if splits else []
    odd: dict[str, list[str]] = {}
    for node in common:
        said = [own[node] for own in splits.values()]
        most = max(said, key=said.count)
        for name, own in splits.items():
            if own[node] != most:
                odd.setdefault(name, []).append(f"{node!r} is in {own[node]}, and elsewhere in {most}")
    for name, nodes in odd.items():
        shown = "; ".join(nodes[:3]) + (f"; and {len(nodes) - 3:,} more" if len(nodes) > 3 else "")
        what = f"the split of {len(nodes):,} of {counted(len(common), 'common node')} is another than at the others"
        told.faults.append((name, f"{what}: {shown}. Give all parties the same split."))


def _differ(forms: dict[str, Record], key: str, name: str, same: str) -> str:
    mine, theirs = forms[name][key], forms[same][key]
    if key == "columns":
        at = next(at for at, (one, other) in enumerate(zip(mine, theirs, strict=True)) if one != other)
        return f"column {at + 1} is {mine[at]!r}, and {theirs[at]!r} at {same}"
    counts = f"{mine}, and {theirs} at {same}"
    mine, theirs = (forms[site].get("columns") for site in (name, same))
    if key == "features" and mine and theirs:
        parts = [f"lacks {', '.join(gone)}" if (gone := [one for one in theirs if one not in mine][:5]) else ""]
        parts += [f"has {', '.join(more)} besides" if (more := [one for one in mine if one not in theirs][:5]) else ""]
        return f"{counts}; it {' and '.join(filter(None, parts))}"
    if key in ("class names", "group names", "key of ids", "authority"):
        return f"not those of {same}"
    return counts


def _count(told: Found, name: str) -> int:
    return len(told.forms[name]["columns"])

"""The command `fedweave sites check`: all that can be found wrong with a project before anything is started."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.build import graph_of
from fedweave.config import Config
from fedweave.core.algorithm import calls_of, capabilities
from fedweave.core.graph import SPLITS
from fedweave.datasets.base import Dataset
from fedweave.deploy.flare.admission import check_algorithm, check_files
from fedweave.deploy.flare.foretold import refusals
from fedweave.deploy.flare.holdings import fingerprint, global_test, own_graph, withheld
from fedweave.deploy.flare.journal import entries, journals
from fedweave.deploy.flare.keys import read_checked
from fedweave.deploy.flare.party import read_own
from fedweave.deploy.flare.policy import Spent, check_batches
from fedweave.deploy.flare.requests import ADMIN
from fedweave.deploy.flare.sitefile import IDS_KEY, SECRET, SITE_FILE, Rules, SiteData, read_secret
from fedweave.deploy.sites.caps import ending
from fedweave.deploy.sites.processes import SiteProcess, certificate, check_certificate, check_issuer, check_port, found
from fedweave.deploy.sites.project import Project
from fedweave.deploy.sites.startup import check_key, check_settings
from fedweave.errors import FedweaveError, UserError

SOON = 30  # days that a certificate should still last
SECONDS = 2.0  # for the server to take a connection
PACKAGES = ("fedweave", "torch", "nvflare", "numpy", "pyarrow")


@dataclass
class Found:
    """What was looked at. faults: (whose, what with where and remedy). notes: what is allowed and may be meant
    otherwise. facts: (whose, what there is). forms: {site: what must be the same at all}."""

    faults: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    forms: dict[str, dict[str, Any]] = field(default_factory=dict)

    def attempt(self, whose: str, look: Callable[[], Any]) -> Any:
        """What `look` returns; None where it finds a fault, which is noted."""
        try:
            return look()
        except FedweaveError as error:
            self.faults.append((whose, str(error)))
        except OSError as error:
            reason = f"{error.filename or ''} cannot be read ({error.strerror or error})".strip()
            self.faults.append((whose, f"{reason}. Give it to the user who runs this process (chown, chmod u+rw)."))
        return None


def examine(directory: Path, project: Project, config: Config | None = None) -> Found:
    """Look at all that is on this machine; starts and writes nothing. config: the experiment that is to be run."""
    told, here = Found(), found(directory)
    names = [member.folder.name for member in here]
    if absent := [name for name in ("server", *project.sites) if name not in names]:
        told.notes.append((", ".join(absent), "not on this machine, so not looked at"))
    for member in here:
        told.attempt(member.folder.name, partial(_member, member, project, config, told))
    if (directory / ADMIN / "startup").is_dir():
        told.attempt(ADMIN, partial(_certificate, directory / ADMIN, "client", told))
    if "server" not in names:
        told.attempt("server", partial(_reach, project, told))
    if config is not None:
        told.attempt("experiment", partial(check_experiment, config))
    _compare(told, vertical=config is not None and capabilities(config.algorithm.kind).vertical)
    return told


def check_experiment(config: Config) -> None:
    """Refuse settings that no site could run, whatever its data.

    Raises:
        ConfigError: the model or the algorithm refuses them. UserError: the algorithm is none of sites.
    """
    if capabilities(config.algorithm.kind).pooled:
        raise UserError(f"{config.algorithm.name} pools all data at one place, which no site allows; choose another.")
    config.check_made()


def versions() -> str:
    """What is installed here, to be compared with the other machines."""
    return ", ".join(f"{name} {version(name)}" for name in PACKAGES)


def _member(member: SiteProcess, project: Project, config: Config | None, told: Found) -> None:
    name, folder = member.folder.name, member.folder
    told.attempt(name, partial(_certificate, folder, member.kind, told))
    if not os.access(folder, os.W_OK | os.X_OK):
        told.faults.append((name, f"{folder} cannot be written to. Make it the folder of the user who runs {name}."))
    if member.pid() is not None:
        told.facts.append((name, f"runs already, as process {member.pid()}"))
    if member.kind == "server":
        told.attempt(name, partial(check_port, member, project.port))
        return
    told.attempt(name, partial(read_secret, folder / SECRET))
    told.forms[name] = {"key of ids": told.attempt(name, partial(read_secret, folder / IDS_KEY))}
    told.attempt(name, partial(_site, folder, config, len(project.sites), told))


def _site(folder: Path, config: Config | None, sites: int, told: Found) -> None:
    """The data and the policy of a site."""
    data, rules = read_checked(folder / SITE_FILE)
    if config is not None:
        _allowed(folder, data, rules, config, told)
    if config is not None and capabilities(config.algorithm.kind).vertical:
        _party(folder, data, rules, config, sites, told)
    else:
        _holder(folder, data, rules, config, sites, told)


def _party(folder: Path, data: SiteData, rules: Rules, config: Config, sites: int, told: Found) -> None:
    """What a party of a vertical run brings, and how the algorithm would get on with it."""
    name = folder.name
    own = read_own(data, folder, "check", (name,), name).data
    told.forms[name] |= {"classes": own.classes, "class names": fingerprint(data.labels or ())}
    told.facts.append((name, f"{own.nodes:,} nodes, {own.features:,} features of its own"))
    if own.nodes < rules.min_nodes:
        why = f"{own.nodes} nodes are fewer than policy.min_nodes = {rules.min_nodes}"
        told.faults.append((name, f"{folder / SITE_FILE}: {why}, so that it would leave the run. Lower the bound."))
    _crowds(folder, own, rules, told)
    _get_on(folder, own, rules, config, sites, told)


def _holder(folder: Path, data: SiteData, rules: Rules, config: Config | None, sites: int, told: Found) -> None:
    """What a site of a horizontal run brings, and how the algorithm, if one is named, would get on with it."""
    import torch

    name, own = folder.name, own_graph(data, folder)
    if config is not None and not capabilities(config.algorithm.kind).pooled:
        _get_on(folder, own, rules, config, sites, told)
    told.facts.append((name, _described(own)))
    _crowds(folder, own, rules, told)
    columns = list(own.columns) or own.features
    names = fingerprint(data.labels or ())
    told.forms[name] |= {"features": columns, "classes": own.classes, "class names": names}
    if data.test is not None:
        test = told.attempt(name, partial(global_test, folder / data.test, data, torch.float32))
        if test is not None and test.x.shape[1] != own.features:
            why = f"it has {test.x.shape[1]} features, the site's data {own.features}"
            told.faults.append((name, f"{folder / data.test}: {why}. Use the same columns."))


def _crowds(folder: Path, own: Dataset, rules: Rules, told: Found) -> None:
    """See whether each split has enough examples."""
    name = folder.name
    for split, count in zip(SPLITS, np.asarray(own.public).sum(1).tolist(), strict=True):
        if 0 < count < rules.min_nodes:
            why = f"{count} {split} {own.example}s are fewer than policy.min_nodes = {rules.min_nodes}"
            ends = "so that it would leave the run. Give more or none, or lower the bound."
            told.faults.append((name, f"{folder / SITE_FILE}: {why}, {ends}"))
        if count == 0:
            told.notes.append((name, f"no {split} {own.example}s"))


def _get_on(folder: Path, own: Dataset, rules: Rules, config: Config, sites: int, told: Found) -> None:
    """See what the policy says of the messages and of the training steps of an algorithm on a site's `own` data. A
    party's train nodes are those of all its nodes, of which the parties may have fewer in common."""
    import torch

    shape = own.features, own.classes, sites
    rehearsal = partial(_rehearse, folder, rules, config, shape, bool((own.y >= 0).any()), told)
    algorithm = told.attempt(folder.name, rehearsal)
    if algorithm is not None and own.public is not None:
        graph = graph_of(own, own.features, torch.float32)
        told.attempt(folder.name, partial(check_batches, rules, algorithm, graph, {}))


def _allowed(folder: Path, data: SiteData, rules: Rules, config: Config, told: Found) -> None:
    """See whether a site's policy lets a configuration run, and note the scaling that the site does not follow."""
    name = folder.name
    told.attempt(name, partial(check_files, rules, config.plain()))
    told.attempt(name, partial(check_algorithm, rules, config.algorithm))
    if kept := [key for key in ("features", "classes") if key in withheld(rules)]:
        why = f"policy.deny keeps back how many {' and '.join(kept)} there are, without which no model can be built"
        told.faults.append((name, f"{folder / SITE_FILE}: {why}. Allow it."))
    scaling = config.data.values.get("normalise", "none")
    if scaling not in ("none", data.normalise):
        how = "said by site.toml" if data.normalise != "none" else "as nothing in site.toml scales it"
        split = ", after what the configuration of `sites init --split` did" if data.draws_as is not None else ""
        said = f"[data] normalise = {scaling!r} of the experiment is of simulations"
        told.notes.append((name, f"{said}; here it is {data.normalise!r}, {how}{split}"))


def _rehearse(
    folder: Path, rules: Rules, config: Config, shape: tuple[int, int, int], labels: bool, told: Found
) -> Any:
    """See what the policy says of all that the algorithm declares to send; shape: features, classes and sites; labels:
    whether the site has any. Returns the algorithm.

    Of evaluations only "own" is sent on all data; what else it refuses of them is noted. So is a cap that the run would
    reach, unless it needs all sites.

    Raises:
        ConfigError: the algorithm does not fit. FedweaveError: it does not say which steps it runs.
    """
    (features, classes, sites), name = shape, folder.name
    algorithm = config.algorithm.make(config.model.make().build(features, classes))
    calls = calls_of(algorithm, config.algorithm.name, sites)
    senders: dict[tuple[str, bool], list[str]] = {}
    for why, sender, certain in refusals(rules, calls, labels):
        senders.setdefault((why, certain), []).append(sender)
    for (why, certain), steps in senders.items():
        verb, so = ("sends", "so that") if certain else ("may send", "if it does,")
        ends = f"{so} the site would leave the run. Change its policy, or choose another algorithm."
        said = f"{SITE_FILE}: {why}, and {' and '.join(dict.fromkeys(steps))} {verb} it, {ends}"
        (told.faults if certain else told.notes).append((name, said))
    spent = Spent.of(entry for journal in journals(folder) for entry in entries(journal))
    for why in ending(rules, spent, calls, config.general):
        so = "Allow more, or run fewer rounds; --resume asks for the replies that are left alone."
        needed = getattr(algorithm, "quorum", 1.0) >= 1  # then the run ends without the site
        (told.faults if needed else told.notes).append((name, f"{SITE_FILE}: {why}. {so}"))
    return algorithm


def _described(own: Dataset) -> str:
    split = "/".join(f"{count:,}" for count in np.asarray(own.public).sum(1).tolist())
    return (
        f"{own.nodes:,} nodes, {own.edges.shape[1] // 2:,} edges, {own.features:,} features, {own.classes} classes, "
        f"{split} for {'/'.join(SPLITS)}"
    )


def _certificate(folder: Path, kind: str, told: Found) -> None:
    """That it is valid now and of the project's authority, and how long still; its key, and the settings beside it."""
    path, root = folder / "startup" / f"{kind}.crt", folder / "startup/rootCA.pem"
    check_certificate(path)
    check_issuer(path, root)
    check_key(path.with_suffix(".key"), path)
    check_settings(folder)
    own = certificate(path)
    days = (own.not_valid_after_utc - datetime.now(UTC)).days
    told.facts.append((folder.name, f"certificate valid until {own.not_valid_after_utc:%Y-%m-%d}, {days} days"))
    told.forms.setdefault(folder.name, {})["authority"] = f"{certificate(root).serial_number:x}"
    if days < SOON:
        told.notes.append(
            (folder.name, f"its certificate ends in {days} days; see “Certificates” in docs/deployment.md")
        )


def _reach(project: Project, told: Found) -> None:
    """Whether the server's address is one, and whether something listens there."""
    where = f"{project.host}:{project.port}"
    try:
        socket.create_connection((project.host, project.port), SECONDS).close()
        told.facts.append(("server", f"{where} takes connections"))
    except socket.gaierror as error:
        raise FedweaveError(
            f"project.json: {project.host!r} is no name of a machine here ({error.strerror}). Correct it, or this "
            "machine's names (/etc/hosts)."
        ) from error
    except OSError as error:
        told.notes.append(("server", f"{where} takes no connection yet ({error.strerror or error})"))


def _compare(told: Found, vertical: bool) -> None:
    """Note what must be the same at all and is not: against what most have, of equally many the first."""
    keys = {
        "features": "Give the same columns, and the same lists of categories, in the same order",
        "classes": "Give the same [data] classes or labels",
    }
    keys |= {
        "class names": "Write the same labels = […] into every site.toml",
        "authority": "Take startup of one project",
    }
    keys |= {"key of ids": "Copy one ids.key to all sites"} if vertical else {}
    for key, remedy in keys.items():
        values = {name: str(form[key]) for name, form in told.forms.items() if form.get(key) is not None}
        most = max(values.values(), key=list(values.values()).count, default="")
        same = next((name for name, value in values.items() if value == most), "")
        for name, value in values.items():
            if value != most:
                told.faults.append((name, f"{key}: {_differ(told.forms, key, name, same)}. {remedy}."))


def _differ(forms: dict[str, dict[str, Any]], key: str, name: str, same: str) -> str:
    mine, theirs = forms[name][key], forms[same][key]
    if isinstance(mine, list) and isinstance(theirs, list):
        parts = [f"lacks {', '.join(gone)}" if (gone := [one for one in theirs if one not in mine][:5]) else ""]
        parts += [f"has {', '.join(more)} besides" if (more := [one for one in mine if one not in theirs][:5]) else ""]
        return f"{' and '.join(filter(None, parts)) or 'another order of columns'}, compared with {same}"
    if key in ("class names", "key of ids", "authority"):
        return f"not those of {same}"
    mine, theirs = (len(one) if isinstance(one, list) else one for one in (mine, theirs))
    return f"{mine}, and {theirs} at {same}"

"""The command `fedweave sites check`: finds faults of a project before a process starts."""

import os
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

from fedweave.core.algorithm import calls_of, capabilities
from fedweave.core.ledger import Ledger
from fedweave.core.text import counted
from fedweave.core.types import CLASS
from fedweave.errors import ConfigError
from fedweave.experiment.config import Config
from fedweave.experiment.config.experiment import ANY_CLASSES, ANY_FEATURES
from fedweave.experiment.requirements import check, check_rounds
from fedweave.experiment.stages import Configured
from fedweave.models.edges import model_of_form
from fedweave.sites.flare.agreement import check_agreement, note_unnamed_columns
from fedweave.sites.flare.folder import check_private
from fedweave.sites.flare.provision import STATE
from fedweave.sites.flare.requests import ADMIN, AUTHORITY, Answer, release
from fedweave.sites.flare.server import federation
from fedweave.sites.flare.sitefile import SECRET, read_ids_key, read_secret
from fedweave.sites.operation.certificates import ROOT, certificate, check_startup, fingerprint
from fedweave.sites.operation.comparison import compare, compare_measures, compare_scales, compare_splits
from fedweave.sites.operation.experiments import check_experiment, for_sites, positive_by_number
from fedweave.sites.operation.findings import Findings
from fedweave.sites.operation.processes import SiteProcess, check_metrics_port, check_port, local_processes
from fedweave.sites.operation.project import Closed, NoHost, Project, greet, reach
from fedweave.sites.operation.site_check import check_site

SOON = 30  # days that a certificate should still last
PACKAGES = ("torch", "nvflare", "numpy", "pyarrow")


def examine(directory: Path, project: Project, config: Config | None = None) -> Findings:
    """Check everything on this machine, without starting or writing anything. config: the experiment to run, if any."""
    findings, here = Findings(), local_processes(directory)
    config = None if config is None else for_sites(config.plain())
    names = [member.folder.name for member in here]
    absent = [name for name in ("server", *project.sites) if name not in names]
    if absent:
        findings.notes.append((", ".join(absent), "not on this machine, so not checked"))
    for member in here:
        findings.attempt(member.folder.name, partial(_check_member, member, project, config, findings))
    if (directory / AUTHORITY).is_dir():
        findings.attempt(AUTHORITY, partial(check_private, directory / AUTHORITY / STATE))
    if (directory / ADMIN / "startup").is_dir():
        findings.attempt(ADMIN, partial(_certificate, directory / ADMIN, findings))
    if "server" not in names and findings.attempt("server", partial(_reach, project, findings)):
        for name in findings.forms:  # only the server can find the remaining faults of these sites' certificates
            findings.attempt(name, partial(greet, directory / name / "startup/client.crt", project))
    if config is not None:
        findings.attempt("experiment", partial(check_experiment, config, project.sites))
        of_all = {what for whose, what in findings.faults if whose == "experiment"}  # each site has found them, too
        findings.faults = [one for one in findings.faults if one[0] == "experiment" or one[1] not in of_all]
        config = findings.attempt("experiment", partial(positive_by_number, config, directory, project.sites)) or config
        if "server" in names and not any(whose == "experiment" for whose, _ in findings.faults):
            findings.attempt("server", partial(_start_algorithm, directory / "server", project, config, findings))
    named = {name: form["columns"] for name, form in findings.forms.items() if "columns" in form}
    note = note_unnamed_columns(named)
    if note:
        findings.notes.append((", ".join(name for name, has in named.items() if not has), note))
    compare(findings, vertical=config is not None and capabilities(config.algorithm.kind).vertical)
    compare_splits(findings)
    compare_scales(findings)
    if config is not None:
        compare_measures(findings, config, project.sites)
    return findings


def versions() -> str:
    """The installed versions here, to compare with the other machines."""
    return ", ".join((f"fedweave {release()}", *(f"{name} {version(name)}" for name in PACKAGES)))


def _check_member(member: SiteProcess, project: Project, config: Config | None, findings: Findings) -> None:
    name, folder = member.folder.name, member.folder
    findings.attempt(name, partial(_certificate, folder, findings))
    if not os.access(folder, os.W_OK | os.X_OK):
        findings.faults.append(
            (name, f"{folder} cannot be written to. Make it the folder of the user who runs {name}.")
        )
    if member.pid() is not None:
        findings.facts.append((name, f"runs already, as process {member.pid()}"))
    findings.attempt(name, partial(check_metrics_port, member))
    if member.kind == "server":
        findings.attempt(name, partial(check_port, member, project.port))
        return
    findings.attempt(name, partial(read_secret, folder / SECRET))
    form = findings.forms.setdefault(name, {})
    form["key of ids"] = findings.attempt(name, partial(read_ids_key, folder))
    findings.attempt(name, partial(check_site, folder, config, project.sites, findings))


def _start_algorithm(folder: Path, project: Project, config: Config, findings: Findings) -> None:
    """Start the algorithm as the server does, with the graphs in the server's `folder`, unless its start calls sites.
    If no site is on this machine, the model has an arbitrary width."""
    fed = federation(config, folder, _Uncalled(), project.sites, Ledger())
    form = next((form for form in findings.forms.values() if form.get("features") and form.get("classes")), {})
    features, classes = form.get("features", ANY_FEATURES), form.get("classes", ANY_CLASSES)
    if form and not capabilities(config.algorithm.kind).vertical:
        check_agreement(folder, fed.held, features, classes)
    if form:
        config.evaluation.of(tuple(config.data.values.get("labels") or ()), classes, form.get("target", CLASS))
    try:
        model_kind, edge_form = config.model.make(), form.get("edges carry")
        if edge_form:
            model = model_of_form(model_kind, edge_form, features, classes, config.decoder)
        else:
            model = model_kind.build(features, classes)
        algorithm = config.algorithm.make(model)
    except ConfigError:
        return  # the checks of the sites have found it
    check(Configured.of(config).with_members(project.sites).with_design(model, algorithm))
    check_rounds(algorithm, config.general.rounds)
    if not calls_of(algorithm, config.algorithm.name, len(project.sites)).setup:
        fed.classes, fed.rounds = classes, config.general.rounds
        algorithm.init(fed)


class _Uncalled:
    """A `Link` for a check, which calls no site."""

    def __init__(self) -> None:
        self.late = Counter[str]()

    def unreachable(self) -> dict[str, str]:
        """Return {}: no call is made."""
        return {}

    def exchange(self, request: str, blobs: Mapping[str, bytes]) -> tuple[dict[str, Answer], dict[str, str]]:
        """Return no answer: sites reject such a call, too."""
        return {}, dict.fromkeys(
            blobs, "the algorithm calls it before the first round, and its `calls` do not have that"
        )


def _certificate(folder: Path, findings: Findings) -> None:
    """Check the certificate in a member's folder, its key and settings, and note how long it is still valid."""
    path = check_startup(folder)
    cert = certificate(path)
    days = (cert.not_valid_after_utc - datetime.now(UTC)).days
    findings.facts.append(
        (folder.name, f"certificate valid until {cert.not_valid_after_utc:%Y-%m-%d}, {counted(days, 'day')}")
    )
    signer = certificate(path.with_name(ROOT)).public_key()  # a renewed certificate of the authority has the same key
    findings.forms.setdefault(folder.name, {})["authority"] = fingerprint(signer)
    findings.attempt(folder.name, partial(check_private, path.with_suffix(".key")))
    if days < SOON:
        findings.notes.append(
            (folder.name, f"its certificate ends in {counted(days, 'day')}; see docs/certificates.md")
        )


def _reach(project: Project, findings: Findings) -> bool:
    """Whether something listens at the server's address."""
    try:
        reach(project).close()
    except NoHost:
        raise
    except Closed as error:
        findings.notes.append(("server", f"{error}; it may not be started yet"))
        return False
    findings.facts.append(("server", f"{project.host}:{project.port} takes connections"))
    return True

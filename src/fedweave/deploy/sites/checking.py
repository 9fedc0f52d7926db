"""The command `fedweave sites check`: finds faults of a project before a process starts."""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedweave.core.algorithm import Algorithm, Calls, calls_of, capabilities
from fedweave.core.federation import step_info, step_name
from fedweave.core.graph import SPLITS
from fedweave.core.ledger import Ledger
from fedweave.core.mechanism import LDP, Gaussian, SecureSum
from fedweave.core.text import counted
from fedweave.core.types import CLASS, Record
from fedweave.datasets.base import Dataset
from fedweave.datasets.molecules import repeats
from fedweave.datasets.name_matching import first_not_nfc
from fedweave.datasets.notes import feature_notes, name_notes, time_notes
from fedweave.deploy.flare.accounts import Accounts
from fedweave.deploy.flare.admission import (
    check_algorithm,
    check_difference,
    check_exchange,
    check_files,
    check_forget,
    check_left_out,
    check_members,
    check_task,
    check_told,
    conditions,
    needs_all,
    overspent,
    read_checked,
    refusals,
    suited,
)
from fedweave.deploy.flare.alignment import read_own
from fedweave.deploy.flare.entities import INFO as UNITING
from fedweave.deploy.flare.federation import check_agreement, uncompared
from fedweave.deploy.flare.folder import check_private, read_about
from fedweave.deploy.flare.holdings import Forgotten, common_test, left_out_of, own_graph, withheld
from fedweave.deploy.flare.holdings import fingerprint as data_fingerprint
from fedweave.deploy.flare.policy import Spent, check_batches, is_of, replies_of
from fedweave.deploy.flare.provision import STATE
from fedweave.deploy.flare.requests import ADMIN, AUTHORITY, Answer, pin, release
from fedweave.deploy.flare.scores import scoring_of, scoring_steps
from fedweave.deploy.flare.server import federation
from fedweave.deploy.flare.sitefile import FINE, SECRET, SITE_FILE, Measure, Rules, SiteData, read_ids_key, read_secret
from fedweave.deploy.sites.certificates import ROOT, certificate, check_startup, fingerprint
from fedweave.deploy.sites.experiments import check_experiment, for_sites, positive_by_number
from fedweave.deploy.sites.project import (
    Closed,
    NoHost,
    Project,
    SiteProcess,
    check_metrics_port,
    check_port,
    greet,
    local_processes,
    reach,
)
from fedweave.engines.devices import chosen
from fedweave.errors import ConfigError, FedweaveError
from fedweave.experiment.config import Config, General
from fedweave.experiment.config.experiment import ANY_CLASSES, ANY_FEATURES
from fedweave.experiment.graphs import graph_of
from fedweave.experiment.requirements import Configured, Scheduled, check_stage
from fedweave.experiment.rounds import evaluated
from fedweave.experiment.runs.link_predictions import read_pairs
from fedweave.metrics.selection import METRICS, OF_SCORES, RARE_OF_TWO, title_of
from fedweave.models.edges import model_of_form

# ----------------------------------------------------------------------------------------------------
# The findings of `fedweave sites check`, and its checks of a single site: its data, its policy, and whether it could
# join a run, by the same checks as a join.


T = TypeVar("T")
REFUSED_NOW = "a run that begins now would be refused: "


@dataclass
class Findings:
    """The findings of a check, each with the member that it concerns. faults: problems with place and remedy. notes:
    settings that are allowed but may be mistakes. facts: descriptions. forms: {site: values that must be the same at
    all sites}."""

    faults: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    forms: dict[str, Record] = field(default_factory=dict)

    def attempt(self, whose: str, look: Callable[[], T], file: Path | None = None, before: str = "") -> T | None:
        """The result of `look`; None if it raises errors, which become faults, with the `file` that they concern and
        the words `before` them."""
        try:
            return look()
        except FedweaveError as error:
            lines = str(error).splitlines() if len(error.args) > 1 else [str(error)]
            self.faults += [(whose, f"{file}: {before}{line}" if file else f"{before}{line}") for line in lines]
        except OSError as error:
            reason = f"{error.filename or ''} cannot be read ({error.strerror or error})".strip()
            self.faults.append((whose, f"{reason}. Give it to the user who runs this process (chown, chmod u+rw)."))
        return None


def ending(rules: Rules, spent: Spent, calls: Calls, general: General) -> Iterator[str]:
    """A sentence for each cap that ends the run at this site: caps of `policy.calls` and on ε that the run would reach,
    and a cap on bytes that is reached already. A run's number of bytes depends on its data and cannot be predicted.

    spent: the total of the site's journals. It includes a run to continue, which needs less than estimated here.
    """
    if rules.bytes is not None and spent.bytes >= rules.bytes:
        yield (
            f"policy.bytes: {spent.bytes:,} have left and {rules.bytes:,} may, so that a run that begins now would "
            f"lose the site in round 1 of {general.rounds:,}"
        )
    yield from _of_replies(rules, spent, calls, general)
    if why := overspent(rules, spent, calls, general):
        yield why


def _of_replies(rules: Rules, spent: Spent, calls: Calls, general: General) -> Iterator[str]:
    """The sentences on `policy.calls`: the round in which the run would need more replies of a step than are left."""
    for name, most in rules.calls.items():
        in_setup, per_round, per_evaluation = (
            sum(is_of(step_name(step), name) for step in steps)
            for steps in (calls.setup, calls.round, calls.evaluation)
        )
        done, wanted = replies_of(spent, name), in_setup
        for round in range(1, general.rounds + 1):
            wanted += per_round + per_evaluation * evaluated(round, general.rounds, general.eval_every)
            if done + wanted > most:
                yield (
                    f"policy.calls: {name} has replied {counted(done, 'time')} and may {counted(most, 'time')}, so "
                    f"that a run that begins now would lose the site in round {round:,} of {general.rounds:,}"
                )
                break


def check_site(folder: Path, config: Config | None, sites: Sequence[str], findings: Findings) -> None:
    """Check the data and the policy of a site in a project of these `sites`."""
    data, rules = read_checked(folder / SITE_FILE)
    device = read_about(folder / SITE_FILE).device
    findings.attempt(folder.name, partial(chosen, device, where="site.device"), folder / SITE_FILE)
    findings.attempt(folder.name, partial(check_members, rules, folder.name, sites), folder / SITE_FILE)
    if rules.secure_sum and rules.min_sites < len(sites):
        note = f"policy.min_sites = {rules.min_sites}: the project has {len(sites)} sites, and a run may leave some out"
        findings.notes.append((folder.name, f"{folder / SITE_FILE}: {note}. Raise it to {len(sites)}"))
    if config is not None:
        _check_policy(folder, data, rules, config, sites, findings)
    if config is not None and capabilities(config.algorithm.kind).vertical:
        _check_party(folder, data, rules, config, sites, findings)
    else:
        _check_site_data(folder, data, rules, config, sites, findings)


def _check_party(
    folder: Path, data: SiteData, rules: Rules, config: Config, sites: Sequence[str], findings: Findings
) -> None:
    """Check a party's data for a vertical run, and whether the algorithm fits it."""
    name = folder.name
    dataset = read_own(data, folder, "check", (name,), name, rules.members).data
    findings.forms[name] |= {"classes": dataset.classes, "class names": data_fingerprint(dataset.labels) or None}
    findings.facts.append(
        (name, f"{counted(dataset.nodes, 'node')}, {counted(dataset.features, 'feature')} of its own")
    )
    in_split = np.concatenate([np.asarray(dataset.public), np.ones((1, dataset.nodes), bool)]).argmax(0)
    findings.forms[name]["splits"] = {
        node: (*SPLITS, "none")[at] for node, at in zip(dataset.ids, in_split, strict=False)
    }
    if dataset.nodes < rules.min_nodes:
        why = f"{counted(dataset.nodes, 'node')}: fewer than policy.min_nodes = {rules.min_nodes}"
        findings.faults.append((name, f"{folder / SITE_FILE}: {why}, so that it would leave the run. Lower the bound."))
    _check_split_sizes(folder, dataset, rules, findings)
    findings.notes.extend((name, note) for note in (*dataset.notes, *feature_notes(dataset), *name_notes(dataset)))
    if odd := first_not_nfc(dataset.ids):
        note = f"the id {odd!r} is not in Unicode's form NFC, and does not match another party's that looks the same"
        findings.notes.append((name, note))
    _check_algorithm_fits(folder, dataset, "none", rules, config, sites, findings)


def _check_site_data(
    folder: Path, data: SiteData, rules: Rules, config: Config | None, sites: Sequence[str], findings: Findings
) -> None:
    """Check a site's data for a horizontal run, and whether the algorithm fits it, if there is a configuration."""
    links = None if config is None else config.links
    name, dataset = folder.name, own_graph(data, folder, links=links)
    if config is not None:
        _check_algorithm_fits(folder, dataset, data.normalize, rules, config, sites, findings)
    findings.facts.append((name, _described(dataset)))
    _check_split_sizes(folder, dataset, rules, findings)
    if (forgotten := Forgotten.of(data, folder)) is not None:
        absent = f"; the data lacks {counted(forgotten.absent, 'id')} of the list" if forgotten.absent else ""
        fact = f"{counted(len(forgotten.ids), dataset.example)} left out (data.forget){absent}"
        findings.facts.append((name, fact))
    if dataset.links is not None and data.pairs is not None:
        findings.attempt(name, partial(read_pairs, folder / data.pairs, dataset.links))
    test_in_data = data.test is not None and (folder / data.test).parent == folder / data.path  # notes would repeat it
    split_times = None if dataset.edge_attrs is None else dataset.edge_attrs.split_times
    times = time_notes(dataset, split_times, {name: np.arange(dataset.nodes)})
    train, _, test = map(np.flatnonzero, np.asarray(dataset.public))
    odd = (*feature_notes(dataset), *name_notes(dataset), *times, *repeats(dataset, train, test))
    findings.notes.extend((name, note) for note in (*(() if test_in_data else dataset.notes), *odd))
    findings.forms[name] |= {
        "features": dataset.features,
        "edges carry": dataset.edge_form,
        "columns": [*dataset.columns, *(() if dataset.edge_attrs is None else dataset.edge_attrs.columns)] or None,
        "classes": dataset.outputs,
        **({} if dataset.target == CLASS else {"target": dataset.target}),
        "class names": data_fingerprint(dataset.labels or dataset.targets) or None,
        "group names": data_fingerprint(dataset.groups) or None,
        "scales": _scales(dataset),
    }
    findings.attempt(name, partial(common_test, data, folder, dataset.features, torch.float32))


def _scales(dataset: Dataset) -> np.ndarray:
    """The root mean square of the nonzero values in each column, as the algorithm sees them; 0 for a column of
    zeros."""
    x = csr_matrix(dataset.x, dtype=np.float64)
    total, count = (np.asarray(each.sum(0), np.float64).ravel() for each in (x.power(2), x != 0))
    return np.sqrt(total / np.maximum(count, 1))


def _check_split_sizes(folder: Path, dataset: Dataset, rules: Rules, findings: Findings) -> None:
    """Check that each split has enough examples."""
    name = folder.name
    seen = dataset.labeled  # a split by a hash contains nodes without a label
    public = np.asarray(dataset.public) & (seen | ~seen.any())
    for split, count in zip(SPLITS, public.sum(1).tolist(), strict=True):
        if 0 < count < rules.min_nodes:
            why = f"{counted(count, f'{split} {dataset.example}')}: fewer than policy.min_nodes = {rules.min_nodes}"
            ends = "so that it would leave the run. Give more or none, or lower the bound."
            findings.faults.append((name, f"{folder / SITE_FILE}: {why}, {ends}"))
        if count == 0:
            findings.notes.append((name, f"no {split} {dataset.example}s"))
    if dataset.target != CLASS:
        return
    trained = np.unique(dataset.y[np.asarray(dataset.public)[0] & (dataset.y >= 0)])
    if len(trained) == 1:
        label = dataset.labels[trained[0]] if dataset.labels else trained[0]
        findings.notes.append(
            (name, f"every train {dataset.example} is of class {label}, so that a model learns only this class")
        )


def _check_algorithm_fits(
    folder: Path, dataset: Dataset, scaling: str, rules: Rules, config: Config, sites: Sequence[str], findings: Findings
) -> None:
    """Check whether a site's `dataset` with this `scaling` fits an algorithm, and whether the policy allows its
    messages and training steps. A party's train nodes are counted among all its nodes; the parties may have fewer in
    common."""
    algorithm = findings.attempt(
        folder.name, partial(_rehearse, folder, dataset, scaling, rules, config, sites, findings)
    )
    if algorithm is not None and dataset.public is not None:
        graph = graph_of(dataset, dataset.features, torch.float32)
        findings.attempt(folder.name, partial(check_batches, rules, algorithm, graph, {}))


def _check_policy(
    folder: Path, data: SiteData, rules: Rules, config: Config, sites: Sequence[str], findings: Findings
) -> None:
    """Check whether a site's policy allows a configuration, and note an experiment's scaling that the site ignores."""
    name, file = folder.name, folder / SITE_FILE
    findings.attempt(name, partial(check_files, rules, config.plain()), file)
    findings.attempt(name, partial(check_algorithm, rules, config.algorithm), file)
    findings.attempt(name, partial(check_exchange, rules, data, config, len(sites)), file)
    findings.attempt(name, partial(check_task, data, config), file)
    findings.attempt(name, partial(check_forget, data, config), file)
    if config.learned:
        findings.attempt(name, partial(check_told, rules, UNITING, len(sites)), file)
    if denied_keys := [key for key in ("features", "classes") if key in withheld(rules)]:
        denied = " and ".join(denied_keys)
        why = f"policy.deny keeps back how many {denied} there are, without which no model can be built"
        findings.faults.append((name, f"{file}: {why}. Allow it."))
    scaling = config.data.values.get("normalize", "none")
    if scaling not in ("none", "auto", data.normalize):
        known = {"none": "because site.toml sets no scaling", "auto": "by the site's own nodes"}
        how = known.get(data.normalize, "set by site.toml")
        split = ", after the scaling by the configuration of `sites init --split`" if data.random_id is not None else ""
        note = f"[data] normalize = {scaling!r} of the experiment applies only to simulations"
        findings.notes.append((name, f"{note}; here it is {data.normalize!r}, {how}{split}"))


def _rehearse(
    folder: Path, dataset: Dataset, scaling: str, rules: Rules, config: Config, sites: Sequence[str], findings: Findings
) -> Algorithm | None:
    """Make the algorithm as the site does, and check all fields that it declares against the policy. Returns the
    algorithm.

    An evaluation sends only "own" on all data; a refusal of another field of an evaluation is a note. A cap that the
    run would reach is a note, too, unless the run needs all sites. What refuses a run at its begin is a fault.

    Raises:
        ConfigError, DataError: the algorithm does not fit. FedweaveError: it does not declare its steps.
    """
    name, labels = folder.name, bool((dataset.y >= 0).any())
    algorithm = suited(config, name, sites, dataset, dataset.features, scaling)
    calls = calls_of(algorithm, config.algorithm.name, len(sites))
    if labels:
        sums = any(step_info(step).sums for step in scoring_steps(calls))
        measures = scoring_of(rules, calls, labels).leaving(sums)
        findings.forms[name] |= {"measures": measures, "in sums": sums, "groups": dataset.sensitive is not None}
    senders: dict[tuple[str, bool], list[str]] = {}
    for why, sender, certain in refusals(rules, calls, labels, len(sites)):
        senders.setdefault((why, certain), []).append(sender)
    for (why, certain), steps in senders.items():
        verb, so = ("sends", "so that") if certain else ("may send", "if it does,")
        ends = f"{so} the site would leave the run. Change its policy, or choose another algorithm."
        note = f"{SITE_FILE}: {why}, and {' and '.join(dict.fromkeys(steps))} {verb} it, {ends}"
        (findings.faults if certain else findings.notes).append((name, note))
    findings.notes.extend((name, note) for note in _unprotected(calls))
    findings.notes.extend((name, note) for note in algorithm.notes)
    accounts = Accounts(folder, rules.lost)
    findings.attempt(name, partial(_check_accounts, accounts), Path(SITE_FILE))
    spent, replied = accounts.spent, accounts.repeated(pin(config.plain(), list(sites)))
    for condition in conditions(rules, config, algorithm, calls, len(sites), spent, replied):
        findings.attempt(name, condition, before=REFUSED_NOW)
    for condition in _differences(folder, dataset, rules, config, sites, calls, accounts):
        findings.attempt(name, condition, before=REFUSED_NOW)
    for why in ending(rules, spent, calls, config.general):
        so = "Allow more, or run fewer rounds; --resume needs only the remaining replies."
        (findings.faults if needs_all(config, algorithm) else findings.notes).append(
            (name, f"{SITE_FILE}: {why}. {so}")
        )
    fact = ("outages", survived(config, algorithm, calls, len(sites)))
    findings.facts += [fact] if fact not in findings.facts else []
    return algorithm


def _differences(
    folder: Path,
    dataset: Dataset,
    rules: Rules,
    config: Config,
    sites: Sequence[str],
    calls: Calls,
    accounts: Accounts,
) -> Iterator[Callable[[], None]]:
    """Checks whether a run differs enough from the runs in the site's own journals; none where the run's data is known
    only after the sites have aligned or numbered their nodes."""
    if config.learned or capabilities(config.algorithm.kind).vertical:
        return
    site, _ = read_checked(folder / SITE_FILE)
    forgotten = Forgotten.of(site, folder)
    whole = accounts.of_whole(left_out_of(site, folder, forgotten, accounts))
    yield partial(check_left_out, rules, whole, accounts.earlier(whole))
    if any(step_info(step).sums for step in calls.all):
        crowds = [crowd for crowd, known in accounts.crowds.values() if known == whole.data]
        yield partial(check_difference, rules, sites, crowds)


def survived(config: Config, algorithm: Algorithm, calls: Calls, sites: int) -> str:
    """A sentence on what happens to a run while a site is away, with the setting that changes this. sites: number of
    sites in the run."""
    quorum, wait = (config.engine.values.get(name, default) for name, default in (("quorum", 1.0), ("wait", 0.0)))
    sums = [one for step in calls.round for one in step_info(step).sums.values()]
    least = max([math.ceil(quorum * sites), *(one.needed(sites) for one in sums)])
    if needs_all(config, algorithm):
        least = sites
    outcome = f"the run waits up to {wait / 60:.0f} min and then ends" if wait else "the run ends"
    if least < sites:
        return f"a round needs {least} of {sites} sites and goes on without the others; while more are away, {outcome}"
    some = SecureSum(everyone=False, accomplices=1).needed(sites) if sums else 1
    parts = " and require_all = false in the part secure_sum" if any(one.everyone for one in sums) else ""
    remedy = f"; [engine] quorum below 1{parts} lets a round do with {some}" if some < sites else ""
    if capabilities(config.algorithm.kind).vertical:
        remedy = ""
    return f"a round needs all {sites} sites; while one is away, {outcome} ([engine] wait){remedy}"


def _unprotected(calls: Calls) -> Iterator[str]:
    """A sentence if a field computed from the weights leaves outside a secure aggregation and without noise."""
    sends = [
        (key, spec) for step in dict.fromkeys(calls.round) for key, spec in step_info(step).sends.items() if spec.like
    ]
    bare = [
        key for key, spec in sends if not any(isinstance(one, SecureSum | Gaussian | LDP) for one in spec.mechanisms)
    ]
    if bare:
        yield (
            f"{' and '.join(dict.fromkeys(bare))} of this site leaves by itself and without noise, so that a server "
            "that crafts weights reads rows of features off it (docs/security.md). Run an algorithm with the part "
            'secure_sum, or with noise, and require that: policy.secure_sum = ["update"]'
        )


def _check_accounts(accounts: Accounts) -> None:
    """Read the accounts, and raise an error if an entry is missing."""
    accounts.catch_up()
    accounts.chain.check()


def _predicted(dataset: Dataset) -> str:
    return counted(dataset.classes, "class") if dataset.target == CLASS else dataset.target_summary


def _described(dataset: Dataset) -> str:
    split = "/".join(f"{count:,}" for count in np.asarray(dataset.public).sum(1).tolist())
    examples = f", {counted(dataset.examples, 'example')} that are edges" if dataset.example == "edge" else ""
    return (
        f"{counted(dataset.nodes, 'node')}, {counted(dataset.edges.shape[1] // 2, 'edge')}{examples}, "
        f"{counted(dataset.features, 'feature')}, {_predicted(dataset)}, "
        f"{split} for {'/'.join(SPLITS)}"
    )


# ----------------------------------------------------------------------------------------------------
# The measures that a run will lack because no site's policy lets them leave.


_BY_CLASS = ", ".join(one.title for one in METRICS.values() if one.measure == "classes" and CLASS in one.of)
_WORDS: dict[Measure, str] = {
    "classes": f"whether a class is rare, {_BY_CLASS} and gaps between groups",
    "group_auc": "AUC of each group",
    "histogram": "AUC, average precision and calibration of all sites' examples together",
    "ranks": "MRR, hits and lists of items",
}
# The measures that each entry of `FINE` lets leave, as text.
NUMBERS: dict[Measure, str] = {name: _WORDS[name] if name in _WORDS else METRICS[name].title for name in FINE}


def compare_measures(findings: Findings, config: Config, sites: Sequence[str]) -> None:
    """Note the measures, best rounds and thresholds that a run of these `sites` will lack, or have of some sites
    only."""
    forms = {name: form for name, form in findings.forms.items() if "measures" in form}
    if not forms:
        return
    sums, two = (
        any(form.get(key) == value for form in forms.values()) for key, value in (("in sums", True), ("classes", 2))
    )
    groups = any(form["groups"] for form in forms.values())
    due = [
        measure
        for measure in FINE
        if (two or measure not in OF_SCORES)
        and (groups or measure != "group_auc")
        and (sums or measure != "histogram")
        and (measure != "ranks" or (config.links is not None and config.links.candidates))
    ]
    lacking: dict[tuple[str, ...], list[Measure]] = {}
    for measure in due:
        without = tuple(name for name, form in forms.items() if measure not in form["measures"])
        lacking.setdefault(without, []).append(measure)
    for without, measures in lacking.items():
        if not without:
            continue
        everywhere = len(without) == len(forms) and len(findings.forms) == len(sites)
        what = "; ".join(NUMBERS[one] for one in measures)
        ends = "will be missing" if everywhere else "will be of other sites only, if these measure them"
        note = [f"policy.measures lets no {', '.join(measures)} leave, so that these numbers {ends}: {what}"]
        note += _undecided(config, two, sums, measures) if everywhere else []
        findings.notes.append((", ".join(without), ". ".join(note)))


def _undecided(config: Config, two: bool, sums: bool, measures: Sequence[Measure]) -> Iterator[str]:
    """Sentences on the best round and the threshold, if the run cannot choose them without the `measures`."""
    metric, threshold = config.evaluation.metric, config.evaluation.threshold
    by = (RARE_OF_TWO if two else "macro_f1") if metric == "auto" else metric
    if (METRICS[by].measure or by) in measures:
        where = ", the selection metric of a run with a rare class" if metric == "auto" else ", the selection metric"
        yield f"No round will be the best by {title_of(by)}{where}"
    if two and sums and "histogram" in measures and not isinstance(threshold, float | int):
        yield "No threshold will be chosen on all sites' validation examples: each site chooses its own"


SOON = 30  # days that a certificate should still last
APART = 30  # factor between columns at two sites that usual units and samples do not explain
SHOWN = 5  # number of columns in notes
PACKAGES = ("torch", "nvflare", "numpy", "pyarrow")


# ----------------------------------------------------------------------------------------------------
# The whole check: each member on this machine, then the experiment at the server, then values that sites must share.


def examine(directory: Path, project: Project, config: Config | None = None) -> Findings:
    """Check everything on this machine, without starting or writing anything. config: the experiment to run, if any."""
    findings, here = Findings(), local_processes(directory)
    config = None if config is None else for_sites(config.plain())
    names = [member.folder.name for member in here]
    if absent := [name for name in ("server", *project.sites) if name not in names]:
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
    if note := uncompared(named):
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
    If no site is on this machine, the model has an arbitrary width.

    Raises:
        FedweaveError: a file is invalid, or the algorithm cannot start.
    """
    fed = federation(config, folder, _Uncalled(), project.sites, Ledger())
    form = next((form for form in findings.forms.values() if form.get("features") and form.get("classes")), {})
    features, classes = form.get("features", ANY_FEATURES), form.get("classes", ANY_CLASSES)
    if form and not capabilities(config.algorithm.kind).vertical:
        check_agreement(folder, fed.held, features, classes)
    if form:
        config.evaluation.of(tuple(config.data.values.get("labels") or ()), classes, form.get("target", CLASS))
    try:
        model_kind, edge_form = config.model.make(), form.get("edges carry")
        model = (
            model_of_form(model_kind, edge_form, features, classes, config.decoder)
            if edge_form
            else model_kind.build(features, classes)
        )
        algorithm = config.algorithm.make(model)
    except ConfigError:
        return  # the checks of the sites have found it
    Configured.of(config).with_members(project.sites).with_design(model, algorithm).check()
    check_stage(Scheduled(algorithm=algorithm, rounds=config.general.rounds))
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
            (folder.name, f"its certificate ends in {counted(days, 'day')}; see “Certificates” in docs/deployment.md")
        )


def _reach(project: Project, findings: Findings) -> bool:
    """Whether something listens at the server's address.

    Raises:
        NoHost: the address is no name of a machine.
    """
    try:
        reach(project).close()
    except NoHost:
        raise
    except Closed as error:
        findings.notes.append(("server", f"{error}; it may not be started yet"))
        return False
    findings.facts.append(("server", f"{project.host}:{project.port} takes connections"))
    return True


# ----------------------------------------------------------------------------------------------------
# Values that must be the same, or alike, at all sites.


def compare(findings: Findings, vertical: bool) -> None:
    """Add a fault for each value that must be the same at all sites and is not. The reference is the most frequent
    value, or the first of equally frequent ones."""
    remedies = {
        "features": "Give the same columns, and the same lists of categories, in the same order",
        "edges carry": "Write the same settings of edges into every site.toml (task, edge_features, edge_weight)",
        "columns": "Give the same columns, and the same lists of categories, in the same order",
        "classes": "Give the same [data] classes or labels",
        "target": "Give the same [data] target",
        "class names": "Write the same labels = […] into every site.toml",
        "group names": "Write the same groups = […], in the same order, into every site.toml; an .npz has group_names",
        "authority": "Take startup of one project",
    }
    if vertical:
        remedies["key of ids"] = "Copy one ids.key to all sites"
    for key, remedy in remedies.items():
        values = {name: str(form[key]) for name, form in findings.forms.items() if form.get(key) is not None}
        most = max(values.values(), key=list(values.values()).count, default="")
        same = next((name for name, value in values.items() if value == most), "")
        for name, value in values.items():
            differ_in_number = key == "columns" and _count(findings, name) != _count(findings, same)  # see "features"
            if value != most and not differ_in_number:
                findings.faults.append((name, f"{key}: {_differ(findings.forms, key, name, same)}. {remedy}."))


def compare_scales(findings: Findings) -> None:
    """Note columns whose nonzero values have a root mean square more than `APART` times as large at one site as at
    another: they may have different units."""
    scales = {name: form["scales"] for name, form in findings.forms.items() if form.get("scales") is not None}
    if len({len(values) for values in scales.values()}) != 1 or len(scales) < 2:
        return
    names, table = list(scales), np.stack(list(scales.values()))
    least, most = np.where(table > 0, table, np.inf).min(0), table.max(0)
    apart = np.flatnonzero((most > 0) & (least < np.inf) & (most > APART * least))
    columns = next((form["columns"] for form in findings.forms.values() if form.get("columns")), None)
    for at in apart[:SHOWN].tolist():
        what = f"column {columns[at]!r}" if columns else f"column {at + 1}"
        times, low = most[at] / least[at], names[int(np.flatnonzero(table[:, at] == least[at])[0])]
        note = f"{what} is {times:,.0f} times as large as at {low}. Give it the same unit at all sites, or scale it"
        findings.notes.append((names[int(table[:, at].argmax())], note))
    if len(apart) > SHOWN:
        findings.notes.append((", ".join(names), f"{len(apart) - SHOWN:,} more columns are of such unlike scales"))


def compare_splits(findings: Findings) -> None:
    """Add a fault for each party that has common nodes in another split than most parties."""
    splits = {name: form["splits"] for name, form in findings.forms.items() if form.get("splits")}
    common = sorted(set.intersection(*map(set, splits.values()))) if splits else []
    odd: dict[str, list[str]] = {}
    for node in common:
        labels = [split[node] for split in splits.values()]
        most = max(labels, key=labels.count)
        for name, split in splits.items():
            if split[node] != most:
                odd.setdefault(name, []).append(f"{node!r} is in {split[node]}, and elsewhere in {most}")
    for name, nodes in odd.items():
        shown = "; ".join(nodes[:3]) + (f"; and {len(nodes) - 3:,} more" if len(nodes) > 3 else "")
        what = f"the split of {len(nodes):,} of {counted(len(common), 'common node')} differs from the other parties"
        findings.faults.append((name, f"{what}: {shown}. Give all parties the same split."))


def _differ(forms: dict[str, Record], key: str, name: str, same: str) -> str:
    mine, theirs = forms[name][key], forms[same][key]
    if key == "columns":
        at = next(at for at, (one, other) in enumerate(zip(mine, theirs, strict=True)) if one != other)
        return f"column {at + 1} is {mine[at]!r}, and {theirs[at]!r} at {same}"
    counts = f"{mine}, and {theirs} at {same}"
    mine, theirs = (forms[site].get("columns") for site in (name, same))
    if key == "features" and mine and theirs:
        parts = [f"lacks {', '.join(gone)}" if (gone := [one for one in theirs if one not in mine][:5]) else ""]
        parts += [f"also has {', '.join(more)}" if (more := [one for one in mine if one not in theirs][:5]) else ""]
        return f"{counts}; it {' and '.join(filter(None, parts))}"
    if key in ("class names", "group names", "key of ids", "authority"):
        return f"not the same as at {same}"
    return counts


def _count(findings: Findings, name: str) -> int:
    return len(findings.forms[name]["columns"])

"""Checks of a single site: its data, its policy, and whether it could join a run, by the same checks as a join."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedweave.apply.link_predictions import read_pairs
from fedweave.core.algorithm import Algorithm, Calls, calls_of, capabilities
from fedweave.core.federation import step_info, step_name
from fedweave.core.graph import SPLITS, TRAIN, VAL, Graph
from fedweave.core.mechanism import LDP, Gaussian, SecureSum
from fedweave.core.text import counted
from fedweave.core.types import CLASS
from fedweave.datasets.base import Dataset
from fedweave.datasets.molecules import repeats
from fedweave.datasets.name_matching import first_not_nfc
from fedweave.datasets.notes import feature_notes, name_notes, time_notes, validation_notes
from fedweave.engines.devices import choose_device
from fedweave.experiment.config import Config, General
from fedweave.experiment.facts import positive_in_data
from fedweave.experiment.graphs import graph_of
from fedweave.experiment.pay_notes import equal_size_note
from fedweave.experiment.rounds import is_evaluated
from fedweave.metrics.selection import Judging
from fedweave.sites.flare.accounts import Accounts
from fedweave.sites.flare.admission import (
    check_algorithm,
    check_difference,
    check_exchange,
    check_exclusion,
    check_files,
    check_forget,
    check_members,
    check_task,
    make_algorithm,
)
from fedweave.sites.flare.alignment import read_party_data
from fedweave.sites.flare.entities import INFO as UNITING
from fedweave.sites.flare.foresight import check_fields, conditions, needs_all, overspending, refusals, scored_paths
from fedweave.sites.flare.holdings import Forgotten, exclusion_of
from fedweave.sites.flare.joining import fingerprint as data_fingerprint
from fedweave.sites.flare.joining import private_fields
from fedweave.sites.flare.machine import read_about
from fedweave.sites.flare.policy import Spent, check_batches, is_of, replies_of
from fedweave.sites.flare.policy_names import read_checked
from fedweave.sites.flare.requests import pin
from fedweave.sites.flare.scores import scoring_of, scoring_steps
from fedweave.sites.flare.site_data import common_test, training_graph
from fedweave.sites.flare.sitefile import SITE_FILE, Rules, SiteData
from fedweave.sites.operation.findings import Findings

REFUSED_NOW = "a run that begins now would be refused: "


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
    for name, limit in rules.calls.items():  # the round in which the run would need more replies than remain
        in_setup = sum(is_of(step_name(step), name) for step in calls.setup)
        per_round = sum(is_of(step_name(step), name) for step in calls.round)
        per_evaluation = sum(is_of(step_name(step), name) for step in calls.evaluation)
        done, required = replies_of(spent, name), in_setup
        for round in range(1, general.rounds + 1):
            required += per_round + per_evaluation * is_evaluated(round, general.rounds, general.eval_every)
            if done + required > limit:
                yield (
                    f"policy.calls: {name} has replied {counted(done, 'time')} and may {counted(limit, 'time')}, so "
                    f"that a run that begins now would lose the site in round {round:,} of {general.rounds:,}"
                )
                break
    why = overspending(rules, spent, calls, general)
    if why:
        yield why


def check_site(folder: Path, config: Config | None, sites: Sequence[str], findings: Findings) -> None:
    """Check the data and the policy of a site in a project of these `sites`."""
    data, rules = read_checked(folder / SITE_FILE)
    device = read_about(folder / SITE_FILE).device
    findings.attempt(folder.name, partial(choose_device, device, where="site.device"), folder / SITE_FILE)
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
    dataset = read_party_data(data, folder, "check", (name,), name, rules.members).data
    findings.forms[name] |= {"classes": dataset.classes, "class names": data_fingerprint(dataset.labels) or None}
    findings.facts.append(
        (name, f"{counted(dataset.nodes, 'node')}, {counted(dataset.features, 'feature')} of its own")
    )
    in_split = np.concatenate([np.asarray(dataset.public), np.ones((1, dataset.nodes), bool)]).argmax(0)
    splits = (*SPLITS, "none")
    findings.forms[name]["splits"] = {node: splits[at] for node, at in zip(dataset.ids, in_split, strict=False)}
    if dataset.nodes < rules.min_nodes:
        why = f"{counted(dataset.nodes, 'node')}: fewer than policy.min_nodes = {rules.min_nodes}"
        findings.faults.append((name, f"{folder / SITE_FILE}: {why}, so that it would leave the run. Lower the bound."))
    _check_split_sizes(folder, dataset, rules, config, findings)
    findings.notes.extend((name, note) for note in (*dataset.notes, *feature_notes(dataset), *name_notes(dataset)))
    name_in_parts = first_not_nfc(dataset.ids)
    if name_in_parts:
        what = f"the id {name_in_parts!r} is not in Unicode's form NFC"
        note = f"{what}, and does not match another party's that looks the same"
        findings.notes.append((name, note))
    _check_algorithm_fits(folder, dataset, "none", rules, config, sites, findings)


def _check_site_data(
    folder: Path, data: SiteData, rules: Rules, config: Config | None, sites: Sequence[str], findings: Findings
) -> None:
    """Check a site's data for a horizontal run, and whether the algorithm fits it, if there is a configuration."""
    links = None if config is None else config.links
    name, dataset = folder.name, training_graph(data, folder, links=links)
    if config is not None:
        _check_algorithm_fits(folder, dataset, data.normalize, rules, config, sites, findings)
    findings.facts.append((name, _describe_data(dataset)))
    _check_split_sizes(folder, dataset, rules, config, findings)
    forgotten = Forgotten.of(data, folder)
    if forgotten is not None:
        absent = f"; the data lacks {counted(forgotten.absent, 'id')} of the list" if forgotten.absent else ""
        fact = f"{counted(len(forgotten.ids), dataset.example)} left out (data.forget){absent}"
        findings.facts.append((name, fact))
    if dataset.links is not None and data.pairs is not None:
        findings.attempt(name, partial(read_pairs, folder / data.pairs, dataset.links))
    test_in_data = data.test is not None and (folder / data.test).parent == folder / data.path  # notes would repeat it
    split_times = None if dataset.edge_attrs is None else dataset.edge_attrs.split_times
    times = time_notes(dataset, split_times, {name: np.arange(dataset.nodes)})
    train, _, test = map(np.flatnonzero, np.asarray(dataset.public))
    notes = (*feature_notes(dataset), *name_notes(dataset), *times, *repeats(dataset, train, test))
    findings.notes.extend((name, note) for note in (*(() if test_in_data else dataset.notes), *notes))
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


def _check_split_sizes(folder: Path, dataset: Dataset, rules: Rules, config: Config | None, findings: Findings) -> None:
    """Check that each split has enough examples."""
    name = folder.name
    labeled = dataset.has_label  # a split by a hash contains nodes without a label
    public = np.asarray(dataset.public) & (labeled | ~labeled.any())
    for split, count in zip(SPLITS, public.sum(1).tolist(), strict=True):
        if 0 < count < rules.min_nodes:
            why = f"{counted(count, f'{split} {dataset.example}')}: fewer than policy.min_nodes = {rules.min_nodes}"
            ends = "so that it would leave the run. Give more or none, or lower the bound."
            findings.faults.append((name, f"{folder / SITE_FILE}: {why}, {ends}"))
        if count == 0:
            findings.notes.append((name, f"no {split} {dataset.example}s"))
    judging = Judging() if config is None else config.evaluation
    train = np.flatnonzero(public[TRAIN])
    positive = findings.attempt(name, partial(positive_in_data, judging, dataset, train))
    few = validation_notes(dataset, {name: np.flatnonzero(public[VAL])}, positive)
    findings.notes.extend((name, note) for note in few.values())
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
    graph = None if dataset.public is None else graph_of(dataset, dataset.features, torch.float32)
    algorithm = findings.attempt(
        folder.name, partial(_rehearse, folder, dataset, graph, scaling, rules, config, sites, findings)
    )
    if algorithm is not None and graph is not None:
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
        findings.attempt(name, partial(check_fields, rules, UNITING, len(sites)), file)
    denied_keys = [key for key in ("features", "classes") if key in private_fields(rules)]
    if denied_keys:
        denied = " and ".join(denied_keys)
        why = f"policy.deny keeps back how many {denied} there are, without which no model can be built"
        findings.faults.append((name, f"{file}: {why}. Allow it."))
    for setting, here, rows in (
        ("normalize", data.normalize, "nodes"),
        ("edge_normalize", data.edge_normalize, "edges"),
    ):
        scaling = config.data.values.get(setting, "none")
        if scaling in ("none", "auto", here):
            continue
        known = {"none": "because site.toml sets no scaling", "auto": f"by the site's own {rows}"}
        how = known.get(here, "set by site.toml")
        split = ", after the scaling by the configuration of `sites init --split`" if data.random_id is not None else ""
        note = f"[data] {setting} = {scaling!r} of the experiment applies only to simulations"
        findings.notes.append((name, f"{note}; here it is {here!r}, {how}{split}"))


def _rehearse(
    folder: Path,
    dataset: Dataset,
    graph: Graph | None,
    scaling: str,
    rules: Rules,
    config: Config,
    sites: Sequence[str],
    findings: Findings,
) -> Algorithm | None:
    """Make the algorithm as the site does, and check all fields that it declares against the policy. Returns the
    algorithm.

    A refusal of a field of an evaluation that is not sent on the site's data is a note. A cap that the run would reach
    is a note, too, unless the run needs all sites. What refuses a run at its begin is a fault.
    graph: of the dataset; None without splits.
    """
    name, labels = folder.name, bool((dataset.y >= 0).any())
    algorithm = make_algorithm(config, name, sites, dataset, dataset.features, scaling)
    calls = calls_of(algorithm, config.algorithm.name, len(sites))
    if labels:
        sums = any(step_info(step).sums for step in scoring_steps(calls))
        measures = scoring_of(rules, calls, labels).measures_for(sums)
        findings.forms[name] |= {"measures": measures, "in sums": sums, "groups": dataset.sensitive is not None}
    senders: dict[tuple[str, bool], list[str]] = {}
    scored = () if graph is None else scored_paths(rules, config, graph, dataset.outputs)
    for why, sender, certain in refusals(rules, calls, labels, len(sites), scored):
        senders.setdefault((why, certain), []).append(sender)
    for (why, certain), steps in senders.items():
        sent = "sends it, so that" if certain else "may send it; if it does,"
        ends = f"{sent} the site would leave the run. Change its policy, or choose another algorithm."
        note = f"{SITE_FILE}: {why}. {' and '.join(dict.fromkeys(steps))} {ends}"
        (findings.faults if certain else findings.notes).append((name, note))
    findings.notes.extend((name, note) for note in _note_exposed_fields(calls))
    findings.notes.extend((name, note) for note in (*algorithm.notes, equal_size_note(config, algorithm)) if note)
    accounts = Accounts(folder, rules.lost)
    findings.attempt(name, partial(_check_accounts, accounts), Path(SITE_FILE))
    spent, replied = accounts.spent, accounts.replies_under(pin(config.plain(), list(sites)))
    for condition in conditions(rules, config, algorithm, calls, len(sites), spent, replied):
        findings.attempt(name, condition, before=REFUSED_NOW)
    for condition in _differences(folder, dataset, rules, config, sites, calls, accounts):
        findings.attempt(name, condition, before=REFUSED_NOW)
    for why in ending(rules, spent, calls, config.general):
        so = "Allow more, or run fewer rounds; --resume needs only the remaining replies."
        results = findings.faults if needs_all(config, algorithm) else findings.notes
        results.append((name, f"{SITE_FILE}: {why}. {so}"))
    fact = ("outages", outage_summary(config, algorithm, calls, len(sites)))
    if fact not in findings.facts:
        findings.facts.append(fact)
    return algorithm


def _differences(
    folder: Path, dataset: Dataset, rules: Rules, config: Config, sites: Sequence[str], calls: Calls, accounts: Accounts
) -> Iterator[Callable[[], None]]:
    """Checks whether a run differs enough from the runs in the site's own journals; none where the run's data is known
    only after the sites have aligned or numbered their nodes."""
    if config.learned or capabilities(config.algorithm.kind).vertical:
        return
    site, _ = read_checked(folder / SITE_FILE)
    forgotten = Forgotten.of(site, folder)
    whole = accounts.of_whole(exclusion_of(site, folder, forgotten, accounts))
    yield partial(check_exclusion, rules, whole, accounts.earlier(whole))
    if any(step_info(step).sums for step in calls.all):
        crowds = [crowd for crowd, known in accounts.crowds.values() if known == whole.data]
        yield partial(check_difference, rules, sites, crowds)


def outage_summary(config: Config, algorithm: Algorithm, calls: Calls, sites: int) -> str:
    """A sentence on what happens to a run while a site is away, with the setting that changes this. sites: number of
    sites in the run."""
    quorum, wait = config.engine.values.get("quorum", 1.0), config.engine.values.get("wait", 0.0)
    sums = list(chain.from_iterable(step_info(step).sums.values() for step in calls.round))
    minimum = max([math.ceil(quorum * sites), *(one.min_terms(sites) for one in sums)])
    if needs_all(config, algorithm):
        minimum = sites
    outcome = f"the run waits up to {wait / 60:.0f} min and then ends" if wait else "the run ends"
    if minimum < sites:
        need = f"a round needs {minimum} of {sites} sites and goes on without the others"
        return f"{need}; while more are away, {outcome}"
    some = SecureSum(everyone=False, accomplices=1).min_terms(sites) if sums else 1
    parts = " and require_all = false in the part secure_sum" if any(one.everyone for one in sums) else ""
    remedy = f"; [engine] quorum below 1{parts} lets a round do with {some}" if some < sites else ""
    if capabilities(config.algorithm.kind).vertical:
        remedy = ""
    return f"a round needs all {sites} sites; while one is away, {outcome} ([engine] wait){remedy}"


def _note_exposed_fields(calls: Calls) -> Iterator[str]:
    """A sentence if a field computed from the weights leaves outside a secure aggregation and without noise."""
    bare = list[str]()
    for step in dict.fromkeys(calls.round):
        for key, spec in step_info(step).sends.items():
            protected = any(isinstance(one, SecureSum | Gaussian | LDP) for one in spec.mechanisms)
            if spec.like and not protected:
                bare.append(key)
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


def _describe_data(dataset: Dataset) -> str:
    target = counted(dataset.classes, "class") if dataset.target == CLASS else dataset.target_summary
    split = "/".join(f"{count:,}" for count in np.asarray(dataset.public).sum(1).tolist())
    examples = f", {counted(dataset.examples, 'example')} that are edges" if dataset.example == "edge" else ""
    return (
        f"{counted(dataset.nodes, 'node')}, {counted(dataset.edges.shape[1] // 2, 'edge')}{examples}, "
        f"{counted(dataset.features, 'feature')}, {target}, {split} for {'/'.join(SPLITS)}"
    )

"""What `fedweave sites check` finds, and looks for at a single site: its data, its policy, and whether it could join a
run, by what a join looks at."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedweave.core.algorithm import Algorithm, Calls, HasNotes, calls_of, capabilities
from fedweave.core.federation import step_info, step_name
from fedweave.core.graph import SPLITS
from fedweave.core.mechanism import LDP, Gaussian, SecureSum
from fedweave.core.records import Record
from fedweave.core.text import counted
from fedweave.datasets.base import Dataset
from fedweave.datasets.odd_data import odd_data, odd_features, odd_times
from fedweave.datasets.table import not_composed
from fedweave.deploy.flare.parties.alignment import read_own
from fedweave.deploy.flare.policy.admission import check_algorithm, check_exchange, check_files, check_members
from fedweave.deploy.flare.policy.keys import read_checked
from fedweave.deploy.flare.policy.policy import Spent, check_batches, is_of, replies_of
from fedweave.deploy.flare.policy.precheck import (
    conditions,
    needs_all,
    overspent,
    refusals,
    suited,
)
from fedweave.deploy.flare.site.accounts import Accounts
from fedweave.deploy.flare.site.folder import read_about
from fedweave.deploy.flare.site.holdings import common_test, own_graph
from fedweave.deploy.flare.site.joining import fingerprint, withheld
from fedweave.deploy.flare.site.sitefile import SITE_FILE, Rules, SiteData
from fedweave.deploy.flare.wire.requests import pin
from fedweave.deploy.flare.wire.scores import scoring_of, scoring_steps
from fedweave.engines.devices import chosen
from fedweave.errors import FedweaveError
from fedweave.experiment.config import Config, General
from fedweave.experiment.demands import check_people
from fedweave.experiment.graphs import graph_of
from fedweave.experiment.rounds import evaluated

T = TypeVar("T")


@dataclass
class Found:
    """What was looked at. faults: (whose, what with where and remedy). notes: what is allowed and may be meant
    otherwise. facts: (whose, what there is). forms: {site: what must be the same at all}."""

    faults: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    forms: dict[str, Record] = field(default_factory=dict)

    def attempt(self, whose: str, look: Callable[[], T], file: Path | None = None) -> T | None:
        """What `look` returns; None where it finds faults, which are noted each, with the `file` that they are in."""
        try:
            return look()
        except FedweaveError as error:
            lines = str(error).splitlines() if len(error.args) > 1 else [str(error)]
            self.faults += [(whose, f"{file}: {line}" if file else line) for line in lines]
        except OSError as error:
            reason = f"{error.filename or ''} cannot be read ({error.strerror or error})".strip()
            self.faults.append((whose, f"{reason}. Give it to the user who runs this process (chown, chmod u+rw)."))
        return None

    def noted(self, whose: str, look: Callable[[], object], before: str) -> None:
        """Note what `look` refuses, with the words `before`."""
        try:
            look()
        except FedweaveError as error:
            self.notes.append((whose, f"{before}{error}"))


def ending(rules: Rules, spent: Spent, calls: Calls, general: General) -> Iterator[str]:
    """A sentence for each cap of `policy.calls`, and for that on ε, that the run would reach, and for one on bytes that
    is reached already: how many a run sends depends on its data.

    spent: what the site's journals come to, those of a run that is to be continued included, which asks for less.
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
    for name, most in rules.calls.items():
        begin, each, judged = (
            sum(is_of(step_name(step), name) for step in steps)
            for steps in (calls.setup, calls.round, calls.evaluation)
        )
        done, wanted = replies_of(spent, name), begin
        for round in range(1, general.rounds + 1):
            wanted += each + judged * evaluated(round, general.rounds, general.eval_every)
            if done + wanted > most:
                yield (
                    f"policy.calls: {name} has replied {counted(done, 'time')} and may {counted(most, 'time')}, so "
                    f"that a run that begins now would lose the site in round {round:,} of {general.rounds:,}"
                )
                break


def check_site(folder: Path, config: Config | None, sites: Sequence[str], told: Found) -> None:
    """The data and the policy of a site in a project of these `sites`."""
    data, rules = read_checked(folder / SITE_FILE)
    device = read_about(folder / SITE_FILE).device
    told.attempt(folder.name, partial(chosen, device, where="site.device"), folder / SITE_FILE)
    told.attempt(folder.name, partial(check_members, rules, folder.name, sites), folder / SITE_FILE)
    if config is not None:
        _allowed(folder, data, rules, config, sites, told)
    if config is not None and capabilities(config.algorithm.kind).vertical:
        _party(folder, data, rules, config, sites, told)
    else:
        _holder(folder, data, rules, config, sites, told)


def _party(folder: Path, data: SiteData, rules: Rules, config: Config, sites: Sequence[str], told: Found) -> None:
    """What a party of a vertical run brings, and how the algorithm would get on with it."""
    name = folder.name
    own = read_own(data, folder, "check", (name,), name, rules.members).data
    told.forms[name] |= {"classes": own.classes, "class names": fingerprint(own.labels) or None}
    told.facts.append((name, f"{counted(own.nodes, 'node')}, {counted(own.features, 'feature')} of its own"))
    in_split = np.concatenate([np.asarray(own.public), np.ones((1, own.nodes), bool)]).argmax(0)
    told.forms[name]["splits"] = {node: (*SPLITS, "none")[at] for node, at in zip(own.ids, in_split, strict=False)}
    if own.nodes < rules.min_nodes:
        why = f"{counted(own.nodes, 'node')}: fewer than policy.min_nodes = {rules.min_nodes}"
        told.faults.append((name, f"{folder / SITE_FILE}: {why}, so that it would leave the run. Lower the bound."))
    _crowds(folder, own, rules, told)
    told.notes.extend((name, said) for said in (*own.notes, *odd_features(own), *odd_data(own)))
    if odd := not_composed(own.ids):
        said = f"the id {odd!r} is not in Unicode's form NFC, and another party's that looks the same would not meet it"
        told.notes.append((name, said))
    _check_algorithm_fits(folder, own, "none", rules, config, sites, told)


def _holder(
    folder: Path, data: SiteData, rules: Rules, config: Config | None, sites: Sequence[str], told: Found
) -> None:
    """What a site of a horizontal run brings, and how the algorithm, if one is named, would get on with it."""
    name, own = folder.name, own_graph(data, folder)
    if config is not None and not capabilities(config.algorithm.kind).pooled:
        _check_algorithm_fits(folder, own, data.normalise, rules, config, sites, told)
    told.facts.append((name, _described(own)))
    _crowds(folder, own, rules, told)
    beside = (
        data.test is not None and (folder / data.test).parent == folder / data.path
    )  # a file that is read after all
    until = None if own.carried is None else own.carried.until
    times = odd_times(own, until, {name: np.arange(own.nodes)})
    odd = (*odd_features(own), *odd_data(own), *times)
    told.notes.extend((name, said) for said in (*(() if beside else own.notes), *odd))
    told.forms[name] |= {
        "features": own.features,
        "edges carry": own.edge_form,
        "columns": [*own.columns, *(() if own.carried is None else own.carried.columns)] or None,
        "classes": own.classes,
        "class names": fingerprint(own.labels) or None,
        "group names": fingerprint(own.groups) or None,
        "scales": _scales(own),
    }
    told.attempt(name, partial(common_test, data, folder, own.features, torch.float32))


def _scales(own: Dataset) -> np.ndarray:
    """Of each column the root mean square of its values that are not 0, as the algorithm sees them; 0 without any."""
    x = csr_matrix(own.x, dtype=np.float64)
    total, count = (np.asarray(each.sum(0), np.float64).ravel() for each in (x.power(2), x != 0))
    return np.sqrt(total / np.maximum(count, 1))


def _crowds(folder: Path, own: Dataset, rules: Rules, told: Found) -> None:
    """See whether each split has enough examples."""
    name = folder.name
    seen = own.y >= 0  # a split by a hash has nodes without a label in it
    public = np.asarray(own.public) & (seen | ~seen.any())
    for split, count in zip(SPLITS, public.sum(1).tolist(), strict=True):
        if 0 < count < rules.min_nodes:
            why = f"{counted(count, f'{split} {own.example}')}: fewer than policy.min_nodes = {rules.min_nodes}"
            ends = "so that it would leave the run. Give more or none, or lower the bound."
            told.faults.append((name, f"{folder / SITE_FILE}: {why}, {ends}"))
        if count == 0:
            told.notes.append((name, f"no {split} {own.example}s"))
    trained = np.unique(own.y[np.asarray(own.public)[0] & (own.y >= 0)])
    if len(trained) == 1:
        label = own.labels[trained[0]] if own.labels else trained[0]
        told.notes.append((name, f"every train {own.example} is of class {label}, so that a model learns that alone"))


def _check_algorithm_fits(
    folder: Path, own: Dataset, scaling: str, rules: Rules, config: Config, sites: Sequence[str], told: Found
) -> None:
    """See whether a site's `own` data, scaled so, suit an algorithm, and what the policy says of its messages and
    training steps on them. A party's train nodes are those of all its nodes, of which the parties may have fewer in
    common."""
    algorithm = told.attempt(folder.name, partial(_rehearse, folder, own, scaling, rules, config, sites, told))
    if algorithm is not None and own.public is not None:
        graph = graph_of(own, own.features, torch.float32)
        told.attempt(folder.name, partial(check_batches, rules, algorithm, graph, {}))


def _allowed(folder: Path, data: SiteData, rules: Rules, config: Config, sites: Sequence[str], told: Found) -> None:
    """See whether a site's policy lets a configuration run, and note the scaling that the site does not follow."""
    name, file = folder.name, folder / SITE_FILE
    told.attempt(name, partial(check_files, rules, config.plain()), file)
    told.attempt(name, partial(check_algorithm, rules, config.algorithm), file)
    told.attempt(name, partial(check_exchange, rules, data, config, len(sites)), file)
    if kept := [key for key in ("features", "classes") if key in withheld(rules)]:
        why = f"policy.deny keeps back how many {' and '.join(kept)} there are, without which no model can be built"
        told.faults.append((name, f"{file}: {why}. Allow it."))
    scaling = config.data.values.get("normalise", "none")
    if scaling not in ("none", "auto", data.normalise):
        known = {"none": "as nothing in site.toml scales it", "auto": "by the site's own nodes"}
        how = known.get(data.normalise, "said by site.toml")
        split = ", after what the configuration of `sites init --split` did" if data.random_id is not None else ""
        said = f"[data] normalise = {scaling!r} of the experiment is of simulations"
        told.notes.append((name, f"{said}; here it is {data.normalise!r}, {how}{split}"))


def _rehearse(
    folder: Path, own: Dataset, scaling: str, rules: Rules, config: Config, sites: Sequence[str], told: Found
) -> Algorithm | None:
    """Make the algorithm as the site does, and see what the policy says of all that it declares to send. Returns it.

    Of evaluations only "own" is sent on all data; what else it refuses of them is noted. So is a cap that the run would
    reach, unless it needs all sites.

    Raises:
        ConfigError, DataError: the algorithm does not fit. FedweaveError: it does not say which steps it runs.
    """
    name, labels = folder.name, bool((own.y >= 0).any())
    algorithm = suited(config.of_member(name, sites), own, own.features, scaling)
    check_people(config, own, algorithm)
    calls = calls_of(algorithm, config.algorithm.name, len(sites))
    if labels:
        sums = any(step_info(step).sums for step in scoring_steps(calls))
        measures = scoring_of(rules, calls, labels).leaving(sums)
        told.forms[name] |= {"measures": measures, "in sums": sums, "groups": own.sens is not None}
    senders: dict[tuple[str, bool], list[str]] = {}
    for why, sender, certain in refusals(rules, calls, labels, len(sites)):
        senders.setdefault((why, certain), []).append(sender)
    for (why, certain), steps in senders.items():
        verb, so = ("sends", "so that") if certain else ("may send", "if it does,")
        ends = f"{so} the site would leave the run. Change its policy, or choose another algorithm."
        said = f"{SITE_FILE}: {why}, and {' and '.join(dict.fromkeys(steps))} {verb} it, {ends}"
        (told.faults if certain else told.notes).append((name, said))
    told.notes.extend((name, said) for said in _unprotected(calls))
    told.notes.extend((name, said) for said in (algorithm.notes if isinstance(algorithm, HasNotes) else ()))
    accounts = Accounts(folder, rules.lost)
    told.attempt(name, partial(_whole, accounts), Path(SITE_FILE))
    spent, replied = accounts.spent, accounts.repeated(pin(config.plain(), list(sites)))
    for condition in conditions(rules, config, algorithm, calls, len(sites), spent, replied):
        told.noted(name, condition, "a run that begins now would be refused: ")
    for why in ending(rules, spent, calls, config.general):
        so = "Allow more, or run fewer rounds; --resume asks for the replies that are left alone."
        (told.faults if needs_all(config, algorithm) else told.notes).append((name, f"{SITE_FILE}: {why}. {so}"))
    return algorithm


def _unprotected(calls: Calls) -> Iterator[str]:
    """A sentence where what a site has made of the weights leaves by itself and without noise."""
    sends = [
        (key, own) for step in dict.fromkeys(calls.round) for key, own in step_info(step).sends.items() if own.like
    ]
    bare = [key for key, own in sends if not any(isinstance(one, SecureSum | Gaussian | LDP) for one in own.mechanisms)]
    if bare:
        yield (
            f"{' and '.join(dict.fromkeys(bare))} of this site leaves by itself and without noise, so that a server "
            "that crafts weights reads rows of features off it (docs/security.md). Run an algorithm with the part "
            'secure_sum, or with noise, and hold it to that: policy.secure_sum = ["update"]'
        )


def _whole(accounts: Accounts) -> None:
    """Refuse accounts of which an entry has gone, once they are read."""
    accounts.catch_up()
    accounts.chain.check()


def _described(own: Dataset) -> str:
    split = "/".join(f"{count:,}" for count in np.asarray(own.public).sum(1).tolist())
    examples = f", {counted(own.examples, 'example')} that are edges" if own.example == "edge" else ""
    return (
        f"{counted(own.nodes, 'node')}, {counted(own.edges.shape[1] // 2, 'edge')}{examples}, "
        f"{counted(own.features, 'feature')}, {counted(own.classes, 'class')}, "
        f"{split} for {'/'.join(SPLITS)}"
    )

"""What a site reports about its data when it joins a run, and what its policy withholds.

Some algorithms need a list, such as of motifs, with the same length at every client. Each site reports the length of
its own list in whole blocks (`core.sizes.common_lengths`), and the server sends the largest length to all. No content
of a list leaves the site, and no site learns the length of another site's list.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from fedweave.core import random
from fedweave.core.federation import Declaration, Sends, StepInfo
from fedweave.core.ranges import Whole
from fedweave.core.replies import Replies
from fedweave.core.sizes import common_lengths
from fedweave.core.tree import Tree
from fedweave.core.types import CLASS, KEPT_BACK, LABELS, NUMBER, Kind
from fedweave.errors import UserError
from fedweave.sites.flare.holdings import Holdings
from fedweave.sites.flare.peers import WITHHELD, read_note
from fedweave.sites.flare.sitefile import Rules

SIZES = "sizes"
LENGTH = Whole(-1, 1 << 17)  # every site pads its list to that length. -1: kept back


def site_lengths(needed: Mapping[str, int]) -> Tree:
    """A site's report of the lengths `needed` for its lists; {} if it has no such lists."""
    return {SIZES: common_lengths([needed])} if needed else {}


def max_lengths(replies: Replies) -> Tree:
    """The server's message to the sites: for each list the largest length; {} if there are no lists."""
    sizes = {site: replies[site].get(SIZES, {}) for site in replies.clients}
    silent = [site for site, lengths in sizes.items() if -1 in lengths.values()]
    if silent:
        raise UserError(
            f"{', '.join(silent)}: the policy keeps back `{SIZES}`, without which the sites' lists cannot have one "
            "length. Allow it, or choose an algorithm that needs no such lists."
        )
    return common_lengths(sizes.values())


def without(replies: Replies, faults: Mapping[str, str]) -> Replies:
    """The replies without the `faults` sites, which count as missing for the reasons in `faults`."""
    here = {site: replies[site] for site in replies.clients if site not in faults}
    return Replies.of(here, {**replies.missing, **faults})


TARGET = "target"  # sent only if the target is not a class
RELATIONS = "relations"  # sent only if links are predicted
KINDS: tuple[Kind, ...] = (CLASS, NUMBER, LABELS)
WIDTH = Whole(-1, 1 << 17)  # columns or classes; every site makes a model of that width. -1: kept back
JOINING: Declaration = {
    "features": Sends("how many features the data has", within=WIDTH),
    "classes": Sends("how many classes the data has", within=WIDTH),
    TARGET: Sends("whether numbers (1) or several labels (2) are predicted, and no class", within=Whole(-1, 2)),
    RELATIONS: Sends("how many relations the predicted links have", within=WIDTH),
    "edge_features": Sends("how many features edges have", within=WIDTH),
    "edge_weights": Sends("whether edges have weights", within=Whole(-1, 1)),
    "of_edges": Sends("whether the examples are edges", within=Whole(-1, 1)),
    "directed": Sends("whether edges have directions", within=Whole(-1, 1)),
    "names": "a fingerprint of the classes' names in their order; 0 if they are numbers",
    "columns": "a fingerprint of the features' names in their order; 0 if they are numbers",
    "kinds": "a fingerprint of the names of categories, and of nodes' and edges' labels; 0 if there are none",
    "groups": "a fingerprint of the names of the sensitive groups in their order; 0 if they are numbers",
    "nodes": Sends("how many nodes the site holds", within=Whole(-1)),
    "edges": Sends("how many edges the site holds", within=Whole(-1)),
    "split": Sends("how many examples it trains, validates and tests on", within=Whole()),
    "labels": Sends("how many examples of each class it has", within=Whole()),
    SIZES: Sends("how long its lists are that all sites pad alike, such as of motifs, in blocks of 32", within=LENGTH),
}
OF_EDGES = {"edge_features": "features", "edge_weights": "weighted", "of_edges": "examples"}  # key: of `edge_form`
# What the server sends if a finished run's models predict.
FLAGS = {
    "positive": "which class is looked for",
    "threshold": "from which probability on an example is flagged, chosen on all members' validation examples",
}
# Fields that describe the form of the data and reveal no record.
FORM = ("features", "classes", TARGET, RELATIONS, *OF_EDGES, "directed", "names", "columns", "kinds", "groups")


def fingerprint(labels: Sequence[str]) -> int:
    """A hash of names in their order, as a whole number; 0 for numbered classes."""
    return random.word(json.dumps(list(labels))) if labels else 0


def describe(holdings: Holdings, deny: Sequence[str]) -> Tree:
    """The site's report of its data when it joins: counts (`JOINING`), -1 or empty for the counts that it withholds."""
    data, graph = holdings.data, holdings.graph
    edge_columns = () if data.edge_attrs is None else data.edge_attrs.columns
    counts: Tree = {"features": data.features, "classes": data.outputs}
    if data.target != CLASS:
        counts[TARGET] = KINDS.index(data.target)
    if data.links is not None:
        counts[RELATIONS] = data.edge_form["relations"]
    counts |= {key: int(data.edge_form[name]) for key, name in OF_EDGES.items()}
    masks = graph.masks if data.links is None else graph.masks & (graph.y == 1)  # [3, examples], without drawn pairs
    if data.target == CLASS:  # of each class, with a 1 in each label, or with a value of each numeric target
        labels = torch.bincount(graph.y[graph.y >= 0], minlength=data.classes)
    else:
        labels = (graph.y == 1).sum(0) if data.target == LABELS else (~graph.y.isnan()).sum(0)
    counts |= {
        "directed": int(data.edge_form["directed"]),
        "names": fingerprint(data.labels or data.targets),
        "columns": fingerprint((*data.columns, *edge_columns)),
        "kinds": fingerprint(holdings.kinds),
        "groups": fingerprint(data.groups),
        "nodes": data.nodes,
        "edges": data.edges.shape[1] // 2,
        "split": masks.sum(1),  # [3]
        "labels": labels,  # [classes]
    }
    return withhold(counts, deny)


def private_fields(rules: Rules) -> tuple[str, ...]:
    """The fields that a site with these rules withholds when it joins: denied ones, the number of examples of each
    class unless `measures` has "classes", and all counts if there is a cap on ε."""
    counts = [key for key in JOINING if key not in (*FORM, *rules.unbounded)] if rules.epsilon is not None else []
    labels = () if "classes" in rules.measures else ("labels",)
    return tuple(dict.fromkeys((*rules.deny, *labels, *counts)))


def withhold(reply: Tree, deny: Sequence[str]) -> Tree:
    """`reply` with -1 or an empty tensor for the fields that the site's policy denies."""
    return {key: _blank(leaf) if key in deny else leaf for key, leaf in reply.items()}


def describe_withheld(info: StepInfo, keys: Iterable[str]) -> StepInfo:
    """`info` of a report in which these fields are withheld."""
    sends = dict(info.sends)
    for key in sends.keys() & {*keys}:
        sends[key] = replace(sends[key], reveals=f"{KEPT_BACK}kept back")
    return replace(info, sends=sends)


def withheld_in(reply: Tree, note: str) -> tuple[str, ...]:
    """The fields of `JOINING` that a site's report withholds: those that its note names and that hold nothing."""
    named = read_note(note).get(WITHHELD)
    if not isinstance(named, list):
        return ()
    return tuple(key for key, leaf in reply.items() if key in JOINING and key in named and _is_blank(leaf))


def _is_blank(leaf: object) -> bool:
    if isinstance(leaf, dict):
        return bool(leaf) and all(map(_is_blank, leaf.values()))
    return not leaf.numel() if isinstance(leaf, torch.Tensor) else leaf == -1


def _blank(leaf: object) -> object:
    if isinstance(leaf, dict):
        return {key: _blank(below) for key, below in leaf.items()}
    return leaf[:0] if isinstance(leaf, torch.Tensor) else -1

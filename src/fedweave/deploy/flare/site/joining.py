"""What a site says of its data when it joins a run, and what of that its policy keeps back.

Sites come to lists of the same length, such as of motifs, where an algorithm has every client hold one: each says how
long its own is, in whole blocks (`core.sizes.agreed`), and the server tells all of them the longest. Nothing of what a
list holds is said, and no site learns of another's.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from fedweave.core import random
from fedweave.core.federation import Declaration, Sends
from fedweave.core.portions import Batch, as_row
from fedweave.core.ranges import Whole
from fedweave.core.replies import Replies
from fedweave.core.sizes import agreed, least_rows
from fedweave.core.tree import Tree, map_leaves
from fedweave.deploy.flare.site.holdings import Holdings
from fedweave.deploy.flare.site.sitefile import Rules
from fedweave.errors import CallRefused, UserError

SIZES = "sizes"
LENGTH = Whole(-1, 1 << 17)  # every site pads its list to that length. -1: kept back
TELLS = Sends("how long its lists are that all sites pad alike, such as of motifs, in blocks of 32", within=LENGTH)


def said(needed: Mapping[str, int]) -> Tree:
    """What a site says of the lists that it `needed`; nothing where there are none."""
    return {SIZES: agreed([needed])} if needed else {}


def longest(replies: Replies) -> Tree:
    """What the server tells the sites: for each list, the longest; {} where there is nothing to agree on.

    Raises:
        UserError: a site keeps back how long its own is.
    """
    told = {site: replies[site].get(SIZES, {}) for site in replies.clients}
    if silent := [site for site, own in told.items() if -1 in own.values()]:
        raise UserError(
            f"{', '.join(silent)}: the policy keeps back `{SIZES}`, without which the sites' lists cannot be of one "
            "length; allow it, or choose an algorithm that needs none."
        )
    return agreed(told.values())


def checked(told: Tree, needed: Mapping[str, int]) -> dict[str, int]:
    """The sizes that the server `told`, as a site takes them.

    Raises:
        CallRefused: they are not those of the site's lists, too short for them, or longer than any may be.
    """
    if told.keys() != needed.keys():
        raise CallRefused("the server tells the lengths of other lists than the site's algorithm has")
    for name, own in needed.items():
        size = told[name]
        if type(size) is not int or not own <= size <= LENGTH.most or size != least_rows(size):
            raise CallRefused(f"the server tells {size!r} as the length of {name}, which cannot be")
    return dict(told)


def without(replies: Replies, odd: Mapping[str, str]) -> Replies:
    """The replies without those of the `odd` sites, which are missing for these reasons."""
    here = [site for site in replies.clients if site not in odd]
    batches = [Batch((at,), map_leaves(as_row, replies[site])) for at, site in enumerate(here)]
    return Replies(here, batches, {**replies.missing, **odd})


WIDTH = Whole(-1, 1 << 17)  # columns or classes; every site makes a model of that width. -1: kept back
JOINING: Declaration = {
    "features": Sends("how many features the data has", within=WIDTH),
    "classes": Sends("how many classes the data has", within=WIDTH),
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
    SIZES: TELLS,
}
OF_EDGES = {
    "edge_features": "features",
    "edge_weights": "weighted",
    "of_edges": "examples",
}  # key: of `Dataset.edge_form`
# What the server tells where a finished run's models predict.
FLAGS = {
    "positive": "which class is looked for",
    "threshold": "from which probability on an example is flagged, chosen on all members' validation examples",
}
# What says how the data is made up, and nothing of a record in it.
FORM = ("features", "classes", *OF_EDGES, "directed", "names", "columns", "kinds", "groups")


def fingerprint(labels: Sequence[str]) -> int:
    """A number that other names, or the same in another order, hardly share; 0 for numbered classes."""
    return random.word(json.dumps(list(labels))) if labels else 0


def describe(holdings: Holdings, deny: Sequence[str]) -> Tree:
    """What the site says of its data when it joins: counts (`JOINING`), -1 or empty for those that it keeps back."""
    data, masks = holdings.data, holdings.graph.masks
    told = {
        "features": data.features,
        "classes": data.classes,
        **{key: int(data.edge_form[own]) for key, own in OF_EDGES.items()},
        "directed": int(data.edge_form["directed"]),
        "names": fingerprint(data.labels),
        "columns": fingerprint((*data.columns, *(() if data.carried is None else data.carried.columns))),
        "kinds": fingerprint(holdings.kinds),
        "groups": fingerprint(data.groups),
        "nodes": data.nodes,
        "edges": data.edges.shape[1] // 2,
        "split": masks.sum(1),
        "labels": torch.bincount(holdings.graph.y[holdings.graph.y >= 0], minlength=data.classes),
    }
    return kept_back(told, deny)


def withheld(rules: Rules) -> tuple[str, ...]:
    """The keys that a site with these rules keeps back when it joins: what it denies, how many examples each class has
    unless it tells that and, under a cap on ε, all counts."""
    counts = [key for key in JOINING if key not in (*FORM, *rules.unbounded)] if rules.epsilon is not None else []
    labels = () if "classes" in rules.measures else ("labels",)
    return tuple(dict.fromkeys((*rules.deny, *labels, *counts)))


def kept_back(told: Tree, deny: Sequence[str]) -> Tree:
    """`told` with -1 or nothing for the keys that the site's policy denies."""
    return {key: _hidden(leaf) if key in deny else leaf for key, leaf in told.items()}


def as_kept_back(sends: Declaration, deny: Sequence[str]) -> Declaration:
    """What `kept_back` gives away, for ledgers: of the keys in `deny` nothing."""
    whole = {key: own if isinstance(own, Sends) else Sends(own) for key, own in sends.items()}
    return {key: replace(own, reveals="nothing: kept back") if key in deny else own for key, own in whole.items()}


def _hidden(leaf: object) -> object:
    if isinstance(leaf, dict):
        return {key: _hidden(below) for key, below in leaf.items()}
    return leaf[:0] if isinstance(leaf, torch.Tensor) else -1

"""Values that all sites of a federation must agree on when they join, and the graphs that the server itself holds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path

import torch

from fedweave.core.federation import Sends
from fedweave.core.graph import SPLITS, TEST, TRAIN, VAL, Graph
from fedweave.core.replies import Replies
from fedweave.core.text import counted
from fedweave.core.types import CLASS, Kind, Values
from fedweave.datasets.check import refuse
from fedweave.errors import UserError
from fedweave.sites.flare.joining import JOINING, KINDS, OF_EDGES, RELATIONS, TARGET, fingerprint
from fedweave.sites.flare.site_data import global_test
from fedweave.sites.flare.sitefile import SiteData

_NAMED = {"labels": ("names", "classes"), "groups": ("groups", "groups of sens")}  # of an experiment's [data]


def common_number(replies: Replies, key: str) -> int:
    """The number under `key` that all sites report."""
    numbers = {site: replies[site][key] for site in replies.clients}
    silent = [site for site, value in numbers.items() if value == -1]
    entry = JOINING[key]
    what = f"`{key}` ({entry.reveals if isinstance(entry, Sends) else entry})"
    if silent:
        raise UserError(
            f"{', '.join(silent)} keeps back {what}, and no model can be built without it. Allow it in [policy] of "
            "site.toml."
        )
    if len(set(numbers.values())) > 1:
        each = ", ".join(f"{site}: {value}" for site, value in numbers.items())
        raise UserError(f"the sites differ in {what}: {each}; they must agree (see site.toml).")
    return int(next(iter(numbers.values())))


def common_form(replies: Replies) -> dict[str, int | bool]:
    """The form of all sites' edges for models (`Dataset.edge_form`). Edges are directed unless one site reports
    undirected ones."""
    form: dict[str, int | bool] = {name: common_number(replies, key) for key, name in OF_EDGES.items()}
    if any(RELATIONS in replies[site] for site in replies.clients):
        form["relations"] = common_number(replies, RELATIONS)
    return form | {"directed": all(replies[site]["directed"] != 0 for site in replies.clients)}


def common_target(replies: Replies) -> Kind:
    """The kind of target that all sites predict."""
    kinds = {site: KINDS[max(0, replies[site].get(TARGET, 0))] for site in replies.clients}
    first = next(iter(kinds), "")
    differing = [site for site in kinds if kinds[site] != kinds[first]]
    if differing:
        raise UserError(
            f"{', '.join(differing)} say target = {kinds[differing[0]]!r}, and {first} says {kinds[first]!r}. Write "
            "the same target into every site.toml.",
            code="user.target-differs",
        )
    return kinds[first] if kinds else CLASS


def check_names(replies: Replies) -> None:
    """Raise a UserError if sites name their classes, features, kinds or groups differently or in another order: class 0
    would then have another meaning at each site."""
    for key, what, remedy in (
        ("names", "classes", "write the same labels = [...] into every site.toml"),
        ("kinds", "categories, or labels of nodes and edges", "write the same lists into every site.toml"),
        ("groups", "groups of sens", "write the same groups = [...] into every site.toml, group_names into an .npz"),
        ("columns", "features", "give all data the same columns in the same order"),  # categories are among them
    ):
        names = {site: replies[site][key] for site in replies.clients if replies[site][key] > 0}
        first = next(iter(names), "")
        differing = [site for site in names if names[site] != names[first]]
        if differing:
            raise UserError(
                f"the {what} of {', '.join(differing)} have other names than at {first}, or the names are in another "
                f"order; {remedy}.",
                code="user.names-differ",
            )


def confirm_names(replies: Replies, settings: Values) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """{"labels", "groups": the names of classes and groups in an experiment's [data], `settings`}, with () if a site
    has no names or others; and notes on names that are not the sites'.

    Sites send only fingerprints of names. A server that knows the names can compare them, and learns no other names.
    """
    result, notes = dict[str, tuple[str, ...]](), []
    for setting, (key, what) in _NAMED.items():
        names = tuple(settings.get(setting) or ())
        same = all(replies[site][key] == fingerprint(names) for site in replies.clients)
        result[setting] = names if same else ()
        if names and not same:
            notes.append(
                f"the experiment calls the {what} {', '.join(names)}, and not every site does; results use numbers"
            )
    return result, notes


def note_unnamed_columns(named: Values) -> str:
    """A note that lists the sites without column names, if other sites have them; else "".

    named: {site: whether it has column names}.
    """
    without = [site for site, has in named.items() if not has]
    if len(without) in (0, len(named)):
        return ""
    return (
        f"the columns of {', '.join(without)} have no names and could not be compared with the others' columns (an "
        ".npz names them in feature_names). Make sure that they are the same, in the same order"
    )


def invalid_counts(replies: Replies) -> dict[str, str]:
    """{site: the problem} for the sites whose counts are not for three splits, or not for each class."""
    faults = dict[str, str]()
    for site in replies.clients:
        answer = replies[site]
        if "split" not in answer:  # where models predict
            continue
        splits, classes = len(answer["split"]), len(answer["labels"])
        if splits not in (0, len(SPLITS)) or classes not in (0, answer["classes"]):
            faults[site] = f"it reports {splits} splits and {classes} classes"
    return faults


def unusual_forms(replies: Replies, required: float) -> dict[str, str]:
    """{site: its form} for the sites whose numbers of features and classes, or whose edges' form, differ from the
    majority of sites. Empty if there is no majority, or fewer than `required` sites agree."""
    form_of = itemgetter("features", "classes", *OF_EDGES)
    forms = {site: form_of(replies[site]) for site in replies.clients}
    (common, votes), *_ = Counter(forms.values()).most_common(1)
    if votes == len(forms) or 2 * votes <= len(forms) or votes < required:
        return {}

    def describe(form: Sequence[int], of_edges: bool) -> str:
        features, classes, width, weighted, examples = form
        text = f"{counted(features, 'feature')} and {counted(classes, 'class')}"
        if not of_edges:
            return text
        kind, weights = "edges" if examples == 1 else "nodes or graphs", " and weights" if weighted == 1 else ""
        return f"{text}, {kind} as examples and edges with {counted(width, 'feature')}{weights}"

    faults = dict[str, str]()
    for site, form in forms.items():
        if form != common:
            of_edges = form[2:] != common[2:]
            faults[site] = f"its data has {describe(form, of_edges)}, most others' {describe(common, of_edges)}"
    return faults


# The graphs that the server may hold: {role: the mask for labeled nodes if the file has no split}.
ROLES = {"test": TEST, "public": TRAIN, "validation": VAL, "proxy": TRAIN}


def server_graphs(folder: Path, dtype: torch.dtype, ports: bool = False) -> dict[str, Graph]:
    """{role: graph} of the graphs in the server's `folder`: test.npz, public.npz and so on. ports: whether models read
    ports of edges."""
    graphs = dict[str, Graph]()
    for role, use in ROLES.items():
        path = folder / f"{role}.npz"
        if path.exists():
            # The sites decide whether the sensitive attribute may be a feature.
            settings = SiteData(path=path.name, normalize="none", sens_feature=True, loops="keep")
            graphs[role] = global_test(path, settings, dtype, use, ports)
    return graphs


def check_agreement(folder: Path, graphs: Mapping[str, Graph], features: int, classes: int) -> None:
    """Refuse a graph of the server's `folder` that does not fit models of the sites' data.

    graphs: {role: graph}, the global test graph as "test".
    """
    for role, graph in graphs.items():
        path, width = folder / f"{role}.npz", graph.x.shape[1]
        max_label = int(graph.y.max()) if graph.target == CLASS else 0
        if width != features:
            what = f"it has {counted(width, 'feature')}, but the sites' data {features:,}"
            refuse(path, what, "Write it with the sites' columns in their order, or remove it.")
        if max_label >= classes:
            what = f"it has the label {max_label}, but the sites' classes are 0 to {classes - 1}"
            refuse(path, what, "Number the classes as the sites do.")

"""What all sites of a federation have to say alike when they join, and the graphs that the server itself holds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from fedweave.core.federation import Sends
from fedweave.core.graph import SPLITS, TRAIN, VAL, Graph
from fedweave.core.records import Values
from fedweave.core.replies import Replies
from fedweave.core.text import counted
from fedweave.datasets.check import refuse
from fedweave.deploy.flare.site.holdings import global_test
from fedweave.deploy.flare.site.joining import JOINING, OF_EDGES, fingerprint
from fedweave.deploy.flare.site.sitefile import SiteData
from fedweave.errors import UserError

_NAMED = {"labels": ("names", "classes"), "groups": ("groups", "groups of sens")}  # of an experiment's [data]


def common_number(replies: Replies, key: str) -> int:
    """The number that all sites say.

    Raises:
        UserError: they say different ones, or one keeps it back; names each.
    """
    found = {site: replies[site][key] for site in replies.clients}
    if silent := [site for site, value in found.items() if value == -1]:
        raise UserError(
            f"{', '.join(silent)} keeps back {_said(key)} (see [policy] in site.toml), without which no model "
            "can be built."
        )
    if len(set(found.values())) > 1:
        each = ", ".join(f"{site}: {value}" for site, value in found.items())
        raise UserError(f"the sites differ in {_said(key)}: {each}; they must agree (see site.toml).")
    return int(next(iter(found.values())))


def _said(key: str) -> str:
    told = JOINING[key]
    return f"`{key}` ({told.reveals if isinstance(told, Sends) else told})"


def common_form(replies: Replies) -> dict[str, int | bool]:
    """What models are fitted to of all sites' edges (`Dataset.edge_form`); directed unless one says
    that its own are not.

    Raises:
        UserError: see `common_number`.
    """
    form: dict[str, int | bool] = {own: common_number(replies, key) for key, own in OF_EDGES.items()}
    return form | {"directed": all(replies[site]["directed"] != 0 for site in replies.clients)}


def check_names(replies: Replies) -> None:
    """Refuse sites whose classes, features, or nodes' and edges' kinds, have names, but not the same in the same order:
    class 0 would be another at each."""
    for key, what, remedy in (
        ("names", "classes", "write the same labels = [...] into every site.toml"),
        ("kinds", "categories, or labels of nodes and edges", "write the same lists into every site.toml"),
        ("groups", "groups of sens", "write the same groups = [...] into every site.toml, group_names into an .npz"),
        ("columns", "features", "give all data the same columns in the same order"),  # categories are among them
    ):
        names = {site: replies[site][key] for site in replies.clients if replies[site][key] > 0}
        first = next(iter(names), "")
        if odd := [site for site in names if names[site] != names[first]]:
            raise UserError(
                f"the {what} of {', '.join(odd)} have other names, or another order of them, than those of {first}; "
                f"{remedy}.",
                code="user.names-differ",
            )


def confirmed(replies: Replies, told: Values) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """{"labels", "groups": the names that an experiment's [data], `told`, gives to classes and groups}, () where a site
    has none or others; and notes on those that are not the sites'.

    Sites send fingerprints of names alone, so whoever knows the names can say them, and nobody learns others.
    """
    found, notes = dict[str, tuple[str, ...]](), []
    for setting, (key, what) in _NAMED.items():
        names = tuple(told.get(setting) or ())
        alike = all(replies[site][key] == fingerprint(names) for site in replies.clients)
        found[setting] = names if alike else ()
        if names and not alike:
            notes.append(
                f"the experiment calls the {what} {', '.join(names)}, and not every site does; results number them"
            )
    return found, notes


def uncompared(named: Values) -> str:
    """A note on the sites without names of columns, which others have; "" where there is none.

    named: {site: whether it says what its columns are called}.
    """
    without = [site for site, has in named.items() if not has]
    if len(without) in (0, len(named)):
        return ""
    return (
        f"the columns of {', '.join(without)} could not be compared with the others', for they come without names "
        "(an .npz says them as feature_names): see to it that they are the same, in the same order"
    )


def misshapen(replies: Replies) -> dict[str, str]:
    """{site: what is wrong} of those that do not say of three splits, or of each class, how many examples they have."""
    told = {site: replies[site] for site in replies.clients if "split" in replies[site]}  # not where models predict
    forms = {site: (len(own["split"]), len(own["labels"])) for site, own in told.items()}
    return {
        site: f"it tells of {splits} splits and {classes} classes"
        for site, (splits, classes) in forms.items()
        if splits not in (0, len(SPLITS)) or classes not in (0, told[site]["classes"])
    }


def unlike(replies: Replies, wanted: float) -> dict[str, str]:
    """{site: what it said} of those whose numbers of features and classes, or what models read of edges, are not most
    others'; empty where no most agree, or fewer than `wanted`."""
    forms = {site: tuple(replies[site][key] for key in ("features", "classes", *OF_EDGES)) for site in replies.clients}
    (form, votes), *_ = Counter(forms.values()).most_common(1)
    if votes == len(forms) or 2 * votes <= len(forms) or votes < wanted:
        return {}
    return {
        site: f"its data has {_shaped(own, own[2:] != form[2:])}, most others' {_shaped(form, own[2:] != form[2:])}"
        for site, own in forms.items()
        if own != form
    }


def _shaped(form: Sequence[int], of_edges: bool) -> str:
    features, classes, width, weighted, examples = form
    told = f"{counted(features, 'feature')} and {counted(classes, 'class')}"
    if not of_edges:
        return told
    more = f", {'edges' if examples == 1 else 'nodes or graphs'} as examples and edges with {counted(width, 'feature')}"
    return f"{told}{more}{' and weights' if weighted == 1 else ''}"


TEST_FILE = "test.npz"
# What the server may hold besides the global test graph: the mask of labelled nodes where the file has no split.
ROLES = {"public": TRAIN, "validation": VAL, "proxy": TRAIN}


def server_test(folder: Path, dtype: torch.dtype, ports: bool = False) -> Graph | None:
    """The global test graph in the server's `folder`, if there is one. ports: whether models read those of edges."""
    path = folder / TEST_FILE
    return global_test(path, _about(TEST_FILE), dtype, ports=ports) if path.exists() else None


def server_graphs(folder: Path, dtype: torch.dtype, ports: bool = False) -> dict[str, Graph]:
    """{role: graph} of what the server's `folder` holds besides the global test graph: public.npz and so on."""
    found = {role: folder / f"{role}.npz" for role in ROLES}
    return {r: global_test(at, _about(at.name), dtype, ROLES[r], ports) for r, at in found.items() if at.exists()}


def _about(name: str) -> SiteData:
    """How the server reads a file; whether the sensitive attribute may be a feature is for the sites to say."""
    return SiteData(name, normalise="none", sens_feature=True, loops="keep")


def check_alike(folder: Path, graphs: Mapping[str, Graph], features: int, classes: int) -> None:
    """Refuse a graph of the server's `folder` that no model of the sites' data is for.

    graphs: {role: graph}, the global test graph as "test".

    Raises:
        DataError: one has another number of features, or a label beyond the classes; names the file.
    """
    for role, graph in graphs.items():
        path, width, most = folder / f"{role}.npz", graph.x.shape[1], int(graph.y.max())
        if width != features:
            what = f"it has {counted(width, 'feature')}, but the sites' data {features:,}"
            refuse(path, what, "Write it with the sites' columns in their order, or remove it.")
        if most >= classes:
            what = f"it has the label {most}, but the sites' classes are 0 to {classes - 1}"
            refuse(path, what, "Number the classes as the sites do.")

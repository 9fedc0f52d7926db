"""Data sets: an explicit registry, and the two calls that the rest of the package needs."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedweave.core import plugins
from fedweave.core.settings import check_settings, hints_of, nearest
from fedweave.core.shown import default_of
from fedweave.core.types import Record, Values
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import OtherCounts, check
from fedweave.datasets.folder import Folder, Members
from fedweave.datasets.frames import from_frames, from_graph_frames, from_networkx
from fedweave.datasets.graph_folder import GraphFolder
from fedweave.datasets.links import TASK, as_links, links_of
from fedweave.datasets.lookup import AbsentData, identify, in_shared, shared
from fedweave.datasets.npz import Archive
from fedweave.datasets.parties import PartyFolders
from fedweave.datasets.public import PUBLIC
from fedweave.datasets.pyg import from_pyg
from fedweave.datasets.released import RELEASED
from fedweave.datasets.settings import NodeSettings
from fedweave.datasets.shards import Shards, recorded
from fedweave.datasets.social import HERITAGE, POKEC, Twitch
from fedweave.datasets.synthetic import Digits, Synthetic
from fedweave.datasets.transfers import Transfers
from fedweave.datasets.triples import KNOWLEDGE, Douban, Triples
from fedweave.datasets.tu import SMALL_GRAPHS, TU, Domains
from fedweave.errors import ConfigError, DataError

__all__ = ["DATASETS", "Dataset", "describe", "from_frames", "from_graph_frames", "from_networkx", "from_pyg", "load"]

DATASETS: dict[str, type] = {
    "digits": Digits,
    "synthetic": Synthetic,
    "transfers": Transfers,
    "folder": Folder,
    "graphs": GraphFolder,
    "tu": TU,
    "parties": PartyFolders,
    "members": Members,
    "domains": Domains,
    "npz": Archive,
    "shards": Shards,
    **{kind.name: kind for kind in PUBLIC},
    Twitch.name: Twitch,
    **{kind.name: kind for kind in POKEC},
    **{kind.name: kind for kind in HERITAGE},
    **{kind.name: kind for kind in SMALL_GRAPHS},
    **{kind.name: kind for kind in RELEASED},
    "triples": Triples,
    Douban.name: Douban,
    **{kind.name: kind for kind in KNOWLEDGE},
}


def load(name: str, path: str | None = None, seed: int = 0, **params: object) -> Dataset:
    """The data set `name` with parameters `params`; `path` is the user's folder or file (`[data] path`). With
    task = "links" its links are the examples, of any graph (`links.as_links`); the settings of `Links` are then
    parameters, too.

    A relative `path` that is not in the current folder is one in $FEDWEAVE_DATA.

    Raises:
        ConfigError: the name or a parameter is not known or not allowed.
        DataError: `path` does not exist or holds other data than `name` (names it, and the name to set), or the data
            is missing or refused.
    """
    settings, links = links_of(params)
    if links is None:
        return read(name, path, seed, **params)
    kind = _kind(name)
    if isinstance(kind, type) and issubclass(kind, NodeSettings):
        settings = {**settings, "task": TASK}
    data = read(name, path, seed, **settings)
    return _note(as_links(data, replace(links, seed=seed)), name, path, seed, params)


def read(name: str, path: str | None = None, seed: int = 0, **params: object) -> Dataset:
    """`load`, where [data] is read and links become examples later: with task = "links" the data set is the graph with
    what its tables state of links."""
    return _note(_read(name, path, seed, params), name, path, seed, params)


def _note(data: Dataset, name: str, path: str | None, seed: int, params: Values) -> Dataset:
    """The same data set, with the settings that it is loaded by."""
    settings: Record = {"name": plugins.absolute(name) if plugins.is_file(name) else name}
    if path is not None:
        settings["path"] = path
    object.__setattr__(data, "named", {**settings, **params, "seed": seed})
    return data


def _read(name: str, path: str | None, seed: int, params: Values) -> Dataset:
    kind = _kind(name)
    if kind is Shards:  # settings are the source's where the caller does not say
        params = {**recorded(path).get("settings", {}), **params}
    check_settings(name, params, {field.name: default_of(field) for field in fields(kind)}, hints_of(kind))
    try:
        root = None if path is None else in_shared(Path(path).expanduser())
    except RuntimeError as error:
        raise DataError(f"[data] path: {path}: {error}; name the folder in full.") from error
    if root is not None and not root.exists():
        base = shared()
        also = "; $FEDWEAVE_DATA, where paths are looked for, too, is not set" if base is None else f", nor in {base}"
        where = "" if root.is_absolute() else f" in {Path.cwd()}, where the command runs{also}"
        if not str(root).isprintable():  # "data\new" in TOML
            what = f"[data] path: {str(root)!r} has a character that no name of a folder has, such as a line break"
            raise DataError(f"{what}. In TOML write a path with backslashes in single quotes.", code="data.path")
        raise DataError(
            f"[data] path: {root} does not exist{where}. Name an existing folder or file; a data set with a name of "
            "its own needs no path.",
            code="data.no-path",
        )
    loader = kind(**params)
    if name not in DATASETS:  # a plug-in
        data = plugins.call_plugin(f"dataset {name!r}", lambda: loader.load(root, seed), DataError)
        if not isinstance(data, Dataset):
            raise DataError(f"dataset {name!r}: load returned {type(data).__name__}, not a Dataset.")
        return check(data, name)
    try:
        result: Dataset = loader.load(root, seed)
        if result.structure is not None:
            result = replace(result, structure=result.structure._replace(seed=seed))
        return result
    except OtherCounts as error:
        published = {other.facts[:2]: name for name, other in DATASETS.items() if hasattr(other, "facts")}
        other = published.get((error.nodes, error.edges))
        if root is None or other is None:
            raise
        counts = f"{error.nodes:,} nodes, {error.edges:,} edges"
        remedy = f"Set name = {other!r}, or name another path."
        raise DataError(f"[data] path: {root} holds {other} ({counts}), not {name}. {remedy}") from None
    except AbsentData as error:
        if root is None:
            raise
        what, names = identify(root, DATASETS)
        remedy = "Name another path, or leave path out."
        if names:
            remedy = f"Set name = {' or '.join(map(repr, names))} to use that, name another path, or leave path out."
        raise DataError(f"[data] path: {error}; {root} {what}. {remedy}", code="data.kind") from None


def describe(name: str) -> str:
    """One line: counts where they are fixed, and where the data comes from.

    Raises:
        ConfigError: the name is not known.
    """
    kind = _kind(name)
    about = (kind.__doc__ or "").splitlines()[0]
    facts = getattr(kind, "facts", None)
    if facts is None:
        return about
    more = f" classes, sensitive: {facts.sensitive}" if facts.sensitive else " classes"
    features = facts.features - (facts.sens_column is not None)
    graphs = f"{facts.graphs:,} graphs, " if facts.graphs else ""
    counts = f"{graphs}{facts.nodes:,} nodes, {facts.edges:,} edges, {features:,} features, {facts.classes}{more}"
    return f"{counts}. {about}"


def _kind(name: str) -> Any:
    if plugins.is_file(name):
        return plugins.load(name)
    known = DATASETS | plugins.entry_point_plugins("data")
    if name not in known:
        message = f"dataset {name!r} is not known.{nearest(name, known)} Choose one of {', '.join(known)}."
        raise ConfigError(message, code="config.unknown-name")
    return known[name]

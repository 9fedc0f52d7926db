"""The graphs that the server itself holds, and which version of its data every site has."""

from collections.abc import Mapping
from pathlib import Path

import torch

from fedweave.core.graph import TRAIN, VAL, Graph
from fedweave.core.text import counted
from fedweave.core.tree import Tree
from fedweave.datasets.check import refuse
from fedweave.deploy.flare.site.holdings import global_test
from fedweave.deploy.flare.site.sitefile import SiteData
from fedweave.deploy.flare.wire.peers import read_version

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
    return SiteData(name, sens_feature=True, loops="keep")


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


class DataVersions:
    """The versions that sites told after steps that made data (`Flare.replace_data`); of other sites none is known."""

    def __init__(self) -> None:
        self._now, self._before = dict[str, int](), dict[str, int]()

    def begin(self) -> None:
        """A round starts."""
        self._before = dict(self._now)

    def note(self, notes: Mapping[str, str]) -> None:
        """Read what came with the sites' replies."""
        self._now |= {site: read_version(note, self._now.get(site, 0)) for site, note in notes.items()}

    def plain(self, before: bool = False) -> Tree:
        """For a checkpoint; `before`: as they were when the round under way started."""
        return {site: {"version": version} for site, version in (self._before if before else self._now).items()}

    def restore(self, tree: Tree) -> None:
        """Continue with those of a checkpoint."""
        self._now = {site: int(kept["version"]) for site, kept in tree.items()}

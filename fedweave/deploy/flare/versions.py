"""Which version of its data every site has, as far as the server knows."""

from collections.abc import Mapping

from fedweave.core.tree import Tree
from fedweave.deploy.flare.peers import read_version


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

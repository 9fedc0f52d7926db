"""What stands in a run's configuration for a plug-in that was an object in Python and that no file names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from fedweave.core import plugins
from fedweave.errors import ConfigError


@dataclass(frozen=True)
class InPython:
    """A plug-in of any section, without settings, that nothing can be made of.

    name: as the configuration has it (`plugins.in_python`).
    """

    name: str

    fields: ClassVar[Mapping[str, Any]] = {}
    hints: ClassVar[Mapping[str, Any]] = {}
    documents: ClassVar[tuple[type, ...]] = ()
    examples: ClassVar[tuple[str, ...]] = ("node", "graph")

    def __call__(self, *given: Any) -> "InPython":
        """Itself; an algorithm, which is given its model here, is refused."""
        return self._refuse() if given else self

    def cut(self, data: Any, seed: int) -> NoReturn:
        """Refuse.

        Raises:
            ConfigError: says what to do instead.
        """
        self._refuse()

    def build(self, features: int, classes: int) -> NoReturn:
        """Refuse.

        Raises:
            ConfigError: says what to do instead.
        """
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            f"{plugins.label(self.name)} was an object in Python that no file names, so that it cannot be made again: "
            "report and compare take this run, what trains or predicts does not. Define it in a file of its own, not "
            "in the script that is started, and train anew; of a torch.nn.Module, take "
            "models.ModuleKind(Net)(…).build(features, classes)."
        )

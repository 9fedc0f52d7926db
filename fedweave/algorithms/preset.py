"""A paper as a choice of FedAvg's parts and defaults."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, get_type_hints

from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.parts import Part
from fedweave.core.algorithm import Capabilities
from fedweave.core.maker import Maker, note
from fedweave.core.model import Model


class Paper(Protocol):
    """A frozen dataclass whose fields are a paper's hyperparameters. A field that `FedAvg` also has sets FedAvg's."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def parts(self) -> tuple[Part, ...]:
        """The parts that make FedAvg this paper's algorithm; those that the user lists follow."""
        ...


@dataclass(frozen=True)
class Preset:
    """Makes the `FedAvg` that a paper describes: called with a model and with values for the fields of the paper's
    dataclass and of FedAvg. Used as a decorator of that dataclass.

    paper: the dataclass.

    Raises:
        TypeError: it is none.
    """

    paper: type[Paper]

    def __post_init__(self) -> None:
        if not dataclasses.is_dataclass(self.paper):
            name = getattr(self.paper, "__name__", self.paper)
            raise TypeError(f"{name} is no dataclass: write @dataclass(frozen=True) between @preset and class {name}")

    def __call__(self, model: Model, **values: Any) -> FedAvg:
        """The algorithm.

        Raises:
            TypeError: there is no such field.
            ValueError: FedAvg or a part refuses a value.
        """
        own, family = _fields(self.paper), _fields(FedAvg)
        paper = self.paper(**{name: value for name, value in values.items() if name in own})
        given = {name: value for name, value in values.items() if name not in own}
        given |= {name: getattr(paper, name) for name in own if name in family}
        parts = paper.parts()
        if not isinstance(parts, tuple | list):
            name = self.paper.__name__
            raise TypeError(
                f"{name}.parts: is to give a tuple of parts, such as (Part(),); it gives {type(parts).__name__}"
            )
        return note(FedAvg(model, **given | {"parts": (*parts, *given.get("parts", ()))}), Maker(self, (values,)))

    def remaining(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Sentences on what the paper's protection does not stop with these `values` of its fields and others."""
        told = getattr(self.paper, "remaining", None)
        own = {name: value for name, value in values.items() if name in _fields(self.paper)}
        return told(self.paper(**own)) if told else ()

    @property
    def capabilities(self) -> Capabilities:
        """What the paper's dataclass declares, else what FedAvg does."""
        return getattr(self.paper, "capabilities", FedAvg.capabilities)

    @property
    def fields(self) -> "Mapping[str, dataclasses.Field[Any]]":
        """FedAvg's model, the paper's fields, then FedAvg's others."""
        own, family = _fields(self.paper), _fields(FedAvg)
        return {"model": family["model"], **own, **{name: f for name, f in family.items() if name not in own}}

    @property
    def hints(self) -> Mapping[str, Any]:
        """The fields' types."""
        return get_type_hints(FedAvg, include_extras=True) | get_type_hints(self.paper, include_extras=True)

    @property
    def documents(self) -> tuple[type, ...]:
        """The classes whose docstrings say what the fields mean, the most particular first."""
        return *self.paper.__mro__[:-1], FedAvg

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """What the paper's dataclass says."""
        return self.paper.__doc__


preset = Preset


def _fields(kind: Any) -> "dict[str, dataclasses.Field[Any]]":
    return {field.name: field for field in dataclasses.fields(kind)}

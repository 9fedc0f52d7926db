"""A paper as a choice of FedAvg's parts and defaults."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.parts import Part, has
from fedweave.algorithms.parts.conflicts import DECISIONS
from fedweave.algorithms.parts.names import parse_parts
from fedweave.core.algorithm import Capabilities
from fedweave.core.model import Model
from fedweave.core.plugins import Maker, maker_of, note
from fedweave.core.settings import check_settings, hints_of, meanings, plain_type, with_ranges
from fedweave.core.shown import default_of, line
from fedweave.core.types import Record, Values
from fedweave.errors import SettingError
from fedweave.models import MODELS

P = TypeVar("P", bound=Part)


class PaperSettings(Protocol):
    """A frozen dataclass whose fields are a paper's hyperparameters. A field that `FedAvg` also has sets FedAvg's."""

    __dataclass_fields__: ClassVar[Record]

    def parts(self) -> tuple[Part, ...]:
        """The parts that make FedAvg this paper's algorithm; those that the user lists follow."""


@runtime_checkable
class StatesLimits(Protocol):
    """A part that states the limits of its protection."""

    def remaining(self) -> tuple[str, ...]:
        """The limits, as sentences."""


@dataclass(frozen=True)
class Preset:
    """Makes the `FedAvg` that a paper describes: called with a model and with values for the fields of the paper's
    dataclass and of FedAvg. Used as a decorator of that dataclass.

    paper:   the dataclass.
    made_of: the parts that its fields and their meanings were taken from (`preset_of`).

    Raises:
        TypeError: `paper` is not a dataclass.
    """

    paper: type[PaperSettings]
    made_of: tuple[type[Part], ...] = ()

    def __post_init__(self) -> None:
        if not dataclasses.is_dataclass(self.paper):
            name = getattr(self.paper, "__name__", self.paper)
            raise TypeError(
                f"{name} is not a dataclass: write @dataclass(frozen=True) between @preset and class {name}"
            )

    def __repr__(self) -> str:
        defaults = {name: default_of(field) for name, field in _fields(self.paper).items()}
        return f"<preset {self.paper.__name__} of FedAvg: {line('', defaults)[1:-1]}>"

    def __call__(self, model: Model, **values: Any) -> FedAvg:
        """The algorithm.

        Raises:
            SettingError: there is no such field, or a value is of another type.
            ValueError: FedAvg or a part refuses a value.
        """
        paper_fields, family = _fields(self.paper), _fields(FedAvg)
        defaults = {name: default_of(field) for name, field in self.fields.items()}
        check_settings(self.paper.__name__, values, defaults, self.hints)
        self._check_model(model, values)
        if "parts" in values:
            values["parts"] = parse_parts(values["parts"])
        paper = self._paper(values)
        arguments = {name: value for name, value in values.items() if name not in paper_fields}
        arguments |= {name: getattr(paper, name) for name in paper_fields if name in family}
        parts = paper.parts()
        if not isinstance(parts, tuple | list):
            name = self.paper.__name__
            raise TypeError(
                f"{name}.parts: is to give a tuple of parts, such as (Part(),); it gives {type(parts).__name__}"
            )
        by = Maker(self, (values,))
        listed = (*(note(part, by) for part in parts), *arguments.get("parts", ()))
        return note(FedAvg(model, **arguments | {"parts": listed}), by)

    def _check_model(self, model: Model, values: Values) -> None:
        """Raise an error if the paper shares weights by name that only its model has, and the model is another one."""
        maker, name, default = maker_of(model), self.capabilities.model, self.fields["share"].default
        shares_by_default = tuple(values.get("share", default)) == default
        if name and maker is not None and shares_by_default and not isinstance(maker.plugin, MODELS[name]):
            raise SettingError(
                f"{self.paper.__name__} shares weights that only the model {name} has. Set model.name = {name!r}.",
                code="config.model",
            )

    def takes_part(self, kind: type[Part]) -> bool:
        """Whether parts of a class may follow the paper's own: they decide nothing that one of these decides."""
        own = self._paper({}).parts()
        decided = [hook for hook in DECISIONS if any(has(part, hook) for part in own)]
        return not any(has(kind, hook) for hook in decided)

    def _paper(self, values: Values) -> PaperSettings:
        paper_fields = _fields(self.paper)
        return self.paper(**{name: value for name, value in values.items() if name in paper_fields})

    def remaining(self, values: Values) -> tuple[str, ...]:
        """The limits of the parts' protection with these `values` of settings, as sentences."""
        sentences = list[str]()
        for part in self._paper(values).parts():
            if isinstance(part, StatesLimits):
                sentences += part.remaining()
        return tuple(sentences)

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the paper's dataclass, or else FedAvg's."""
        declared: Capabilities = getattr(self.paper, "capabilities", FedAvg.capabilities)
        return declared

    @property
    def fields(self) -> "Mapping[str, dataclasses.Field[object]]":
        """FedAvg's model, the paper's fields, then FedAvg's others."""
        paper_fields, family = _fields(self.paper), _fields(FedAvg)
        rest = {name: field for name, field in family.items() if name not in paper_fields}
        return {"model": family["model"], **paper_fields, **rest}

    @property
    def hints(self) -> Values:
        """The fields' types."""
        return {**hints_of(FedAvg), **with_ranges(hints_of(self.paper), hints_of(FedAvg))}

    @property
    def documents(self) -> tuple[type, ...]:
        """The classes whose docstrings describe the fields, the most specific first."""
        parts = list[type]()
        for part in self.made_of:
            parts += [kind for kind in part.__mro__ if kind not in (Part, object)]
        return *self.paper.__mro__[:-1], *parts, *FedAvg.__mro__[:-1]

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """The description of the paper's dataclass, where it comes from, an example, and the help of every setting."""
        about = inspect.cleandoc(self.paper.__doc__ or "").partition("\n\n")[0]
        file = inspect.cleandoc(getattr(inspect.getmodule(self.paper), "__doc__", None) or "").partition("\n\n")[0]
        source = ["Source: " + " ".join(file.split()), ""] if file else []
        first = next((f", {name}={default_of(field)!r}" for name, field in _fields(self.paper).items()), "")
        model = getattr(self.paper, "example_model", "GCN(hidden=64)")
        example = [
            "Example:",
            f"    model = fedweave.models.{model}.build(data.features, data.classes)",
            f"    algorithm = fedweave.algorithms.{self.__name__}(model{first})",
            "    fed = fedweave.federation(data, cut, algorithm, seed=0)",
        ]
        texts = meanings(self.documents)
        lines = (f"{name}: {texts[name]}" for name in self.fields if name in texts)
        return "\n".join([about, "", *source, *lines, "", *example, ""])

    @property
    def __name__(self) -> str:
        """The paper's."""
        return self.paper.__name__


class _Signature:
    """The signature of a preset: FedAvg's model, then every setting by name with its type and default. Of the class
    `Preset` itself there is none, so that it has its own."""

    def __get__(self, owner: "Preset | None", kind: type) -> inspect.Signature:
        if owner is None:
            raise AttributeError("__signature__")
        hints, parameters = owner.hints, list[inspect.Parameter]()
        for name, field in owner.fields.items():
            annotation = plain_type(hints.get(name, inspect.Parameter.empty))
            if name == "model":
                parameter = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)
            else:
                default = default_of(field)
                parameter = inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
                )
            parameters.append(parameter)
        return inspect.Signature(parameters, return_annotation=FedAvg)


Preset.__signature__ = _Signature()  # type: ignore[attr-defined]
preset = Preset


def preset_of(*kinds: type[Part], without: tuple[str, ...] = ()) -> Callable[[type], Preset]:
    """A decorator that makes a preset of parts: a class gets their fields, with defaults and help, and becomes a
    dataclass. A field of the class itself replaces a part's field, such as for another default; its docstring describes
    only its own fields. Unless the class defines `parts`, these are all of `kinds`, in order.

    without: fields of the parts that are not settings of the preset and keep the parts' defaults.
    """

    def make_preset(paper: type) -> Preset:
        annotations = inspect.get_annotations(paper)
        of_parts: Record = {}
        for kind in kinds:
            for name, field in _fields(kind).items():
                if name in without:
                    continue
                of_parts[name] = hints_of(kind)[name]
                if name not in annotations:  # a later part's default counts
                    factory = field.default_factory
                    has_factory = factory is not dataclasses.MISSING
                    setattr(paper, name, dataclasses.field(default_factory=factory) if has_factory else field.default)
        paper.__annotations__ = {**of_parts, **with_ranges(annotations, of_parts)}
        if not hasattr(paper, "parts"):
            setattr(paper, "parts", lambda self: tuple(part_of(self, kind) for kind in kinds))  # noqa: B010
        return Preset(dataclass(frozen=True)(paper), kinds)

    return make_preset


def part_of(paper: object, kind: type[P], **values: object) -> P:
    """A part with the values of its paper's fields of the same names; values: replace some of them."""
    settings = {name: getattr(paper, name) for name in _fields(kind) if name in _fields(type(paper))}
    return kind(**settings | values)


def _fields(kind: object) -> "dict[str, dataclasses.Field[object]]":
    return {field.name: field for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}

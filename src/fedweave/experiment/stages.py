"""What is known of an experiment while it is put together, stage by stage; `experiment.requirements` checks each.

Settings (`Configured`), clients or sites (`Enrolled`), data and partition (`Loaded`), model (`Modelled`), algorithm
(`Assembled`); where no data is at hand, model and algorithm follow the clients (`Designed`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedweave.algorithms.parts.part import Part
from fedweave.core.algorithm import Algorithm, Calls, Capabilities, capabilities
from fedweave.core.federation import step_info
from fedweave.core.mechanism import LDP, Gaussian
from fedweave.core.model import Model
from fedweave.core.types import Values
from fedweave.datasets.base import Dataset
from fedweave.datasets.edges import scales_own_edges
from fedweave.datasets.features import AUTO, amounts
from fedweave.experiment.config.choices import MemberModels
from fedweave.experiment.facts import DataFacts
from fedweave.partition.base import Part as Share
from fedweave.partition.base import Partition


@dataclass(frozen=True, kw_only=True)
class Stage:
    """An algorithm, by what is known before anything else is.

    name, declared: its name and `Capabilities`. config: the configuration (`experiment.config.Config`, which checks
    itself when it is made, so that this module cannot import it); None for an experiment that Python put together.
    """

    name: str
    declared: Capabilities
    config: Any = None

    @property
    def label(self) -> str:
        """The algorithm, as the beginning of a message."""
        return f"algorithm {self.name}" if self.config is None else f'algorithm.name = "{self.name}"'

    @property
    def needs(self) -> Capabilities:
        """What the algorithm needs; once it is made, also what its settings and parts need."""
        return self.declared


@dataclass(frozen=True, kw_only=True)
class Configured(Stage):
    """The settings of a configuration."""

    config: Any

    @classmethod
    def of(cls, config: Any) -> "Configured":
        """The stage of a configuration."""
        return cls(name=config.algorithm.name, declared=capabilities(config.algorithm.kind), config=config)

    def with_members(self, members: Sequence[str]) -> "Enrolled":
        """The same with the names of all clients or sites."""
        return Enrolled(**vars(self), members=members, member_models=self.config.member_models)


@dataclass(frozen=True, kw_only=True)
class Enrolled(Stage):
    """Who takes part.

    members: names of all clients or sites. member_models: models of single members, by the settings or by member.
    """

    members: Sequence[str]
    member_models: MemberModels | Mapping[str, Model]

    def with_design(self, model: Model, algorithm: Algorithm) -> "Designed":
        """The same with model and algorithm, where no data is at hand."""
        return Designed(**vars(self), model=model, algorithm=algorithm)

    def with_data(self, data: Dataset, normalize: str, **more: Any) -> "Loaded":
        """The same with data; `more` has the other fields of `Loaded`."""
        return Loaded(**vars(self), data=data, normalize=normalize, **more)


@dataclass(frozen=True, kw_only=True)
class ModelFacts(Stage):
    """A model: its layers."""

    model: Model


@dataclass(frozen=True, kw_only=True)
class Designed(Enrolled, ModelFacts):
    """Model and algorithm, as it is made of the model."""

    algorithm: Algorithm

    @property
    def needs(self) -> Capabilities:
        """What the algorithm, its settings and its parts need."""
        return self.algorithm.needs

    @property
    def parts(self) -> Mapping[str, Part]:
        """The parts that the algorithm is made of."""
        return self.algorithm.composed


@dataclass(frozen=True, kw_only=True)
class Loaded(Enrolled):
    """Data, and how it is cut.

    data:      all of it, or at a site its own.
    normalize: how features of examples are to be scaled (`datasets.features`).
    partition: as clients see it; None at a site, which looks at its own data.
    engine:    the settings of [engine].
    predicts:  whether a trained model predicts, without training.
    facts:     of data that is not opened, where `data` has only its form; None where it has all.
    """

    data: Dataset
    normalize: str
    partition: Partition | None = None
    engine: Values = field(default_factory=dict)
    predicts: bool = False
    facts: DataFacts | None = None

    def with_model(self, model: Model) -> "Modelled":
        """The same with a model."""
        return Modelled(**vars(self), model=model)

    @property
    def shares(self) -> Sequence[Share]:
        """What each client holds; nothing at a site."""
        return () if self.partition is None else self.partition.parts

    @property
    def nodes(self) -> list[int]:
        """The number of nodes of each client; at a site, only its own."""
        return [self.data.nodes] if self.partition is None else [len(share.nodes) for share in self.shares]

    @property
    def has_times(self) -> bool:
        """Whether messages depend on time."""
        if self.partition is not None:
            return any(share.split_times is not None for share in self.shares)
        attributes = self.data.edge_attrs
        return attributes is not None and attributes.split_times is not None and not self.declared.vertical

    @property
    def scaling(self) -> str:
        """How features are scaled; "none" where "auto" finds nothing to scale."""
        if self.normalize != AUTO:
            return self.normalize
        if self.data.scaling != AUTO:
            return "none" if self.data.scaling == "none" else AUTO
        measures = len(amounts(self.data.x)) > 0 if self.facts is None else self.facts.amounts
        return AUTO if measures else "none"

    @property
    def scales_own_edges(self) -> bool:
        """Whether clients are to scale some feature of edges by their own edges."""
        attributes = self.data.edge_attrs
        if attributes is None or self.facts is None:
            return attributes is not None and scales_own_edges(attributes)
        return attributes.auto and self.facts.edge_amounts

    @property
    def example(self) -> str:
        """What each row of the model's output has to stand for (`core.model.example`)."""
        return self.data.example if self.data.links is None else "link"


@dataclass(frozen=True, kw_only=True)
class Modelled(Loaded, ModelFacts):
    """Data and a model for it."""

    def with_algorithm(self, algorithm: Algorithm) -> "Assembled":
        """The same with the algorithm that is made of the model."""
        return Assembled(**vars(self), algorithm=algorithm)


@dataclass(frozen=True, kw_only=True)
class Assembled(Modelled, Designed):
    """Data, model and algorithm."""

    @property
    def protected_records(self) -> set[str]:
        """The records that the algorithm's ε protects (`mechanism.LDP.per`)."""
        records = set()
        for step in (self.algorithm.calls(2) or Calls()).all:
            for send in step_info(step).sends.values():
                records |= {mechanism.per for mechanism in send.mechanisms if isinstance(mechanism, Gaussian | LDP)}
        return records

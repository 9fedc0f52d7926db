"""Models that members have of their own, in [model]."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedweave.core.plugins import label
from fedweave.errors import ConfigError
from fedweave.experiment.config.choice import Choice
from fedweave.experiment.config.names import Faults
from fedweave.experiment.config.toml import Document

EACH, MEMBERS = "each", "members"  # keys of [model]
CODE = "model.members"  # of what is refused about them


@dataclass(frozen=True)
class OwnModels:
    """each: dealt to members in their order, from the first again when all are dealt. members: {name: the model of the
    member of that name}, whatever is dealt."""

    each: tuple[Choice, ...] = ()
    members: Mapping[str, Choice] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.each or self.members)

    def of(self, member: str, at: int) -> Choice | None:
        """That of a member, the `at`-th of all; None where it has no other than the rest."""
        if member in self.members:
            return self.members[member]
        return self.each[at % len(self.each)] if self.each else None

    def plain(self) -> Document:
        """The keys of [model] that resolve to these."""
        each = {EACH: [choice.plain() for choice in self.each]} if self.each else {}
        return each | ({MEMBERS: {name: own.plain() for name, own in self.members.items()}} if self.members else {})


def own_models(table: Document, chosen: Callable[[str, Document, str], Choice]) -> tuple[Document, OwnModels]:
    """[model] without `each` and `members`, and what these say. A table of theirs without a name is [model] with other
    values. Where [model] says nothing itself, the first of `each` stands for it.

    chosen: ("model", table, its path) -> the model that a table chooses.

    Raises:
        ConfigError: one of them is no table, or its keys or values are not valid.
    """
    base = {key: value for key, value in table.items() if key not in (EACH, MEMBERS)}
    each, members, faults = table.get(EACH, []), table.get(MEMBERS, {}), Faults()
    if not isinstance(each, list) or not all(isinstance(own, dict) for own in each):
        raise _no_tables(EACH, '[{name = "gcn"}, {name = "sage"}]', each)
    if not isinstance(members, dict) or not all(isinstance(own, dict) for own in members.values()):
        raise _no_tables(MEMBERS, '{bank_a = {name = "sage"}}', members)
    if not base and each:
        base = each[0]
    found: dict[str, Choice] = {}
    places = {f"model.{EACH}[{at}]": own for at, own in enumerate(each)}
    places |= {f"model.{MEMBERS}.{name}": own for name, own in members.items()}
    for path, own in places.items():
        with faults:
            found[path] = chosen("model", own if "name" in own else {**base, **own}, path)
    faults.refuse()
    dealt = tuple(found[f"model.{EACH}[{at}]"] for at in range(len(each)))
    return base, OwnModels(dealt, {name: found[f"model.{MEMBERS}.{name}"] for name in members})


def models_told(table: Document) -> str:
    """The names of all models in [model] as a run resolved it."""
    members = table.get(MEMBERS, {})
    tables = [*table.get(EACH, []), *members.values()]
    base = [] if table.get(EACH) else [table]
    names = dict.fromkeys(label(own["name"]) for own in [*base, *tables] if "name" in own)
    return ", ".join(names) + (" (members' own)" if tables else "")


def _no_tables(key: str, example: str, value: object) -> ConfigError:
    return ConfigError(f"model.{key}: tables of models, such as {key} = {example}, got {value!r}", code="config.value")

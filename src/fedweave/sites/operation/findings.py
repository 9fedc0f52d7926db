"""What `fedweave sites check` finds, each with the member that it concerns."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from fedweave.core.types import Record
from fedweave.errors import FedweaveError

T = TypeVar("T")


@dataclass
class Findings:
    """The findings of a check, each with the member that it concerns. faults: problems with place and remedy. notes:
    settings that are allowed but may be mistakes. facts: descriptions. forms: {site: values that must be the same at
    all sites}."""

    faults: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    forms: dict[str, Record] = field(default_factory=dict)

    def attempt(self, whose: str, look: Callable[[], T], file: Path | None = None, before: str = "") -> T | None:
        """The result of `look`; None if it raises errors, which become faults, with the `file` that they concern and
        the words `before` them."""
        try:
            return look()
        except FedweaveError as error:
            lines = str(error).splitlines() if len(error.args) > 1 else [str(error)]
            self.faults += [(whose, f"{file}: {before}{line}" if file else f"{before}{line}") for line in lines]
        except OSError as error:
            reason = f"{error.filename or ''} cannot be read ({error.strerror or error})".strip()
            self.faults.append((whose, f"{reason}. Give it to the user who runs this process (chown, chmod u+rw)."))
        return None


def merge_equal(findings: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Findings of which those with the same text are one, of all the members that it concerns."""
    members: dict[str, list[str]] = {}
    for whose, what in findings:
        members.setdefault(what, []).append(whose)
    for what, names in members.items():
        yield ", ".join(dict.fromkeys(names)), what

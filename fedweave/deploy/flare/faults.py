"""Who was asked and gave nothing of use: counted by site and kind, with the reasons in the server's log."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping


class Faults:
    """The faults of sites since they were last taken, each (site, "missing" | "refused" | "late")."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self.reasons: dict[str, str] = {}  # why each site was last missing
        self._log = logging.getLogger("fedweave.server")

    def note(self, round: int, missing: Mapping[str, str], refused: Mapping[str, str]) -> None:
        """{site: why} of those whose replies a call lacks, and of those among them that sent something of no use."""
        self._counts.update((site, "missing") for site in missing)
        self._counts.update((site, "refused") for site in refused)
        for site, why in {**missing, **refused}.items():
            if site in refused or self.reasons.get(site) != why:  # who stays away is named once, not at every call
                self._log.warning("round %d: %s is left out: %s", round, site, why)
        self.reasons |= missing

    def update(self, found: Mapping[tuple[str, str], int] | Iterable[tuple[str, str]]) -> None:
        """Count more faults, once each or as often as `found` says, of which there is no reason."""
        self._counts.update(found)

    def taken(self) -> dict[tuple[str, str], int]:
        """How many of each there are, which then count no more."""
        found, self._counts = dict(self._counts), Counter()
        return found

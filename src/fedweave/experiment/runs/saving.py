"""What a run has reached, written to its directory."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

from fedweave.algorithms.deployment import Deployable
from fedweave.core.algorithm import Algorithm, MeasuresPairs
from fedweave.core.engine import Engine, HoldsGraphs
from fedweave.core.federation import KnowsPairs
from fedweave.core.tree import Tree, map_leaves
from fedweave.experiment.rounds import RoundResult
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import (
    CHECKPOINT,
    LEDGER,
    METRICS,
    PAIRS,
    part_of,
    remove_parts,
    write_arrays,
    write_table,
)
from fedweave.metrics.judging import BEST

Sites = tuple[Tree, Tree]  # what a checkpoint keeps of a federation: its clients' states, and their data


class Described(Protocol):
    """What a run's summary says of its data (see `datasets.base.Dataset`)."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def features(self) -> int:
        """How many."""
        ...

    @property
    def classes(self) -> int:
        """How many."""
        ...

    @property
    def edge_form(self) -> dict[str, int | bool]:
        """What models are fitted to of edges."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """What the classes are called; () where they are numbers."""
        ...

    @property
    def groups(self) -> tuple[str, ...]:
        """What the groups of people are called, likewise."""
        ...


class Ready(Protocol):
    """An algorithm on its federation, about to train: `experiment.build.Built`, or `deploy.flare`'s `Joined`."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm."""
        ...

    @property
    def fed(self) -> Engine:
        """The federation."""
        ...

    @property
    def data(self) -> Described:
        """The data."""
        ...

    @property
    def note(self) -> str:
        """On what of the data could not be compared; "" if nothing."""
        ...


_LARGE = 1 << 18  # rows; to write fewer takes a fraction of a second


class Growing:
    """A table of a run's folder, to which rows are added. What a large one gets is filed beside it (`files.PARTS`)
    until that is as much as the table itself, so that a row is written a few times however often a run is saved."""

    def __init__(self, path: Path) -> None:
        self._path, self._whole, self._rows = path, 0, 0  # rows in its own file, and with those beside it

    def save(self, rows: int, since: Callable[[int], pa.Table], whole: bool) -> None:
        """Bring it to so many `rows`; since: those from a number on. whole: all into the one file."""
        if whole or rows <= _LARGE or not self._whole <= rows < 2 * self._whole:
            write_table(self._path, since(0))
            remove_parts(self._path)
            self._whole = rows
        elif rows > self._rows:
            write_table(part_of(self._path, self._rows), since(self._rows))
        self._rows = rows


class RunFiles:
    """Saves what a run has reached.

    reached: after the last whole round, saved or not. saved: the round of the last checkpoint. best: what a checkpoint
    keeps of the best round, which is not written a second time where that is the one that it is of.
    """

    def __init__(
        self, directory: Path, built: Ready, metrics: pa.Table, start: Checkpoint, source: dict[str, str]
    ) -> None:
        self.directory, self.built, self._metrics, self._source = directory, built, [metrics], source
        self._tables = [Growing(directory / name) for name in (METRICS, LEDGER)]
        self.reached, self.saved = start, start.round
        self.best = start.best or {"round": start.round, "state": start.state, "fed": start.fed}

    def reach(self, reached: Checkpoint) -> None:
        """Note how far the run is, and keep the models of the round if no earlier one was better on validation."""
        self.reached = reached
        if reached.summary.get(f"{BEST}/round") == reached.round:
            kept = {} if self._of_state() or not isinstance(self.built.fed, HoldsGraphs) else self.built.fed.snapshot()
            copied = map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, kept)
            self.best = {"round": reached.round, "state": reached.state, "fed": copied}

    def _of_state(self) -> bool:
        """Whether the server's state says which models all clients use."""
        algorithm = self.built.algorithm
        return isinstance(algorithm, Deployable) and algorithm.judged_model(self.reached.state) is not None

    def add(self, metrics: pa.Table | None) -> None:
        """Keep rows of metrics.parquet for the next save."""
        if metrics is not None:
            self._metrics.append(metrics)

    @property
    def missed(self) -> dict[str, int]:
        """{client: rounds in which its reply was missing}, of those of whom that is known."""
        rows = pa.concat_tables(self._metrics).filter(pc.field("metric") == "missing")
        counts = rows.group_by("client").aggregate([("round", "count_distinct")]).sort_by("client")
        return dict(zip(counts["client"].to_pylist(), counts["round_count_distinct"].to_pylist(), strict=True))

    def save(self, clients: Sites | None = None, whole: bool = True) -> None:
        """Write what was reached, and a checkpoint last.

        clients: the federation's part, where it is not as the federation is now. whole: see `Growing.save`; False of a
        run that goes on.
        """
        metrics, ledger = pa.concat_tables(self._metrics), self.built.fed.ledger
        self._metrics = [metrics]
        for table, rows, since in zip(
            self._tables, (len(metrics), ledger.rows), (metrics.slice, ledger.since), strict=True
        ):
            table.save(rows, since, whole)
        if pairs := pairs_of(self.built, self.reached.state):
            write_arrays(self.directory / PAIRS, pairs)
        fed, data = clients or (self.built.fed.snapshot(), self.built.fed.snapshot_data())
        best = {} if self.best["round"] == self.reached.round or not self._keeps_best() else self.best
        kept = replace(self.reached, fed=fed, data=data, source=self._source, best=best)
        replace(kept, metrics=len(metrics), ledger=ledger.rows).save(self.directory / CHECKPOINT)
        self.saved = self.reached.round

    def _keeps_best(self) -> bool:
        """Whether what is kept is of the best round, and enough for its models."""
        chosen = self.reached.summary.get(f"{BEST}/round") == self.best["round"]
        return chosen and (bool(self.best["fed"]) or self._of_state())

    def saving(self, rounds: Iterator[RoundResult], before: Callable[[Engine], Sites | None]) -> Iterator[RoundResult]:
        """Yield the `rounds`; where one fails, save the last whole one first, unless it is saved or the clients cannot
        go back to it (`run.RunBackend.before`)."""
        try:
            yield from rounds
        except Exception:
            clients = before(self.built.fed)
            if clients is not None and self.reached.round > self.saved:
                self.save(clients)
            raise


def pairs_of(built: Ready, state: Tree) -> dict[str, np.ndarray]:
    """What the partition and, after the round of `state`, the algorithm know of every two clients: {name: float64
    [N, N]}, in client order."""
    known = dict(built.fed.pairs) if isinstance(built.fed, KnowsPairs) else {}
    if isinstance(built.algorithm, MeasuresPairs):
        known |= built.algorithm.pairs(state)
    return {name: matrix.cpu().numpy() for name, matrix in known.items()}

"""How a run is saved while it trains: its tables, which grow, and the checkpoint that counts their rows."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.algorithm import Algorithm, Engine
from fedweave.core.ledger_columns import SCHEMA
from fedweave.core.stacked import read_whole
from fedweave.core.tree import Tree
from fedweave.core.types import Kind, Record
from fedweave.experiment.rounds import RoundResult
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import (
    CHECKPOINT,
    LEDGER,
    PAIRS,
    damage_error,
    part_of,
    plain_errors,
    read_chunks,
    remove_parts,
    row_groups,
    write_arrays,
    write_table,
    write_tables,
)
from fedweave.metrics.intervals import INTERVALS
from fedweave.metrics.measured import GLOBAL
from fedweave.metrics.pooled import POOLED
from fedweave.metrics.selection import ALONE, BEST, DIVERGED_ALONE, REFERENCE, SHELF, SHELF_JOINT

Sites = tuple[Tree, Tree]  # the clients' part of a checkpoint: `Checkpoint.fed` and `Checkpoint.data`


class Described(Protocol):
    """The facts of a run's data that its summary has (see `datasets.base.Dataset`)."""

    @property
    def name(self) -> str:
        """The name in reports."""

    @property
    def features(self) -> int:
        """Number of features."""

    @property
    def classes(self) -> int:
        """Number of classes."""

    @property
    def outputs(self) -> int:
        """Number of outputs of a model for each example."""

    @property
    def edge_form(self) -> dict[str, int | bool]:
        """The form of edge attributes that models are fitted to."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes; () where they are numbers."""

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups of people; () where they are numbers."""

    @property
    def target(self) -> Kind:
        """What is predicted (`core.target`)."""

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of predicted numbers, or of the labels if an example may have several."""


class Ready(Protocol):
    """An algorithm on its federation, about to train: `experiment.build.Built`, or `sites.flare`'s `Joined`."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm."""

    @property
    def fed(self) -> Engine:
        """The federation."""

    @property
    def data(self) -> Described:
        """The data."""

    @property
    def note(self) -> str:
        """A note on data that could not be compared; "" for none."""


_LARGE = 1 << 18  # rows of a table that is written whole each time; that takes a fraction of a second
_BUFFER = 1 << 18  # rows in memory that are in no file yet
# Metrics that only the last round has: a run that goes on measures them again.
LAST_ONLY = (POOLED, "per_class", "per_target", "targets", INTERVALS, SHELF, REFERENCE, ALONE, SHELF_JOINT)


class Growing:
    """A table of a run's folder that grows. New rows of a large table go to separate files (`files.PARTS`), until these
    files have the size of the table's own file; then all go into that file. So each row is written only a few times,
    however often a run is saved, and only a few rows are in memory."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path, self._schema = path, schema
        self._files: list[Path | pa.OSFile] = []  # the files with rows, in order
        self._old_files = 0  # of these the first ones, which another session left; see `resume`
        self._keep: Callable[[pa.Table], pa.Table] = lambda table: table  # of rows in old files
        self._dropped_rows = 0  # rows in old files that are not kept
        self._own_rows = 0  # rows in the table's own file
        self._file_rows = 0  # rows in all files
        self._buffer: list[pa.Table] = []  # rows in no file yet
        self._buffer_rows = 0

    @classmethod
    def resume(cls, path: Path, schema: pa.Schema, min_rows: int, keep: Callable[[pa.Table], pa.Table]) -> "Growing":
        """The table that another session has left. Only the rows that `keep` returns count.

        Raises:
            FedweaveError: a file is damaged, or fewer than `min_rows` rows are there.
        """
        table = cls(path, schema)
        for part, rows in read_chunks(path):
            if part not in table._files:
                table._files.append(part)
            table._file_rows += len(rows)
            table._dropped_rows += len(rows) - len(keep(rows))
            table._own_rows += len(rows) if part == path else 0
        if table._file_rows < min_rows:
            raise damage_error(path, f"it has {table._file_rows} rows, the checkpoint needs {min_rows}")
        if table._dropped_rows:
            table._old_files, table._keep = len(table._files), keep
            table._own_rows = 0  # the next save writes the table whole
        return table

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._file_rows - self._dropped_rows + self._buffer_rows

    def tables(self) -> Iterator[pa.Table]:
        """All rows, in tables that fit into memory."""
        for index, file in enumerate(self._files):
            for table in row_groups(file, self._path.name):
                yield self._keep(table) if index < self._old_files else table
        yield from self._buffer

    def add(self, rows: pa.Table) -> None:
        """Add rows; many of them go to a file at once. Only `save` makes them last."""
        self._buffer.append(rows)
        self._buffer_rows += len(rows)
        if self._buffer_rows >= _BUFFER:
            self._write_part()

    def save(self, whole: bool, rows: pa.Table | None = None) -> None:
        """Write all rows that are in no file, and further `rows`. whole: whether all go into the table's own file."""
        if rows is not None:
            self._buffer.append(rows)
            self._buffer_rows += len(rows)
        parts_are_small = self._own_rows <= self.rows < 2 * self._own_rows
        if whole or self.rows <= _LARGE or not parts_are_small:
            self._write_whole(self.tables(), self.rows)
        elif self._buffer_rows:
            self._write_part()

    def replace(self, rows: pa.Table) -> None:
        """Put rows of one round in the place of the rows of that round with their metrics, and write the table."""
        round, metrics = rows["round"][0].as_py(), rows["metric"].combine_chunks().unique()
        is_replaced = (pc.field("round") == round) & pc.field("metric").isin(metrics)
        count = sum(len(table.filter(is_replaced)) for table in self.tables())
        kept = (table.filter(~is_replaced) for table in self.tables())
        self._write_whole(chain(kept, [rows]), self.rows - count + len(rows))

    def _write_whole(self, tables: Iterable[pa.Table], rows: int) -> None:
        """Write all rows to the table's own file."""
        write_tables(self._path, self._schema, _merge(iter(tables)))
        remove_parts(self._path)
        self._files = [pa.OSFile(os.fsencode(self._path))]  # also after another run replaced it
        self._old_files = self._dropped_rows = 0
        self._own_rows = self._file_rows = rows
        self._buffer, self._buffer_rows = [], 0

    def _write_part(self) -> None:
        """Write the rows that are in no file to a separate one."""
        part = part_of(self._path, self._file_rows)
        with plain_errors(part):
            part.parent.mkdir(parents=True, exist_ok=True)
        write_table(part, pa.concat_tables(self._buffer).unify_dictionaries())
        self._files.append(part)
        self._file_rows += self._buffer_rows
        self._buffer, self._buffer_rows = [], 0


def _merge(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in larger tables."""
    buffer, rows = list[pa.Table](), 0
    for table in tables:
        buffer.append(table)
        rows += len(table)
        if rows >= _BUFFER:
            yield pa.concat_tables(buffer).unify_dictionaries()
            buffer, rows = [], 0
    if rows:
        yield pa.concat_tables(buffer).unify_dictionaries()


def rows_to_keep(table: pa.Table, round: int, again: Sequence[str] = LAST_ONLY) -> pa.Table:
    """The rows of metrics that a run which goes on after `round` keeps. again: the beginnings of metrics that it
    measures again."""
    table = table.filter(pc.less_equal(table["round"], round))
    return table.filter(pc.invert(_begins_with(table, again))) if again else table


def _begins_with(table: pa.Table, beginnings: Sequence[str]) -> pa.ChunkedArray:
    return pc.match_substring_regex(table["metric"], f"^({'|'.join(beginnings)})/")


class RunFiles:
    """Saves the state of a run.

    reached: the state after the last whole round, saved or not, without the clients' part.
    saved:   the round of the last checkpoint on disk.
    best:    the models of the best round so far, as in `Checkpoint.best`; a checkpoint of that round leaves them out.
    shelf, shelf_joint: the entries of summary.json; shelf is None as long as this session has not measured it.
    source:  digests of the loaded data (`datasets.contents`).
    """

    def __init__(
        self, directory: Path, built: Ready, metrics: Growing, start: Checkpoint, source: dict[str, str]
    ) -> None:
        self.directory, self.built, self._metrics, self.source = directory, built, metrics, source
        self._ledger = Growing(directory / LEDGER, SCHEMA)
        self._last_rows = 0  # rows of metrics.parquet that only the last round has
        self.reached, self.saved = start, start.round
        self.shelf: Record | None = None
        self.shelf_joint: Record = {}
        self.best = start.best or {"round": start.round, "state": start.state, "fed": start.fed}

    def reach(self, reached: Checkpoint) -> None:
        """Set `reached`, and keep the models of the round if no earlier one was better on validation."""
        self.reached = reached
        if reached.summary.get(f"{BEST}/round") == reached.round:
            fed = self.built.fed
            states = {} if self._state_has_models() or fed.graphs is None else read_whole(fed.stacked_snapshot())
            self.best = {"round": reached.round, "state": reached.state, "fed": states}

    def _state_has_models(self) -> bool:
        """Whether the server's state determines the models of all clients."""
        return self.built.algorithm.evaluated_model(self.reached.state) is not None

    def add(self, metrics: pa.Table | None, last: bool = False) -> None:
        """Add rows of metrics.parquet, which the next save makes last. last: whether they are of the last round."""
        if metrics is not None:
            self._metrics.add(metrics)
            if last:
                self._last_rows += pc.sum(_begins_with(metrics, LAST_ONLY)).as_py() or 0

    def replace(self, rows: pa.Table) -> None:
        """Put rows of an earlier round in the place of the rows of that round with their metrics."""
        self._metrics.replace(rows)

    @property
    def best_round(self) -> int | None:
        """The round that was best on validation examples, which is the run's result; None if there is none, or its
        models are only at the sites."""
        best_round = self.reached.summary.get(f"{BEST}/round")
        has_models = bool(self.best["fed"]) or self._state_has_models()
        is_here = best_round == self.reached.round or (best_round == self.best["round"] and has_models)
        return int(best_round) if best_round is not None and is_here else None

    @property
    def missed(self) -> dict[str, int]:
        """{client: number of rounds in which its reply was missing}, for clients where that is known."""
        rounds: dict[str, set[int]] = {}
        for table in self._metrics.tables():
            rows = table.filter(pc.field("metric") == "missing")
            for client, round in zip(rows["client"].to_pylist(), rows["round"].to_pylist(), strict=True):
                rounds.setdefault(client, set()).add(round)
        return {client: len(rounds[client]) for client in sorted(rounds)}

    @property
    def diverged_alone(self) -> list[str]:
        """The members whose model diverged when it trained alone (`runs.alone`)."""
        names = list[str]()
        for table in self._metrics.tables():
            names += table.filter(pc.field("metric") == DIVERGED_ALONE)["client"].to_pylist()
        return names

    @property
    def silent_alone(self) -> list[str]:
        """The sites that do not tell what they reach alone, where others do (`runs.run`)."""
        told = set[str]()
        for table in self._metrics.tables():
            is_alone = [pc.starts_with(pc.field("metric"), f"{kind}/") for kind in (SHELF, ALONE)]
            rows = table.filter((is_alone[0] | is_alone[1]) & (pc.field("client") != GLOBAL))
            told.update(rows["client"].to_pylist())
        return [client for client in self.built.fed.clients if told and client not in told]

    def save(self, clients: Sites | None = None, whole: bool = True) -> None:
        """Write what was reached: the tables first, the checkpoint that counts their rows last.

        clients: the clients' part of the checkpoint; by default as the federation is now. whole: see `Growing.save`;
        False while the run goes on.
        """
        ledger = self.built.fed.ledger
        self._metrics.save(whole)
        self._ledger.save(whole, ledger.since(self._ledger.rows))
        if ledger.rows > _LARGE:
            ledger.file(self._ledger.tables)
        # values for every two clients, float64 [N, N]: of the partition, and of the algorithm after this round
        pairs = {**self.built.fed.pairs, **self.built.algorithm.pairs(self.reached.state)}
        if pairs:
            write_arrays(self.directory / PAIRS, {name: matrix.cpu().numpy() for name, matrix in pairs.items()})
        fed, data = clients or (self.built.fed.stacked_snapshot(), self.built.fed.snapshot_data())
        is_earlier = self.best_round is not None and self.best_round != self.reached.round
        best = self.best if is_earlier else {}
        checkpoint = replace(self.reached, fed=fed, data=data, source=self.source, best=best)
        rows = self._metrics.rows - self._last_rows
        replace(checkpoint, metrics=rows, ledger=ledger.rows).save(self.directory / CHECKPOINT)
        self.saved = self.reached.round

    def save_if_failing(
        self, rounds: Iterator[RoundResult], before: Callable[[Engine], Sites | None]
    ) -> Iterator[RoundResult]:
        """Yield the `rounds`. If one fails, save the last whole one before the error goes on, unless it is saved or the
        clients cannot go back to it (`before`, see `run.RunBackend.before`)."""
        try:
            yield from rounds
        except Exception:
            clients = before(self.built.fed)
            if clients is not None and self.reached.round > self.saved:
                self.save(clients)
            raise

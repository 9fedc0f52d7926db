"""The state that a run continues from, in one file."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from fedweave.core.algorithm import Algorithm, Engine
from fedweave.core.tree import Leaf, Tree, decode, encode, has_its_digest, leaves, map_leaves, nest, with_digest
from fedweave.core.types import Kind, Record
from fedweave.errors import ReplyRefused, UserError
from fedweave.experiment.rounds import RoundResult
from fedweave.experiment.runs.files import (
    CHECKPOINT,
    LEDGER,
    METRICS,
    PAIRS,
    SUMMARY,
    damaged,
    part_of,
    read,
    read_summary,
    remove_parts,
    write,
    write_arrays,
    write_table,
)
from fedweave.metrics.selection import BEST
from fedweave.ops.touched import Sparsified, TouchedRows, materialize

When = Literal["last", "best"]  # the round that models are from


@dataclass(frozen=True)
class Checkpoint:
    """The state that a run continues from.

    seconds: of training, evaluation and writing so far, over all sessions. metrics, ledger: rows of the two tables that
    belong to it. summary: of the last evaluation. state: the server's. fed: the clients' (`snapshot`). data: the
    changes to their data (`snapshot_data`); empty as long as it is as loaded. source: digests of the loaded data
    (`datasets.features`); empty where sites hold it. best: the "round" that was best on validation examples, with its
    "state" and, where the state does not determine all models, its "fed"; empty where it is this round, or there is
    none.
    """

    round: int = 0
    seconds: float = 0.0
    metrics: int = 0
    ledger: int = 0
    summary: dict[str, float] = field(default_factory=dict)
    state: Tree = field(default_factory=dict)
    fed: Tree = field(default_factory=dict)
    data: Tree = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    best: Tree = field(default_factory=dict)

    def at(self, when: When) -> "Checkpoint":
        """This checkpoint with the models of the last round, or of the best one.

        Raises:
            UserError: there is none, or its models are not kept.
        """
        number = self.summary.get(f"{BEST}/round")
        if when == "last" or number == self.round:
            return self
        if number is None or self.best.get("round") != number:
            why = (
                "no round was evaluated on validation examples"
                if number is None
                else "the run keeps none of that round"
            )
            raise UserError(f"--round best: {why}. Take the last round's models (--round last).")
        return replace(self, state=self.best.get("state", {}), fed=self.best.get("fed", {}))

    def save(self, path: Path) -> None:
        """Write the one file, with a digest of its content; no leaf is sparse, so that a small file is small in memory.

        `encode` keeps neither the order of keys nor empty subtrees, so the structure is noted too: sums over leaves
        must run in the same order after resuming.
        """
        best = {**self.best, "fed": stacked(self.best["fed"])} if "fed" in self.best else self.best
        fields = {**self.__dict__, "summary": nest(self.summary), "fed": stacked(self.fed), "best": best}
        tree = map_leaves(lambda leaf: leaf, fields)
        tree["structure"] = json.dumps(_structure(tree))
        blob = with_digest(encode(tree))
        write(path, lambda file: file.write(blob))

    @classmethod
    def of_run(cls, directory: Path) -> "Checkpoint":
        """The checkpoint of the finished run in `directory`, if it is that run's and not another's put in its place.

        Raises:
            UserError: it ended at another round or took another time than summary.json says. FedweaveError: a file is
                damaged.
        """
        reached, summary = cls.load(directory / CHECKPOINT), read_summary(directory / SUMMARY, "seconds")
        if (reached.round, reached.seconds) != (summary["rounds"], summary["seconds"]):
            raise UserError(
                f"{directory / CHECKPOINT} is of another run than {directory / SUMMARY}: it ends after round "
                f"{reached.round} and {reached.seconds:.3f} s, and the summary after round {summary['rounds']} and "
                f"{summary['seconds']:.3f} s. Bring the run's own file back, or run it again.",
                code="run.other-checkpoint",
            )
        return reached

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        """Read what `save` wrote.

        Raises:
            FedweaveError: the file is damaged.
        """
        blob = read(path)
        try:
            tree = decode(blob, filled=0)
            if "digest" in tree:  # of 0.7 and before
                matches = tree.pop("digest") == hashlib.sha256(encode(tree)).hexdigest()
            else:
                matches = has_its_digest(blob)
            if not matches:
                raise ReplyRefused("its content does not match its digest")
            tree = _arranged(json.loads(tree["structure"]), tree)
            tree.setdefault("best", {})  # versions before had none
            _check_kinds(tree)
            for target in (tree, tree["best"]):
                target |= {"fed": apart(target["fed"])} if "fed" in target else {}
            return cls(**{**tree, "summary": dict(leaves(tree["summary"]))})
        except (ReplyRefused, TypeError, LookupError, ValueError, AttributeError, RecursionError) as error:
            raise damaged(path, str(error)) from error


def _check_kinds(tree: Tree) -> None:
    """Raise TypeError unless every entry is of its default's kind: a digest does not tell who wrote it."""
    for entry in fields(Checkpoint):
        kind = dict if entry.default is MISSING else type(entry.default)
        if not isinstance(tree[entry.name], (int, float) if kind is float else kind):
            raise TypeError(f"{entry.name} is {str(tree[entry.name])[:40]}")


_FEW = 64  # clients; the states of fewer are stored one by one


def stacked(states: Tree) -> Tree:
    """{client: its state}; states of the same form are stacked if there are many clients, because writing each leaf of
    each client by itself takes a second for a thousand clients. `apart` reverses it."""
    if len(states) < _FEW:
        return states
    kinds: dict[object, list[str]] = {}
    for client, state in states.items():
        kinds.setdefault(tuple((path, _form(leaf)) for path, leaf in leaves(state)), []).append(client)
    groups = {}
    for number, clients in enumerate(kinds.values()):
        flats = [dict(leaves(states[client])) for client in clients]
        rows = nest({path: _stack([flat[path] for flat in flats]) for path in flats[0]})
        groups[str(number)] = {"clients": json.dumps(clients), "rows": rows}
    return {"order": json.dumps([*states]), "alike": groups}


def apart(states: Tree) -> Tree:
    """{client: its state}, which `stacked` may have put together."""
    if not isinstance(states.get("order"), str):  # a client of that name has a tree
        return states
    result: Tree = {}
    for group in states["alike"].values():
        clients, flat = json.loads(group["clients"]), dict(leaves(group["rows"]))
        columns = [leaf.unbind() if isinstance(leaf, Tensor) else [leaf] * len(clients) for leaf in flat.values()]
        for client, *row in zip(clients, *columns, strict=True):
            result[client] = nest(dict(zip(flat, row, strict=True)))
    return {client: result[client] for client in json.loads(states["order"])}


def _form(leaf: Leaf) -> object:
    if isinstance(leaf, Tensor | TouchedRows | Sparsified):
        return leaf.shape, leaf.dtype
    return type(leaf), leaf


def _stack(of_clients: list[Any]) -> Any:
    whole = [materialize(leaf) for leaf in of_clients]
    return torch.stack(whole) if isinstance(whole[0], Tensor) else whole[0]


def _structure(tree: Tree) -> Record:
    return {key: _structure(value) if isinstance(value, dict) else None for key, value in tree.items()}


def _arranged(structure: Record, tree: Tree) -> Tree:
    """`tree` with its keys in the order of `structure`, empty subtrees included."""
    return {k: tree[k] if below is None else _arranged(below, tree.get(k, {})) for k, below in structure.items()}


# ----------------------------------------------------------------------------------------------------
# What a run has reached, written to its directory.


Sites = tuple[Tree, Tree]  # what a checkpoint keeps of a federation: its clients' states, and their data


class Described(Protocol):
    """The facts of a run's data that its summary has (see `datasets.base.Dataset`)."""

    @property
    def name(self) -> str:
        """The name in reports."""
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
    def outputs(self) -> int:
        """How many numbers a model gives for each example."""
        ...

    @property
    def edge_form(self) -> dict[str, int | bool]:
        """The form of edge attributes that models are fitted to."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes; () where they are numbers."""
        ...

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups of people; () where they are numbers."""
        ...

    @property
    def target(self) -> Kind:
        """What is predicted (`core.target`)."""
        ...

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of predicted numbers or of several labels."""
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
        """A note on data that could not be compared; "" for none."""
        ...


_LARGE = 1 << 18  # rows; to write fewer takes a fraction of a second


class Growing:
    """A table of a run's folder that grows. New rows of a large table go to separate files (`files.PARTS`) until they
    reach the number of rows in the table itself. So each row is written only a few times, however often a run is
    saved."""

    def __init__(self, path: Path) -> None:
        self._path, self._whole, self._rows = path, 0, 0  # rows in the table's own file, and in all its files

    def save(self, rows: int, since: Callable[[int], pa.Table], whole: bool) -> None:
        """Write the first `rows` rows; since: the rows from a number on. whole: put all into the one file."""
        if whole or rows <= _LARGE or not self._whole <= rows < 2 * self._whole:
            write_table(self._path, since(0))
            remove_parts(self._path)
            self._whole = rows
        elif rows > self._rows:
            write_table(part_of(self._path, self._rows), since(self._rows))
        self._rows = rows


class RunFiles:
    """Saves the state of a run.

    reached: after the last whole round, saved or not. saved: the round of the last checkpoint. best: the models of the
    best round, which a checkpoint of the same round does not repeat.
    """

    def __init__(
        self, directory: Path, built: Ready, metrics: pa.Table, start: Checkpoint, source: dict[str, str]
    ) -> None:
        self.directory, self.built, self._metrics, self._source = directory, built, [metrics], source
        self._tables = [Growing(directory / name) for name in (METRICS, LEDGER)]
        self.reached, self.saved = start, start.round
        self.best = start.best or {"round": start.round, "state": start.state, "fed": start.fed}

    def reach(self, reached: Checkpoint) -> None:
        """Set `reached`, and keep the models of the round if no earlier one was better on validation."""
        self.reached = reached
        if reached.summary.get(f"{BEST}/round") == reached.round:
            snapshot = {} if self._of_state() or self.built.fed.graphs is None else self.built.fed.snapshot()
            copied = map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, snapshot)
            self.best = {"round": reached.round, "state": reached.state, "fed": copied}

    def _of_state(self) -> bool:
        """Whether the server's state determines the models of all clients."""
        return self.built.algorithm.judged_model(self.reached.state) is not None

    def add(self, metrics: pa.Table | None) -> None:
        """Keep rows of metrics.parquet for the next save."""
        if metrics is not None:
            self._metrics.append(metrics)

    @property
    def missed(self) -> dict[str, int]:
        """{client: rounds in which its reply was missing}, for clients where that is known."""
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
        checkpoint = replace(self.reached, fed=fed, data=data, source=self._source, best=best)
        replace(checkpoint, metrics=len(metrics), ledger=ledger.rows).save(self.directory / CHECKPOINT)
        self.saved = self.reached.round

    def _keeps_best(self) -> bool:
        """Whether `best` is of the best round and has all its models."""
        is_best = self.reached.summary.get(f"{BEST}/round") == self.best["round"]
        return is_best and (bool(self.best["fed"]) or self._of_state())

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
    """Matrices over pairs of clients, of the partition and, after the round of `state`, the algorithm: {name: float64
    [N, N]}, in client order."""
    matrices = {**built.fed.pairs, **built.algorithm.pairs(state)}
    return {name: matrix.cpu().numpy() for name, matrix in matrices.items()}

"""Training that begins from an earlier run: its weights, fitted to new columns and classes, and its ledgers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from fedweave.algorithms.deployment import deployable
from fedweave.algorithms.fedavg import FedAvg
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.algorithm import Algorithm, Engine
from fedweave.core.model import Model, feature_rows
from fedweave.core.stacked import unstack_states
from fedweave.core.tree import Tree, leaves, nest, not_finite
from fedweave.datasets import contents
from fedweave.datasets.base import Dataset
from fedweave.engines.engine import LocalEngine
from fedweave.errors import UserError, listed
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.data_form import read_form
from fedweave.experiment.runs.files import EARLIER_LEDGER, LEDGER, PARTITION, SUMMARY, read_summary, read_table
from fedweave.experiment.runs.saving import Described
from fedweave.experiment.runs.trained import saved_round

RUN = "run"  # the column of `EARLIER_LEDGER` that counts runs, 0 the first


@dataclass(frozen=True)
class Earlier:
    """The weights of an earlier run to begin from.

    weights: the global model by path or, with a row for each of its `members`, the models of all members. features,
    classes: how many. columns, labels: their names; () without.
    """

    directory: Path
    weights: Mapping[str, Tensor]
    members: tuple[str, ...]
    features: int
    classes: int
    columns: Sequence[str]
    labels: Sequence[str]

    @classmethod
    def read(cls, directory: Path) -> "Earlier":
        """Read the finished run in `directory`.

        Raises:
            UserError: it is not a finished run's, its server keeps no weights, or a weight is not finite.
            FedweaveError: a file is damaged.
        """
        state = _finished_checkpoint(directory).state
        weights = state.get("w") or state.get("own")
        if not isinstance(weights, dict):
            message = f"the server of {directory} keeps no weights of a model"
            _refuse("algorithm", message, "Begin from a run of FedAvg or one of its family.")
        members = () if "w" in state else tuple(read_table(directory, PARTITION)["client"].to_pylist())
        return cls._of_run(directory, weights, members)

    @classmethod
    def of_members(cls, directory: Path) -> "dict[str, Earlier]":
        """{member: the weights of its local model} of a run whose server has no model.

        Raises:
            UserError: the run is not finished, or no member kept a model. FedweaveError: a file is damaged.
        """
        checkpoint = _finished_checkpoint(directory)
        weights = {}
        if not (checkpoint.state.get("w") or checkpoint.state.get("own")):
            states = unstack_states(checkpoint.fed)
            weights = {member: state["w"] for member, state in states.items() if "w" in state}
        if not weights:
            message = f"no member of {directory} kept a model that the server does not have"
            _refuse("algorithm", message, "Begin from a run of the same algorithm.")
        return {member: cls._of_run(directory, w, ()) for member, w in weights.items()}

    @classmethod
    def _of_run(cls, directory: Path, w: Tree, members: tuple[str, ...]) -> "Earlier":
        form, summary = read_form(directory), read_summary(directory / SUMMARY, "algorithm")
        path = not_finite(w)
        if path:
            message = f"the weights {path} of {directory} are not finite"
            _refuse("weights", message, "Its training diverged, or its file was changed. Begin from another run.")
        return cls(
            directory=directory,
            weights={path: leaf for path, leaf in leaves(w) if isinstance(leaf, Tensor)},
            members=members,
            features=int(summary["features"]),
            classes=int(summary["class_count"]),
            columns=form.columns if form else (),
            labels=form.labels if form else tuple(summary.get("classes", ())),
        )


def _finished_checkpoint(directory: Path) -> Checkpoint:
    if not (directory / SUMMARY).is_file():
        _refuse("run", f"{directory} holds no finished run", "Give the folder of one, and finish it first.")
    return Checkpoint.of_run(directory).at(saved_round(directory, "chosen"))


@dataclass(frozen=True)
class Fitting:
    """Replaces fresh weights by weights of an earlier run (`core.federation.Federation.initial`).

    rows, classes: (their places now, their places before) of the input features and of the classes that both runs have;
    None where these are the same. by_feature: paths of weights with a row for each feature.
    """

    earlier: Earlier
    rows: tuple[list[int], list[int]] | None
    classes: tuple[list[int], list[int]] | None
    by_feature: frozenset[str]

    def __call__(self, fresh: Tree, clients: Sequence[str] = ()) -> Tree:
        """`fresh` with the weights that it shares with the earlier run.

        clients: the clients whose models are the rows of `fresh`; () for a global model. A new client begins from the
        mean of the others.

        Raises:
            UserError: the earlier run is of another model.
        """
        last = max((int(path.partition("/")[0]) for path, _ in leaves(fresh)), default=0)
        result = {}
        for path, leaf in leaves(fresh):
            if clients:
                rows = []
                for client, row in zip(clients, leaf, strict=True):
                    rows.append(self._fit(path, self._earlier_weight(path, client), row, last))
                result[path] = torch.stack(rows)  # [clients, …]
            else:
                result[path] = self._fit(path, self._earlier_weight(path, ""), leaf, last)
        return nest(result)

    def _earlier_weight(self, path: str, client: str) -> Tensor:
        """An earlier weight, of a client where each had its own."""
        if path not in self.earlier.weights:
            self._refuse_model(path, "is absent there")
        weight, members = self.earlier.weights[path], self.earlier.members
        if not members:
            return weight
        return weight[members.index(client)] if client in members else weight.mean(0)

    def _fit(self, path: str, old: Tensor, new: Tensor, last: int) -> Tensor:
        old = old.to(new)
        layer = int(path.partition("/")[0])
        rows = self.rows if layer == 0 else None
        classes = self.classes if layer == last else None
        if rows is not None and path in self.by_feature:
            old = _move_entries(old, new, rows, 0)
        elif rows is not None and old.shape[:1] == (self.earlier.features,):
            problem = f"{path} mixes features, and these have changed"
            _refuse("features", problem, "Take the features of the earlier run.")
        if classes is not None and old.ndim and old.shape[-1] == self.earlier.classes:
            old = _move_entries(old, new, classes, -1)
        if old.shape != new.shape:
            self._refuse_model(path, f"is {list(old.shape)} there and {list(new.shape)} here")
        return old.clone()

    def _refuse_model(self, path: str, problem: str) -> NoReturn:
        remedy = "Take the same [model], and an algorithm that shares the same weights."
        _refuse("model", f"{self.earlier.directory} has another model: {path} {problem}", remedy)


def _move_entries(old: Tensor, new: Tensor, places: tuple[list[int], list[int]], dim: int) -> Tensor:
    """`old` with the length of `new` along `dim`: old entries at `places`. Elsewhere are the fresh entries, where the
    other dimensions agree, or zeros."""
    now, before = (torch.tensor(indices, dtype=torch.int64, device=old.device) for indices in places)
    shape = list(old.shape)
    shape[dim] = new.shape[dim]
    out = new.clone() if list(new.shape) == shape else old.new_zeros(shape)
    return out.index_copy(dim, now, old.index_select(dim, before))


def fitting(earlier: Earlier, algorithm: Algorithm, data: Described) -> tuple[Fitting, list[str]]:
    """How to put the earlier weights into the model of `algorithm` on `data`, and notes on the differences.

    data: a dataset, or the description that sites sent of theirs.

    Raises:
        UserError: the algorithm does not train from weights of its server's, or features or classes cannot be matched.
    """
    if not isinstance(algorithm, FedAvg) or not algorithm.share or algorithm.composed.owner("receive"):
        message = f"{type(algorithm).__name__} has no weights at the server that members train from"
        _refuse("algorithm", message, "Take FedAvg or one of its family.")
    fit, notes = _fit_model(earlier, algorithm.trained, data)
    if algorithm.share != ("*",):
        notes.append("layers that members do not share start from scratch")
    return fit, notes


def _fit_model(earlier: Earlier, model: Model, data: Described) -> tuple[Fitting, list[str]]:
    """How to put the earlier weights into a model on `data`, and notes on columns and classes."""
    columns = contents.names(data) if isinstance(data, Dataset) else ()
    if all(map(contents.is_default_name, columns)):
        columns = ()
    rows, notes = _match("features", (earlier.features, earlier.columns), (data.features, columns))
    classes, class_notes = _match("classes", (earlier.classes, earlier.labels), (data.classes, data.labels))
    return Fitting(earlier, rows, classes, feature_rows(model)), [*notes, *class_notes]


def _match(
    what: str, before: tuple[int, Sequence[str]], now: tuple[int, Sequence[str]]
) -> tuple[tuple[list[int], list[int]] | None, list[str]]:
    """(places now, places before) of the names that both have, None if these are all, and notes on the rest."""
    (old_count, old_names), (new_count, new_names) = before, now
    if not (old_names and new_names):
        if old_count == new_count:
            return None, []
        problem = f"the earlier run has {old_count} {what}, this one {new_count}, and they have no names"
        _refuse(what, problem, f"Name them, so that each can be matched, or take {old_count} again.")
    if tuple(old_names) == tuple(new_names):
        return None, []
    old_places = {name: place for place, name in enumerate(old_names)}
    places_now, places_before, fresh = list[int](), list[int](), list[str]()
    for place, name in enumerate(new_names):
        if name in old_places:
            places_now.append(place)
            places_before.append(old_places[name])
        else:
            fresh.append(name)
    if not places_now:
        problem = f"none of the {what} is one of the earlier run's"
        _refuse(what, problem, "Start from scratch, or use the earlier names.")
    notes = []
    if fresh:
        notes.append(f"{what} that are new begin with fresh weights: {listed(fresh)}")
    gone = [name for name in old_names if name not in new_names]
    if gone:
        notes.append(f"{what} of the earlier run that are gone: {listed(gone)}")
    return (places_now, places_before), notes


def begin(
    fed: Engine,
    algorithm: Algorithm,
    data: Described,
    directory: Path,
    member_algorithms: Mapping[str, Algorithm] | None = None,
) -> "WarmStart":
    """Begin `algorithm` on `fed` from the run in `directory`; returns what to record about that.

    member_algorithms: {member: the algorithm with its own model}, of those that have one.

    Raises:
        UserError: it cannot; see `fitting`, `Earlier.read` and `Earlier.of_members`.
    """
    if algorithm.any_models and isinstance(fed, LocalEngine):
        notes = _begin_from_local_models(fed, algorithm, data, directory, member_algorithms or {})
        return WarmStart(tuple(notes), _ledgers(directory))
    earlier = Earlier.read(directory)
    fed.initial, notes = fitting(earlier, algorithm, data)
    new = [name for name in fed.clients if name not in earlier.members] if earlier.members else []
    if new:
        notes.append(f"members that are new begin from the mean of the others: {listed(new)}")
    return WarmStart(tuple(notes), _ledgers(directory))


def _begin_from_local_models(
    fed: LocalEngine,
    algorithm: Algorithm,
    data: Described,
    directory: Path,
    member_algorithms: Mapping[str, Algorithm],
) -> list[str]:
    """Give every member the model that it kept of the run in `directory`; returns notes."""
    earlier, states, new = Earlier.of_members(directory), Tree(), list[str]()
    notes = dict[str, None]()  # once each, in order
    for client in fed.clients:
        if client not in earlier:
            new.append(client)
            continue
        net = deployable(member_algorithms.get(client, algorithm)).net
        fit, client_notes = _fit_model(earlier[client], net, data)
        states[client] = {"w": fit(models.init(net, random.key(0), fed.dtype))}
        notes |= dict.fromkeys(client_notes)
    fed.restore(states)
    if new:
        notes[f"new members start from scratch: {listed(new)}"] = None
    return list(notes)


@dataclass(frozen=True)
class WarmStart:
    """Notes on the start of a run, and the ledger of mechanisms in all runs before it."""

    notes: tuple[str, ...] = ()
    ledger: pa.Table | None = field(default=None, repr=False)


def _ledgers(directory: Path) -> pa.Table | None:
    """The rows of the earlier run's ledger, and of those before it, that state a mechanism; None without any."""
    tables = []
    for run, table in enumerate((*earlier_ledgers(directory), read_table(directory, LEDGER))):
        rows = table.filter(pc.is_valid(table["applied"]))
        tables.append(rows.append_column(RUN, pa.array([run] * len(rows), pa.int32())))
    result = pa.concat_tables(tables, promote_options="default")
    return result if len(result) else None


def earlier_ledgers(directory: Path) -> list[pa.Table]:
    """The messages under a mechanism in each run that the run in `directory` began from, the first one first."""
    if not (directory / EARLIER_LEDGER).exists():
        return []
    table = read_table(directory, EARLIER_LEDGER)
    runs = sorted(pc.unique(table[RUN]).to_pylist())
    return [table.filter(pc.field(RUN) == run).drop_columns([RUN]) for run in runs]


def _refuse(what: str, problem: str, remedy: str) -> NoReturn:
    raise UserError(f"init_from: {problem}. {remedy}", code=f"init.{what}")

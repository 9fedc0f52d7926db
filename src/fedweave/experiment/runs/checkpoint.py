"""The state that a run continues from, in one file."""

import json
from dataclasses import MISSING, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedweave.core.tree import Leaf, Tree, decode, encode, has_its_digest, leaves, map_leaves, nest, with_digest
from fedweave.core.types import Record
from fedweave.errors import ReplyRefused, UserError
from fedweave.experiment.runs.files import CHECKPOINT, SUMMARY, damage_error, read, read_summary, write
from fedweave.metrics.selection import BEST
from fedweave.ops.sparsified import Sparsified
from fedweave.ops.touched_rows import TouchedRows, materialize

FORMAT = 1  # of the file; a change that this code would misread raises it
SavedRound = Literal["last", "best"]  # a round whose models a checkpoint has
# The round that models are from; "chosen": the round that is the run's result, which is "best" where validation stops
# the run ([evaluation] patience), and "last" without.
When = Literal["chosen", "last", "best"]


@dataclass(frozen=True)
class Checkpoint:
    """The state that a run continues from.

    round:   the last whole round.
    seconds: time of training, evaluation and writing so far, over all sessions.
    metrics: number of rows of metrics.parquet up to its round, without metrics that only the last round has.
    ledger:  number of rows of the ledger that belong to it.
    summary: summary of the last evaluation.
    state:   the server's state.
    fed:     the clients' states (`snapshot`).
    data:    the changes to the clients' data (`snapshot_data`); empty as long as it is as loaded.
    source:  digests of the loaded data (`datasets.contents`); empty where sites hold it.
    best:    the models of the round that was best on validation examples: "round", "state" and, where the state does
             not determine all models, "fed"; empty if that is this round, or if there is none.
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

    def at(self, when: SavedRound) -> "Checkpoint":
        """This checkpoint with the models of the last round, or of the best one.

        Raises:
            UserError: no round is best, or the run has not kept its models.
        """
        number = self.summary.get(f"{BEST}/round")
        if when == "last" or number == self.round:
            return self
        if number is None or self.best.get("round") != number:
            why = "no round was evaluated on validation examples"
            if number is not None:
                why = "the run keeps no models of that round"
            raise UserError(f"--round best: {why}. Take the last round's models (--round last).")
        return replace(self, state=self.best.get("state", {}), fed=self.best.get("fed", {}))

    def save(self, path: Path) -> None:
        """Write the one file, with a digest of its content; no leaf is sparse, so that a small file is small in memory.

        `encode` keeps neither the order of keys nor empty subtrees, so the file has the tree's structure too: sums over
        leaves must run in the same order after resuming.
        """
        best = {**self.best, "fed": _stack_clients(self.best["fed"])} if "fed" in self.best else self.best
        entries = {**self.__dict__, "summary": nest(self.summary), "fed": _stack_clients(self.fed), "best": best}
        tree = map_leaves(lambda leaf: leaf, entries)  # a copy, to which "structure" is added
        tree |= {"structure": json.dumps(_structure(tree)), "format": FORMAT, "release": version("fedweave")}
        blob = with_digest(encode(tree))
        write(path, lambda file: file.write(blob))

    @classmethod
    def of_run(cls, directory: Path) -> "Checkpoint":
        """The checkpoint of the finished run in `directory`.

        Raises:
            UserError: it is another run's, by its round and its seconds, which summary.json has too. FedweaveError: a
                file is damaged.
        """
        checkpoint, summary = cls.load(directory / CHECKPOINT), read_summary(directory / SUMMARY, "seconds")
        if (checkpoint.round, checkpoint.seconds) != (summary["rounds"], summary["seconds"]):
            raise UserError(
                f"{directory / CHECKPOINT} belongs to another run than {directory / SUMMARY}: it ends after round "
                f"{checkpoint.round} and {checkpoint.seconds:.3f} s, and the summary after round {summary['rounds']} "
                f"and {summary['seconds']:.3f} s. Bring the run's own file back, or run it again.",
                code="run.other-checkpoint",
            )
        return checkpoint

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        """Read what `save` wrote.

        Raises:
            FedweaveError: the file is damaged. UserError: it is of another format than this version reads.
        """
        blob = read(path)
        try:
            tree = decode(blob, filled=0)
            if not has_its_digest(blob):
                raise ReplyRefused("its content does not match its digest")
            if tree.get("format") != FORMAT:
                release = tree.get("release", "an earlier version")
                raise UserError(
                    f"{path} is of format {tree.get('format', 'none')}, by fedweave {release}; this one, "
                    f"{version('fedweave')}, reads format {FORMAT}. Run the experiment again, or take that version.",
                    code="run.format",
                )
            tree = _reorder(json.loads(tree["structure"]), tree)
            for entry in fields(Checkpoint):  # a digest does not tell who wrote the file
                kind = dict if entry.default is MISSING else type(entry.default)  # entries without a default are trees
                if not isinstance(tree[entry.name], (int, float) if kind is float else kind):
                    raise TypeError(f"{entry.name} is {str(tree[entry.name])[:40]}")
            for models in (tree, tree["best"]):
                if "fed" in models:
                    models["fed"] = _unstack_clients(models["fed"])
            return cls(**{**tree, "summary": dict(leaves(tree["summary"]))})
        except (ReplyRefused, TypeError, LookupError, ValueError, AttributeError, RecursionError) as error:
            raise damage_error(path, str(error)) from error


_MANY = 64  # number of clients from which on their states are stacked


def _stack_clients(states: Tree) -> Tree:
    """{client: its state} as it is written. For many clients it is {"order": all clients, "alike": {number: {"clients":
    clients whose states have one form, "rows": their states as one tree with leaves [clients, …]}}}, because writing
    each leaf of each client separately takes a second for a thousand clients. `_unstack_clients` reverses it."""
    if len(states) < _MANY:
        return states
    by_form: dict[object, list[str]] = {}
    for client, state in states.items():
        form = tuple((path, _form(leaf)) for path, leaf in leaves(state))
        by_form.setdefault(form, []).append(client)
    groups = {}
    for number, clients in enumerate(by_form.values()):
        client_leaves = [dict(leaves(states[client])) for client in clients]
        rows = {}
        for path in client_leaves[0]:
            rows[path] = _stack([row[path] for row in client_leaves])  # [clients, …]
        groups[str(number)] = {"clients": json.dumps(clients), "rows": nest(rows)}
    return {"order": json.dumps([*states]), "alike": groups}


def _form(leaf: Leaf) -> object:
    """What leaves that are stacked have in common: shape and dtype, or the value itself if it is no tensor."""
    if isinstance(leaf, Tensor | TouchedRows | Sparsified):
        return leaf.shape, leaf.dtype
    return type(leaf), leaf


def _stack(client_leaves: list[Any]) -> Any:
    dense = [materialize(leaf) for leaf in client_leaves]
    return torch.stack(dense) if isinstance(dense[0], Tensor) else dense[0]


def _unstack_clients(states: Tree) -> Tree:
    """{client: its state}, from states that `_stack_clients` may have put together."""
    if not isinstance(states.get("order"), str):  # not stacked; the state of a client named "order" is a tree
        return states
    result: Tree = {}
    for group in states["alike"].values():
        clients, stacks = json.loads(group["clients"]), dict(leaves(group["rows"]))
        columns = [leaf.unbind() if isinstance(leaf, Tensor) else [leaf] * len(clients) for leaf in stacks.values()]
        for client, *row in zip(clients, *columns, strict=True):
            result[client] = nest(dict(zip(stacks, row, strict=True)))
    return {client: result[client] for client in json.loads(states["order"])}


def _structure(tree: Tree) -> Record:
    """The keys of `tree` in order, as JSON can have them: {key: the keys below it, or None for a leaf}."""
    return {key: _structure(value) if isinstance(value, dict) else None for key, value in tree.items()}


def _reorder(structure: Record, tree: Tree) -> Tree:
    """`tree` with its keys in the order of `structure`, empty subtrees included."""
    result: Tree = {}
    for key, below in structure.items():
        result[key] = tree[key] if below is None else _reorder(below, tree.get(key, {}))
    return result

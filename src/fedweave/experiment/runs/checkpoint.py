"""What a run continues from, in one file."""

import hashlib
import json
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedweave.core.records import Record
from fedweave.core.tree import Leaf, Tree, decode, encode, leaves, map_leaves, nest
from fedweave.errors import ReplyRefused, UserError
from fedweave.experiment.runs.files import damaged, read, write
from fedweave.metrics.judging import BEST
from fedweave.ops.sparsified import Sparsified
from fedweave.ops.touched import TouchedRows, materialize

When = Literal["last", "best"]  # of which round models are


@dataclass(frozen=True)
class Checkpoint:
    """All that a run continues from.

    seconds: of training, evaluation and writing so far, over all sessions. metrics, ledger: rows of the two tables that
    belong to it. summary: of the last evaluation. state: the server's. fed: the clients' (`snapshot`). data: what
    became of their data (`snapshot_data`); empty as long as it is as loaded. source: digests of what was loaded
    (`datasets.contents`); empty where sites hold it. best: the "round" that was best on validation examples, with its
    "state" and, where models are not of that alone, its "fed"; empty where it is this one, or there is none.
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
        """The same with the models of the last round, or of the best one.

        Raises:
            UserError: there is none, or its models are not kept.
        """
        number = self.summary.get(f"{BEST}/round")
        if when == "last" or number == self.round:
            return self
        if number is None or self.best.get("round") != number:
            why = "no round was judged on validation examples" if number is None else "the run keeps none of that round"
            raise UserError(f"--round best: {why}. Take the last round's models (--round last).")
        return replace(self, state=self.best.get("state", {}), fed=self.best.get("fed", {}))

    def save(self, path: Path) -> None:
        """Write the one file, with a digest of its content; no leaf is sparse, so that a small file is small in memory.

        `encode` keeps neither the order of keys nor empty subtrees, so the structure is noted too: sums over leaves
        must run in the same order after resuming.
        """
        best = {**self.best, "fed": stacked(self.best["fed"])} if "fed" in self.best else self.best
        given = {**self.__dict__, "summary": nest(self.summary), "fed": stacked(self.fed), "best": best}
        tree = map_leaves(lambda leaf: leaf, given)
        tree["structure"] = json.dumps(_structure(tree))
        tree["digest"] = hashlib.sha256(encode(tree)).hexdigest()
        blob = encode(tree)
        write(path, lambda file: file.write(blob))

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        """Read what `save` wrote.

        Raises:
            FedweaveError: the file is damaged.
        """
        blob = read(path)
        try:
            tree = decode(blob, filled=0)
            if tree.pop("digest", None) != hashlib.sha256(encode(tree)).hexdigest():
                raise ReplyRefused("its content does not match its digest")
            tree = _arranged(json.loads(tree["structure"]), tree)
            tree.setdefault("best", {})  # versions before had none
            _check_kinds(tree)
            for own in (tree, tree["best"]):
                own |= {"fed": apart(own["fed"])} if "fed" in own else {}
            return cls(**{**tree, "summary": dict(leaves(tree["summary"]))})
        except (ReplyRefused, TypeError, LookupError, ValueError, AttributeError, RecursionError) as error:
            raise damaged(path, str(error)) from error


def _check_kinds(tree: Tree) -> None:
    """Raise TypeError unless every entry is of its default's kind: a digest does not tell who wrote it."""
    for entry in fields(Checkpoint):
        kind = dict if entry.default is MISSING else type(entry.default)
        if not isinstance(tree[entry.name], (int, float) if kind is float else kind):
            raise TypeError(f"{entry.name} is {str(tree[entry.name])[:40]}")


_FEW = 64  # clients, whose states are kept one by one


def stacked(states: Tree) -> Tree:
    """{client: its state}, of many clients those of one form together: to write each leaf of each by itself takes a
    second for every thousand. Undone by `apart`."""
    if len(states) < _FEW:
        return states
    kinds: dict[object, list[str]] = {}
    for client, state in states.items():
        kinds.setdefault(tuple((path, _form(leaf)) for path, leaf in leaves(state)), []).append(client)
    found = {}
    for number, clients in enumerate(kinds.values()):
        flats = [dict(leaves(states[client])) for client in clients]
        rows = nest({path: _stack([flat[path] for flat in flats]) for path in flats[0]})
        found[str(number)] = {"clients": json.dumps(clients), "rows": rows}
    return {"order": json.dumps([*states]), "alike": found}


def apart(states: Tree) -> Tree:
    """{client: its state}, which `stacked` may have put together."""
    if not isinstance(states.get("order"), str):  # a client of that name has a tree
        return states
    found: Tree = {}
    for own in states["alike"].values():
        clients, flat = json.loads(own["clients"]), dict(leaves(own["rows"]))
        columns = [leaf.unbind() if isinstance(leaf, Tensor) else [leaf] * len(clients) for leaf in flat.values()]
        for client, *row in zip(clients, *columns, strict=True):
            found[client] = nest(dict(zip(flat, row, strict=True)))
    return {client: found[client] for client in json.loads(states["order"])}


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

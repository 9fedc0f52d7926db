"""The state that a run continues from, in one file."""

import json
from dataclasses import MISSING, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from fedweave.core.stacked import check_states, stack_states, write_tree
from fedweave.core.tree import Tree, decode, has_its_digest, leaves, map_leaves, nest
from fedweave.core.types import Record
from fedweave.errors import ReplyRefused, UserError, option
from fedweave.experiment.runs.files import CHECKPOINT, SUMMARY, damage_error, read, read_summary, write
from fedweave.metrics.selection import BEST

FORMAT = 1  # of the file; a change that this code would misread raises it
SavedRound = Literal["last", "best"]  # a round whose models a checkpoint has
# The round that models are from; "chosen": the round that is the run's result, which is "best" if `chosen_round` is in
# its summary, else "last".
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
    fed:     the clients' states (`snapshot`); of many as stacked states (`core.stacked`).
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

    @property
    def best_round(self) -> int | None:
        """The round that was best on validation examples; None if there is none, or its models are not here."""
        number = self.summary.get(f"{BEST}/round")
        return int(number) if number is not None and number in (self.round, self.best.get("round")) else None

    def at(self, when: SavedRound) -> "Checkpoint":
        """This checkpoint with the models of the last round, or of the best one.

        Raises:
            UserError: no round is best, or the run has not kept its models.
        """
        number = self.summary.get(f"{BEST}/round")
        if when == "last" or number == self.round:
            return self
        if self.best_round is None:
            why = "no round was evaluated on validation examples"
            if number is not None:
                why = "the run keeps no models of that round"
            raise UserError(
                f"{option('round', 'best')}: {why}. Take the last round's models ({option('round', 'last')})."
            )
        return replace(self, state=self.best.get("state", {}), fed=self.best.get("fed", {}))

    def save(self, path: Path) -> None:
        """Write the one file, with a digest of its content; no leaf is sparse, so that a small file is small in memory.
        States of many clients are written piece by piece.

        The encoding keeps neither the order of keys nor empty subtrees, so the file has the tree's structure too: sums
        over leaves must run in the same order after resuming.
        """
        best = {**self.best, "fed": stack_states(self.best["fed"])} if "fed" in self.best else self.best
        entries = {**self.__dict__, "summary": nest(self.summary), "fed": stack_states(self.fed), "best": best}
        tree = map_leaves(lambda leaf: leaf, entries)  # a copy, to which "structure" is added
        tree |= {"structure": json.dumps(_structure(tree)), "format": FORMAT, "release": version("fedweave")}
        write(path, lambda file: write_tree(file, tree))

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
                    check_states(models["fed"])
            return cls(**{**tree, "summary": dict(leaves(tree["summary"]))})
        except (ReplyRefused, TypeError, LookupError, ValueError, AttributeError, RecursionError) as error:
            raise damage_error(path, str(error)) from error


def _structure(tree: Tree) -> Record:
    """The keys of `tree` in order, as JSON can have them: {key: the keys below it, or None for a leaf}."""
    return {key: _structure(value) if isinstance(value, dict) else None for key, value in tree.items()}


def _reorder(structure: Record, tree: Tree) -> Tree:
    """`tree` with its keys in the order of `structure`, empty subtrees included."""
    result: Tree = {}
    for key, below in structure.items():
        result[key] = tree[key] if below is None else _reorder(below, tree.get(key, {}))
    return result

"""The command `fedweave check`: all that can be found wrong with an experiment before it is started."""

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedweave.cli.options import Earlier, Experiment, Loaded, Settings, Trust, beginning, check_consent
from fedweave.core.text import counted, printable
from fedweave.experiment.config import Config, read

if not Loaded.for_help:
    import numpy as np

    from fedweave.algorithms.parts.composition import MadeOfParts
    from fedweave.core import model as models
    from fedweave.core.algorithm import DeclaresCalls, calls_of, capabilities, check_rounds
    from fedweave.core.graph import SPLITS, TEST, TRAIN
    from fedweave.core.random import key
    from fedweave.core.tree import leaves
    from fedweave.datasets.features import OVER_NODES
    from fedweave.experiment.build import Built, build
    from fedweave.experiment.requirements import check_trained
    from fedweave.experiment.runs.warm import begin
    from fedweave.partition.base import client_ids
    from fedweave.report.clients import header
    from fedweave.report.terminal import screen

if TYPE_CHECKING:
    from fedweave.datasets.base import Dataset

FEW = 3  # examples of a class that may be a misspelt name of another


def check(
    config: Experiment,
    settings: Settings = None,
    algorithm: Annotated[
        str | None, typer.Option(metavar="NAME", help="Check the same experiment with another algorithm.")
    ] = None,
    init_from: Earlier = None,
    trust: Trust = False,
) -> None:
    """Load and cut the data, build model and algorithm, and say what is odd; no client trains, nothing is written."""
    console = screen()
    check_consent(config, trust)
    chosen, notes = read(config, beginning(settings, init_from), algorithm)
    built = build(chosen.in_process())
    check_trained([int(part.masks[0].sum()) for part in built.partition.parts])
    if not chosen.between_sites:  # whose data may be of other classes
        chosen.evaluation.of(built.data.labels, built.data.classes)
    notes += begun(chosen, built)
    header(console, chosen, built)
    for line in (*facts(chosen, built), *(f"note: {text}" for text in (*oddities(chosen, built), *notes))):
        console.print(printable(line), highlight=False, soft_wrap=True, markup=False)
    console.print("no fault found", highlight=False)


def begun(config: "Config", built: "Built") -> list[str]:
    """Let the algorithm begin as a run does, to find what it refuses then; not if its clients are called for that.
    Returns what to note of the earlier run that it begins from.

    Raises:
        FedweaveError: it refuses.
    """
    check_rounds(built.algorithm, config.general.rounds)
    earlier = None if config.between_sites else config.general.init_from  # sites' server alone has that run's files
    notes = [] if earlier is None else [*begin(built.fed, built.algorithm, built.data, Path(earlier), built.own).notes]
    if not isinstance(built.algorithm, DeclaresCalls):  # one from outside, which no site runs
        return notes
    if not calls_of(built.algorithm, config.algorithm.label, len(built.fed.clients)).setup:
        built.fed.begin(0)
        built.algorithm.init(built.fed)
    return notes


def facts(config: "Config", built: "Built") -> Iterator[str]:
    """What of data, model and software the header does not say."""
    data = built.data
    named = ", ".join(data.labels) if data.labels else f"0 to {data.classes - 1}"
    wide = f"{counted(data.features, 'feature')}, {counted(data.classes, 'class')} ({named})"
    yield f"{wide}, {int((data.y < 0).sum()):,} without a label"
    if data.sens is not None:
        groups = data.groups or tuple(f"group {at}" for at in range(int(data.sens.max(initial=0)) + 1))
        counts = np.bincount(data.sens[data.sens >= 0], minlength=len(groups)).tolist()
        people = ", ".join(
            f"{name} ({at}): {count:,}" for at, (name, count) in enumerate(zip(groups, counts, strict=True))
        )
        yield f"groups of people: {people}"
    if data.carried is not None:
        yield f"edges: {data.carried}"
    if config.external != "refuse":
        from_edges, heard = (
            sum(name.startswith(kind) for name in data.columns) for kind in ("external ", "exchanged ")
        )
        what = f"{from_edges} features are made of them, and {heard} of what members exchange"
        yield f"edges to other members' nodes: {what}"
    yield f"model: {parameters(built)} weights"
    yield f"{counted(config.general.rounds, 'round')}, evaluated {_every(config.general.eval_every)}"
    yield ", ".join(f"{name} {version(name)}" for name in ("fedweave", "torch", "numpy", "pyarrow"))


def oddities(config: "Config", built: "Built") -> Iterator[str]:
    """What is allowed and seldom meant: clients or classes without examples to train or test on, classes of a few."""
    parts, y = built.partition.parts, built.data.y
    names = client_ids(len(parts), built.partition.names)
    held = np.array([part.masks.sum(1) for part in parts])
    bare = {name for name, part in zip(names, parts, strict=True) if not (y[part.examples] >= 0).any()}
    if bare and not capabilities(config.algorithm.kind).vertical:
        yield f"{_some(sorted(bare))} no labeled {built.data.example}, so that nothing trains or is judged there"
    for split, counts in zip(SPLITS, held.T, strict=True):
        if without := [n for n, count in zip(names, counts, strict=True) if count == 0 and n not in bare]:
            drawn = split in config.partition.values and not config.partition.values.get("public_split")
            more = f"; partition.{split} is their share" if drawn else ""
            yield f"{_some(without)} no {split} {built.data.example}{more}"
    if built.data.sens is not None and int((built.data.sens > 1).sum()):
        groups = built.data.groups or tuple(str(at) for at in range(int(built.data.sens.max()) + 1))
        yield (
            f"gaps compare {groups[0]} and {groups[1]} alone; {int((built.data.sens > 1).sum()):,} people of "
            f"{', '.join(groups[2:])} are in none. Correct the names, or make two groups of them"
        )
    vertical = capabilities(config.algorithm.kind).vertical
    if built.data.sens is not None and vertical and not any(part.groups and part.labels for part in parts):
        yield (
            "gaps between groups of people are not measured: no party has both labels and groups. Add the column sens "
            "to the tables of a party with labels"
        )
    if config.data.name == "members" and built.data.links is None:
        yield from _at_several(built)
    many = np.bincount(y[y >= 0], minlength=built.data.classes)
    rare = [name for name, count in zip(built.data.labels, many.tolist(), strict=False) if 0 < count < FEW]
    if rare and "labels" in config.data.values and config.data.values["labels"] is None:
        yield (
            f"classes of fewer than {FEW} examples: {', '.join(rare[:5])}; if a name is misspelt, correct it. With "
            "data.labels = […], all classes in order, any other name is refused"
        )
    yield from _in_no_epsilon(config, built)
    if built.data.links is not None:
        return
    trained = np.concatenate([y[part.examples[part.masks[TRAIN]]] for part in parts])
    for number in np.flatnonzero(np.bincount(trained, minlength=built.data.classes) == 0).tolist():
        name = built.data.labels[number] if built.data.labels else number
        there = int((y == number).sum())
        yield f"no client trains on class {name}, though the data have {counted(there, 'example')} of it"


def _in_no_epsilon(config: "Config", built: "Built") -> Iterator[str]:
    """What the data of all clients tell beside messages whose ε is stated."""
    composed = built.algorithm.composed if isinstance(built.algorithm, MadeOfParts) else None
    if composed is not None and composed.mechanism and config.data.values.get("normalise") in OVER_NODES:
        yield "data.normalise takes exact numbers over all clients' nodes, which are in no ε; 'row' and 'none' do not"
    if composed is not None and composed.mechanism and _counted(config, built.data.columns):
        yield (
            "one-hot degrees or labels have as many columns as all clients' data need, and that number is in no ε; "
            "data.degrees, or data.node_labels, settles it before"
        )


def _counted(config: "Config", columns: Sequence[str]) -> bool:
    """Whether features are one-hot columns of which the data says how many."""
    kinds = {"degree = ": "degrees", "label = ": "node_labels"}
    keys = {key for name, key in kinds.items() if any(column.startswith(name) for column in columns)}
    return any(config.data.values.get(key) is None for key in keys)


def _at_several(built: "Built") -> Iterator[str]:
    """Of members' ids, "member/id", those that train at one member and are tested on at another, where they may be the
    same people: their features and labels are the same, or their names are more than numbers of rows."""
    data, uses = built.data, dict[str, list[dict[int, int]]]()
    for client, part in enumerate(built.partition.parts):
        for split, at in ((TRAIN, 0), (TEST, 1)):
            for example in part.examples[part.masks[split]].tolist():
                known = data.ids[example].partition("/")[2]
                uses.setdefault(known, [{}, {}])[at][client] = example
    both = {known: own for known, own in uses.items() if own[0] and own[1].keys() - own[0].keys()}
    same = [known for known, (trained, tested) in both.items() if _alike(data, [*trained.values(), *tested.values()])]
    named = [known for known in both if not known.isdigit()]
    remedy = "Give the rows of one id one split (a column split), or one member"
    if same:
        verb, be = ("id trains", "is") if len(same) == 1 else ("ids train", "are")
        yield (
            f"{len(same):,} {verb} at one member and {be} tested on at another, with the same features and label. If "
            "it is one person, test numbers of joint models are too good, and those of local are not. " + remedy
        )
    elif named:
        verb, be = ("id trains", "is") if len(named) == 1 else ("ids train", "are")
        yield (
            f"{len(named):,} {verb} at one member and {be} tested on at another; each counts as two nodes. If an id is "
            "one person at all members, what a joint model learns there may help its test numbers. " + remedy
        )


def _alike(data: "Dataset", nodes: list[int]) -> bool:
    """Whether examples have the same label and, of nodes, the same features."""
    if data.example != "node" or len({int(data.y[at]) for at in nodes}) > 1:
        return False
    rows = data.x[nodes]
    dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
    return bool((dense == dense[0]).all())


def parameters(built: "Built") -> str:
    """How many numbers the model's weights are, of each where members have their own."""
    nets = dict.fromkeys(built.algorithm_of(client).model for client in built.fed.clients)
    counts = (sum(leaf.numel() for _, leaf in leaves(models.init(net, key(0)))) for net in nets)
    return ", ".join(f"{count:,}" for count in counts)


def _every(rounds: int) -> str:
    return "at the end" if rounds == 0 else "after every round" if rounds == 1 else f"every {rounds} rounds"


def _some(names: list[str]) -> str:
    """ "client-1 has", "client-1, client-2 have" or "client-1 and 7 more have"."""
    if len(names) == 1:
        return f"{names[0]} has"
    return f"{', '.join(names)} have" if len(names) < 4 else f"{names[0]} and {len(names) - 1} more have"

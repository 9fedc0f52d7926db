"""The command `fedweave check`: finds all faults of an experiment that can be found before it is started."""

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from fedweave.algorithms.parts.conflicts import mechanisms
from fedweave.cli.options import beginning, check_consent
from fedweave.core import model as models
from fedweave.core.algorithm import capabilities
from fedweave.core.graph import FOREIGN_NODES, FOREIGN_PAIRS, ROOM, SPLITS, TEST, TRAIN
from fedweave.core.random import key
from fedweave.core.sizes import padded_rows
from fedweave.core.target import CLASS, DIVISOR, LOG, NUMBER, scale_of, where_known
from fedweave.core.text import counted, printable
from fedweave.core.tree import leaves
from fedweave.core.types import PREDICT
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import OVER_NODES
from fedweave.experiment.build import Built, build, train_counts
from fedweave.experiment.config import Config, read
from fedweave.experiment.requirements import Counted, check_stage
from fedweave.experiment.runs.warm import begin
from fedweave.partition.base import client_ids
from fedweave.partition.crossing import CrossingLinks
from fedweave.partition.scaling import distance_of_targets
from fedweave.reports.clients import header
from fedweave.reports.notes import unit_notes
from fedweave.reports.terminal import screen

FEW = 3  # a class with fewer examples may be a misspelt name of another class
SHOWN = 12  # targets whose facts are printed
SKEWED = 30  # multiple of the median above which a number dominates the mean squared error


def examine(
    config: Path,
    settings: list[str] | None,
    algorithm: str | None,
    init_from: Path | None,
    trust: bool,
) -> None:
    """Build an experiment and print facts, oddities and notes (`fedweave check`)."""
    console = screen()
    check_consent(config, trust)
    chosen, notes = read(config, beginning(settings, init_from), algorithm)
    built = build(chosen.in_process())
    check_stage(Counted(train=train_counts(built.partition)))
    if not chosen.between_sites:  # whose data may be of other classes
        chosen.evaluation.of(built.data.labels, built.data.classes, built.data.target)
    notes += begun(chosen, built)
    header(console, chosen, built)
    for line in (*facts(chosen, built), *(f"note: {text}" for text in (*oddities(chosen, built), *notes))):
        console.print(printable(line), highlight=False, soft_wrap=True, markup=False)
    console.print("no fault found", highlight=False)


def begun(config: Config, built: Built) -> list[str]:
    """Initialize the algorithm as a run does, to find the errors that it raises then; not if that calls its clients.
    Returns notes on the earlier run that it begins from.

    Raises:
        FedweaveError: the algorithm raises an error.
    """
    earlier = None if config.between_sites else config.general.init_from  # sites' server alone has that run's files
    notes = (
        []
        if earlier is None
        else [*begin(built.fed, built.algorithm, built.data, Path(earlier), built.member_algorithms).notes]
    )
    calls = built.algorithm.calls(len(built.fed.clients))  # None of one from outside, which no site runs
    if calls is not None and not calls.setup:
        built.fed.rounds = config.general.rounds
        built.fed.begin(0)
        built.algorithm.init(built.fed)
    return notes


def facts(config: Config, built: Built) -> Iterator[str]:
    """Facts of data, model and software that the header does not have."""
    data = built.data
    wide = f"{counted(data.features, 'feature')}, {data.target_summary}"
    yield f"{wide}, {int((~data.has_label).sum()):,} without a label"
    if data.target != CLASS:
        yield from _targets(data)
    if data.sensitive is not None:
        groups = data.groups or tuple(f"group {at}" for at in range(int(data.sensitive.max(initial=0)) + 1))
        counts = np.bincount(data.sensitive[data.sensitive >= 0], minlength=len(groups)).tolist()
        people = ", ".join(
            f"{name} ({at}): {count:,}" for at, (name, count) in enumerate(zip(groups, counts, strict=True))
        )
        yield f"groups of people: {people}"
    if data.edge_attrs is not None:
        yield f"edges: {data.edge_attrs}"
    if config.external == PREDICT:
        yield from _crossing(built)
    elif config.external != "refuse":
        from_edges, heard = (
            sum(name.startswith(kind) for name in data.columns) for kind in ("external ", "exchanged ")
        )
        what = f"{from_edges} features are made of them, and {heard} of what members exchange"
        yield f"edges to other members' nodes: {what}"
    yield f"model: {parameters(built)} weights"
    yield f"{counted(config.general.rounds, 'round')}, evaluated {_every(config.general.eval_every)}"
    yield ", ".join(f"{name} {version(name)}" for name in ("fedweave", "torch", "numpy", "pyarrow"))


def _crossing(built: Built) -> Iterator[str]:
    """The links between members that they know, and the messages about these in a round."""
    known = [one.arrays for one in CrossingLinks().everywhere(built.data, built.partition)]
    tables = [arrays[FOREIGN_PAIRS] for arrays in known]
    counts = [sum(int(((one[:, 5] == 1) & (one[:, 4] == at)).sum()) for one in tables) for at in range(3)]
    asked, room = sum(len(arrays[FOREIGN_NODES]) for arrays in known), padded_rows(len(known[0][ROOM]))
    splits = ", ".join(f"{count:,} {name}" for count, name in zip(counts, SPLITS, strict=True))
    yield (
        f"links between members, once for each that knows it: {splits}; they ask each other for {asked:,} nodes, and "
        f"each sends every other one {room:,} rows a round, padding included"
    )


def _targets(data: Dataset) -> Iterator[str]:
    """The data's values of each number or label that is predicted; with many targets, of the first."""
    for (name, y), there in zip(_named_targets(data)[:SHOWN], where_known(data.y).T, strict=False):
        gaps = f", {counted(int((~there).sum()), 'gap')}" if not there.all() else ""
        if not there.any():
            yield f"{name}: only gaps"
        elif data.target == NUMBER:
            known = y[there]
            spread = f"{known.mean():.4g} ± {known.std():.4g}, from {known.min():.4g} to {known.max():.4g}"
            yield f"{name}: {spread}{gaps}"
        else:
            yield f"{name}: {y[there].mean():.1%} of {int(there.sum()):,} are 1{gaps}"
    if data.outputs > SHOWN:
        yield f"and {data.outputs - SHOWN:,} more"


def _named_targets(data: Dataset) -> list[tuple[str, np.ndarray]]:
    """Each number or label with its name."""
    return [*zip(data.targets or map(str, range(data.outputs)), data.y.T, strict=True)]


def oddities(config: Config, built: Built) -> Iterator[str]:
    """Unusual properties: clients or classes without examples to train or test on, and classes with few examples."""
    parts, labeled = built.partition.parts, built.data.has_label
    names = client_ids(len(parts), built.partition.names)
    held = np.array([part.masks.sum(1) for part in parts])
    bare = {name for name, part in zip(names, parts, strict=True) if not labeled[part.examples].any()}
    if bare and not capabilities(config.algorithm.kind).vertical:
        yield f"{_some(sorted(bare))} no labeled {built.data.example}, so that nothing trains or is evaluated there"
    for split, counts in zip(SPLITS, held.T, strict=True):
        if without := [n for n, count in zip(names, counts, strict=True) if count == 0 and n not in bare]:
            drawn = split in config.partition.values and not config.partition.values.get("use_dataset_split")
            more = f"; set their share with partition.{split}" if drawn else ""
            yield f"{_some(without)} no {split} {built.data.example}{more}"
    if built.data.sensitive is not None and int((built.data.sensitive > 1).sum()):
        groups = built.data.groups or tuple(str(at) for at in range(int(built.data.sensitive.max()) + 1))
        yield (
            f"gaps compare only {groups[0]} and {groups[1]}; {int((built.data.sensitive > 1).sum()):,} people of "
            f"{', '.join(groups[2:])} are in no gap. Correct the names, or make two groups of them"
        )
    vertical = capabilities(config.algorithm.kind).vertical
    if built.data.sensitive is not None and vertical and not any(part.groups and part.labels for part in parts):
        yield (
            "gaps between groups of people are not measured: no party has both labels and groups. Add the column sens "
            "to the tables of a party with labels"
        )
    if config.data.name == "members" and built.data.links is None:
        yield from _at_several(built)
    yield from _in_no_epsilon(config, built)
    trained = np.concatenate([part.examples[part.masks[TRAIN]] for part in parts])
    if built.data.target != CLASS:
        yield from _odd_targets(built, trained)
        return
    y = built.data.y
    many = np.bincount(y[y >= 0], minlength=built.data.classes)
    rare = [name for name, count in zip(built.data.labels, many.tolist(), strict=False) if 0 < count < FEW]
    if rare and "labels" in config.data.values and config.data.values["labels"] is None:
        yield (
            f"classes of fewer than {FEW} examples: {', '.join(rare[:5])}; if a name is misspelt, correct it. With "
            "data.labels = […], all classes in order, any other name is an error"
        )
    if built.data.links is not None:
        return
    for number in np.flatnonzero(np.bincount(y[trained], minlength=built.data.classes) == 0).tolist():
        name = built.data.labels[number] if built.data.labels else number
        there = int((y == number).sum())
        yield f"no client trains on class {name}, though the data have {counted(there, 'example')} of it"


def _odd_targets(built: Built, trained: np.ndarray) -> Iterator[str]:
    """Numbers and labels that training cannot learn, or learns badly. trained: int64, all training examples."""
    data = built.data
    for at, (name, y) in enumerate(_named_targets(data)):
        values = y[trained][where_known(data.y[trained])[:, at]]
        if not len(values):
            yield f"no client trains on an example whose {name} is known"
        elif values.min() == values.max():
            what = "number" if data.target == NUMBER else "label"
            yield f"the {what} {name} is {values[0]:g} at all training examples, so that nothing is learned of it"
        elif _is_plain(data) and values.min() > 0 and values.max() > SKEWED * np.median(values):
            yield (
                f"the largest {name}, {values.max():.4g}, is {values.max() / np.median(values):,.0f} times the median: "
                "few examples decide what is learned; data.target_log = true trains on logarithms"
            )
    if data.target == NUMBER and data.target_scaling == "own":
        names, parts = client_ids(len(built.partition.parts), built.partition.names), built.partition.parts
        each = {name: data.y[part.examples[part.masks[TRAIN]]] for name, part in zip(names, parts, strict=True)}
        if len(built.fed.clients) > 1:
            yield from unit_notes(distance_of_targets(data, built.partition)).values()
        alike = [name for name, y in each.items() if len(y) and (scale_of(y)[DIVISOR] == 1).all()]
        if alike and len(names) > 1:
            yield (
                f"{_some(alike)} too few different training numbers for a separate scale, so one unit of the model "
                'is one unit of the data; data.target_normalize = "all" takes one scale for all clients'
            )


def _is_plain(data: Dataset) -> bool:
    """Whether numbers are predicted, and not their logarithms."""
    return data.target == NUMBER and (data.target_scale is None or not data.target_scale[LOG].any())


def _in_no_epsilon(config: Config, built: Built) -> Iterator[str]:
    """What leaves all clients outside the messages with a stated ε."""
    protected = any(mechanisms(part) for part in built.algorithm.composed.values())
    if protected and config.data.values.get("normalize") in OVER_NODES:
        yield "data.normalize takes exact numbers over all clients' nodes, which are in no ε; 'row' and 'none' do not"
    if protected and _counted(config, built.data.columns):
        yield (
            "the number of one-hot columns for degrees or labels depends on all clients' data, and is in no ε; set "
            "data.degrees, or data.node_labels, to fix it before"
        )


def _counted(config: Config, columns: Sequence[str]) -> bool:
    """Whether the data determines the number of one-hot columns."""
    kinds = {"degree = ": "degrees", "label = ": "node_labels"}
    keys = {key for name, key in kinds.items() if any(column.startswith(name) for column in columns)}
    return any(config.data.values.get(key) is None for key in keys)


def _at_several(built: Built) -> Iterator[str]:
    """Warn of members' ids, "member/id", that train at one member and are tested on at another and may be the same
    people: their features and labels are equal, or the ids are not just row numbers."""
    data, uses = built.data, dict[str, list[dict[int, int]]]()
    for client, part in enumerate(built.partition.parts):
        for split, at in ((TRAIN, 0), (TEST, 1)):
            for example in part.examples[part.masks[split]].tolist():
                known = data.ids[example].partition("/")[2]
                uses.setdefault(known, [{}, {}])[at][client] = example
    both = {
        known: uses_of_id
        for known, uses_of_id in uses.items()
        if uses_of_id[0] and uses_of_id[1].keys() - uses_of_id[0].keys()
    }
    same = [known for known, (trained, tested) in both.items() if _alike(data, [*trained.values(), *tested.values()])]
    named = [known for known in both if not known.isdigit()]
    remedy = "Give the rows of one id one split (a column split), or one member"
    if same:
        verb, be = ("id trains", "is") if len(same) == 1 else ("ids train", "are")
        yield (
            f"{len(same):,} {verb} at one member and {be} tested on at another, with the same features and label. If "
            "it is one person, test numbers of global models are too good, unlike the numbers of local. " + remedy
        )
    elif named:
        verb, be = ("id trains", "is") if len(named) == 1 else ("ids train", "are")
        yield (
            f"{len(named):,} {verb} at one member and {be} tested on at another; each counts as two nodes. If an id is "
            "one person at all members, what a global model learns there may help its test numbers. " + remedy
        )


def _alike(data: Dataset, nodes: list[int]) -> bool:
    """Whether examples have the same label and, if they are nodes, the same features."""
    if data.example != "node" or len({int(data.y[at]) for at in nodes}) > 1:
        return False
    rows = data.x[nodes]
    dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
    return bool((dense == dense[0]).all())


def parameters(built: Built) -> str:
    """Number of the model's weights; a number for each model where members have their own."""
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

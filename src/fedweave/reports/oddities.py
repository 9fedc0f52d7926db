"""Facts and oddities of an experiment that can be found before it is started."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np

from fedweave.algorithms.parts.conflicts import mechanisms
from fedweave.algorithms.parts.names import by_name
from fedweave.core import model as models
from fedweave.core.algorithm import capabilities
from fedweave.core.graph import FOREIGN_NODES, FOREIGN_PAIRS, ROOM, SPLITS, TEST, TRAIN
from fedweave.core.random import key
from fedweave.core.sizes import padded_rows
from fedweave.core.target import CLASS, DIVISOR, LOG, NUMBER, scale_of, where_known
from fedweave.core.text import counted
from fedweave.core.tree import leaves
from fedweave.core.types import PREDICT
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import OVER_NODES
from fedweave.experiment.build import Built
from fedweave.experiment.config import Config
from fedweave.experiment.runs.warm import begin
from fedweave.partition.base import client_ids
from fedweave.partition.crossing import CrossingLinks
from fedweave.partition.scaling import distance_of_targets
from fedweave.reports.clients import evaluation_words
from fedweave.reports.notes import unit_notes

MIN_EXAMPLES = 3  # a class with fewer examples may be a misspelt name of another class
MAX_TARGETS = 12  # whose facts are printed
SKEW = 30  # multiple of the median above which a number dominates the mean squared error


def initialize(config: Config, built: Built) -> list[str]:
    """Initialize the algorithm as a run does, to find the errors that it raises then; not if that calls its clients.
    Returns notes on the earlier run that it begins from.
    """
    notes = list[str]()
    earlier = None if config.between_sites else config.general.init_from  # sites' server alone has that run's files
    if earlier is not None:
        notes += begin(built.fed, built.algorithm, built.data, Path(earlier), built.member_algorithms).notes
    calls = built.algorithm.calls(len(built.fed.clients))  # None of one from outside, which no site runs
    if calls is not None and not calls.setup:
        built.fed.rounds = config.general.rounds
        built.fed.begin(0)
        built.algorithm.init(built.fed)
    return notes


def facts(config: Config, built: Built) -> Iterator[str]:
    """Facts of data, model and software that the header of a run does not have."""
    data = built.data
    size = f"{counted(data.features, 'feature')}, {data.target_summary}"
    yield f"{size}, {int((~data.has_label).sum()):,} without a label"
    if data.target != CLASS:
        yield from _target_facts(data)
    if data.sensitive is not None:
        groups = data.groups or tuple(f"group {at}" for at in range(int(data.sensitive.max(initial=0)) + 1))
        counts = np.bincount(data.sensitive[data.sensitive >= 0], minlength=len(groups)).tolist()
        numbers = [f"{name} ({at}): {count:,}" for at, (name, count) in enumerate(zip(groups, counts, strict=True))]
        yield f"groups of people: {', '.join(numbers)}"
    if data.edge_attrs is not None:
        yield f"edges: {data.edge_attrs}"
    if config.external == PREDICT:
        # The links between members that they know, and the messages about these in a round.
        known = [one.arrays for one in CrossingLinks().everywhere(built.data, built.partition)]
        pairs = np.concatenate([arrays[FOREIGN_PAIRS] for arrays in known])
        positives = np.bincount(pairs[pairs[:, 5] == 1, 4].astype(int), minlength=len(SPLITS))
        splits = ", ".join(f"{count:,} {name}" for count, name in zip(positives.tolist(), SPLITS, strict=True))
        nodes, rows = sum(len(arrays[FOREIGN_NODES]) for arrays in known), padded_rows(len(known[0][ROOM]))
        yield (
            f"links between members, once for each that knows it: {splits}; they ask each other for {nodes:,} nodes, "
            f"and each sends every other one {rows:,} rows a round, padding included"
        )
    elif config.external != "refuse":
        from_edges = sum(name.startswith("external ") for name in data.columns)
        exchanged = sum(name.startswith("exchanged ") for name in data.columns)
        what = f"{from_edges} features are made of them, and {exchanged} of what members exchange"
        yield f"edges to other members' nodes: {what}"
    nets = dict.fromkeys(built.algorithm_of(client).model for client in built.fed.clients)
    sizes = []  # a number for each model where members have their own
    for net in nets:
        sizes.append(sum(leaf.numel() for _, leaf in leaves(models.init(net, key(0)))))
    yield f"model: {', '.join(f'{size:,}' for size in sizes)} weights"
    yield f"{counted(config.general.rounds, 'round')}, {evaluation_words(config, built)}"
    yield ", ".join(f"{name} {version(name)}" for name in ("fedweave", "torch", "numpy", "pyarrow"))


def _target_facts(data: Dataset) -> Iterator[str]:
    """The data's values of each number or label that is predicted; with many targets, of the first."""
    known = where_known(data.y)  # [examples, targets]
    for target, name in enumerate(_target_names(data)[:MAX_TARGETS]):
        values = data.y[known[:, target], target]
        gaps = len(data.y) - len(values)
        gaps_text = f", {counted(gaps, 'gap')}" if gaps else ""
        if not len(values):
            yield f"{name}: only gaps"
        elif data.target == NUMBER:
            spread = f"{values.mean():.4g} ± {values.std():.4g}, from {values.min():.4g} to {values.max():.4g}"
            yield f"{name}: {spread}{gaps_text}"
        else:
            yield f"{name}: {values.mean():.1%} of {len(values):,} are 1{gaps_text}"
    if data.outputs > MAX_TARGETS:
        yield f"and {data.outputs - MAX_TARGETS:,} more"


def _target_names(data: Dataset) -> list[str]:
    return [*(data.targets or map(str, range(data.outputs)))]


def oddities(config: Config, built: Built) -> Iterator[str]:
    """Unusual properties: clients or classes without examples to train or test on, and classes with few examples."""
    data, parts, partition = built.data, built.partition.parts, config.partition.values
    names = client_ids(len(parts), built.partition.names)
    vertical = capabilities(config.algorithm.kind).vertical

    # 1. Clients without examples.
    sizes = np.array([part.masks.sum(1) for part in parts])  # [clients, splits]
    unlabeled = [name for name, part in zip(names, parts, strict=True) if not data.has_label[part.examples].any()]
    if unlabeled and not vertical:
        have = _clients_have(sorted(unlabeled))
        yield f"{have} no labeled {data.example}, so that nothing trains or is evaluated there"
    for split, counts in zip(SPLITS, sizes.T, strict=True):
        without = [name for name, count in zip(names, counts, strict=True) if count == 0 and name not in unlabeled]
        if without:
            by_share = split in partition and not partition.get("use_dataset_split")
            remedy = f"; set their share with partition.{split}" if by_share else ""
            yield f"{_clients_have(without)} no {split} {data.example}{remedy}"

    # 2. Groups of people.
    if data.sensitive is not None:
        without_gap = int((data.sensitive > 1).sum())
        if without_gap:
            groups = data.groups or tuple(map(str, range(int(data.sensitive.max()) + 1)))
            yield (
                f"gaps compare only {groups[0]} and {groups[1]}; {without_gap:,} people of {', '.join(groups[2:])} are "
                "in no gap. Correct the names, or make two groups of them"
            )
        if vertical and not any(part.groups and part.labels for part in parts):
            yield (
                "gaps between groups of people are not measured: no party has both labels and groups. Add the column "
                "sens to the tables of a party with labels"
            )

    # 3. Examples that train at one member and are tested on at another.
    if config.data.name == "members" and data.links is None:
        yield from _ids_at_several_members(built)

    # 4. What leaves all clients outside the messages with a stated ε.
    if any(mechanisms(part) for part in built.algorithm.composed.values()):
        settings = config.data.values
        scalings = {"normalize": "nodes"} | ({"edge_normalize": "edges"} if data.edge_features else {})
        for setting, rows in scalings.items():
            if settings.get(setting) in OVER_NODES:
                yield (
                    f"data.{setting} takes exact numbers over all clients' {rows}, which are in no ε; 'row' and 'none' "
                    "do not"
                )
        of_edges = () if data.edge_attrs is None else data.edge_attrs.columns
        encoded = (("degree = ", "degrees", data.columns), ("label = ", "node_labels", data.columns))
        for begin_of_name, setting, columns in (*encoded, ("label = ", "edge_labels", of_edges)):
            one_hot = any(column.startswith(begin_of_name) for column in columns)
            if one_hot and settings.get(setting) is None:
                yield (
                    "the number of one-hot columns for degrees or labels depends on all clients' data, and is in no ε; "
                    "set data.degrees, data.node_labels or data.edge_labels to fix it before"
                )
                break

    # 5. Targets and classes that training cannot learn, or learns badly.
    trained = np.concatenate([part.examples[part.masks[TRAIN]] for part in parts])  # int64, all training examples
    if data.target != CLASS:
        yield from _target_oddities(built, trained, names)
        return
    counts = np.bincount(data.y[data.y >= 0], minlength=data.classes).tolist()
    rare = [name for name, count in zip(data.labels, counts, strict=False) if 0 < count < MIN_EXAMPLES]
    if rare and "labels" in config.data.values and config.data.values["labels"] is None:
        yield (
            f"classes of fewer than {MIN_EXAMPLES} examples: {', '.join(rare[:5])}; if a name is misspelt, correct it. "
            "With data.labels = […], all classes in order, any other name is an error"
        )
    if data.links is None:
        for number in np.flatnonzero(np.bincount(data.y[trained], minlength=data.classes) == 0).tolist():
            name = data.labels[number] if data.labels else number
            yield f"no client trains on class {name}, though the data have {counted(counts[number], 'example')} of it"


def _target_oddities(built: Built, trained: np.ndarray, clients: list[str]) -> Iterator[str]:
    """Numbers and labels that training cannot learn, or learns badly. trained: int64, all training examples."""
    data, parts = built.data, built.partition.parts
    plain = data.target == NUMBER and (data.target_scale is None or not data.target_scale[LOG].any())  # no logarithms
    y = data.y[trained]  # [examples, targets]
    known = where_known(y)
    for target, name in enumerate(_target_names(data)):
        values = y[known[:, target], target]
        if not len(values):
            yield f"no client trains on an example whose {name} is known"
        elif values.min() == values.max():
            what = "number" if data.target == NUMBER else "label"
            yield f"the {what} {name} is {values[0]:g} at all training examples, so that nothing is learned of it"
        elif plain and values.min() > 0 and values.max() > SKEW * np.median(values):
            yield (
                f"the largest {name}, {values.max():.4g}, is {values.max() / np.median(values):,.0f} times the median: "
                "few examples decide what is learned; data.target_log = true trains on logarithms"
            )
    if data.target != NUMBER or data.target_scaling != "own":
        return
    if len(built.fed.clients) > 1 and "own_share" not in by_name(built.algorithm.composed):
        yield from unit_notes(distance_of_targets(data, built.partition)).values()
    without_scale = []
    for client, part in zip(clients, parts, strict=True):
        targets = data.y[part.examples[part.masks[TRAIN]]]
        if len(targets) and (scale_of(targets)[DIVISOR] == 1).all():
            without_scale.append(client)
    if without_scale and len(clients) > 1:
        yield (
            f"{_clients_have(without_scale)} too few different training numbers for a separate scale, so one unit of "
            'the model is one unit of the data; data.target_normalize = "all" takes one scale for all clients'
        )


def _ids_at_several_members(built: Built) -> Iterator[str]:
    """Warn of members' ids, "member/id", that train at one member and are tested on at another and may be the same
    people: their features and labels are equal, or the ids are not just row numbers."""
    data = built.data
    uses: dict[str, tuple[dict[int, int], dict[int, int]]] = {}  # {id: {client: example} of training, of test}
    for client, part in enumerate(built.partition.parts):
        for use, split in enumerate((TRAIN, TEST)):
            for example in part.examples[part.masks[split]].tolist():
                uses.setdefault(data.ids[example].partition("/")[2], ({}, {}))[use][client] = example
    both = {name: (train, test) for name, (train, test) in uses.items() if train and test.keys() - train.keys()}
    equal = 0  # ids whose rows have the same label and, if they are nodes, the same features
    for train, test in both.values():
        examples = [*train.values(), *test.values()]
        if data.example == "node" and (data.y[examples] == data.y[examples[0]]).all():
            rows = data.x[examples]
            dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
            equal += bool((dense == dense[0]).all())
    named = sum(not name.isdigit() for name in both)
    verb, be = ("id trains", "is") if (equal or named) == 1 else ("ids train", "are")
    remedy = "Give the rows of one id one split (a column split), or one member"
    if equal:
        yield (
            f"{equal:,} {verb} at one member and {be} tested on at another, with the same features and label. If "
            f"it is one person, test numbers of global models are too good, unlike the numbers of local. {remedy}"
        )
    elif named:
        yield (
            f"{named:,} {verb} at one member and {be} tested on at another; each counts as two nodes. If an id is "
            f"one person at all members, what a global model learns there may help its test numbers. {remedy}"
        )


def _clients_have(names: list[str]) -> str:
    """ "client-1 has", "client-1, client-2 have" or "client-1 and 7 more have"."""
    if len(names) == 1:
        return f"{names[0]} has"
    return f"{', '.join(names)} have" if len(names) < 4 else f"{names[0]} and {len(names) - 1} more have"

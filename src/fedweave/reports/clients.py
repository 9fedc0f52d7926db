"""How the data is partitioned into clients, for the terminal."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedweave.accounts.document import unmarked
from fedweave.core.algorithm import capabilities
from fedweave.core.text import counted, printable
from fedweave.core.types import PREDICT, Values
from fedweave.datasets.base import Dataset
from fedweave.datasets.notes import feature_notes, name_notes, single_class_notes, time_notes
from fedweave.engines.sharded import Sharded
from fedweave.experiment.build import Built, suited
from fedweave.experiment.config import Config
from fedweave.experiment.config.plugins import models_told
from fedweave.experiment.requirements import untested
from fedweave.experiment.runs.saving import Ready
from fedweave.models.blocks import unused as unused_of_edges
from fedweave.partition import repeats, unused
from fedweave.partition.base import client_ids
from fedweave.partition.statistics import mean_cells, statistics, target_cells, totals

_ROWS = 20
_NAMES = 60  # letters of all classes' names that a heading has room for
_SPLITS = {"train": "train", "val": "val", "test": "test"}
_HEADINGS = {"client": "client", "nodes": "nodes", "edges_kept": "edges\nkept", "edges_cut": "edges\ncut"} | _SPLITS
_SHARED = {"overlap": "nodes\nshared", "overlap_links": "links\nshared"}
# of a vertical cut, where no edge leads to another client
_VERTICAL = {"client": "client", "nodes": "nodes", "features": "features", "edges_kept": "edges"} | _SPLITS


TRY = 10  # fewer rounds only try whether a run works
REACH = 0.1  # how far weights have to move: initial ones are about so far from 0
USED = {  # what [data] external makes of edges between clients
    "features": "used as features",
    "exchange": "used over the exchange",
    PREDICT: "predicted by the clients that know them",
}


def header(console: Console, config: Config, built: Ready) -> None:
    """Print what is run, on what and the clients; then notes on odd data and on settings that the run does not use.

    Of a run between sites it prints no data: they are not here.
    """
    if not isinstance(built, Built):
        return
    engine = config.engine.plain()
    of_nodes = built.data.example == "node"
    graphs = "" if of_nodes else f"{counted(built.data.examples, built.data.example)}, "
    parts = [
        f"[bold]{unmarked(built.data.name)}[/] ({graphs}{counted(built.data.nodes, 'node')})",
        f"{counted(len(built.fed.clients), 'client')} by {unmarked(config.partition.label)}",
        f"[bold]{unmarked(config.algorithm.label)}[/]",
        unmarked(models_told(config.plain()["model"])),
        f"{engine['name']} ({', '.join((_how(engine, built), *built.fed.computes_on, engine['dtype']))})",
        f"seed {config.general.seed}",
    ]
    console.print(" · ".join(parts), highlight=False, soft_wrap=True)
    partitioned = built.data, built.partition
    client_names = {"client": client_ids(len(built.partition.parts), built.partition.names)}
    columns = statistics(*partitioned) | client_names
    edge_attributes = built.data.edge_attrs
    whole = totals(*partitioned) | ({} if edge_attributes is None else {"given": edge_attributes.ends.shape[1]})
    if (outside := built.data.outside) is not None:
        whole |= {"elsewhere": outside.edge_attrs.ends.shape[1]}
    console.print(clients_table(columns, whole, built.data.labels, config.external, built.data.targets))
    unsuited = built.algorithm.notes
    alone = filter(None, [untested(columns["test"], built.fed.test is not None)])
    edges = unused_of_edges(suited(config, built.data), built.data.edge_attrs)
    vertical = capabilities(config.algorithm.kind).vertical
    unmeasured = vertical and not any(part.groups and part.labels for part in built.partition.parts)
    if not unmeasured and (favorable := favored(built.data, config.data.values)):
        console.print(printable(favorable), highlight=False, soft_wrap=True, markup=False)
    held_by = dict(zip(client_names["client"], (part.nodes for part in built.partition.parts), strict=True))
    times = time_notes(built.data, built.partition.parts[0].split_times, held_by)
    odd = (*edges, *single_class_notes(built.data), *name_notes(built.data), *feature_notes(built.data), *times)
    of_cut = (*unused(config.partition.make(), *partitioned), *repeats(*partitioned))
    for note in (*alone, *of_cut, *unsuited, *slow(config), *odd):
        console.print(printable(f"note: {note}"), highlight=False, soft_wrap=True, markup=False)


def favored(data: Dataset, settings: Values) -> str:
    """Which of two classes counts as favorable where groups of people are compared, and how to choose the other.

    Returns "" where no groups are compared. settings: values of [data].
    """
    if data.sensitive is None or data.classes != 2:
        return ""
    names = [f"{name} ({at})" for at, name in enumerate(data.labels)] if data.labels else ["class 0", "class 1"]
    clause = f"a prediction of {names[1]} counts as favorable"
    if settings.get("favorable") is not None:
        return f"{clause} (data.favorable)"
    if settings.get("labels") is not None:
        return f"{clause}, the second of data.labels"
    if "favorable" not in settings:
        return f"{clause}, as the data numbers its classes"
    by = "by alphabet" if data.labels else "by number"
    second, first = (json.dumps(data.labels[at] if data.labels else at, ensure_ascii=False) for at in (1, 0))
    return (
        f"note: {clause}, the second of two {by}. If {names[0]} is the favorable one, set data.favorable = {first}; if "
        f"not, data.favorable = {second} settles it"
    )


def slow(config: Config) -> list[str]:
    """A warning before a run whose steps of Adam cannot move the weights far from their initial values.

    Each step moves a weight by about `lr`. Runs of few rounds are trials and get no warning.
    """
    settings, rounds = config.algorithm.values, config.general.rounds
    rate, steps = settings.get("lr"), settings.get("local_steps")
    if settings.get("optimizer") != "adam" or not isinstance(rate, float) or not isinstance(steps, int):
        return []
    reach = rounds * steps * rate
    if rounds < TRY or reach >= REACH or config.general.init_from is not None:
        return []
    moves = f"{counted(rounds, 'round')} of {counted(steps, 'step')} of Adam move a weight by about {reach:.2g} at most"
    return [
        f"algorithm.lr = {rate:g}: {moves}, and the model may predict one class for all. Raise algorithm.lr, "
        "algorithm.local_steps or rounds."
    ]


def _how(engine: Values, built: Built) -> str:
    """What runs the clients: worker processes, or the engine's mode."""
    if isinstance(built.fed.executor, Sharded):
        return counted(built.fed.executor.shards, "worker")
    return str(engine.get("mode") or f"workers: {engine['workers']}")


def clients_table(
    columns: dict[str, list[Any]],
    whole: dict[str, int],
    classes: Sequence[str] | None = None,
    external: str = "refuse",
    targets: Sequence[str] = (),
) -> Table:
    """Show the results of `partition.statistics` and `partition.totals`: a line per client, 20 at most, then the mean.

    Clients that have names may be listed with them. Counts of the last classes are left out where the terminal is too
    narrow for all. classes: names of the classes, where they have some. external: what becomes of edges between
    clients. targets: names of the numbers or labels, where these are predicted.
    """
    clients, headings = len(columns["client"]), _headings(columns)
    share = whole["edges_lost"] / max(whole["edges"], 1)
    listed_edges = whole.get("given", whole["edges"])  # with direction, or several between the same two nodes
    edges = counted(whole["edges"], "edge" if listed_edges == whole["edges"] else "joined pair")
    joining = f"; {listed_edges:,} edges join these pairs" if listed_edges != whole["edges"] else ""
    fate = f"between clients, {USED[external]}" if external in USED else "lost to all clients"
    caption = f"{whole['edges_lost']:,} of {edges} ({share:.1%}{joining}) {fate}"
    if whole.get("elsewhere"):
        other = counted(whole["elsewhere"], "edge")
        caption += f"\n{other} to other members' nodes in members' own tables, {USED[external]}"
    if "graphs" in whole:
        tested = f"{whole['global_test']:,} of {whole['graphs']:,} graphs are the global test set"
        caption = tested if whole["global_test"] else f"{counted(whole['graphs'], 'graph')}, all of them clients'"
    if "examples" in whole:
        lost = whole["examples"] - whole["held"] - whole["global_test"]
        share = lost / max(whole["examples"], 1)
        fate = f"between clients, {USED[PREDICT]}" if external == PREDICT else "lost, as no client holds both ends"
        caption = f"{lost:,} of {whole['examples']:,} edges ({share:.1%}) {fate}"
    if "overlap" in columns:
        caption += f"\nof a client's nodes another one holds {np.mean(columns['overlap']):.3f} on average"
    if whole.get("without_sp"):
        caption += (
            f"\nno test node of some group at {whole['without_sp']} of {clients:,} clients: no SP there, and no EO"
        )
    if (more := whole.get("without_eo", 0)) > whole.get("without_sp", 0):
        name = unmarked(classes[1]) if classes else 1
        caption += f"\nno test node of class {name} of some group at {more} of {clients:,} clients: no EO there"
    if clients > _ROWS:
        caption = f"the first {_ROWS} of {clients:,} clients, and the mean of all\n{caption}"
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    for name, heading in headings.items():
        table.add_column(heading, justify="left" if name == "client" else "right", no_wrap=True)
    what = "graphs" if "graphs" in columns else "edges" if "examples" in columns else "nodes"
    class_names = ", ".join(classes or targets)
    names = f":\n{unmarked(class_names)}" if class_names and len(class_names) <= _NAMES else ""
    classes_of = f"{what} with each label" if targets else f"{what} of each class"
    table.add_column(f"{'mean ± deviation' if 'means' in columns else classes_of}{names}")
    numbers = [columns[name] for name in headings if name != "client"]
    counts = [
        [unmarked(columns["client"][row]), *(_count_or_share(column[row]) for column in numbers)]
        for row in range(min(clients, _ROWS))
    ]
    labels = [target_cells(columns, row) for row in range(min(clients, _ROWS))]
    if clients > _ROWS:
        counts.append(["mean", *(_count_or_share(float(np.mean(column)), column[0]) for column in numbers)])
        labels.append(mean_cells(columns))
    for row, (cells, line) in enumerate(zip(counts, _aligned(labels), strict=True)):
        table.add_row(*cells, Text(line, no_wrap=True, overflow="ellipsis"), end_section=row == _ROWS - 1)
    return table


def _count_or_share(value: float, like: float | None = None) -> str:
    """A count, a share with three digits, or the mean of counts."""
    if isinstance(value if like is None else like, float):
        return f"{value:.3f}"
    return f"{value:,}" if like is None else f"{value:.1f}"


def _headings(columns: dict[str, list[Any]]) -> dict[str, str]:
    """The headings of the columns of numbers."""
    if "features" in columns:
        return _VERTICAL
    first = {"client": "client"} | {name: name for name in ("graphs", "examples") if name in columns}
    added = {"edges_added": "edges\nadded"} if "edges_added" in columns else {}
    shared = {name: heading for name, heading in _SHARED.items() if name in columns}
    edges = {name: _HEADINGS[name] for name in ("nodes", "edges_kept", "edges_cut")}
    return {**first, **edges, **added, **_SPLITS, **shared}


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Each row as one line, every class in a column of its own."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return (" ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)

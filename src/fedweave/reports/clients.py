"""How the data is partitioned into clients, for the terminal."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedweave.accounts.document import plain_text, print_line
from fedweave.core.algorithm import capabilities
from fedweave.core.text import counted
from fedweave.core.types import PREDICT, Values
from fedweave.datasets.base import Dataset
from fedweave.engines.sharded import Sharded
from fedweave.experiment.build import Built, fitted_model
from fedweave.experiment.config import Config
from fedweave.experiment.config.choices import model_names
from fedweave.experiment.facts import data_notes
from fedweave.experiment.pay_notes import equal_size_note
from fedweave.experiment.requirements import warn_untested
from fedweave.experiment.runs.saving import Ready
from fedweave.experiment.runs.trained import partition_columns
from fedweave.experiment.work import with_interval
from fedweave.models.edge_settings import unused_attribute_warnings
from fedweave.partition.statistics import mean_cells, target_cells

_ROWS = 20
_MAX_LETTERS = 60  # of all classes' names that a heading has room for
_SPLITS = {"train": "train", "val": "val", "test": "test"}
_OPTIONAL = {"overlap": "nodes\nshared", "overlap_links": "links\nshared"}
# of a vertical cut, where no edge leads to another client
_VERTICAL = {"client": "client", "nodes": "nodes", "features": "features", "edges_kept": "edges"} | _SPLITS
MIN_ROUNDS = 10  # fewer rounds only try whether a run works
MIN_REACH = 0.1  # how far weights have to move: initial ones are about so far from 0
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
    data, engine, columns, whole = built.data, config.engine.plain(), partition_columns(built), built.totals

    # 1. One line about the run.
    graphs = ""
    if data.example != "node":
        graphs = f"{counted(whole['graphs' if data.example == 'graph' else 'examples'], data.example)}, "
    if isinstance(built.fed.executor, Sharded):
        mode = counted(built.fed.executor.shards, "worker")
    else:
        mode = str(engine.get("mode") or f"workers: {engine['workers']}")
    parts = [
        f"[bold]{plain_text(data.name)}[/] ({graphs}{counted(whole['nodes'], 'node')})",
        f"{counted(len(built.fed.clients), 'client')} by {plain_text(config.partition.label)}",
        f"[bold]{plain_text(config.algorithm.label)}[/]",
        plain_text(model_names(config.plain()["model"])),
        f"{engine['name']} ({', '.join((mode, *built.fed.computes_on, engine['dtype']))})",
        f"seed {config.general.seed}",
    ]
    if config.general.eval_every != 1:
        parts.append(evaluation_words(config, built))
    console.print(" · ".join(parts), highlight=False, soft_wrap=True)

    # 2. The clients.
    console.print(clients_table(columns, whole, data.labels, config.external, data.targets))

    # 3. Notes.
    vertical = capabilities(config.algorithm.kind).vertical
    if not vertical or any(part.groups and part.labels for part in built.partition.parts):  # gaps are measured
        favorable = favorable_sentence(data, config.data.values)
        if favorable:
            print_line(console, favorable)
    without_test = warn_untested(columns["test"], built.fed.test is not None)
    if built.facts is None:
        of_data = data_notes(config.partition.make(), data, built.partition, config.evaluation)
    else:
        of_data = [*built.facts.notes]
    of_edges = unused_attribute_warnings(fitted_model(config, data), data.edge_attrs)
    of_settings = (*built.algorithm.notes, small_steps_note(config), equal_size_note(config, built.algorithm))
    notes = (without_test, *of_data, *of_settings, *of_edges)
    for note in filter(None, notes):
        print_line(console, f"note: {note}")


def evaluation_words(config: Config, built: Built) -> str:
    """ "evaluated every 5 rounds": which rounds of a run are evaluated."""
    every = with_interval(config, built).general.eval_every
    if every == 0:
        return "evaluated at the end"
    return "evaluated after every round" if every == 1 else f"evaluated every {every} rounds"


def favorable_sentence(data: Dataset, settings: Values) -> str:
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


def small_steps_note(config: Config) -> str:
    """A warning before a run whose steps of Adam cannot move the weights far from their initial values; else "".

    Each step moves a weight by about `lr`. Runs of few rounds are trials and get no warning.
    """
    settings, rounds = config.algorithm.values, config.general.rounds
    rate, steps = settings.get("lr"), settings.get("local_steps")
    if settings.get("optimizer") != "adam" or not isinstance(rate, float) or not isinstance(steps, int):
        return ""
    reach = rounds * steps * rate
    if rounds < MIN_ROUNDS or reach >= MIN_REACH or config.general.init_from is not None:
        return ""
    moves = f"{counted(rounds, 'round')} of {counted(steps, 'step')} of Adam move a weight by about {reach:.2g} at most"
    return (
        f"algorithm.lr = {rate:g}: {moves}, and the model may predict one class for all. Raise algorithm.lr, "
        "algorithm.local_steps or rounds."
    )


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
    clients = len(columns["client"])
    example = "nodes"
    if "graphs" in columns:
        example = "graphs"
    elif "examples" in columns:
        example = "edges"

    # 1. The caption: edges between clients, and what is measured at no client.
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
    without_sp, without_eo = whole.get("without_sp", 0), whole.get("without_eo", 0)
    if without_sp:
        caption += f"\nno test node of some group at {without_sp} of {clients:,} clients: no SP there, and no EO"
    if without_eo > without_sp:
        name = plain_text(classes[1]) if classes else 1
        caption += f"\nno test node of class {name} of some group at {without_eo} of {clients:,} clients: no EO there"
    if clients > _ROWS:
        caption = f"the first {_ROWS} of {clients:,} clients, and the mean of all\n{caption}"

    # 2. The head.
    headings = _VERTICAL
    if "features" not in columns:
        headings = {"client": "client", "graphs": "graphs", "examples": "examples", "nodes": "nodes"}
        headings |= {"edges_kept": "edges\nkept", "edges_cut": "edges\ncut", "edges_added": "edges\nadded"}
        headings |= _SPLITS | _OPTIONAL
        headings = {name: heading for name, heading in headings.items() if name in columns}
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    for name, heading in headings.items():
        table.add_column(heading, justify="left" if name == "client" else "right", no_wrap=True)
    class_names = ", ".join(classes or targets)
    names = f":\n{plain_text(class_names)}" if class_names and len(class_names) <= _MAX_LETTERS else ""
    what = f"{example} with each label" if targets else f"{example} of each class"
    table.add_column(f"{'mean ± deviation' if 'means' in columns else what}{names}")

    # 3. A row for each client, and the mean of all. The counts of classes are in columns within one cell.
    rows, labels = [], []
    for row in range(min(clients, _ROWS)):
        numbers = [columns[name][row] for name in headings if name != "client"]
        texts = [f"{number:.3f}" if isinstance(number, float) else f"{number:,}" for number in numbers]
        rows.append([plain_text(columns["client"][row]), *texts])
        labels.append(target_cells(columns, row))
    if clients > _ROWS:
        texts = ["mean"]
        for name in headings:
            if name != "client":
                digits = 3 if isinstance(columns[name][0], float) else 1
                texts.append(f"{np.mean(columns[name]):.{digits}f}")
        rows.append(texts)
        labels.append(mean_cells(columns))
    widths = [max(map(len, column)) for column in zip(*labels, strict=True)]
    for index, (texts, counts) in enumerate(zip(rows, labels, strict=True)):
        line = " ".join(map(str.rjust, counts, widths))
        table.add_row(*texts, Text(line, no_wrap=True, overflow="ellipsis"), end_section=index == _ROWS - 1)
    return table

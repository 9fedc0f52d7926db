"""The tables of the report as plain data; the page's template escapes and lays them out."""

import math
import re
import shlex
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.filesize import decimal

from fedweave.metrics.client_fairness import pearson, per_group
from fedweave.metrics.judging import WORDS
from fedweave.report.cells import NONE, NOTES, Cell, Table, ends, explained, marked, measured, number
from fedweave.report.gain import alone
from fedweave.report.percentiles import HEADS, MANY, cells
from fedweave.report.reading import Group, Run, judged_alike, spread
from fedweave.report.training import recipe

_ENGINE = "name", "mode", "dtype"
COUNTED = ("undefined_clients", "members", "round", "classes_predicted")
PROPER = {"f1": "F1", "macro": "macro", "auc": "AUC", "sp": "SP", "eo": "EO"}


def facts(groups: Sequence[Group]) -> tuple[Table, Table]:
    """What was run: what all groups have alike, a pair in each row; and what differs, a row per group."""
    rows: dict[str, list[str]] = {}
    for group in groups:
        run = group.first
        engine = run.section("engine")
        devices = sorted({device for one in group.runs for device in one.summary.get("devices", ())})
        seeds = ", ".join(str(one.summary.get("seed", NONE)) for one in group.runs)
        entries = {
            "Dataset": run.summary["dataset"],
            "Algorithm": run.summary["algorithm"],
            "Model": run.models or NONE,
            "Clients": f"{run.summary['clients']:,}{_union(run)}{_cut(run)}",
            "Rounds": rounds(run),
            "Training": recipe(run),
            "Seeds" if any(len(one.runs) > 1 for one in groups) else "Seed": seeds,
            "Engine": " ".join([*(str(engine[key]) for key in _ENGINE if key in engine), *devices]) or NONE,
            "When": when(max(one.when for one in group.runs)),
            "Directory": _places([one.directory for one in group.runs]),
        }
        for name, entry in entries.items():
            rows.setdefault(name, []).append(str(entry))
    same = tuple((Cell(name), Cell(own[0])) for name, own in rows.items() if len({*own}) == 1)
    odd = [name for name, own in rows.items() if len({*own}) > 1 and own != [group.label for group in groups]]
    lines = tuple((Cell(group.label), *(Cell(rows[name][at]) for name in odd)) for at, group in enumerate(groups))
    return Table((), same, words=2), Table(("run", *odd), lines if odd else (), words=1 + len(odd))


def _places(directories: Sequence[Path]) -> str:
    """The directories of a group's runs; of several in one place how many, since each run's stands below its name."""
    places = {path.parent for path in directories}
    if len(directories) > 1 == len(places):
        return f"{len(directories)} in {places.pop()}"
    return ", ".join(map(str, directories))


def _union(run: Run) -> str:
    """ " with the data of 4" where one client holds what several members do, else ""."""
    return f" with the data of {run.members:,}" if run.members != run.summary["clients"] else ""


def _cut(run: Run) -> str:
    """How clients came to their data: " by louvain", or ", sites with data of their own", whatever the experiment says
    of simulations."""
    if run.between_sites:
        return ", sites with data of their own"
    return f" by {run.section('partition').get('name', 'their own data')}"


def rounds(run: Run) -> str:
    """ "30", or "unfinished: round 12 of 30"."""
    if run.finished:
        return f"{run.done:,}"
    late = "" if run.evaluated == run.done else f", evaluated after round {run.evaluated:,}"
    return f"unfinished: round {run.done:,} of {run.config.get('rounds', '?')}{late}"


def when(moment: float) -> str:
    """A moment in universal time."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))


def command(run: Run) -> str:
    """The command that repeats a run."""
    config = str(run.directory / "config.toml")
    between = run.between_sites
    words = ["sites", "run", config, "--sites", "DIR"] if between else ["run", config]
    return shlex.join(["fedweave", *words, "--out", f"{run.directory}-again"])


def comparable(groups: Sequence[Group]) -> bool:
    """Whether a best value means something: finished runs on the same data with as many members."""
    return len(groups) > 1 and not incomparable(groups)


def incomparable(groups: Sequence[Group]) -> str:
    """Why differences between runs say nothing of what they were started for, with whose; "" if they do."""
    about: tuple[tuple[str, Callable[[Run], object]], ...] = (
        ("of other data", lambda run: run.summary["dataset"]),
        ("of other numbers of clients", lambda run: run.tested),
    )
    for words, value in about:
        if len({value(group.first) for group in groups}) > 1:
            told = "; ".join(f"{group.label}: {value(group.first)}" for group in groups)
            return f"these runs are {words} ({told})"
    odd = [f"{group.first.directory}, {rounds(group.first)}" for group in groups if not group.first.finished]
    return f"not all runs are finished: {'; '.join(odd)}" if odd else ""


def metrics(
    groups: Sequence[Group], families: Sequence[str], shown: Callable[[str], bool] = lambda name: True
) -> Table:
    """The metrics "family/…" of the final models that are `shown`: a row per metric, a column per group."""
    names = dict.fromkeys(
        name
        for family in families
        for group in groups
        for run in group.runs
        for name in run.summary["metrics"]
        if name.startswith(f"{family}/") and shown(name)
    )
    rows, marks, judged = [], comparable(groups), judged_alike(groups)
    for name in names:
        family, last = name.partition("/")[0], name.rpartition("/")[2]
        counted = last in COUNTED or last.startswith("undefined_")
        form = number if not counted else tenths if family == "local" else counted_number
        cells = [measured(group.values(name), form) for group in groups]
        if marks:
            cells = marked(cells, [group.by_seed(name) for group in groups], last, judged)
        title = readable(last if family in ("fairness", "per_class") else name)
        rows.append((Cell(title, note=explained(name)), *cells))
    return Table(heads(groups), tuple(_merged(rows)))


def _merged(rows: Sequence[tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
    """The rows with a micro F1 that is the accuracy before it, as it is with one label each, named in that one's."""
    found: list[tuple[Cell, ...]] = []
    for row in rows:
        if found and row[0].note == NOTES["f1"] and row[1:] == found[-1][1:]:
            found[-1] = (replace(found[-1][0], note=f"also F1, {NOTES['f1']}"), *row[1:])
        else:
            found.append(row)
    return found


def costs(groups: Sequence[Group]) -> Table:
    """Time, memory and traffic: a column per group."""
    forms: dict[str, tuple[str, str, Callable[[float], str]]] = {
        "seconds": ("Seconds", "training, evaluation and writing", lambda value: f"{value:,.1f}"),
        "seconds_per_round": ("Seconds per round", "", number),
        "peak_rss_mb": ("Peak memory", "of the process, MB", lambda value: f"{value:,.0f}"),
        "bytes_up": ("Sent by all clients", "", lambda value: decimal(round(value))),
        "bytes_down": ("Received by all clients", "", lambda value: decimal(round(value))),
    }
    more = {
        "bytes_peer": ("Sent from client to client", ""),
        "bytes_evaluation": ("Of all this for evaluation", "training does not need it"),
    }
    for name, words in more.items():
        if any(value is not None for group in groups for value in group.values(name)):
            forms[name] = (*words, lambda value: decimal(round(value)))
    rows = [
        (Cell(title, note=note), *(measured(group.values(name), form) for group in groups))
        for name, (title, note, form) in forms.items()
    ]
    return Table(heads(groups), tuple(rows))


def extremes(groups: Sequence[Group]) -> Table:
    """The clients that the final model serves worst and best by what a run is judged by, named; a row per run."""
    rows = []
    for group in groups:
        for run in group.runs:
            accuracy = run.clients(run.judged)
            if accuracy:
                both = (end(accuracy.values()) for end in (min, max))
                named = [Cell(number(end), repr(end), named_clients(accuracy, end)) for end in both]
                mean = spread(accuracy.values())[0]
                about = (Cell(group.label), Cell(str(run.summary.get("seed", NONE))))
                rows.append((*about, named[0], Cell(number(mean), repr(mean)), named[1]))
    return Table(("run", "seed", "worst client", "mean over clients", "best client"), tuple(rows), words=2)


def spreads(groups: Sequence[Group]) -> Table:
    """Percentiles over members of what a run is judged by, on their test examples; a row per run of many."""
    rows = []
    for group in groups:
        for run in group.runs:
            own = run.clients(run.judged)
            if len(own) > MANY:
                about = (Cell(group.label), Cell(str(run.summary.get("seed", NONE))))
                rows.append((*about, Cell(f"{len(own):,}"), *cells([*own.values()])))
    return Table(("run", "seed", "members", *HEADS), tuple(rows), words=2)


EARNED = {"alignment": "mean", "diversity": "last", "value": "last", "density": "mean", "payoff": "sum"}


def incentives(run: Run) -> Table:
    """What the server knew of each client's contribution and gave for it, over all rounds: a row per client; empty if
    it measured neither payoff nor density."""
    known = {name: run.known(name) for name in EARNED}
    if not known["payoff"] and not known["density"]:
        return Table((), ())
    shown = [name for name in EARNED if known[name]]
    rows = []
    for client in sorted({client for of_clients in known.values() for client in of_clients}):
        cells = []
        for name in shown:
            values = list(known[name].get(client, {}).values())
            over = {"mean": lambda v: sum(v) / len(v), "last": lambda v: v[-1], "sum": sum}[EARNED[name]]
            cells.append(Cell(number(over(values)), repr(over(values))) if values else Cell(NONE))
        rows.append((Cell(client), *cells))
    head = [f"{name}, {EARNED[name]}{' before rounding to cents' * (name == 'payoff')}" for name in shown]
    return Table(("client", *head), ends(rows))


def qualities(run: Run) -> Table:
    """What clients of low, medium and high quality are paid per round, in the mean; empty for other partitions."""
    paid = {client: sum(own.values()) / len(own) for client, own in run.known("payoff").items()}
    groups = per_group(paid)
    return Table(
        ("quality", "payoff per round"), tuple((Cell(name), Cell(number(v), repr(v))) for name, v in groups.items())
    )


def reward_fairness(groups: Sequence[Group]) -> Table:
    """Pearson's correlation of the clients' test accuracies, or what else a run is judged by, with those of local
    training on the same split and seed, a row for each other run; empty without such a run of `local`."""
    rows = []
    for group, run in [(owner, run) for owner in groups for run in owner.runs]:
        reference = alone(run, groups)
        if reference is None:
            continue
        one, other = reference.clients(run.judged), run.clients(run.judged)
        shared = sorted(one.keys() & other.keys())
        found = pearson(np.array([one[c] for c in shared]), np.array([other[c] for c in shared]))
        told = NONE if math.isnan(found.low) else f"{found.low:.3f} to {found.high:.3f}"
        value = NONE if math.isnan(found.value) else f"{found.value:.3f}"
        seed = str(run.summary.get("seed", NONE))
        rows.append((Cell(group.label), Cell(seed), Cell(value, repr(found.value)), Cell(told), Cell(str(len(shared)))))
    return Table(("run", "seed", "correlation with local training", "95 % interval", "clients"), tuple(rows), words=2)


def named_clients(accuracy: Mapping[str, float], value: float) -> str:
    """The clients that have `value`: "client-2", "client-2, client-9" or "client-2 and 4 more"."""
    names = [client for client, own in accuracy.items() if own == value]
    return ", ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} more"


def splits(parts: Iterable[tuple[str, pa.Table]]) -> Table:
    """Sizes of each split, given as (whose, partition.parquet); sites may keep a number back, or not know it."""
    rows = []
    for whose, table in parts:
        nodes = sorted(size for size in table["nodes"].to_pylist() if size is not None)
        kept, cut = (_total(table[name].to_pylist()) for name in ("edges_kept", "edges_cut"))
        all_ends = 0 if kept is None or cut is None else 2 * kept + cut
        share = f"{(cut or 0) / all_ends:.1%}" if all_ends else NONE
        middle = f"{statistics.median(nodes):,.1f}".removesuffix(".0") if nodes else NONE
        sizes = (_count(nodes[0] if nodes else None), middle, _count(nodes[-1] if nodes else None))
        rows.append(tuple(map(Cell, (whose, f"{len(table):,}", *sizes, _count(kept), _count(cut), share))))
    head = ("split of", "clients", "fewest nodes", "median", "most", "edges kept", "edge ends cut", "share cut")
    return Table(head, tuple(rows))


def clients(run: Run) -> Table:
    """One row per client of a run: its part of the data and the final test accuracy there, or what else judges; of very
    many the largest and the smallest."""
    accuracy, rows = run.clients(run.judged), []
    if run.partition is None:
        return Table((), ())
    names = [name for name in ("graphs", "nodes", "edges_kept", "edges_cut") if name in run.partition.column_names]
    names += ["train", "val", "test"]
    shares = [name for name in ("overlap", "overlap_links") if name in run.partition.column_names]
    parts = run.partition.to_pylist()
    for part in parts if len(parts) <= MANY else sorted(parts, key=lambda part: -(part["nodes"] or 0)):
        counts = [_count(part[name]) for name in names] + [number(part[name]) for name in shares]
        own = accuracy.get(part["client"])
        last = Cell(NONE) if own is None else Cell(number(own), repr(own))
        rows.append((Cell(part["client"]), *map(Cell, counts), last))
    head = ("client", *(name.replace("_", " ") for name in (*names, *shares)), f"test {WORDS[run.judged]}")
    return Table(head, ends(rows))


def pairs(run: Run) -> Table:
    """What each client shares with all others, as a share of what all do (FairGFL's table III): a row per client, a
    column per matrix of a run."""
    if run.partition is None or not run.pairs:
        return Table((), ())
    sums = {name: matrix.sum(1) for name, matrix in run.pairs.items()}
    shares = [own / own.sum() if own.sum() else own for own in sums.values()]
    rows = [
        (Cell(str(client)), *(Cell(f"{own[at]:.4f}", repr(float(own[at]))) for own in shares))
        for at, client in enumerate(run.partition["client"].to_pylist())
    ]
    return Table(("client", *(name.replace("_", " ") for name in sums)), ends(rows))


def tenths(value: float) -> str:
    """A mean of counts over clients."""
    return f"{value:,.1f}"


def counted_number(value: float) -> str:
    """A count or, of several runs, a mean of counts."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _total(numbers: list[int | None]) -> int | None:
    """Their sum; None if one of them is not known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _count(count: int | None) -> str:
    return NONE if count is None else f"{count:,}"


def heads(groups: Sequence[Group]) -> tuple[str, ...]:
    """The head of a table with a column per group, with its seeds where groups have other numbers of them."""
    if len({len(group.runs) for group in groups}) == 1 < len(groups):
        return ("", *(group.label for group in groups))
    return (
        "",
        *(f"{group.label} ({len(group.runs)} seeds)" if len(group.runs) > 1 else group.label for group in groups),
    )


def readable(name: str) -> str:
    """A metric's name in words."""
    name = re.sub(r"at_(\d+)$", r"at_\1_%", name)
    words = [PROPER.get(word, word) for word in name.replace("/", "_").split("_")]
    text = " ".join(words)
    return text[0].upper() + text[1:]

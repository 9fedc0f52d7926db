"""The tables of the report as plain data; the page's template escapes and lays them out."""

import math
import shlex
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa
from rich.filesize import decimal

from fedweave.accounts.compliance import Disclosure
from fedweave.accounts.ledger import call_text, meaning, mechanism_text, stamp, who
from fedweave.core.text import counted
from fedweave.errors import listed
from fedweave.experiment.runs.reading import Group, Run, common_selection_metric
from fedweave.metrics.client_fairness import pearson, per_group
from fedweave.metrics.selection import title_of
from fedweave.privacy.accountant import Bound
from fedweave.reports.cells import (
    NONE,
    Cell,
    ResultTable,
    bytes_text,
    count_text,
    explanation,
    mark_best,
    mean_cell,
    number,
    number_cell,
    row_of,
    shorten,
    tenths,
)
from fedweave.reports.conditions import incomparability, rounds_text
from fedweave.reports.gains import MANY, PERCENTILE_HEADS, local_run, percentile_cells
from fedweave.reports.recipes import recipe
from fedweave.reports.result_names import note, readable, whole

PER_ITEM = {"per_class": "class", "per_target": "target"}  # families of metrics of one class, or one target
# {name: how its values in several rounds become one}
INCENTIVES = {"alignment": "mean", "diversity": "last", "value": "last", "density": "mean", "payoff": "sum"}


# {number of a summary: (title, small print, format)}
_COSTS: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "seconds": ("Seconds", "training, evaluation and writing", tenths),
    "seconds_per_round": ("Seconds per round", "", number),
    "peak_rss_mb": ("Peak memory", "of the process, MB", lambda value: f"{value:,.0f}"),
    "bytes_up": ("Sent by all clients", "", bytes_text),
    "bytes_down": ("Received by all clients", "", bytes_text),
    "bytes_peer": ("Sent from client to client", "", bytes_text),
    "bytes_evaluation": ("Of all this for evaluation", "training does not need it", bytes_text),
}
_OPTIONAL_COSTS = ("bytes_peer", "bytes_evaluation")  # no row where no run has a number


def facts(groups: Sequence[Group]) -> tuple[ResultTable, ResultTable]:
    """The settings of the runs: those that all groups share, a pair in each row; and the different ones, a row per
    group."""
    labels = [group.label for group in groups]
    several_seeds = any(len(group.runs) > 1 for group in groups)
    columns: dict[str, list[str]] = {}  # {title: an entry for each group}
    for group in groups:
        for title, entry in _facts(group, several_seeds).items():
            columns.setdefault(title, []).append(str(entry))
    equal, different = [], []
    for title, entries in columns.items():
        if len({*entries}) == 1:
            equal.append(row_of(title, entries[0]))
        elif entries != labels:  # which the first column has
            different.append(title)
    rows = [row_of(*entries) for entries in zip(labels, *map(columns.__getitem__, different), strict=True)]
    table = ResultTable(("run", *different), tuple(rows) if different else (), words=1 + len(different))
    return ResultTable((), tuple(equal), words=2), table


def subtitle(groups: Sequence[Group]) -> str:
    """What all groups share, in a line: clients, model, rounds, seeds and time."""
    several_seeds = any(len(group.runs) > 1 for group in groups)
    of_groups = [_facts(group, several_seeds) for group in groups]
    forms = {
        "Clients": "{}",
        "Model": "{}",
        "Rounds": "{} round{}",
        "Seed": "seed {}",
        "Seeds": "seeds {}",
        "When": "{}",
    }
    texts = []
    for title, form in forms.items():
        entries = {str(facts.get(title, NONE)) for facts in of_groups}
        if len(entries) == 1 and NONE not in entries:
            words = entries.pop()
            texts.append(words if words.startswith("unfinished") else form.format(words, "" if words == "1" else "s"))
    return " · ".join(texts)


def _facts(group: Group, several_seeds: bool) -> dict[str, object]:
    """{title: entry} of the settings of one group."""
    run = group.first
    engine = run.section("engine")
    engine_words = [str(engine[key]) for key in ("name", "mode", "dtype") if key in engine]
    devices = set(chain.from_iterable(one.summary.get("devices", ()) for one in group.runs))
    clients = counted(run.summary["clients"], "client")
    if run.members != run.summary["clients"]:  # one client holds what several members do
        clients += f" with the data of {run.members:,}"
    if run.between_sites:  # only simulations use the experiment's partition
        clients += ", sites with data of their own"
    else:
        clients += f" by {run.section('partition').get('name', 'their own data')}"
    directories, places = [one.directory for one in group.runs], {one.directory.parent for one in group.runs}
    where = ", ".join(map(str, directories))
    if len(directories) > 1 and len(places) == 1:  # each run's directory is below its name
        where = f"{len(directories)} in {places.pop()}"
    return {
        "Dataset": run.summary["dataset"],
        "Algorithm": run.summary["algorithm"],
        "Model": run.models or NONE,
        "Clients": clients,
        "Rounds": rounds_text(run),
        "Training": recipe(run),
        "Seeds" if several_seeds else "Seed": ", ".join(map(_seed, group.runs)),
        "Engine": " ".join([*engine_words, *sorted(devices)]) or NONE,
        "When": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(max(one.when for one in group.runs))),
        "Directory": where,
    }


def _seed(run: Run) -> str:
    return str(run.summary.get("seed", NONE))


def command(run: Run) -> str:
    """The command that repeats a run."""
    config = str(run.directory / "config.toml")
    words = ["sites", "run", config, "--sites", "DIR"] if run.between_sites else ["run", config]
    return shlex.join(["fedweave", *words, "--out", f"{run.directory}-again"])


def comparable(groups: Sequence[Group]) -> bool:
    """Whether a best value is meaningful: finished runs on the same data with the same number of members."""
    return len(groups) > 1 and not incomparability(groups)


def metrics(
    groups: Sequence[Group], families: Sequence[str], select: Callable[[str], bool] = lambda name: True
) -> ResultTable:
    """The metrics "family/…" of the final models for which `select` is true: a row per metric, a column per group."""
    names = dict[str, None]()
    for group in groups:
        for run in group.runs:
            names |= dict.fromkeys(run.summary["metrics"])
    names_by_family: dict[str, list[str]] = {family: [] for family in families}
    for name in names:
        family, slash, _ = name.partition("/")
        if slash and family in names_by_family and select(name):
            names_by_family[family].append(name)
    rows = list[tuple[Cell, ...]]()
    for family, names_of_family in names_by_family.items():
        for name in names_of_family:
            last = name.rpartition("/")[2]
            form: Callable[[float], str] = number
            if whole(name):
                form = tenths if family == "local" else count_text
            cells = [mean_cell(group.values(name), form) for group in groups]
            if comparable(groups):
                values = [group.by_seed(name) for group in groups]
                cells = mark_best(cells, values, last, common_selection_metric(groups))
            title = readable(last if family == "fairness" else name)
            if family in PER_ITEM:
                title = item_title(groups[0].first, name)
            head = Cell(title, note=explanation(name))
            # Micro F1 equals the accuracy in the row before, as with one label each: one row for both.
            if rows and head.note == note("f1") and tuple(cells) == rows[-1][1:]:
                rows[-1] = (replace(rows[-1][0], note=f"also F1, {note('f1')}"), *cells)
            else:
                rows.append((head, *cells))
    return ResultTable(heads(groups), tuple(rows))


def item_title(run: Run, name: str) -> str:
    """The title of a row "per_target/rmse/0" or "per_class/f1/0": "RMSE of logS", "F1 of fraud", or "RMSE of target
    0"."""
    family, metric, number = name.split("/")
    labels = run.classes if family == "per_class" else run.summary.get("targets", ())
    label = labels[int(number)] if int(number) < len(labels) else f"{PER_ITEM[family]} {number}"
    return f"{readable(title_of(metric))} of {label}"


def costs(groups: Sequence[Group]) -> ResultTable:
    """Time, memory and traffic: a column per group."""
    rows = []
    for name, (title, small_print, form) in _COSTS.items():
        values = [group.values(name) for group in groups]
        if name in _OPTIONAL_COSTS and all(value is None for value in chain.from_iterable(values)):
            continue
        rows.append((Cell(title, note=small_print), *(mean_cell(of_group, form) for of_group in values)))
    return ResultTable(heads(groups), tuple(rows))


def by_client(groups: Sequence[Group]) -> ResultTable:
    """Each client's result by the selection metric, side by side: a row per client, a column per group.

    Of very many clients the first and the last are shown. Empty for one group, and where groups have other clients.
    """
    scores = []  # of each run of each group: {client: score}
    for group in groups:
        scores.append([run.clients(run.selection_metric) for run in group.runs])
    clients = [dict.fromkeys(chain.from_iterable(of_group)) for of_group in scores]
    if len(groups) < 2 or not clients[0] or any(other.keys() != clients[0].keys() for other in clients):
        return ResultTable((), ())
    rows = []
    for client in clients[0]:
        cells = [Cell(client)]
        for of_group in scores:
            cells.append(mean_cell([of_run.get(client) for of_run in of_group], number))
        rows.append(tuple(cells))
    return ResultTable(heads(groups), shorten(rows))


def spreads(groups: Sequence[Group]) -> ResultTable:
    """Percentiles over members of the selection metric on their test examples; a row per run of many members."""
    rows = []
    for group in groups:
        for run in group.runs:
            scores = [*run.clients(run.selection_metric).values()]
            if len(scores) > MANY:
                rows.append(row_of(group.label, _seed(run), f"{len(scores):,}", *percentile_cells(scores)))
    return ResultTable(("run", "seed", "members", *PERCENTILE_HEADS), tuple(rows), words=2)


def incentives(run: Run) -> ResultTable:
    """Each client's contribution, as the server measured it, and its reward, over all rounds: a row per client.

    Empty if the server measured neither payoff nor density.
    """
    tables = {name: run.server_values(name) for name in INCENTIVES}  # {name: {client: {round: value}}}
    if not tables["payoff"] and not tables["density"]:
        return ResultTable((), ())
    tables = {name: table for name, table in tables.items() if table}
    rows = []
    for client in sorted(set().union(*tables.values())):
        cells = [Cell(client)]
        for name, table in tables.items():
            values = [*table.get(client, {}).values()]
            value = None
            if values:
                over_rounds = {"mean": sum(values) / len(values), "last": values[-1], "sum": sum(values)}
                value = over_rounds[INCENTIVES[name]]
            cells.append(number_cell(value))
        rows.append(tuple(cells))
    head = [f"{name}, {INCENTIVES[name]}{' before rounding to cents' * (name == 'payoff')}" for name in tables]
    return ResultTable(("client", *head), shorten(rows))


def qualities(run: Run) -> ResultTable:
    """The mean payment per round of clients of low, medium and high quality; empty for other partitions."""
    payments = {client: sum(payoffs.values()) / len(payoffs) for client, payoffs in run.server_values("payoff").items()}
    rows = [row_of(quality, number_cell(mean)) for quality, mean in per_group(payments).items()]
    return ResultTable(("quality", "payoff per round"), tuple(rows))


def reward_fairness(groups: Sequence[Group]) -> ResultTable:
    """Pearson's correlation of the clients' results with their results in local training on the same split and seed.

    Results are test accuracies, or the selection metric. A row for each other run; empty without such a run of `local`.
    """
    rows = []
    for group in groups:
        for run in group.runs:
            reference = local_run(run, groups)
            if reference is None:
                continue
            local, joint = reference.clients(run.selection_metric), run.clients(run.selection_metric)
            names = sorted(local.keys() & joint.keys())
            values = np.array([(local[name], joint[name]) for name in names]).reshape(-1, 2)  # [clients, 2]
            correlation = pearson(values[:, 0], values[:, 1])
            interval = NONE if math.isnan(correlation.low) else f"{correlation.low:.3f} to {correlation.high:.3f}"
            text = NONE if math.isnan(correlation.value) else f"{correlation.value:.3f}"
            value = Cell(text, repr(correlation.value))
            rows.append(row_of(group.label, _seed(run), value, interval, str(len(names))))
    head = ("run", "seed", "correlation with local training", "95 % interval", "clients")
    return ResultTable(head, tuple(rows), words=2)


def splits(partitions: Iterable[tuple[str, pa.Table]]) -> ResultTable:
    """Sizes of each split, given as (whose, partition.parquet); sites may keep a number back, or not know it."""
    rows = []
    for whose, table in partitions:
        nodes = sorted(size for size in table["nodes"].to_pylist() if size is not None)
        smallest, largest = (nodes[0], nodes[-1]) if nodes else (None, None)
        median = f"{statistics.median(nodes):,.1f}".removesuffix(".0") if nodes else NONE
        inside = _total(table["edges_kept"].to_pylist())
        cut_ends = _total(table["edges_cut"].to_pylist())
        ends = 0 if inside is None or cut_ends is None else 2 * inside + cut_ends
        share = f"{(cut_ends or 0) / ends:.1%}" if ends else NONE
        counts = (_count(smallest), median, _count(largest), _count(inside), _count(cut_ends))
        rows.append(row_of(whose, f"{len(table):,}", *counts, share))
    head = ("split of", "clients", "fewest nodes", "median", "most", "edges kept", "edge ends cut", "share cut")
    return ResultTable(head, tuple(rows))


def _total(numbers: list[int | None]) -> int | None:
    """The sum of the numbers; None if one of them is not known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _count(count: int | None) -> str:
    return NONE if count is None else f"{count:,}"


def clients(run: Run) -> ResultTable:
    """One row per client of a run: its part of the data and its final result by the selection metric.

    Of very many clients the largest and the smallest are shown.
    """
    if run.partition is None:
        return ResultTable((), ())
    columns = run.partition.column_names
    counts = [name for name in ("graphs", "nodes", "edges_kept", "edges_cut") if name in columns]
    counts += ["train", "val", "test"]
    shares = [name for name in ("overlap", "overlap_links") if name in columns]
    parts = run.partition.to_pylist()
    if len(parts) > MANY:
        parts.sort(key=lambda part: -(part["nodes"] or 0))
    scores, rows = run.clients(run.selection_metric), []
    for part in parts:
        texts = [_count(part[name]) for name in counts] + [number(part[name]) for name in shares]
        rows.append(row_of(part["client"], *texts, number_cell(scores.get(part["client"]))))
    titles = [name.replace("_", " ") for name in (*counts, *shares)]
    return ResultTable(("client", *titles, f"test {title_of(run.selection_metric)}"), shorten(rows))


def pairs(run: Run) -> ResultTable:
    """The nodes and links that each client shares with all others, as a share of the total (FairGFL's table III).

    A row per client, a column per matrix of a run.
    """
    if run.partition is None or not run.pairs:
        return ResultTable((), ())
    shares = []
    for matrix in run.pairs.values():  # [clients, clients]
        totals = matrix.sum(1)
        shares.append(totals / totals.sum() if totals.sum() else totals)
    rows = []
    for index, client in enumerate(run.partition["client"].to_pylist()):
        cells = [number_cell(float(of_clients[index]), form="{:.4f}".format) for of_clients in shares]
        rows.append(row_of(str(client), *cells))
    return ResultTable(("client", *(name.replace("_", " ") for name in run.pairs)), shorten(rows))


def flow_table(disclosure: Disclosure, times: bool = True) -> ResultTable:
    """A line for each kind of message, with the times of the first and the last one if `times` is set."""
    members, rows = len(disclosure.members), []
    head = ["what for", "from", "to", "call and key", "what the receiver learns", "mechanism", "messages", "bytes"]
    if times:
        head += ["first (UTC)", "last (UTC)"]
    for flow in disclosure.flows:
        ends = [Cell(who(names, members), listed(names)) for names in (flow.senders, flow.receivers)]
        words = (call_text(flow), meaning(flow), mechanism_text(flow), f"{flow.messages:,}")
        size = Cell(decimal(flow.bytes), f"{flow.bytes} bytes")
        dates = (stamp(flow.first), stamp(flow.last, flow.first)) if times else ()
        rows.append(row_of(flow.purpose or "not specified", *ends, *words, size, *dates))
    return ResultTable(tuple(head), tuple(rows), words=6)


def privacy_table(disclosure: Disclosure) -> ResultTable:
    """The ε of all that each member sent; members with the same ε share a row, the largest first; no row where none
    follows."""
    names_by_bound: dict[Bound, list[str]] = {}
    for name, bound in disclosure.costs:
        names_by_bound.setdefault(bound, []).append(name)
    rows = []
    for bound, names in sorted(names_by_bound.items(), key=lambda item: -item[0].epsilon):
        epsilon = number_cell(bound.epsilon, form="{:.4g}".format)
        delta = NONE if bound.delta is None else f"{bound.delta:g}"
        words = (who(names, len(disclosure.members)), f"per {bound.per}", bound.remark)
        rows.append(row_of(*words, epsilon, delta, f"{bound.messages:,}"))
    return ResultTable(("member", "of what", "which", "ε", "δ", "messages"), shorten(rows), words=3)


def heads(groups: Sequence[Group]) -> tuple[str, ...]:
    """The head of a table with a column per group, with the number of seeds where groups have different numbers."""
    sizes = {len(group.runs) for group in groups}
    if len(groups) > 1 and len(sizes) == 1:
        return ("", *(group.label for group in groups))
    titles = [f"{group.label} ({len(group.runs)} seeds)" if len(group.runs) > 1 else group.label for group in groups]
    return ("", *titles)

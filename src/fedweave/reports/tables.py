"""The tables of the report as plain data; the page's template escapes and lays them out."""

import math
import shlex
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.filesize import decimal

from fedweave.errors import listed
from fedweave.experiment.config.toml import differences
from fedweave.metrics.client_fairness import pearson, per_group
from fedweave.metrics.selection import PLAIN, lower, near_constant, rank, title_of
from fedweave.reports.cells import (
    MOST,
    NONE,
    Cell,
    ResultTable,
    conditions,
    ends,
    explained,
    marked,
    measured,
    number,
    recipe,
    signed,
)
from fedweave.reports.conditions import TOO_FEW, UNDECIDED, Effect, effect, incomparable, ranked, rounds, three, turned
from fedweave.reports.drawing import DASHES, Dots, Figure, LineSeries, Panel, legend_of, of_run
from fedweave.reports.figures import NAMED
from fedweave.reports.notes import compared_people
from fedweave.reports.reading import BY_FEATURES, Group, Run, common_selection_metric, distinct, spread
from fedweave.reports.result_names import GAPS, GROUPS, note, readable, whole

# ----------------------------------------------------------------------------------------------------
# Many members in few numbers: percentiles of their values, and how many differ by more than the noise of their test
# examples.


SHOWN = (5, 10, 50, 90)
HEADS = tuple(f"{at} %" for at in SHOWN)
MANY = 3 * MOST  # members above which percentiles say more than rows
NOISE = (
    "Beyond noise is a member whose accuracy differs by more than its number of test examples explains: Agresti and "
    "Caffo's 95 % interval of the two accuracies' difference leaves out 0. By chance alone up to one in forty does so "
    "either way."
)
_NORMAL = 1.959963984540054  # 97.5 % of a normal distribution lie below it


def percentiles(values: Sequence[float]) -> list[float]:
    """The percentiles `SHOWN` of values."""
    values_at: list[float] = np.percentile(np.array(values), SHOWN).tolist()
    return values_at


def cells(values: Sequence[float], differences: bool = False) -> tuple[Cell, ...]:
    """Cells of the values' percentiles; differences: with a sign."""
    return tuple(Cell(signed(one) if differences else number(one), repr(one)) for one in percentiles(values))


def beyond_noise(run: Run, other: Run) -> tuple[int, int] | None:
    """How many members' test accuracies in `run` are above their accuracies in `other`, and how many below, beyond
    noise.

    Returns None where accuracy is not the selection metric, or members' numbers of test examples are not known.
    """
    if run.selection_metric != PLAIN or run.partition is None:
        return None
    tested = dict(zip(run.partition["client"].to_pylist(), run.partition["test"].to_pylist(), strict=True))
    others = other.clients(PLAIN)
    ways = [
        differs(value, others[client], tested[client])
        for client, value in run.clients(PLAIN).items()
        if client in others and tested.get(client)
    ]
    return (ways.count(1), ways.count(-1)) if ways else None


def differs(one: float, other: float, tested: int) -> int:
    """1 if one share of `tested` examples is surely above another share of the same number, -1 if it is below, else 0.

    Agresti and Caffo 2000, "Simple and effective confidence intervals for proportions and differences of proportions
    result from adding two successes and two failures". Both shares are of the same examples, which makes it cautious.
    """
    high, low = ((share * tested + 1) / (tested + 2) for share in (one, other))
    half = _NORMAL * math.sqrt((high * (1 - high) + low * (1 - low)) / (tested + 2))
    return int(high - low > half) - int(low - high > half)


# ----------------------------------------------------------------------------------------------------
# What joining brings each member: its test result in a run, by the selection metric, less its result with training
# alone on the same split.


ALONE = ("local", "standalone")  # the second for parties that hold different features of the same nodes
PANELS = 4  # splits that are drawn
BESIDE = 0.7  # of a member's width, over which the dots of several runs are spread
SYMBOLS = ("circle", "diamond", "square", "cross", "triangle")


@dataclass(frozen=True)
class Gain:
    """What joining changes for the members of one run.

    of_clients: {client: accuracy (or selection metric) minus its value with local training} for clients that have both.
    Where lower is better (`way` = -1) the sign is turned, so that more is a gain. beside: the group that trains alone,
    where there are several such groups. apart: settings other than the algorithm in which that run differs. beyond: how
    many gain and how many lose by more than noise (`beyond_noise`).
    """

    at: int
    group: Group
    run: Run
    of_clients: dict[str, float]
    beside: str = ""
    apart: str = ""
    beyond: tuple[int, int] | None = None

    @property
    def way(self) -> int:
        """-1 where lower values of the selection metric are better, else 1."""
        return -1 if lower(self.run.selection_metric) else 1


def local_run(run: Run, groups: Sequence[Group]) -> Run | None:
    """The run that trains alone with the split and the seed of `run`; of several, the one with the fewest other
    settings.

    Returns None without such a run, and if `run` itself trains alone.
    """
    if run.summary["algorithm"] in ALONE:
        return None
    others = (other for group in _local_groups(groups) for other in group.runs if _same_split(other, run))
    return min(others, key=lambda other: len(differences(other.config, run.config)), default=None)


def _local_groups(groups: Sequence[Group]) -> list[Group]:
    return [group for group in groups if group.runs[0].summary["algorithm"] in ALONE]


def missing(run: Run) -> str:
    """The algorithm to run as well, for a comparison with training alone."""
    return ALONE[1] if run.section("partition").get("name") in BY_FEATURES else ALONE[0]


def gains(groups: Sequence[Group]) -> list[Gain]:
    """The gain of every run for which there is a run that trains alone."""
    all_gains, several = [], _local_groups(groups)
    for at, group in enumerate(groups):
        for run in group.runs:
            reference = local_run(run, groups)
            before = {} if reference is None else reference.clients(run.selection_metric)
            changes = {
                client: rank(run.selection_metric, value - before[client])
                for client, value in run.clients(run.selection_metric).items()
                if client in before
            }
            if changes:
                owners = [other.label for other in several if any(each is reference for each in other.runs)]
                beside = owners[0] if len(several) > 1 else ""
                apart = "" if reference is None else conditions(reference, run)
                beyond = None if reference is None else beyond_noise(run, reference)
                all_gains.append(Gain(at, group, run, changes, beside, apart, beyond))
    return all_gains


def sentences(all_gains: Sequence[Gain]) -> list[str]:
    """For every group of runs, what joining changes on average, how many members gain and lose, and how much.

    All seeds of a group count together: a member counts once for each seed.
    """
    lines = []
    for group in distinct(all_gains, lambda one, other: one.group is other.group):
        values = [value for gain in group for value in gain.of_clients.values()]
        up, down = [value for value in values if value > 0], [value for value in values if value < 0]
        who = "pairs of a member and a seed" if len(group) > 1 else "members"
        change, metric = _change(group), title_of(group[0].run.selection_metric)
        beside = [f"alone: {text}" for text in (group[0].beside, group[0].apart) if text]
        about = "; ".join([turned(change, group[0].way).sureness, *beside])
        if change.significant:
            does = "brings" if change.mean > 0 else "costs"
            how = "of" if group[0].way == 1 else "less" if change.mean > 0 else "more"
            words = f"With {group[0].group.label}, joining {does} {three(abs(change.mean))} {how} {metric} on average"
        else:
            begin = f"{UNDECIDED} with" if change.tested else "With"
            by = signed(group[0].way * change.mean, three)
            words = f"{begin} {group[0].group.label}: joining changes {metric} by {by} on average"
        words += f" ({about}); {len(up):,} of {len(values):,} {who} {'gains' if len(up) == 1 else 'gain'}"
        words += f", by {three(spread(up)[0])} on average" if up else ""
        words += (
            f"; {len(down):,} {'loses' if len(down) == 1 else 'lose'}, by {three(-spread(down)[0])}" if down else ""
        )
        lines.append(f"{words}{_beyond(group)}.")
    return lines


def _beyond(group: Sequence[Gain]) -> str:
    """How many members gain and lose by more than noise, of groups with many members."""
    known = [gain.beyond for gain in group if gain.beyond is not None]
    if len(known) < len(group) or max(len(gain.of_clients) for gain in group) <= MANY:
        return ""
    up, down = (sum(ways) for ways in zip(*known, strict=True))
    return f"; beyond the noise of test examples, {up:,} gain and {down:,} lose"


def headline(all_gains: Sequence[Gain]) -> str:
    """A sentence on what joining changes in each group of runs, grouped by the result of the test; "" for fewer than
    two."""
    changes = {
        group[0].group.label: _change(group)
        for group in distinct(all_gains, lambda one, other: one.group is other.group)
    }
    if len(changes) < 2:
        return ""
    metrics = listed(
        [title_of(name) for name in dict.fromkeys(gain.run.selection_metric for gain in all_gains)], " or "
    )
    ways: dict[str, dict[str, Effect]] = {
        "Against training alone,": {},
        f"{UNDECIDED} to training alone:": {},
        f"Not tested, {TOO_FEW}: against training alone,": {},
    }
    sure, undecided, alone = ways
    way_of = {gain.group.label: gain.way for gain in all_gains}
    for label, change in changes.items():
        ways[sure if change.significant else undecided if change.tested else alone][label] = change
    return " ".join(
        f"{way} joining changes members' mean {metrics} by {_best_first(effects, way_of)}."
        for way, effects in ways.items()
        if effects
    )


def _best_first(changes: Mapping[str, Effect], ways: Mapping[str, int]) -> str:
    """ "+0.0120 (fedavg; 95 % interval …), …", the highest gain first."""
    way = min(ways.values(), default=1)
    means = {
        f"{label}; {turned(change, way).sureness}" if change.tested else label: change.mean
        for label, change in changes.items()
    }
    return ranked(means, lambda value: signed(way * value, three))


def _change(group: Sequence[Gain]) -> Effect:
    """The mean over members, of every seed."""
    return effect([spread(gain.of_clients.values())[0] for gain in group])


def table(all_gains: Sequence[Gain]) -> ResultTable:
    """A row per run: how many members gain, the mean, and the members that gain least and most."""
    rows = []
    for gain in all_gains:
        changes = gain.of_clients
        ends = (end(changes, key=changes.__getitem__) for end in (min, max))
        extremes = [Cell(signed(changes[client]), repr(changes[client]), client) for client in ends]
        mean = spread(changes.values())[0]
        helped = f"{sum(value > 0 for value in changes.values())} of {len(changes)}"
        about = (Cell(gain.group.label), Cell(str(gain.run.summary.get("seed", NONE))))
        rows.append((*about, Cell(helped), extremes[0], Cell(signed(mean), repr(mean)), extremes[1]))
    return ResultTable(("run", "seed", "members helped", "least", "mean", "most"), tuple(rows), words=2)


def member_spreads(all_gains: Sequence[Gain]) -> ResultTable:
    """A row per run with many members: percentiles of their gains, and how many gain and lose beyond noise."""
    rows = []
    for gain in all_gains:
        if len(gain.of_clients) > MANY:
            ways = ("", "") if gain.beyond is None else tuple(f"{count:,}" for count in gain.beyond)
            about = (Cell(gain.group.label), Cell(str(gain.run.summary.get("seed", NONE))))
            percentile_cells = cells([*gain.of_clients.values()], differences=True)
            rows.append(
                (*about, Cell(f"{len(gain.of_clients):,}"), *percentile_cells, *(Cell(way or NONE) for way in ways))
            )
    return ResultTable(
        ("run", "seed", "members", *HEADS, "gain beyond noise", "lose beyond noise"), tuple(rows), words=2
    )


def figure(all_gains: Sequence[Gain]) -> Figure | None:
    """A panel for each of the first splits, with a dot per member and run, side by side.

    Members are in the order of their mean gain over the split's runs.
    """
    splits = distinct(all_gains, lambda one, other: _same_split(one.run, other.run))[:PANELS]
    ends = [value for split in splits for gain in split for value in gain.of_clients.values()]
    panels = tuple(_panel(split, min(ends), max(ends), titled=len(splits) > 1) for split in splits)
    if not panels:
        return None
    names = {gain.group.label for gain in all_gains}
    return Figure(panels, legend_of([dots for panel in panels for dots in panel.marks] if len(names) > 1 else ()))


def _panel(split: Sequence[Gain], low: float, high: float, titled: bool) -> Panel:
    clients = [client for client in split[0].of_clients if all(client in gain.of_clients for gain in split)]
    order = sorted(clients, key=lambda client: sum(gain.of_clients[client] for gain in split))
    title = f"seed {split[0].run.summary.get('seed', NONE)}" if titled else ""
    metrics = " or ".join(dict.fromkeys(title_of(gain.run.selection_metric) for gain in split))
    beside, ends = f"test {metrics}, less that alone", (min(low, 0.0), max(high, 0.0))
    if split[0].way < 0:
        beside = f"test {metrics} alone, less that together"
    if len(order) > MANY:
        lines = tuple(_ranks(gain) for gain in split)
        return Panel(title, lines, below="share of members", beside=beside, low=ends[0], high=ends[1], levels=(0.0,))
    shifts = [BESIDE * ((at + 0.5) / len(split) - 0.5) for at in range(len(split))]
    dots = tuple(
        Dots(
            gain.group.label,
            range(len(order)),
            [gain.of_clients[client] for client in order],
            of_run(gain.at),
            SYMBOLS[gain.at % len(SYMBOLS)],
            shift=shift,
        )
        for gain, shift in zip(split, shifts, strict=True)
    )
    below = "" if len(order) <= NAMED else "members, least gain first"
    return Panel(title, dots, tuple(order), below, beside, *ends, levels=(0.0,))


def _ranks(gain: Gain) -> LineSeries:
    """The gain that a share of many members is below."""
    shares = [at / 100 for at in range(101)]
    values = np.quantile(np.array([*gain.of_clients.values()]), shares).tolist()
    return LineSeries(gain.group.label, shares, values, of_run(gain.at), DASHES[gain.at % len(DASHES)])


def _same_split(one: Run, other: Run) -> bool:
    tables = one.partition, other.partition
    if tables[0] is None or tables[1] is None:
        return False
    return one.summary.get("seed") == other.summary.get("seed") and bool(tables[0].equals(tables[1]))


_ENGINE = "name", "mode", "dtype"


def facts(groups: Sequence[Group]) -> tuple[ResultTable, ResultTable]:
    """The settings of the runs: those that all groups share, a pair in each row; and the different ones, a row per
    group."""
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
    same = tuple((Cell(name), Cell(values[0])) for name, values in rows.items() if len({*values}) == 1)
    odd = [name for name, values in rows.items() if len({*values}) > 1 and values != [group.label for group in groups]]
    lines = tuple((Cell(group.label), *(Cell(rows[name][at]) for name in odd)) for at, group in enumerate(groups))
    return ResultTable((), same, words=2), ResultTable(("run", *odd), lines if odd else (), words=1 + len(odd))


def _places(directories: Sequence[Path]) -> str:
    """The directories of a group's runs; several directories in one place count together: each run's is below its
    name."""
    places = {path.parent for path in directories}
    if len(directories) > 1 == len(places):
        return f"{len(directories)} in {places.pop()}"
    return ", ".join(map(str, directories))


def _union(run: Run) -> str:
    """ " with the data of 4" where one client holds what several members do, else ""."""
    return f" with the data of {run.members:,}" if run.members != run.summary["clients"] else ""


def _cut(run: Run) -> str:
    """How clients got their data: " by louvain", or ", sites with data of their own".

    Of a run between sites it ignores the experiment's partition, which only simulations use.
    """
    if run.between_sites:
        return ", sites with data of their own"
    return f" by {run.section('partition').get('name', 'their own data')}"


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
    """Whether a best value is meaningful: finished runs on the same data with the same number of members."""
    return len(groups) > 1 and not incomparable(groups)


def metrics(
    groups: Sequence[Group], families: Sequence[str], shown: Callable[[str], bool] = lambda name: True
) -> ResultTable:
    """The metrics "family/…" of the final models that are `shown`: a row per metric, a column per group."""
    names = dict.fromkeys(
        name
        for family in families
        for group in groups
        for run in group.runs
        for name in run.summary["metrics"]
        if name.startswith(f"{family}/") and shown(name)
    )
    rows, marks, metric = [], comparable(groups), common_selection_metric(groups)
    for name in names:
        family, last = name.partition("/")[0], name.rpartition("/")[2]
        form = number if not whole(name) else tenths if family == "local" else counted_number
        cells = [measured(group.values(name), form) for group in groups]
        if marks:
            cells = marked(cells, [group.by_seed(name) for group in groups], last, metric)
        title = of_one(groups[0].first, name) if family in EACH else readable(last if family == "fairness" else name)
        rows.append((Cell(title, note=explained(name)), *cells))
    return ResultTable(heads(groups), tuple(_merged(rows)))


def _merged(rows: Sequence[tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
    """The rows; a micro F1 row that equals the accuracy row before it, as with one label each, is merged into that
    one."""
    merged: list[tuple[Cell, ...]] = []
    for row in rows:
        if merged and row[0].note == note("f1") and row[1:] == merged[-1][1:]:
            merged[-1] = (replace(merged[-1][0], note=f"also F1, {note('f1')}"), *row[1:])
        else:
            merged.append(row)
    return merged


def costs(groups: Sequence[Group]) -> ResultTable:
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
    return ResultTable(heads(groups), tuple(rows))


def extremes(groups: Sequence[Group]) -> ResultTable:
    """The clients that the final model serves worst and best by the selection metric, with their names; a row per
    run."""
    rows = []
    for group in groups:
        for run in group.runs:
            accuracy = run.clients(run.selection_metric)
            if accuracy:
                both = (end(accuracy.values()) for end in ((max, min) if lower(run.selection_metric) else (min, max)))
                ends_of_run = [Cell(number(end), repr(end), _named_with_size(run, accuracy, end)) for end in both]
                mean = spread(accuracy.values())[0]
                about = (Cell(group.label), Cell(str(run.summary.get("seed", NONE))))
                rows.append((*about, ends_of_run[0], Cell(number(mean), repr(mean)), ends_of_run[1]))
    return ResultTable(("run", "seed", "worst client", "mean over clients", "best client"), tuple(rows), words=2)


def _named_with_size(run: Run, values: Mapping[str, float], end: float) -> str:
    """Which clients have this value; of one client also its number of test examples."""
    alike = [client for client, value in values.items() if value == end]
    size = run.test_sizes.get(alike[0]) if len(alike) == 1 else None
    return named_clients(values, end) + ("" if size is None else f", n = {size:,}")


def by_client(groups: Sequence[Group]) -> ResultTable:
    """Each client's result by the selection metric, side by side: a row per client, a column per group.

    Of very many clients the first and the last are shown. Empty for one group, and where groups have other clients.
    """
    each = [[run.clients(run.selection_metric) for run in group.runs] for group in groups]
    names = [[*dict.fromkeys(client for values in runs for client in values)] for runs in each]
    if len(groups) < 2 or not names[0] or any(set(other) != set(names[0]) for other in names):
        return ResultTable((), ())
    rows = [
        (Cell(client), *(measured([values.get(client) for values in runs], number) for runs in each))
        for client in names[0]
    ]
    return ResultTable(heads(groups), ends(rows))


def spreads(groups: Sequence[Group]) -> ResultTable:
    """Percentiles over members of the selection metric on their test examples; a row per run of many members."""
    rows = []
    for group in groups:
        for run in group.runs:
            by_client = run.clients(run.selection_metric)
            if len(by_client) > MANY:
                about = (Cell(group.label), Cell(str(run.summary.get("seed", NONE))))
                rows.append((*about, Cell(f"{len(by_client):,}"), *cells([*by_client.values()])))
    return ResultTable(("run", "seed", "members", *HEADS), tuple(rows), words=2)


EARNED = {"alignment": "mean", "diversity": "last", "value": "last", "density": "mean", "payoff": "sum"}


def incentives(run: Run) -> ResultTable:
    """Each client's contribution, as the server measured it, and its reward, over all rounds: a row per client.

    Empty if the server measured neither payoff nor density.
    """
    known = {name: run.known(name) for name in EARNED}
    if not known["payoff"] and not known["density"]:
        return ResultTable((), ())
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
    return ResultTable(("client", *head), ends(rows))


def qualities(run: Run) -> ResultTable:
    """The mean payment per round of clients of low, medium and high quality; empty for other partitions."""
    paid = {client: sum(payoffs.values()) / len(payoffs) for client, payoffs in run.known("payoff").items()}
    groups = per_group(paid)
    return ResultTable(
        ("quality", "payoff per round"), tuple((Cell(name), Cell(number(v), repr(v))) for name, v in groups.items())
    )


def reward_fairness(groups: Sequence[Group]) -> ResultTable:
    """Pearson's correlation of the clients' results with their results in local training on the same split and seed.

    Results are test accuracies, or the selection metric. A row for each other run; empty without such a run of `local`.
    """
    rows = []
    for group, run in [(owner, run) for owner in groups for run in owner.runs]:
        reference = local_run(run, groups)
        if reference is None:
            continue
        one, other = reference.clients(run.selection_metric), run.clients(run.selection_metric)
        shared = sorted(one.keys() & other.keys())
        correlation = pearson(np.array([one[c] for c in shared]), np.array([other[c] for c in shared]))
        interval = NONE if math.isnan(correlation.low) else f"{correlation.low:.3f} to {correlation.high:.3f}"
        value = NONE if math.isnan(correlation.value) else f"{correlation.value:.3f}"
        seed = str(run.summary.get("seed", NONE))
        rows.append(
            (
                Cell(group.label),
                Cell(seed),
                Cell(value, repr(correlation.value)),
                Cell(interval),
                Cell(str(len(shared))),
            )
        )
    return ResultTable(
        ("run", "seed", "correlation with local training", "95 % interval", "clients"), tuple(rows), words=2
    )


def named_clients(accuracy: Mapping[str, float], value: float) -> str:
    """The clients that have `value`: "client-2", "client-2, client-9" or "client-2 and 4 more"."""
    names = [client for client, score in accuracy.items() if score == value]
    return ", ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} more"


def splits(parts: Iterable[tuple[str, pa.Table]]) -> ResultTable:
    """Sizes of each split, given as (whose, partition.parquet); sites may keep a number back, or not know it."""
    rows = []
    for whose, table in parts:
        nodes = sorted(size for size in table["nodes"].to_pylist() if size is not None)
        edges_kept, cut = (_total(table[name].to_pylist()) for name in ("edges_kept", "edges_cut"))
        all_ends = 0 if edges_kept is None or cut is None else 2 * edges_kept + cut
        share = f"{(cut or 0) / all_ends:.1%}" if all_ends else NONE
        middle = f"{statistics.median(nodes):,.1f}".removesuffix(".0") if nodes else NONE
        sizes = (_count(nodes[0] if nodes else None), middle, _count(nodes[-1] if nodes else None))
        rows.append(tuple(map(Cell, (whose, f"{len(table):,}", *sizes, _count(edges_kept), _count(cut), share))))
    head = ("split of", "clients", "fewest nodes", "median", "most", "edges kept", "edge ends cut", "share cut")
    return ResultTable(head, tuple(rows))


def clients(run: Run) -> ResultTable:
    """One row per client of a run: its part of the data and its final result by the selection metric.

    Of very many clients the largest and the smallest are shown.
    """
    accuracy, rows = run.clients(run.selection_metric), []
    if run.partition is None:
        return ResultTable((), ())
    names = [name for name in ("graphs", "nodes", "edges_kept", "edges_cut") if name in run.partition.column_names]
    names += ["train", "val", "test"]
    shares = [name for name in ("overlap", "overlap_links") if name in run.partition.column_names]
    parts = run.partition.to_pylist()
    for part in parts if len(parts) <= MANY else sorted(parts, key=lambda part: -(part["nodes"] or 0)):
        counts = [_count(part[name]) for name in names] + [number(part[name]) for name in shares]
        score = accuracy.get(part["client"])
        last = Cell(NONE) if score is None else Cell(number(score), repr(score))
        rows.append((Cell(part["client"]), *map(Cell, counts), last))
    head = ("client", *(name.replace("_", " ") for name in (*names, *shares)), f"test {title_of(run.selection_metric)}")
    return ResultTable(head, ends(rows))


def pairs(run: Run) -> ResultTable:
    """The nodes and links that each client shares with all others, as a share of the total (FairGFL's table III).

    A row per client, a column per matrix of a run.
    """
    if run.partition is None or not run.pairs:
        return ResultTable((), ())
    sums = {name: matrix.sum(1) for name, matrix in run.pairs.items()}
    shares = [totals / totals.sum() if totals.sum() else totals for totals in sums.values()]
    rows = [
        (Cell(str(client)), *(Cell(f"{totals[at]:.4f}", repr(float(totals[at]))) for totals in shares))
        for at, client in enumerate(run.partition["client"].to_pylist())
    ]
    return ResultTable(("client", *(name.replace("_", " ") for name in sums)), ends(rows))


def tenths(value: float) -> str:
    """A mean of counts over clients."""
    return f"{value:,.1f}"


def counted_number(value: float) -> str:
    """A count or, of several runs, a mean of counts."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _total(numbers: list[int | None]) -> int | None:
    """The sum of the numbers; None if one of them is not known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _count(count: int | None) -> str:
    return NONE if count is None else f"{count:,}"


def heads(groups: Sequence[Group]) -> tuple[str, ...]:
    """The head of a table with a column per group, with the number of seeds where groups have different numbers."""
    if len({len(group.runs) for group in groups}) == 1 < len(groups):
        return ("", *(group.label for group in groups))
    return (
        "",
        *(f"{group.label} ({len(group.runs)} seeds)" if len(group.runs) > 1 else group.label for group in groups),
    )


EACH = {"per_class": "class", "per_target": "target"}  # families of metrics of one class, or one target


def of_one(run: Run, name: str) -> str:
    """The label of a row "per_target/rmse/0" or "per_class/f1/0": "RMSE of logS", "F1 of fraud", or "RMSE of target
    0"."""
    family, metric, number = name.split("/")
    names = run.classes if family == "per_class" else run.summary.get("targets", ())
    label = names[int(number)] if int(number) < len(names) else f"{EACH[family]} {number}"
    return f"{readable(title_of(metric))} of {label}"


# ----------------------------------------------------------------------------------------------------
# The table of how a model treats two groups of people: every gap with the gap that chance would show.


UNFAIR = (*GAPS, "tradeoff_accuracy", "tradeoff_auc")  # what a constant prediction is best at
FAMILIES = {
    "groups/global": "global",
    "groups/median": "median of clients",
    "best_fair/groups/global": "global, fairest round",
}


def favorable(groups: Sequence[Group]) -> str:
    """The name of the class whose prediction counts as favorable, the second of two.

    It is "class 1" where the class has no name or runs have different ones.
    """
    [name, *others] = dict.fromkeys(group.first.named(2)[1] for group in groups)
    return "class 1" if others or name == "class 1" else f"class “{name}” (1)"


def named_groups(groups: Sequence[Group]) -> str:
    """A sentence on which group of people is 0 and which 1; "" where they are numbers or runs have different ones."""
    return compared_people(_of_people(groups))


def between_groups(groups: Sequence[Group]) -> ResultTable:
    """A row per metric and kind of value, a column per group of runs; without rows where nothing was measured."""
    rows, names = [], _of_people(groups)
    for family, words in FAMILIES.items():
        for name, about in GROUPS.items():
            group_values = [group.values(f"{family}/{name}") for group in groups]
            if all(value is None for values in group_values for value in values):
                continue
            cells = [measured(values, signed if name.endswith("_signed") else number) for values in group_values]
            if comparable(groups) and not (name in UNFAIR and any(alike(group, family) for group in groups)):
                cells = marked(cells, [group.by_seed(f"{family}/{name}") for group in groups], name)
            cells = [
                _floor_and_undefined(cell, _aside(group, family, name))
                for cell, group in zip(cells, groups, strict=True)
            ]
            rows.append(
                (
                    Cell(_with_group_names(about.title, names), note=_with_group_names(note(name), names)),
                    Cell(words),
                    *cells,
                )
            )
    head = heads(groups)
    return ResultTable((head[0], "of", *head[1:]), tuple(rows), words=2)


def alike(group: Group, family: str = "groups/global") -> bool:
    """Whether a run of the group predicts one class for almost everyone, so that its gaps mean nothing."""
    shares = zip(*(group.values(f"{family}/{name}") for name in ("predicted", "favorable")), strict=True)
    return any(one is not None and true is not None and near_constant(one, true) for one, true in shares)


def _of_people(groups: Sequence[Group]) -> tuple[str, ...]:
    """The names of the groups of people, in order; () where they are numbers or runs have different ones."""
    [names, *others] = dict.fromkeys(tuple(group.first.summary.get("groups") or ()) for group in groups)
    return () if others else names


def _with_group_names(words: str, names: Sequence[str]) -> str:
    """The words with the names of the groups 0 and 1 instead of "group 0" and "group 1"."""
    for at, name in enumerate(names[:2]):
        words = words.replace(f"group {at}", f"“{name}”")
    return words


def _aside(group: Group, family: str, name: str) -> str:
    """The noise floor of a gap, and the number of clients for which the metric is not defined; means over runs."""
    known = {
        "noise floor": spread(group.values(f"{family}/{name}_floor")) if name in GAPS else spread([]),
        "undefined at": spread(group.values(f"{family}/{name}_undefined")),
    }
    if name in GAPS:
        known["predicted favorable"] = spread(group.values(f"{family}/predicted"))
        known["favorable"] = spread(group.values(f"{family}/favorable"))
    words = [
        f"{what} {f'{mean:g}' if what == 'undefined at' else number(mean)}" for what, (mean, _, n) in known.items() if n
    ]
    return ", ".join(words)


def _floor_and_undefined(cell: Cell, more: str) -> Cell:
    return Cell(cell.text, cell.exact, ", ".join(filter(None, (cell.note, more))), cell.best)

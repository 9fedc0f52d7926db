"""The report's figures, described as panels; `reports.drawing` draws them."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.accounts.verdict import short
from fedweave.experiment.runs.reading import Group, Run, common_selection_metric, spread
from fedweave.metrics.measured import GLOBAL
from fedweave.metrics.selection import (
    CHOSEN_ROUND,
    MEMBER_MEAN,
    PLAIN,
    RMSE,
    RMSE_OF_MEAN,
    WORDS_OF_PLACES,
    lower,
    title_of,
)
from fedweave.privacy.accountant import over_rounds
from fedweave.reports import colors
from fedweave.reports.cells import bytes_text, with_sign
from fedweave.reports.colors import CLASSES, DASHES
from fedweave.reports.effects import effect, three_digits
from fedweave.reports.members import members_figure
from fedweave.reports.paired import paired_differences
from fedweave.reports.panels import (
    Bars,
    Dots,
    Figure,
    ForestPlot,
    ForestRow,
    Heat,
    Key,
    LineSeries,
    Panel,
    legend_of,
    percent,
)
from fedweave.reports.result_names import readable

_DIRECTIONS = {"up": "Sent by all clients", "down": "Received by all clients", "peer": "Sent from client to client"}
SENT = "sent by all clients in training"  # the axis of bytes
EDGE_COLORS = {"kept": "#4D4D4D", "cut": "#E69F00"}
MAX_BARS = 50  # clients that get a bar each
MAX_NAMES = 20  # clients that get a line or a color each
MAX_COLUMNS = 60  # clients that get a column each in a heat map
BINS = 20  # of a histogram over [0, 1]
RELIABILITY_BINS = 10
CONSTANT_TONE = colors.tone("#8A8A8A")
_ESTIMATED = "_estimated"  # how names of estimated matrices end
# metrics of runs in which local/majority is not of all clients of local/accuracy
_OF_OTHER_CLIENTS = ("local/matched_accuracy", "scores/coarse")
CONSTANT = {PLAIN: "majority", RMSE: RMSE_OF_MEAN}  # {selection metric: the metric of a constant prediction}

Series = Mapping[int, float]  # {round: value}


def traffic(groups: Sequence[Group]) -> Figure | None:
    """Total bytes up to each round, a panel for each direction, and ε for each kind of record; from the groups' first
    runs.

    Returns None where the ledgers are empty.
    """
    panels = []
    for direction, title in _DIRECTIONS.items():
        lines = _lines(groups, [_bytes(group.first.ledger, direction) for group in groups])
        if lines:
            panels.append(Panel(title, lines, below="round", low=0.0, form=bytes_text))
    costs = [over_rounds(group.first.ledger) for group in groups]  # {kind of record: {round: ε}}
    for record in dict.fromkeys(chain.from_iterable(costs)):
        lines = _lines(groups, [cost.get(record, {}) for cost in costs])
        panels.append(Panel(f"ε per {record}, of the client that sent most", lines, below="round", low=0.0))
    if not panels:
        return None
    return Figure(tuple(panels), legend_of(panels[0].marks) if len(groups) > 1 else ())


def _bytes(ledger: pa.Table, direction: str) -> dict[int, float]:
    """{round: bytes in this direction up to it}."""
    rows = ledger.filter(pc.equal(ledger["direction"].cast(pa.string()), direction))
    by_round = rows.group_by("round").aggregate([("bytes", "sum")]).sort_by("round")
    sums = np.cumsum(by_round["bytes_sum"].to_numpy()).tolist()
    return dict(zip(by_round["round"].to_pylist(), sums, strict=True))


def _lines(groups: Sequence[Group], values: Sequence[Series]) -> tuple[LineSeries, ...]:
    """A line for each group that has values."""
    lines = []
    for index, (group, series) in enumerate(zip(groups, values, strict=True)):
        if series:
            tone, dash = colors.run_tone(index), DASHES[index % len(DASHES)]
            lines.append(LineSeries(group.label, [*series], [*series.values()], tone, dash))
    return tuple(lines)


def accuracy_over_bytes(groups: Sequence[Group]) -> Figure | None:
    """The selection metric, mean over clients on test examples, over the bytes that clients had sent in training.

    Runs that sent none have a dot. Lines show the mean over seeds, bands one deviation. Returns None where nothing was
    sent.
    """
    metric = common_selection_metric(groups) or PLAIN
    lines = []
    for index, group in enumerate(groups):
        line = _mean_line(group.label, index, [run.curve(metric, "test", False) for run in group.runs])
        bytes_sent = [run.bytes_sent() for run in group.runs]
        x = [mean_sent(bytes_sent, int(round)) for round in line.x]
        points = slice(None) if x and x[-1] else slice(-1, None)
        lines.append(replace(line, x=x[points], y=line.y[points], low=line.low[points], high=line.high[points]))
    if not any(line.x and line.x[-1] for line in lines):
        return None
    panel = Panel(f"Test {title_of(metric)}, {MEMBER_MEAN}", tuple(lines), below=SENT, across=bytes_text)
    return Figure((panel,), legend_of(panel.marks) if len(groups) > 1 else ())


def mean_sent(sums: Sequence[Series], round: int) -> float:
    """The mean over runs of the bytes sent up to a round; sums: each run's {round: bytes up to it} (`Run.sent`)."""
    totals = []
    for bytes_up_to in sums:
        totals.append(max((total for number, total in bytes_up_to.items() if number <= round), default=0.0))
    return statistics.fmean(totals)


def curves(groups: Sequence[Group]) -> Figure | None:
    """The selection metric on test examples by round, of all examples and as member mean, and the training loss.

    Lines are means over seeds, bands one deviation, dotted lines constant predictions. One group has both lines of the
    metric in one panel, which marks the chosen round.
    """
    metric = common_selection_metric(groups) or PLAIN
    title = f"Test {title_of(metric)}"
    panels = []
    if len(groups) == 1:
        lines = []
        for index, kind in enumerate(("global", "local")):
            line = _mean_line("", index, [run.curve(metric, "test", kind == "global") for run in groups[0].runs])
            if line.x:
                held_out = kind == "global" and groups[0].first.summary.get("global_test")
                words = "global test set" if held_out else WORDS_OF_PLACES[kind]
                lines.append(replace(line, name=f"{words}, {short(line.y[-1])} at the end"))
        round = groups[0].first.summary.get("chosen_round") if len(groups[0].runs) == 1 else None
        line_at = None if round is None else (round, f"{CHOSEN_ROUND} {round:g}")
        levels = _levels(groups, metric, "global")
        panels.append(Panel(title, tuple(lines), below="round", levels=levels, line_at=line_at))
    else:
        for kind in ("local", "global"):
            panel = _lines_of(groups, f"{title}, {WORDS_OF_PLACES[kind]}", (metric, "test", kind == "global"))
            panels.append(replace(panel, levels=_levels(groups, metric, kind)))
    legend = legend_of(panels[0].marks)
    panels.append(_lines_of(groups, f"Training loss, {MEMBER_MEAN}", ("loss", "train", False)))
    panels = [panel for panel in panels if any(isinstance(line, LineSeries) and line.x for line in panel.marks)]
    return Figure(tuple(panels), legend) if panels else None


def _lines_of(groups: Sequence[Group], title: str, curve: tuple[str, str, bool]) -> Panel:
    """A line for each group; curve: metric, split, and whether it is of all examples."""
    lines = []
    for index, group in enumerate(groups):
        lines.append(_mean_line(group.label, index, [run.curve(*curve) for run in group.runs]))
    return Panel(title, tuple(lines), below="round")


def _levels(groups: Sequence[Group], metric: str, kind: str) -> tuple[float, ...]:
    """What constant predictions reach; () where it is not of the same clients as the curve."""
    of_other_clients = kind == "local" and any(group.by_seed(name) for group in groups for name in _OF_OTHER_CLIENTS)
    if metric not in CONSTANT or of_other_clients:
        return ()
    values = [spread(group.values(f"{kind}/{CONSTANT[metric]}"))[0] for group in groups]
    return tuple(sorted({round(value, 4) for value in values if math.isfinite(value)}))


def _mean_line(label: str, index: int, seeds: Sequence[Series]) -> LineSeries:
    """The mean over seeds in each round that all seeds have, with a band of one deviation."""
    rounds = sorted(set.intersection(*(set(series) for series in seeds)))
    means, low, high = [], [], []
    for round in rounds:
        mean, deviation, _ = spread([series[round] for series in seeds])
        means.append(mean)
        if len(seeds) > 1:
            low.append(mean - deviation)
            high.append(mean + deviation)
    return LineSeries(label, rounds, means, colors.run_tone(index), DASHES[index % len(DASHES)], low, high)


def client_accuracy(groups: Sequence[Group]) -> Figure | None:
    """The selection metric of each member on test examples: a row each, or a histogram of more than 50 members.

    With several seeds a bar is the mean over seeds of the k-th lowest value, since each seed has another split.
    """
    panels, legend = list[Panel | Heat | ForestPlot](), dict[Key, None]()
    for index, group in enumerate(groups):
        metric = group.selection_metric or PLAIN
        seeds = [run.clients(metric) for run in group.runs]
        if not all(seeds):
            continue
        title, tone = group.label if len(groups) > 1 else "", colors.run_tone(index)
        if len(seeds) > 1 or is_histogram(seeds):
            panels.append(distribution(title, seeds, tone, f"test {title_of(metric)}"))
            continue
        figure = members_figure(group.first, tone, title)
        if figure is not None:
            panels += figure.panels
            legend |= dict.fromkeys(figure.legend if len(groups) == 1 else figure.legend[1:])
    if not panels:
        return None
    tops = [max(panel.marks[0].y) for panel in panels if isinstance(panel, Panel) and panel.ticks]
    if tops:  # histograms side by side have one scale
        panels = [replace(one, high=max(tops)) if isinstance(one, Panel) and one.ticks else one for one in panels]
    return Figure(tuple(panels), tuple(legend))


def distribution(title: str, seeds: Sequence[dict[str, float]], tone: str, metric: str = "test accuracy") -> Panel:
    """The values {client: value} of several seeds, or of many clients, as bars or as a histogram."""
    values = [*chain.from_iterable(seed.values() for seed in seeds)]
    low, high = min(0.0, *values), max(1.0, *values)
    if high > 1.0:  # no share: some room above the largest
        high *= 1.05
    if is_histogram(seeds):
        shares, centers = histogram(values, low, high)
        half = (high - low) / BINS / 2
        names = tuple(f"{center - half:.2f} to {center + half:.2f}" for center in centers)
        ticks = {BINS * fifth / 5 - 0.5: f"{low + (high - low) * fifth / 5:.3g}" for fifth in range(6)}
        bars = Bars("", shares.tolist(), tone)
        return Panel(title, (bars,), names, metric, "share of members", form=percent, ticks=ticks)
    in_order = np.sort(np.array([[*seed.values()] for seed in seeds]), axis=1)  # [seeds, clients]
    errors = in_order.std(0, ddof=1).tolist() if len(seeds) > 1 else ()
    bars = Bars("", in_order.mean(0).tolist(), tone, errors)
    names = tuple(map(str, range(1, in_order.shape[1] + 1)))
    return Panel(title, (bars,), names, "members, lowest first", beside=metric, low=low, high=high)


def is_histogram(seeds: Sequence[dict[str, float]]) -> bool:
    """Whether there are too many clients for bars, or not the same number for every seed."""
    return len(seeds[0]) > MAX_BARS or len({len(seed) for seed in seeds}) > 1


def histogram(values: Sequence[float], low: float = 0.0, high: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Shares of `values` in 20 equal bins, by default of [0, 1], and the bins' centers."""
    counts, edges = np.histogram(values, bins=BINS, range=(low, high))
    return counts / max(len(values), 1), (edges[:-1] + edges[1:]) / 2


def incentives(run: Run) -> Figure | None:
    """By round and client: contribution, density of the reward, and payoff; None where the run measured none of
    these."""
    names = {"Alignment": "alignment", "Reward, share of the joint update": "density", "Payoff": "payoff"}
    measures = {title: run.server_values(name) for title, name in names.items()}  # {title: {client: {round: value}}}
    measures = {title: of_clients for title, of_clients in measures.items() if of_clients}
    if not measures:
        return None
    clients = sorted(set().union(*measures.values()))[:MAX_BARS]
    panels = []
    for title, of_clients in measures.items():
        lines = []
        for index, client in enumerate(clients):
            series = of_clients.get(client, {})
            if series:
                tone = colors.tone(CLASSES[index % len(CLASSES)])
                dash = DASHES[index // len(CLASSES) % len(DASHES)]
                lines.append(LineSeries(client, [*series], [*series.values()], tone, dash))
        panels.append(Panel(title, tuple(lines), below="round"))
    return Figure(tuple(panels), legend_of(panels[0].marks) if len(clients) <= MAX_NAMES else ())


def split(run: Run) -> Figure | None:
    """What each client holds: its labels and its edges or, of more than 50 clients, only the share of each class."""
    partition = run.partition
    if partition is None or not len(partition):
        return None
    clients = tuple(map(str, partition["client"].to_pylist()))
    label_counts = partition["labels"].to_pylist()  # a site may keep its own back
    classes = max(len(counts or ()) for counts in label_counts)
    rows = [counts or [0] * classes for counts in label_counts]
    labels = np.array(rows, np.int64).reshape(len(clients), -1)  # [clients, classes]
    class_names = run.class_names(labels.shape[1])

    # 1. Many clients: ordered by their most frequent class and then its share.
    if len(clients) > MAX_BARS:
        shares = labels / np.maximum(labels.sum(axis=1, keepdims=True), 1)  # [clients, classes]
        order = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))
        columns = order[_even_indices(len(order))]
        some = "" if len(columns) == len(order) else f", some of {len(order):,}"
        title = f"Share of each class at clients{some}"
        return Figure((Heat(title, shares[columns].T, 1.0, class_names, below="clients, by frequent class"),))

    # 2. A bar for each client: its labels by class, and its ends of edges.
    example = "edges" if run.summary.get("edges", {}).get("examples") else "nodes"
    if "graphs" in partition.column_names:
        example = "graphs"
    bars = tuple(map(Bars, class_names, labels.T.tolist(), colors.class_tones(labels.shape[1])))
    inner_ends = [2 * (count or 0) for count in partition["edges_kept"].to_pylist()]  # both ends
    cut_ends = [count or 0 for count in partition["edges_cut"].to_pylist()]
    edges = (
        Bars("kept edge ends", inner_ends, colors.tone(EDGE_COLORS["kept"])),
        Bars("cut edge ends", cut_ends, colors.tone(EDGE_COLORS["cut"])),
    )
    below = "" if len(clients) <= MAX_NAMES else "clients"
    panels = (
        Panel(f"Labeled {example}, by class", bars, clients, below, stacked=True),
        Panel("Ends of edges, kept and cut", edges, clients, below, stacked=True),
    )
    return Figure(panels, (legend_of(bars) if len(bars) <= MAX_NAMES else ()) + legend_of(edges))


def _even_indices(count: int) -> np.ndarray:
    """At most `MAX_COLUMNS` indices below `count`, evenly spaced."""
    return np.linspace(0, count - 1, min(count, MAX_COLUMNS)).round().astype(int)


def pairs(run: Run) -> Figure | None:
    """Matrices of every two clients as heat maps in one scale, each true matrix next to the estimated one.

    Of more than 60 clients some are shown.
    """
    if not run.pairs:
        return None
    top = max(float(np.nan_to_num(matrix).max()) for matrix in run.pairs.values())
    panels = []
    for name in sorted(run.pairs, key=lambda name: (name.removesuffix(_ESTIMATED), name)):
        clients = _even_indices(len(run.pairs[name]))
        title = f"{name.removesuffix(_ESTIMATED)}, {'estimated' if name.endswith(_ESTIMATED) else 'true'}"
        matrix = run.pairs[name][np.ix_(clients, clients)]
        panels.append(Heat(title, matrix, top, below="of the other", beside="clients"))
    return Figure(tuple(panels))


def confusions(run: Run) -> Figure | None:
    """Confusion matrices of the run's test examples, by the models that clients use and by the global one.

    Returns None unless `fedweave predict` wrote predictions into the run's directory.
    """
    table = run.predictions
    if table is None or not {"true", "split"} <= set(table.column_names):
        return None
    labels = [name.removeprefix("p_") for name in table.column_names if name.startswith("p_")]
    if not labels:  # of numbers
        return None
    examples = table.filter((pc.field("split") == "test") & pc.is_valid(pc.field("true")))
    rows_by_title = {
        "By the clients' models": examples.filter(pc.field("client") != GLOBAL),
        "Global": examples.filter(pc.field("client") == GLOBAL),
    }
    panels = []
    for title, rows in rows_by_title.items():
        if len(rows):
            true, predicted = (map(str, rows[column].to_pylist()) for column in ("true", "predicted"))
            counts = np.zeros((len(labels), len(labels)), np.int64)  # [true, predicted]
            np.add.at(counts, ([*map(labels.index, true)], [*map(labels.index, predicted)]), 1)
            shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)  # of a row
            texts = tuple(tuple(map("{:,}".format, row)) for row in counts.tolist())
            panels.append(Heat(title, shares, 1.0, tuple(labels), tuple(labels), "predicted", "true", texts))
    return Figure(tuple(panels)) if panels else None


def differences(groups: Sequence[Group], name: str) -> Figure | None:
    """A row for each group but the first: its difference to the first one, paired over seeds, with its 95 % interval
    where there are enough seeds; None without differences. name: of the metric in a summary."""
    rows = []
    for index, group in enumerate(groups[1:], 1):
        gaps = paired_differences(group.by_seed(name), groups[0].by_seed(name))
        if gaps:
            change = effect(gaps)
            text = with_sign(change.mean, three_digits) + (f" [{change.ends}]" if change.ends else "")
            low, high = (change.low, change.high) if change.tested else (None, None)
            rows.append(ForestRow(group.label, change.mean, text, colors.run_tone(index), low, high))
    if not rows:
        return None
    worse, better = f"worse than {groups[0].label}", f"better than {groups[0].label}"
    sides = (better, worse) if lower(name) else (worse, better)
    panel = ForestPlot("", tuple(rows), level=0.0, sides=sides, below=readable(name))
    return Figure((panel,))


def reliability(run: Run) -> Figure | None:
    """How often predictions of a probability are right, by that probability, on the run's test examples.

    Returns None unless `fedweave predict` wrote predictions of classes into the run's directory.
    """
    table = run.predictions
    if table is None or not {"true", "split", "predicted"} <= {*table.column_names}:
        return None
    columns = [name for name in table.column_names if name.startswith("p_")]
    rows = table.filter((pc.field("split") == "test") & pc.is_valid(pc.field("true")) & (pc.field("client") != GLOBAL))
    if not columns or not len(rows):
        return None
    sure = np.max([rows[name].to_numpy() for name in columns], axis=0)
    right = np.array([*map(str, rows["true"].to_pylist())]) == np.array([*map(str, rows["predicted"].to_pylist())])
    place = np.minimum((sure * RELIABILITY_BINS).astype(int), RELIABILITY_BINS - 1)
    x, y, labels = [], [], []
    for number in np.unique(place):
        of_bin = place == number
        x.append(float(sure[of_bin].mean()))
        y.append(float(right[of_bin].mean()))
        labels.append(f"{of_bin.sum():,}")
    marks = (
        LineSeries("as probable as it says", [0, 1], [0, 1], CONSTANT_TONE, "2 3"),
        Dots("share that is right", x, y, colors.run_tone(0), labels=labels),
    )
    panel = Panel("", marks, below="probability of the predicted class", beside="share right", low=0.0, high=1.0)
    return Figure((panel,), legend_of(marks))

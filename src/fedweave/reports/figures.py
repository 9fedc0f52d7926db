"""The report's figures, described as panels; `report.drawing` draws them. These show bytes sent and the ε spent."""

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import escape
from rich.filesize import decimal

from fedweave.errors import FedweaveError
from fedweave.experiment.runs.files import KINDS
from fedweave.metrics.measured import GLOBAL
from fedweave.metrics.selection import PLAIN, RMSE, RMSE_OF_MEAN, title_of
from fedweave.privacy.accountant import over_rounds
from fedweave.reports import drawing
from fedweave.reports.drawing import CLASSES, Bars, Dots, Figure, Heat, Key, LineSeries, Panel, ink, legend_of, percent
from fedweave.reports.reading import Group, Run, common_selection_metric, spread

TITLES = {"up": "Sent by all clients", "down": "Received by all clients", "peer": "Sent from client to client"}


def traffic(groups: Sequence[Group]) -> Figure | None:
    """Total bytes up to each round, a panel for each direction, and ε for each kind of record; from the groups' first
    runs.

    Returns None where the ledgers are empty.
    """
    runs = [(at, group.label, group.first) for at, group in enumerate(groups)]
    sums = {way: [(at, label, _bytes(run.ledger, way)) for at, label, run in runs] for way in TITLES}
    panels = [
        Panel(TITLES[way], _lines(of), below="round", low=0.0, form=lambda value: decimal(round(value)))
        for way, of in sums.items()
        if any(series for _, _, series in of)
    ]
    costs = [(at, label, over_rounds(run.ledger)) for at, label, run in runs]
    for per in dict.fromkeys(per for _, _, series in costs for per in series):
        lines = _lines([(at, label, series.get(per, {})) for at, label, series in costs])
        panels.append(Panel(f"ε per {per}, of the client that sent most", lines, below="round", low=0.0))
    if not panels:
        return None
    return Figure(tuple(panels), legend_of(panels[0].marks) if len(groups) > 1 else ())


SENT = "sent by all clients in training"


def accuracy_over_bytes(groups: Sequence[Group]) -> Figure | None:
    """The selection metric, mean over clients on test examples, over the bytes that clients had sent in training.

    Runs that sent none have a dot. Lines show the mean over seeds, bands one deviation. Returns None where nothing was
    sent.
    """
    metric = common_selection_metric(groups) or PLAIN
    lines = []
    for at, group in enumerate(groups):
        line = _line(group.label, at, [run.curve(metric, "test", False) for run in group.runs])
        bytes_sent = [run.sent() for run in group.runs]
        x = [mean_sent(bytes_sent, int(round)) for round in line.x]
        last = slice(0 if x and x[-1] else -1, None)
        lines.append(replace(line, x=x[last], y=line.y[last], low=line.low[last], high=line.high[last]))
    if not any(line.x and line.x[-1] for line in lines):
        return None
    title = f"Test {title_of(metric)}, mean over clients"
    panel = Panel(title, tuple(lines), below=SENT, across=lambda value: decimal(round(value)))
    return Figure((panel,), legend_of(panel.marks) if len(groups) > 1 else ())


def mean_sent(sums: Sequence[Mapping[int, float]], round: int) -> float:
    """The mean over runs of the bytes sent up to a round; sums: each run's {round: bytes up to it} (`Run.sent`)."""
    return statistics.fmean(max((size for at, size in one.items() if at <= round), default=0.0) for one in sums)


def _bytes(ledger: pa.Table, way: str) -> dict[int, float]:
    """{round: bytes in this direction up to it}."""
    mine = (
        ledger.filter(pc.equal(ledger["direction"].cast(pa.string()), way))
        .group_by("round")
        .aggregate([("bytes", "sum")])
    )
    ordered = mine.sort_by("round")
    return dict(zip(ordered["round"].to_pylist(), np.cumsum(ordered["bytes_sum"].to_numpy()).tolist(), strict=True))


def _lines(entries: Sequence[tuple[int, str, dict[int, float]]]) -> tuple[LineSeries, ...]:
    return tuple(
        LineSeries(
            label, list(series), list(series.values()), drawing.of_run(at), drawing.DASHES[at % len(drawing.DASHES)]
        )
        for at, label, series in entries
        if series
    )


EDGES = {"kept": "#4D4D4D", "cut": "#E69F00"}
BARS = 50  # clients that get a bar each
MAX_NAMES = 20  # clients that get a line or a color each
COLUMNS = 60  # clients that get a column each in a heat map
ESTIMATED = "_estimated"  # how names of estimated matrices end
BINS = 20  # of a histogram over [0, 1]
MAJORITY = drawing.tone("#8A8A8A")  # the accuracy of always predicting one class
_OTHERS = ("local/matched_accuracy", "scores/coarse")  # where local/majority is not of all of local/accuracy's clients
LOCAL = "Local test accuracy, mean over clients"
_REFERENCES = {"Global test accuracy": "global/majority", LOCAL: "local/majority"}
_REFERENCES |= {
    f"Global test {title_of(RMSE)}": f"global/{RMSE_OF_MEAN}",
    f"Local test {title_of(RMSE)}, mean over clients": f"local/{RMSE_OF_MEAN}",
}
CONSTANT = {PLAIN: "majority", RMSE: RMSE_OF_MEAN}  # {selection metric: the metric of a constant prediction}


def curves(groups: Sequence[Group]) -> Figure | None:
    """The selection metric on global and local test examples, and training loss, by round; mean and band over seeds.

    Bands show one deviation. Dotted lines: always predicting the most frequent class.
    """
    metric = common_selection_metric(groups) or PLAIN
    wanted = {
        f"Global test {title_of(metric)}": (metric, "test", True),
        f"Local test {title_of(metric)}, mean over clients": (metric, "test", False),
        "Training loss, mean over clients": ("loss", "train", False),
    }
    panels = []
    for title, which in wanted.items():
        seeds = [[run.curve(*which) for run in group.runs] for group in groups]
        lines = tuple(
            _line(group.label, at, seed_curves)
            for at, (group, seed_curves) in enumerate(zip(groups, seeds, strict=True))
        )
        if any(line.x for line in lines):
            panels.append(Panel(title, lines, below="round", levels=_constants(groups, title)))
    if not panels:
        return None
    return Figure(tuple(panels), legend_of(panels[0].marks) if len(groups) > 1 else ())


def has_constants(drawn: Figure | None) -> bool:
    """Whether the `curves` show the accuracy of always predicting one class."""
    return drawn is not None and any(isinstance(panel, Panel) and panel.levels for panel in drawn.panels)


def client_accuracy(groups: Sequence[Group]) -> Figure | None:
    """The selection metric of each client on test examples: sorted bars, or a histogram of more than 50 clients.

    With several seeds a bar is the mean over seeds of the k-th lowest value, since each seed has another split.
    """
    panels = []
    for at, group in enumerate(groups):
        metric = group.selection_metric or PLAIN
        seeds = [run.clients(metric) for run in group.runs]
        if all(seeds):
            title = group.label if len(groups) > 1 else ""
            constant = group.first.clients(CONSTANT[metric]) if len(seeds) == 1 and metric in CONSTANT else {}
            tested = group.first.test_sizes if len(seeds) == 1 else {}
            panels.append(distribution(title, seeds, drawing.of_run(at), constant, f"test {title_of(metric)}", tested))
    tops = [max(panel.marks[0].y) for panel in panels if panel.ticks]  # histograms side by side have one scale
    return (
        Figure(tuple(replace(chart, high=max(tops)) if chart.ticks else chart for chart in panels)) if panels else None
    )


def distribution(
    title: str,
    seeds: Sequence[dict[str, float]],
    tone: str,
    constant: dict[str, float] | None = None,
    metric: str = "test accuracy",
    tested: Mapping[str, int] | None = None,
) -> Panel:
    """The values {client: value} of one or several seeds as bars or as a histogram; a stroke at `constant`.

    tested: numbers of test examples, which stand behind the clients' names.
    """
    everything = [value for seed in seeds for value in seed.values()]
    low, high = _range(everything)
    if is_histogram(seeds):
        shares, centers = histogram(everything, low, high)
        half = (high - low) / BINS / 2
        names = tuple(f"{center - half:.2f} to {center + half:.2f}" for center in centers)
        bars = Bars("", shares.tolist(), tone)
        ticks = {BINS * k / 5 - 0.5: f"{low + (high - low) * k / 5:.3g}" for k in range(6)}
        return Panel(title, (bars,), names, metric, "share of clients", form=percent, ticks=ticks)
    options = {"beside": metric, "low": low, "high": high}
    if len(seeds) > 1:
        ranked = np.sort(np.array([list(seed.values()) for seed in seeds]), axis=1)
        bars = Bars("", ranked.mean(0).tolist(), tone, ranked.std(0, ddof=1).tolist())
        names = tuple(map(str, range(1, ranked.shape[1] + 1)))
        return Panel(title, (bars,), names, "clients, lowest first", **options)  # type: ignore[arg-type]
    ordered = dict(sorted(seeds[0].items(), key=lambda item: item[1]))
    marks: list[Bars | Dots] = [Bars("", list(ordered.values()), tone)]
    known = [(at, constant[client]) for at, client in enumerate(ordered) if constant and client in constant]
    if known:
        x, y = zip(*known, strict=True)
        marks.append(Dots("constant prediction", x, y, MAJORITY, "stroke"))
    below = "" if len(ordered) <= MAX_NAMES else "clients, lowest first"
    names = tuple(f"{name} ({tested[name]:,})" if tested and name in tested else name for name in ordered)
    return Panel(title, tuple(marks), names, below, **options)  # type: ignore[arg-type]


def incentives(run: Run) -> Figure | None:
    """By round and client: contribution, density of the reward, and payoff; None where the run measured none of
    these."""
    titles = {"Alignment": "alignment", "Reward, share of the joint update": "density", "Payoff": "payoff"}
    measures = {title: known for title, name in titles.items() if (known := run.known(name))}
    if not measures:
        return None
    clients = sorted({client for known in measures.values() for client in known})[:BARS]
    panels = []
    for title, known in measures.items():
        lines = tuple(
            LineSeries(
                client,
                list(series),
                list(series.values()),
                tone,
                drawing.DASHES[at // len(drawing.CLASSES) % len(drawing.DASHES)],
            )
            for at, client in enumerate(clients)
            if (series := known.get(client, {}))
            for tone in [drawing.tone(drawing.CLASSES[at % len(drawing.CLASSES)])]
        )
        panels.append(Panel(title, lines, below="round"))
    return Figure(tuple(panels), legend_of(panels[0].marks) if len(clients) <= MAX_NAMES else ())


def is_histogram(seeds: Sequence[dict[str, float]]) -> bool:
    """Whether there are too many clients for bars, or not the same number for every seed."""
    return len(seeds[0]) > BARS or len({len(seed) for seed in seeds}) > 1


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The range of an axis of these values: [0, 1] for shares, else from 0, or less, to the largest."""
    low, high = min(0.0, *values), max(1.0, *values)
    return low, (1.0 if high == 1.0 else 1.05 * high)


def histogram(values: Sequence[float], low: float = 0.0, high: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Shares of `values` in 20 equal bins, by default of [0, 1], and the bins' centers."""
    counts, edges = np.histogram(values, bins=BINS, range=(low, high))
    return counts / max(len(values), 1), (edges[:-1] + edges[1:]) / 2


def split(run: Run) -> Figure | None:
    """What each client holds: its labels and, for up to 50 clients, its edges."""
    if run.partition is None or not len(run.partition):
        return None
    names = tuple(str(name) for name in run.partition["client"].to_pylist())
    label_counts = run.partition["labels"].to_pylist()  # a site may keep its own back
    classes = max(len(counts or ()) for counts in label_counts)
    labels = np.array([counts or [0] * classes for counts in label_counts], np.int64).reshape(len(names), -1)
    return _stacked(run, names, labels) if len(names) <= BARS else Figure((_shares(run, labels),))


def pairs(run: Run) -> Figure | None:
    """Matrices of every two clients as heat maps in one scale, each true matrix next to the estimated one.

    Of more than 60 clients some are shown.
    """
    if not run.pairs:
        return None
    names = sorted(run.pairs, key=lambda name: (name.removesuffix(ESTIMATED), name))
    most = max(float(np.nan_to_num(matrix).max()) for matrix in run.pairs.values())
    panels = []
    for name in names:
        indices = _some(len(run.pairs[name]))
        title = f"{name.removesuffix(ESTIMATED)}, {'estimated' if name.endswith(ESTIMATED) else 'true'}"
        panels.append(
            Heat(title, run.pairs[name][np.ix_(indices, indices)], most, below="of the other", beside="clients")
        )
    return Figure(tuple(panels))


def confusions(run: Run) -> Figure | None:
    """Confusion matrices of the run's test examples, by the models that clients use and by the global one.

    Returns None unless `fedweave predict` wrote predictions into the run's directory.
    """
    table = run.predictions
    if table is None or not {"true", "split"} <= set(table.column_names):
        return None
    tested = table.filter((pc.field("split") == "test") & pc.is_valid(pc.field("true")))
    labels = [name.removeprefix("p_") for name in table.column_names if name.startswith("p_")]
    if not labels:  # of numbers
        return None
    panels = []
    for title, who in (
        ("By the clients' models", pc.field("client") != GLOBAL),
        ("Global", pc.field("client") == GLOBAL),
    ):
        rows = tested.filter(who)
        true, predicted = ([labels.index(str(one)) for one in rows[name].to_pylist()] for name in ("true", "predicted"))
        counts = np.zeros((len(labels), len(labels)), np.int64)
        np.add.at(counts, (true, predicted), 1)
        panels += [confusion(title, counts, labels)] if len(rows) else []
    return Figure(tuple(panels)) if panels else None


def confusion(title: str, counts: np.ndarray, labels: Sequence[str]) -> Heat:
    """How often examples of each class (row) were predicted as each class (column): [c, c]; colors are shares of a
    row."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    written = tuple(tuple(f"{count:,}" for count in row) for row in counts.tolist())
    return Heat(title, share, 1.0, tuple(labels), tuple(labels), "predicted", "true", written)


def _some(count: int) -> np.ndarray:
    """At most `COLUMNS` indices below `count`, evenly spread."""
    return np.linspace(0, count - 1, min(count, COLUMNS)).round().astype(int)


def _constants(groups: Sequence[Group], title: str) -> tuple[float, ...]:
    """The different accuracies of always predicting the most frequent class, for curves called `title`.

    Accuracies over other clients than the curve's are left out.
    """
    others = () if title != LOCAL else _OTHERS
    alike = [group for group in groups if not any(group.by_seed(name) for name in others)]
    means = [spread(group.values(_REFERENCES.get(title, "")))[0] for group in alike]
    return tuple(sorted({round(mean, 4) for mean in means if math.isfinite(mean)}))


def _line(label: str, at: int, seeds: list[dict[int, float]]) -> LineSeries:
    common = sorted(set.intersection(*(set(seed) for seed in seeds)))
    stats = [spread([seed[round] for seed in seeds]) for round in common]
    means = [mean for mean, _, _ in stats]
    low, high = ([mean + sign * one for mean, one, _ in stats] if len(seeds) > 1 and common else [] for sign in (-1, 1))
    return LineSeries(label, common, means, drawing.of_run(at), drawing.DASHES[at % len(drawing.DASHES)], low, high)


def _stacked(run: Run, names: tuple[str, ...], labels: np.ndarray) -> Figure:
    column_names = [] if run.partition is None else run.partition.column_names
    of_edges = run.summary.get("edges", {}).get("examples")
    what = "graphs" if "graphs" in column_names else "edges" if of_edges else "nodes"
    tones = drawing.of_classes(labels.shape[1])
    classes = tuple(
        Bars(name, counts, tone)
        for name, counts, tone in zip(run.class_names(labels.shape[1]), labels.T.tolist(), tones, strict=True)
    )
    below = "" if len(names) <= MAX_NAMES else "clients"
    panels = [Panel(f"Labeled {what}, by class", classes, names, below, stacked=True)]
    legend: tuple[Key, ...] = legend_of(classes) if len(classes) <= MAX_NAMES else ()
    table = run.partition
    if table is not None:
        edges_kept, cut = ([count or 0 for count in table[name].to_pylist()] for name in ("edges_kept", "edges_cut"))
        ends = {"kept": [2 * count for count in edges_kept], "cut": cut}
        bars = tuple(Bars(f"{name} edge ends", counts, drawing.tone(EDGES[name])) for name, counts in ends.items())
        panels.append(Panel("Ends of edges, kept and cut", bars, names, below, stacked=True))
        legend += legend_of(bars)
    return Figure(tuple(panels), legend)


def _shares(run: Run, labels: np.ndarray) -> Heat:
    """Share of each class at each client, clients ordered by their most frequent class and then its share."""
    share = labels / np.maximum(labels.sum(axis=1, keepdims=True), 1)
    order = np.lexsort((-share.max(axis=1), share.argmax(axis=1)))
    indices = order[_some(len(order))]
    some = "" if len(indices) == len(order) else f", some of {len(order):,}"
    rows, below = run.class_names(labels.shape[1]), "clients, by frequent class"
    return Heat(f"Share of each class at clients{some}", share[indices].T, 1.0, rows, below=below)


# ----------------------------------------------------------------------------------------------------
# Motifs drawn: bonds and rings of labeled vertices as inline SVG.


_MOTIF = re.compile(r"(?:bond (?P<bond>-?\d+ -?\d+)|ring (?P<ring>-?\d+(?: -?\d+){2,}))(?: edge (?P<edge>-?\d+))?")
SIZE, RADIUS = 64, 8  # of a drawing and of a vertex
MOST = 2  # letters of a name that a vertex has room for


class Kinds(NamedTuple):
    """The names of the kinds of nodes and edges, in order; () where they are numbers."""

    nodes: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()

    def legend(self) -> str:
        """The names with their numbers, where drawings have these."""
        lists = (("nodes", self.nodes), ("edges", self.edges))
        labels = {what: ", ".join(f"{at} {name}" for at, name in enumerate(names)) for what, names in lists if names}
        return "; ".join(f"kinds of {what}: {names}" for what, names in labels.items())


NUMBERS = Kinds()


def kinds_of(motifs: pa.Table) -> Kinds:
    """The names in a table motifs.parquet; none where it has no such metadata.

    Raises:
        FedweaveError: the names are not lists of text.
    """
    metadata = motifs.schema.metadata or {}
    try:
        name_lists = [json.loads(metadata.get(key, b"[]")) for key in KINDS]
    except ValueError:
        name_lists = [None]
    if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in name_lists):
        raise FedweaveError(
            "motifs.parquet has no valid names of kinds of nodes and edges. Run the experiment again.",
            code="motif.kinds",
        )
    return Kinds(*map(tuple, name_lists))


def motif_drawing(name: str, kinds: Kinds = NUMBERS) -> str:
    """The SVG of a motif "bond 0 1", "bond 0 1 edge 2" or "ring 0 0 1"; short names of `kinds` replace their numbers.

    Raises:
        FedweaveError: the name has another form.
    """
    match = _MOTIF.fullmatch(name)
    if match is None:
        raise FedweaveError(
            f"motifs.parquet names a motif {name!r}, which is neither a bond nor a ring; run it again.",
            code="motif.drawing",
        )
    kind, edge = "bond" if match["bond"] else "ring", match["edge"]
    labels = [int(word) for word in (match["bond"] or match["ring"]).split()]
    at = _places(len(labels))
    pairs = [(at[i], at[(i + 1) % len(at)]) for i in range(1 if kind == "bond" else len(at))]
    parts = [f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" class="axis"/>' for a, b in pairs]
    if edge:
        style = 'text-anchor="middle" font-size="9" fill="currentColor"'
        parts.append(f'<text x="{SIZE / 2}" y="{SIZE / 2 - 4}" {style}>{_kind_name(int(edge), kinds.edges)}</text>')
    parts += [_vertex(place, label, _kind_name(label, kinds.nodes)) for place, label in zip(at, labels, strict=True)]
    box = f'width="{SIZE}" height="{SIZE}" viewBox="0 0 {SIZE} {SIZE}"'
    return f'<svg {box} role="img" aria-label="{kind} {" ".join(map(str, labels))}">{"".join(parts)}</svg>'


def _places(count: int) -> list[tuple[float, float]]:
    """Where the vertices stand: side by side, or on a circle from the top."""
    middle, reach = SIZE / 2, SIZE / 2 - RADIUS - 1
    if count == 2:
        return [(middle - reach, middle), (middle + reach, middle)]
    turns = [2 * math.pi * i / count - math.pi / 2 for i in range(count)]
    return [(middle + reach * math.cos(turn), middle + reach * math.sin(turn)) for turn in turns]


def _kind_name(kind: int, names: tuple[str, ...]) -> str:
    fits = 0 <= kind < len(names) and len(names[kind]) <= MOST
    return str(escape(names[kind])) if fits else str(kind)


def _vertex(place: tuple[float, float], label: int, name: str) -> str:
    x, y = place
    color = CLASSES[label % len(CLASSES)]
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" fill="{color}" stroke="#fff"/>'
    style = f'text-anchor="middle" font-size="10" fill="{ink(color)}"'
    return f'{circle}<text x="{x:.1f}" y="{y + 3:.1f}" {style}>{name}</text>'

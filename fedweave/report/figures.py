"""The report's figures: plotly figures in colours that colour-blind readers can tell apart and that print well."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from fedweave.report.reading import Group, Run, spread

# Okabe and Ito 2008, "Color universal design", without the yellow that paper does not show.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
LOCAL = "Local test accuracy, mean over clients"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
# Tol 2021, "Colour schemes", muted: for classes, which are more than the runs.
CLASSES = ("#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB")
EDGES = {"kept": "#4D4D4D", "cut": "#E69F00"}
NAMED = 20  # clients whose names fit below an axis
BARS = 50  # clients that get a bar each
COLUMNS = 500  # clients that get a column each in a heat map
ESTIMATED = "_estimated"  # how names of estimated matrices end
BINS = 20  # of a histogram over [0, 1]
MAJORITY = {"color": "#8A8A8A", "width": 1.5, "dash": "dot"}  # the accuracy of always predicting one class
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def curves(groups: Sequence[Group]) -> go.Figure | None:
    """Global and local test accuracy and training loss by round; mean and a band of one deviation over seeds. Dotted:
    always predicting the most frequent class."""
    wanted = {
        "Global test accuracy": ("accuracy", "test", True),
        LOCAL: ("accuracy", "test", False),
        "Training loss, mean over clients": ("loss", "train", False),
    }
    found = {title: [[run.curve(*which) for run in group.runs] for group in groups] for title, which in wanted.items()}
    found = {title: lines for title, lines in found.items() if any(any(line) for line in lines)}
    if not found:
        return None
    figure = make_subplots(1, len(found), subplot_titles=list(found), horizontal_spacing=0.07)
    for column, (title, lines) in enumerate(found.items(), 1):
        for at, (group, seeds) in enumerate(zip(groups, lines, strict=True)):
            for trace in _line(group.label, at, seeds, legend=column == 1):
                figure.add_trace(trace, 1, column)
        for height in _constants(groups, title):
            figure.add_hline(height, row=1, col=column, line=MAJORITY)
        figure.update_xaxes(title_text="round", rangemode="tozero", col=column)
    return styled(figure, 330, legend=len(groups) > 1)


def client_accuracy(groups: Sequence[Group]) -> go.Figure | None:
    """Final test accuracy of the clients: sorted bars, or a histogram of more than 50.

    With several seeds a bar is the mean over seeds of the k-th lowest accuracy, since each seed has another split.
    """
    found = [(at, group, [run.clients("accuracy") for run in group.runs]) for at, group in enumerate(groups)]
    found = [(at, group, seeds) for at, group, seeds in found if all(seeds)]
    if not found:
        return None
    columns = min(2, len(found))
    rows = -(-len(found) // columns)
    titles = [plain(group.label) for _, group, _ in found] if len(groups) > 1 else None
    figure = make_subplots(
        rows, columns, subplot_titles=titles, horizontal_spacing=0.09, vertical_spacing=0.3 / rows + 0.02
    )
    for place, (at, group, seeds) in enumerate(found):
        where = (place // columns + 1, place % columns + 1)
        figure.add_trace(_distribution(seeds, COLOURS[at % len(COLOURS)]), *where)
        if not is_histogram(seeds) and len(seeds) == 1 and (constant := group.first.clients("majority")):
            figure.add_trace(_marks(constant), *where)
        if is_histogram(seeds):
            figure.update_xaxes(range=[0, 1], title_text="test accuracy", row=where[0], col=where[1])
            figure.update_yaxes(title_text="share of clients", tickformat=".0%", row=where[0], col=where[1])
            continue
        shown = len(seeds[0]) <= NAMED and len(seeds) == 1
        title = None if shown else "clients, lowest first"
        figure.update_xaxes(
            showticklabels=shown, title_text=title, tickangle=-45, type="category", row=where[0], col=where[1]
        )
        figure.update_yaxes(range=[0, 1.02], title_text="test accuracy", row=where[0], col=where[1])
    top = 40 if titles else 15
    return styled(figure, 70 + top + 230 * rows, legend=False).update_layout(margin_t=top)


def incentives(run: Run) -> go.Figure | None:
    """By round and client: what each contributed, the density of its reward, and its payoff; None where the run did not
    measure any of these."""
    titles = {"Alignment": "alignment", "Reward, share of the joint update": "density", "Payoff": "payoff"}
    found = {title: known for title, name in titles.items() if (known := run.known(name))}
    if not found:
        return None
    figure = make_subplots(1, len(found), subplot_titles=list(found), horizontal_spacing=0.07)
    clients = sorted({client for known in found.values() for client in known})[:BARS]
    for column, known in enumerate(found.values(), 1):
        for at, client in enumerate(clients):
            line = {"color": CLASSES[at % len(CLASSES)], "width": 1.3, "dash": DASHES[at // len(CLASSES) % len(DASHES)]}
            x, y = list(known.get(client, {})), list(known.get(client, {}).values())
            named = {"name": plain(client), "legendgroup": client, "showlegend": column == 1}
            hover = "round %{x}: %{y:.4f}<extra>" + plain(client) + "</extra>"
            figure.add_trace(go.Scatter(x=x, y=y, mode="lines", line=line, hovertemplate=hover, **named), 1, column)
        figure.update_xaxes(title_text="round", rangemode="tozero", col=column)
    return styled(figure, 360, legend=len(clients) <= NAMED)


def is_histogram(seeds: Sequence[dict[str, float]]) -> bool:
    """Whether there are too many clients for bars, or not the same number for every seed."""
    return len(seeds[0]) > BARS or len({len(seed) for seed in seeds}) > 1


def histogram(values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Shares of `values` in 20 equal bins of [0, 1], and the bins' centres."""
    counts, edges = np.histogram(values, bins=BINS, range=(0, 1))
    return counts / max(len(values), 1), (edges[:-1] + edges[1:]) / 2


def split(run: Run) -> go.Figure | None:
    """What each client holds: its labels and, for up to 50 clients, its edges."""
    if run.partition is None or not len(run.partition):
        return None
    names = [plain(name) for name in run.partition["client"].to_pylist()]
    told = run.partition["labels"].to_pylist()  # a site may keep its own back
    classes = max(len(counts or ()) for counts in told)
    labels = np.array([counts or [0] * classes for counts in told], np.int64).reshape(len(names), -1)
    return _stacked(run, names, labels) if len(names) <= BARS else _heatmap(labels)


def pairs(run: Run) -> go.Figure | None:
    """Matrices of every two clients as heat maps in one scale, the true beside the estimated one of the same name; for
    more than 500 clients some of them."""
    if not run.pairs:
        return None
    names = sorted(run.pairs, key=lambda name: (name.removesuffix(ESTIMATED), name))
    titles = [
        f"{name.removesuffix(ESTIMATED)}, {'estimated' if name.endswith(ESTIMATED) else 'true'}" for name in names
    ]
    figure = make_subplots(1, len(names), subplot_titles=titles, horizontal_spacing=0.05)
    for column, name in enumerate(names, 1):
        matrix = run.pairs[name]
        kept = np.linspace(0, len(matrix) - 1, min(len(matrix), COLUMNS)).round().astype(int)
        heat = go.Heatmap(z=matrix[np.ix_(kept, kept)], x=kept, y=kept, coloraxis="coloraxis")
        heat.hovertemplate = "client %{y} to %{x}: %{z:.3f}<extra></extra>"
        figure.add_trace(heat, 1, column)
    figure.update_xaxes(constrain="domain")
    figure = styled(figure, 300, legend=False)
    figure.update_yaxes(autorange="reversed", scaleanchor="x", constrain="domain")
    return figure.update_layout(
        coloraxis={"colorscale": "Cividis", "cmin": 0, "colorbar": {"thickness": 12, "tickformat": ".0%"}}
    )


def plain(name: Any) -> str:
    """Text that plotly, which reads some HTML in names, shows as it is."""
    return escape(str(name), quote=False)


def _constants(groups: Sequence[Group], title: str) -> list[float]:
    """The different accuracies of always predicting the most frequent class, for curves called `title`."""
    name = {"Global test accuracy": "global/majority", LOCAL: "local/majority"}.get(title, "")
    means = [spread(group.values(name))[0] for group in groups]
    return sorted({round(mean, 4) for mean in means if math.isfinite(mean)})


def _line(label: str, at: int, seeds: list[dict[int, float]], legend: bool) -> list[go.Scatter]:
    common = sorted(set.intersection(*(set(seed) for seed in seeds)))
    colour, name = COLOURS[at % len(COLOURS)], plain(label)
    stats = [spread([seed[round] for seed in seeds]) for round in common]
    means = [mean for mean, _, _ in stats]
    traces = [
        go.Scatter(
            x=common,
            y=means,
            name=name,
            legendgroup=str(at),
            showlegend=legend,
            mode="lines" if len(common) > 1 else "markers",
            line={"color": colour, "dash": DASHES[at % len(DASHES)], "width": 2},
            hovertemplate="round %{x}: %{y:.4f}",
        )
    ]
    if len(seeds) > 1:
        deviation = [one for _, one, _ in stats]
        upper, lower = ([mean + sign * one for mean, one in zip(means, deviation, strict=True)] for sign in (1, -1))
        band = go.Scatter(
            x=common + common[::-1],
            y=upper + lower[::-1],
            fill="toself",
            fillcolor=colour,
            opacity=0.18,
            line={"width": 0},
            legendgroup=str(at),
            showlegend=False,
            hoverinfo="skip",
        )
        traces.insert(0, band)
    return traces


def _distribution(seeds: list[dict[str, float]], colour: str) -> go.Bar:
    if is_histogram(seeds):
        shares, centres = histogram([value for seed in seeds for value in seed.values()])
        hover = "accuracy %{x:.3f} ± 0.025: %{y:.1%} of clients<extra></extra>"
        return go.Bar(x=centres, y=shares, width=1 / BINS, marker_color=colour, hovertemplate=hover)
    if len(seeds) == 1:
        ordered = sorted(seeds[0].items(), key=lambda item: item[1])
        names, values = [plain(name) for name, _ in ordered], [value for _, value in ordered]
        return go.Bar(x=names, y=values, marker_color=colour, hovertemplate="%{x}: %{y:.4f}<extra></extra>")
    ranked = np.sort(np.array([list(seed.values()) for seed in seeds]), axis=1)
    error = {"type": "data", "array": ranked.std(axis=0, ddof=1), "thickness": 1, "width": 2, "color": "#444444"}
    hover = "client of rank %{x}: %{y:.4f}<extra></extra>"
    ranks = np.arange(1, ranked.shape[1] + 1)
    return go.Bar(x=ranks, y=ranked.mean(axis=0), error_y=error, marker_color=colour, hovertemplate=hover)


def _marks(constant: dict[str, float]) -> go.Scatter:
    """A stroke per client at the accuracy of always predicting its most frequent class of training."""
    marker = {"symbol": "line-ew", "size": 12, "line": {"color": MAJORITY["color"], "width": 2}}
    hover = "%{x}, its most frequent class: %{y:.4f}<extra></extra>"
    names = [plain(client) for client in constant]
    return go.Scatter(x=names, y=list(constant.values()), mode="markers", marker=marker, hovertemplate=hover)


def _stacked(run: Run, names: list[str], labels: np.ndarray) -> go.Figure:
    key = ", ".join(f"<span style='color:{colour}'>■</span> {name}" for name, colour in EDGES.items())
    graphs = run.partition is not None and "graphs" in run.partition.column_names
    titles = [f"Labelled {'graphs' if graphs else 'nodes'}, by class", f"Edge ends: {key}"]
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.09)
    for number, (counts, colour) in enumerate(zip(labels.T, _classes(labels.shape[1]), strict=True)):
        figure.add_trace(go.Bar(x=names, y=counts, name=f"class {number}", marker_color=colour), 1, 1)
    table = run.partition
    if table is not None:
        ends = {"kept": 2 * table["edges_kept"].to_numpy(), "cut": table["edges_cut"].to_numpy()}
        for name, counts in ends.items():
            bar = go.Bar(x=names, y=counts, name=name, marker_color=EDGES[name], showlegend=False)
            figure.add_trace(bar, 1, 2)
    figure.update_traces(marker_line={"width": 0.5, "color": "white"}, hovertemplate="%{x}: %{y:,}")
    shown = len(names) <= NAMED
    figure.update_xaxes(type="category", tickangle=-45, showticklabels=shown, title_text=None if shown else "clients")
    figure = styled(figure, 380, legend=True)
    legend = {"traceorder": "normal", "yanchor": "top", "y": -0.28, "font": {"size": 11}}
    return figure.update_layout(barmode="stack", bargap=0.15, legend=legend)


def _heatmap(labels: np.ndarray) -> go.Figure:
    """Share of each class at each client, clients ordered by their most frequent class and then its share."""
    share = labels / np.maximum(labels.sum(axis=1, keepdims=True), 1)
    order = np.lexsort((-share.max(axis=1), share.argmax(axis=1)))
    kept = order[np.linspace(0, len(order) - 1, min(len(order), COLUMNS)).round().astype(int)]
    heat = go.Heatmap(
        z=share[kept].T,
        y=[f"class {number}" for number in range(labels.shape[1])],
        colorscale="Cividis",
        zmin=0,
        zmax=1,
        colorbar={"title": {"text": "share"}, "tickformat": ".0%", "thickness": 12},
        hovertemplate="%{y}: %{z:.1%}<extra></extra>",
    )
    some = "" if len(kept) == len(order) else f", every {len(order) / len(kept):.3g}th of {len(order):,}"
    figure = go.Figure(heat)
    figure.update_xaxes(title_text=f"clients, ordered by their most frequent class{some}", showticklabels=False)
    return styled(figure, 300, legend=False).update_layout(margin_t=15)


def _classes(count: int) -> list[str]:
    if count <= len(CLASSES):
        return list(CLASSES[:count])
    colours: list[str] = sample_colorscale("Viridis", np.linspace(0, 1, count).tolist())
    return colours


def styled(figure: go.Figure, height: int, legend: bool) -> go.Figure:
    """The figure, `height` pixels high, with the page's axes, font and colours."""
    axis = {"gridcolor": "#E6E6E6", "linecolor": "#999999", "zeroline": False, "ticks": ""}
    axis |= {"automargin": True, "title_standoff": 6}
    figure.update_xaxes(**axis, showgrid=False, showline=True)
    figure.update_yaxes(**axis)
    figure.update_annotations(font_size=13)
    return figure.update_layout(
        template="none",
        height=height,
        font={"family": FONT, "size": 12, "color": "#222222"},
        margin={"l": 55, "r": 15, "t": 40, "b": 50},
        showlegend=legend,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.13, "x": 0},
        paper_bgcolor="white",
        plot_bgcolor="white",
        bargap=0.2,
    )

"""The page about the lenders: what joining brings them, what it costs groups of people, and what left them."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from jinja2 import Environment, StrictUndefined
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots
from rich.filesize import decimal
from training import Outcome

from fedweave.report.figures import COLOURS, styled
from fedweave.report.html import drawn
from fedweave.report.template import STYLE

TEMPLATE = Path(__file__).with_name("page.html")
WAYS = {"local": "Alone", "fedavg": "Together", "f2gnn": "Together, fair"}
GROUPS = ("25 and older", "under 25")  # the values 0 and 1 of the attribute
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
SYMBOLS = ("circle-open", "circle", "diamond")
Outcomes = Mapping[str, Outcome]


def render(outcomes: Outcomes) -> str:
    """The page of {"local", "fedavg", "f2gnn": outcome}."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "percent": percent,
        "points": points,
        "size": lambda value: decimal(int(value)),
        "words": words,
    }
    order = np.argsort(outcomes["local"].scores["auc"], kind="stable")
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        style=STYLE,
        script=get_plotlyjs(),
        version=version("fedweave"),
        ways=WAYS,
        groups=GROUPS,
        outcomes=outcomes,
        lenders=[(at, name(at)) for at in order],
        better={way: better(outcomes["local"], outcomes[way]) for way in ("fedavg", "f2gnn")},
        close={way: verdict(outcome) for way, outcome in outcomes.items()},
        judged=list(dict.fromkeys(it.reveals for it in outcomes["f2gnn"].sent if it.judged)),
        scores=drawn(lenders(outcomes, order), "lenders"),
        people=drawn(people(outcomes), "people"),
        gaps=drawn(gaps(outcomes), "gaps"),
    )


def name(at: int) -> str:
    """Lender A, B, …"""
    return f"Lender {chr(ord('A') + at)}"


def words(number: int) -> str:
    """Small numbers in words."""
    return NUMBERS[number] if number < len(NUMBERS) else str(number)


def percent(share: float) -> str:
    """87.3 %, or a dash."""
    return "–" if np.isnan(share) else f"{100 * share:.1f} %"  # noqa: RUF001


def points(difference: float) -> str:
    """+1.2, in percentage points."""
    return "–" if np.isnan(difference) else f"{100 * difference:+.1f}"  # noqa: RUF001


def better(alone: Outcome, joined: Outcome) -> dict[str, int]:
    """At how many lenders the AUC is higher or lower than alone by more than twice its standard error, and at how many
    neither; the error is that of independent samples, on the safe side for models judged on the same customers."""
    change = joined.scores["auc"] - alone.scores["auc"]
    sure = np.abs(change) > 2 * np.hypot(alone.auc_error, joined.auc_error)
    up, down = int((sure & (change > 0)).sum()), int((sure & (change < 0)).sum())
    return {"up": up, "down": down, "same": len(change) - up - down}


def verdict(outcome: Outcome) -> dict[str, str]:
    """How each gap compares with what chance alone would show."""
    found = outcome.gaps
    words = {}
    for gap in ("sp", "eo"):
        times = found[gap] / found[f"{gap}_floor"] if found[f"{gap}_floor"] else np.nan
        if np.isnan(times):
            words[gap] = "the model treats all customers the same, so that there is no gap to speak of"
        elif times > 3:
            words[gap] = "far more than chance alone would show"
        elif times > 1.5:
            words[gap] = "somewhat more than chance alone would show"
        else:
            words[gap] = "no more than chance alone would show"
    return words


def lenders(outcomes: Outcomes, order: np.ndarray) -> go.Figure:
    """AUC of each lender in the three ways, lowest alone first, with bars of two standard errors."""
    figure = go.Figure()
    for at, (way, outcome) in enumerate(outcomes.items()):
        figure.add_trace(
            go.Scatter(
                x=outcome.scores["auc"][order],
                y=np.arange(len(order)) + 0.16 * (1 - at),
                error_x={"type": "data", "array": 2 * outcome.auc_error[order], "thickness": 1, "width": 0},
                mode="markers",
                name=WAYS[way],
                marker={"color": COLOURS[at], "symbol": SYMBOLS[at], "size": 11},
                hovertemplate=f"{WAYS[way]}: %{{x:.3f}}<extra></extra>",
            )
        )
    names = [name(at) for at in order]
    figure.update_yaxes(tickvals=list(range(len(order))), ticktext=names, range=[-0.6, len(order) - 0.4])
    figure.update_xaxes(title_text="how often the model ranks a payer above a non-payer (AUC); 0.5 is a coin toss")
    figure = styled(figure, 110 + 48 * len(order), legend=True)
    return figure.update_xaxes(showgrid=True).update_layout(margin_t=30, legend_y=1.02)


def people(outcomes: Outcomes) -> go.Figure:
    """Shares approved of each group, of all customers and of those who paid."""
    titles = {"Approved, of all customers": "approved", "Approved, of those who paid back": "approved_payers"}
    figure = make_subplots(1, 2, subplot_titles=list(titles), shared_yaxes=True, horizontal_spacing=0.04)
    words = [WAYS[way] for way in reversed(outcomes)]
    for column, what in enumerate(titles.values(), 1):
        shares = np.array([getattr(outcomes[way], what) for way in reversed(outcomes)])
        for way, pair in zip(words, shares, strict=True):
            line = {"color": "#999999", "width": 2}
            joined = go.Scatter(x=pair, y=[way, way], mode="lines", line=line, showlegend=False, hoverinfo="skip")
            figure.add_trace(joined, 1, column)
        for group, label in enumerate(GROUPS):
            dots = go.Scatter(
                x=shares[:, group],
                y=words,
                mode="markers",
                name=label,
                showlegend=column == 1,
                marker={"color": COLOURS[group], "symbol": SYMBOLS[1 + group], "size": 12},
                hovertemplate=f"{label}: %{{x:.1%}}<extra></extra>",
            )
            figure.add_trace(dots, 1, column)
    figure.update_xaxes(tickformat=".0%")
    return styled(figure, 260, legend=True).update_layout(legend_y=1.2)


def gaps(outcomes: Outcomes) -> go.Figure:
    """Both gaps beside what chance alone would show."""
    figure = go.Figure()
    found = {WAYS[way]: outcome.gaps for way, outcome in outcomes.items()}
    bars = {"all customers": "sp", "those who paid back": "eo"}
    for at, (label, gap) in enumerate(bars.items()):
        heights = [of[gap] for of in found.values()]
        figure.add_trace(
            go.Bar(x=list(found), y=heights, name=f"gap, {label}", marker_color=COLOURS[at], offsetgroup=at)
        )
        floors = [of[f"{gap}_floor"] for of in found.values()]
        figure.add_trace(
            go.Bar(
                x=list(found),
                y=floors,
                name=f"by chance, {label}",
                marker={"color": COLOURS[at], "opacity": 0.4},
                offsetgroup=at + 2,
            )
        )
    figure.update_traces(hovertemplate="%{y:.2%}")
    figure.update_yaxes(tickformat=".1%", rangemode="tozero")
    return styled(figure, 300, legend=True).update_layout(barmode="group", margin_t=30, legend_y=1.02)

"""The page about the lenders: what joining brings them, what it costs groups of people, and what leaves them."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
from jinja2 import Environment, StrictUndefined
from rich.filesize import decimal
from training import Outcome

from fedweave.reports.colors import run_tone, tone
from fedweave.reports.html import figure_html
from fedweave.reports.pages import STYLE
from fedweave.reports.panels import Bars, Dots, Figure, LineSeries, Panel, legend_of
from fedweave.reports.panels import percent as share

TEMPLATE = Path(__file__).with_name("page.html")
WAYS = {"local": "Alone", "fedavg": "Together", "f2gnn": "Together, fair"}
GROUPS = ("25 and older", "under 25")  # the values 0 and 1 of the attribute
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
SYMBOLS = ("square", "circle", "diamond")
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
        version=version("fedweave"),
        ways=WAYS,
        groups=GROUPS,
        outcomes=outcomes,
        lenders=[(at, name(at)) for at in order],
        better={way: better(outcomes["local"], outcomes[way]) for way in ("fedavg", "f2gnn")},
        close={way: verdict(outcome) for way, outcome in outcomes.items()},
        judged=list(dict.fromkeys(it.reveals for it in outcomes["f2gnn"].sent if it.judged)),
        scores=figure_html(lenders(outcomes, order), "lenders"),
        people=figure_html(people(outcomes), "people"),
        gaps=figure_html(gaps(outcomes), "gaps"),
    )


def name(at: int) -> str:
    """The name of a lender: Lender A, B, …"""
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
    neither. The error is that of independent samples, which is too large for models evaluated on the same customers."""
    change = joined.scores["auc"] - alone.scores["auc"]
    significant = np.abs(change) > 2 * np.hypot(alone.auc_error, joined.auc_error)
    up, down = int((significant & (change > 0)).sum()), int((significant & (change < 0)).sum())
    return {"up": up, "down": down, "same": len(change) - up - down}


def verdict(outcome: Outcome) -> dict[str, str]:
    """How each gap compares with the gap that chance explains."""
    gaps, result = outcome.gaps, {}
    for gap in ("sp", "eo"):
        times = gaps[gap] / gaps[f"{gap}_floor"] if gaps[f"{gap}_floor"] else np.nan
        if np.isnan(times):
            result[gap] = "the model treats all customers the same, so that there is no gap to speak of"
        elif times > 3:
            result[gap] = "far more than chance alone would show"
        elif times > 1.5:
            result[gap] = "somewhat more than chance alone would show"
        else:
            result[gap] = "no more than chance alone would show"
    return result


def lenders(outcomes: Outcomes, order: np.ndarray) -> Figure:
    """AUC of each lender in the three ways, lowest alone first, with bars of two standard errors."""
    dots = []
    for at, (way, outcome) in enumerate(outcomes.items()):
        auc, errors = outcome.scores["auc"][order].tolist(), (2 * outcome.auc_error[order]).tolist()
        places = [place + 0.2 * (at - 1) for place in range(len(order))]
        dots.append(Dots(WAYS[way], places, auc, run_tone(at), SYMBOLS[at], errors))
    title = "How often the model ranks a payer above a non-payer (AUC); 0.5 is a coin toss"
    return Figure((Panel(title, tuple(dots), tuple(name(at) for at in order)),), legend_of(tuple(dots)))


def people(outcomes: Outcomes) -> Figure:
    """Shares approved of each group, of all customers and of those who paid."""
    titles = {"Approved, of all customers": "approved", "Approved, of those who paid back": "approved_payers"}
    panels = []
    for title, what in titles.items():
        shares = np.array([getattr(outcome, what) for outcome in outcomes.values()])
        joined = [LineSeries("", (at, at), pair, tone("#999999")) for at, pair in enumerate(shares.tolist())]
        dots = [
            Dots(label, range(len(shares)), shares[:, group].tolist(), run_tone(group), SYMBOLS[1 + group])
            for group, label in enumerate(GROUPS)
        ]
        panels.append(Panel(title, (*joined, *dots), tuple(WAYS[way] for way in outcomes), form=share))
    return Figure(tuple(panels), legend_of(dots))


def gaps(outcomes: Outcomes) -> Figure:
    """Both gaps, and the gaps that chance explains."""
    kinds = {"all customers": "sp", "those who paid back": "eo"}
    bars = []
    for label, suffix, pale in (("gap", "", False), ("by chance", "_floor", True)):
        for at, (people, gap) in enumerate(kinds.items()):
            values = [outcome.gaps[gap + suffix] for outcome in outcomes.values()]
            bars.append(Bars(f"{label}, {people}", values, run_tone(at), pale=pale))
    panel = Panel("", tuple(bars), tuple(WAYS[way] for way in outcomes), form=share)
    return Figure((panel,), legend_of(tuple(bars)))

"""Each member's result in one run, with its interval and what the member reaches alone."""

from dataclasses import dataclass

from fedweave.accounts.verdict import Verdict, short, signed
from fedweave.experiment.runs.reading import Run
from fedweave.metrics.score_intervals import wilson
from fedweave.metrics.selection import ALONE, PLAIN, WORDS_OF_PLACES, rank
from fedweave.reports import colors
from fedweave.reports.cells import NONE, ResultTable, row_of, shorten
from fedweave.reports.drawing import MAX_LETTERS
from fedweave.reports.panels import Figure, ForestPlot, ForestRow, Key
from fedweave.reports.verdict import verdict_of

OTHER_TONE = colors.tone("#D55E00")


@dataclass(frozen=True)
class ServedMember:
    """A member's test result by the selection metric in the round that validation chose.

    low, high: ends of its 95 % interval, of accuracies. examples: the number of its test examples. alone: what it
    reaches the best way without the others. change: what joining adds, positive where it is better. Each is None where
    it is not known.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    examples: int | None = None
    alone: float | None = None
    change: float | None = None

    @property
    def text(self) -> str:
        """The value with its interval."""
        return value_text(self.value, self.low, self.high)


def value_text(value: float, low: float | None, high: float | None) -> str:
    """ "0.810 [0.69, 0.89]"; without an interval only the value."""
    return short(value) + ("" if low is None or high is None else f" [{low:.2f}, {high:.2f}]")


def member_results(run: Run, verdict: Verdict | None = None) -> list[ServedMember]:
    """The results of a run's members, the worst first; verdict: of the run, which names the best way alone."""
    metric, results = run.selection_metric, []
    alone = {} if verdict is None else run.clients(f"{verdict.strongest[0]}/{metric}")
    for name, value in run.clients(metric).items():
        examples, before = run.test_sizes.get(name), alone.get(name)
        low, high = wilson(value, examples) if metric == PLAIN and examples else (None, None)
        change = None if before is None else rank(metric, value) - rank(metric, before)
        results.append(ServedMember(name, value, low, high, examples, before, change))
    return sorted(results, key=lambda one: rank(metric, one.value))


def members_figure(run: Run, tone: str, title: str = "") -> Figure | None:
    """A row for each member, the worst first: its result with the interval, and what it reaches alone."""
    verdict = verdict_of(run.summary, run.metrics)
    results = member_results(run, verdict)
    if not results:
        return None
    legend: tuple[Key, ...] = (Key("together", tone, "circle"),)
    if any(one.alone is not None for one in results):
        legend += (Key(WORDS_OF_PLACES[ALONE if verdict is None else verdict.strongest[0]], OTHER_TONE, "upright"),)
    rows = []
    for one in results:
        named = one.name if one.examples is None else f"{one.name} ({one.examples:,})"
        name = named if len(named) <= MAX_LETTERS else one.name
        rows.append(ForestRow(name, one.value, one.text, tone, one.low, one.high, one.alone))
    return Figure((ForestPlot(title, tuple(rows), other_tone=OTHER_TONE),), legend)


def members_table(run: Run) -> ResultTable:
    """A row for each member of one run, the one that joining costs most first: its result, and what it reaches alone;
    without rows where no member is known to have learned alone."""
    verdict = verdict_of(run.summary, run.metrics)
    if verdict is None:
        return ResultTable((), ())
    rows = []
    for one in sorted(member_results(run, verdict), key=lambda one: one.change or 0.0):
        if one.change is not None:
            size = NONE if one.examples is None else f"{one.examples:,}"
            rows.append(row_of(one.name, size, one.text, short(one.alone or 0.0), signed(one.change)))
    head = ("member", "test examples", "together", WORDS_OF_PLACES[verdict.strongest[0]], "joining adds")
    return ResultTable(head, shorten(rows))

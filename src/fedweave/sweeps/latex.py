"""A sweep's results as a table in LaTeX."""

from collections.abc import Sequence

from fedweave.core.types import NUMBER, Values
from fedweave.experiment.runs.reading import spread
from fedweave.metrics.selection import METRICS, PLAIN, title_of
from fedweave.reports.cells import Cell, mark_best
from fedweave.reports.conditions import settings_text
from fedweave.reports.paired import MIN_SEEDS
from fedweave.sweeps.captions import WHEN, caption
from fedweave.sweeps.choosing import ChosenSetting
from fedweave.sweeps.comparison import rank_algorithms

_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {mark: f"\\{mark}" for mark in "&%$#_{}"} | {"±": r"$\pm$", "ε": r"$\varepsilon$"}


def latex(choices: Sequence[ChosenSetting]) -> str:
    """A `table` with booktabs' rules: algorithms down, conditions across. A result is bold if it is better than every
    other in its column by a paired test over seeds. With several conditions the last column has the mean ranks."""
    # 1. A column of cells for each condition, and one for the ranks.
    algorithms = list(dict.fromkeys(choice.algorithm for choice in choices))
    condition_of = {settings_text(choice.condition): choice.condition for choice in choices}
    choice_at = {(choice.algorithm, settings_text(choice.condition)): choice for choice in choices}
    columns = []
    heads = []
    for title, condition in condition_of.items():
        columns.append(_column([choice_at.get((algorithm, title)) for algorithm in algorithms]))
        heads.append(escape_latex(_head(condition) or title_of(choices[0].metric)))
    ranks = rank_algorithms(choices)
    if ranks is not None:
        columns.append([f"{ranks.means[algorithm]:.2f}" for algorithm in algorithms])
        heads.append("mean rank")

    # 2. The caption.
    metrics = dict.fromkeys(title_of(choice.metric) for choice in choices)
    text = escape_latex(caption(choices, f"Test {' or '.join(metrics)} in %, {WHEN}"))
    if any(len(choice.by_seed()) >= MIN_SEEDS for choice in choices):
        text += " Bold: better than every other by a paired test over seeds."
    if ranks is not None:
        text += f" {escape_latex(ranks.sentence())}"

    # 3. The table.
    body = []
    for algorithm, *cells in zip(algorithms, *columns, strict=True):
        body.append(rf"    {' & '.join([escape_latex(algorithm), *cells])} \\")
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        rf"  \caption{{{text}}}",
        r"  \label{tab:sweep}",
        rf"  \begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"    \toprule",
        rf"    {' & '.join(['algorithm', *heads])} \\",
        r"    \midrule",
        *body,
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _head(condition: Values) -> str:
    """A condition above a column: "cora, louvain, clients = 5"."""
    words = (str(value) if key.endswith(".name") else settings_text({key: value}) for key, value in condition.items())
    return ", ".join(words)


def _column(choices: Sequence[ChosenSetting | None]) -> list[str]:
    """The cells of a condition; "--" for an algorithm that has no result in it."""
    cells = [Cell("--" if choice is None else _number(choice)) for choice in choices]
    values = [{} if choice is None else choice.by_seed() for choice in choices]
    metric = next((choice.metric for choice in choices if choice is not None), PLAIN)
    return [rf"\textbf{{{cell.text}}}" if cell.best else cell.text for cell in mark_best(cells, values, metric)]


def _number(choice: ChosenSetting) -> str:
    """Mean and deviation: in per cent, but for metrics of numbers, which have the target's unit."""
    mean, deviation, count = spread(choice.values())
    if not count:
        return "--"
    if choice.metric in METRICS and NUMBER in METRICS[choice.metric].of:
        return f"{mean:.3f}" + (rf" $\pm$ {deviation:.3f}" if count > 1 else "")
    return f"{100 * mean:.2f}" + (rf" $\pm$ {100 * deviation:.2f}" if count > 1 else "")


def escape_latex(text: str) -> str:
    """The text with LaTeX's special characters escaped."""
    return "".join(_SPECIAL.get(mark, mark) for mark in text)

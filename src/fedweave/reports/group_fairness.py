"""How a model treats two groups of people: every gap between them, with the gap that chance would show."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from fedweave.experiment.runs.reading import Group, spread
from fedweave.metrics.selection import near_constant
from fedweave.reports.cells import Cell, ResultTable, mark_best, mean_cell, number, with_sign
from fedweave.reports.result_names import GAPS, GROUPS, note
from fedweave.reports.tables import comparable, heads

_CONSTANT_WINS = (*GAPS, "tradeoff_accuracy", "tradeoff_auc")  # metrics in which a constant prediction is best
_FAMILIES = {
    "groups/global": "global",
    "groups/median": "median of clients",
    "best_fair/groups/global": "global, fairest round",
}


def favorable_class(groups: Sequence[Group]) -> str:
    """The name of the class whose prediction counts as favorable, the second of two.

    It is "class 1" where the class has no name or runs have different ones.
    """
    names = {group.first.class_names(2)[1] for group in groups}
    if len(names) > 1 or names == {"class 1"}:
        return "class 1"
    return f"class “{names.pop()}” (1)"


def names_of_people(groups: Sequence[Group]) -> tuple[str, ...]:
    """The names of the groups of people, in order; () where they are numbers or runs have different ones."""
    names = {tuple(group.first.summary.get("groups") or ()) for group in groups}
    return names.pop() if len(names) == 1 else ()


def predicts_one_class(group: Group, family: str = "groups/global") -> bool:
    """Whether a run of the group predicts one class for almost everyone, so that its gaps mean nothing."""
    predicted, favorable = group.values(f"{family}/predicted"), group.values(f"{family}/favorable")
    for share, true_share in zip(predicted, favorable, strict=True):
        if share is not None and true_share is not None and near_constant(share, true_share):
            return True
    return False


def fairness_table(groups: Sequence[Group]) -> ResultTable:
    """A row per metric and kind of value, a column per group of runs; without rows where nothing was measured."""
    rows, names = [], names_of_people(groups)
    for family, family_title in _FAMILIES.items():
        for metric, description in GROUPS.items():
            cells = _cells(groups, family, metric)
            if cells:
                title, small_print = description.title, note(metric)
                for index, name in enumerate(names[:2]):
                    title = title.replace(f"group {index}", f"“{name}”")
                    small_print = small_print.replace(f"group {index}", f"“{name}”")
                rows.append((Cell(title, note=small_print), Cell(family_title), *cells))
    head = heads(groups)
    return ResultTable((head[0], "of", *head[1:]), tuple(rows), words=2)


def _cells(groups: Sequence[Group], family: str, metric: str) -> list[Cell]:
    """A cell for each group of runs; [] where none has the metric.

    Its small print has the noise floor of a gap, and the number of clients for which the metric is not defined.
    """
    name = f"{family}/{metric}"
    values = [group.values(name) for group in groups]
    if all(value is None for value in chain.from_iterable(values)):
        return []
    form = with_sign if metric.endswith("_signed") else number
    cells = [mean_cell(of_group, form) for of_group in values]
    void = metric in _CONSTANT_WINS and any(predicts_one_class(group, family) for group in groups)
    if comparable(groups) and not void:
        cells = mark_best(cells, [group.by_seed(name) for group in groups], metric)
    further = {"undefined at": f"{metric}_undefined"}
    if metric in GAPS:
        further = {"noise floor": f"{metric}_floor"} | further
        further |= {"predicted favorable": "predicted", "favorable": "favorable"}
    result = []
    for cell, group in zip(cells, groups, strict=True):
        notes = [cell.note] if cell.note else []
        for title, other in further.items():
            mean, _, count = spread(group.values(f"{family}/{other}"))
            if count:
                notes.append(f"{title} {f'{mean:g}' if title == 'undefined at' else number(mean)}")
        result.append(replace(cell, note=", ".join(notes)))
    return result

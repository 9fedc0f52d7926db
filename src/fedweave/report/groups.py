"""The table of how a model treats two groups of people, every gap beside what chance alone would show."""

from collections.abc import Sequence

from fedweave.metrics.judging import near_constant
from fedweave.report.cells import Cell, Table, marked, measured, number, signed
from fedweave.report.notes import compared_people
from fedweave.report.reading import Group, spread
from fedweave.report.tables import comparable, heads

GAPS = {"sp": "SP, statistical parity", "eo": "EO, equal opportunity", "equalised_odds": "Equalised odds"}
OTHERS = {
    "sp_signed": "SP, signed",
    "eo_signed": "EO, signed",
    "accuracy_group0": "Accuracy of group 0",
    "accuracy_group1": "Accuracy of group 1",
    "auc_group0": "AUC of group 0",
    "auc_group1": "AUC of group 1",
    "tradeoff_accuracy": "Accuracy / (SP + EO)",
    "tradeoff_auc": "AUC / (SP + EO)",
    "tradeoff_skill": "(TPR - FPR) (1 - (SP + EO) / 2)",
    "predicted": "Predicted favourable",
    "favourable": "Favourable",
}
NOTES = {
    "sp": "difference of the shares predicted 1",
    "eo": "the same among those of label 1",
    "equalised_odds": "the larger of the differences at either label",
    "sp_signed": "group 1 minus group 0",
    "eo_signed": "group 1 minus group 0",
    "tradeoff_skill": "0 for every constant prediction",
    "predicted": "share of people",
    "favourable": "share of people",
}
UNFAIR = (*GAPS, "tradeoff_accuracy", "tradeoff_auc")  # what a constant prediction is best at
FAMILIES = {
    "groups/global": "global",
    "groups/median": "median of clients",
    "best_fair/groups/global": "global, fairest round",
}


def favourable(groups: Sequence[Group]) -> str:
    """What the class is called whose prediction counts as favourable, the second of two; "class 1" where it has no name
    or runs have different ones."""
    [name, *others] = dict.fromkeys(group.first.named(2)[1] for group in groups)
    return "class 1" if others or name == "class 1" else f"class “{name}” (1)"


def named_groups(groups: Sequence[Group]) -> str:
    """A sentence on which group of people is 0 and which 1; "" where they are numbers or runs have different ones."""
    return compared_people(_of_people(groups))


def between_groups(groups: Sequence[Group]) -> Table:
    """A row per metric and kind of value, a column per group of runs; without rows where nothing was measured."""
    rows, names = [], _of_people(groups)
    for family, words in FAMILIES.items():
        for name, title in (GAPS | OTHERS).items():
            found = [group.values(f"{family}/{name}") for group in groups]
            if all(value is None for values in found for value in values):
                continue
            cells = [measured(values, signed if name.endswith("_signed") else number) for values in found]
            if comparable(groups) and not (name in UNFAIR and any(alike(group, family) for group in groups)):
                cells = marked(cells, [group.by_seed(f"{family}/{name}") for group in groups], name)
            cells = [_noted(cell, _aside(group, family, name)) for cell, group in zip(cells, groups, strict=True)]
            rows.append((Cell(_called(title, names), note=_called(NOTES.get(name, ""), names)), Cell(words), *cells))
    head = heads(groups)
    return Table((head[0], "of", *head[1:]), tuple(rows), words=2)


def alike(group: Group, family: str = "groups/global") -> bool:
    """Whether a run of the group predicts one class for nearly everybody, so that its gaps say nothing."""
    told = zip(*(group.values(f"{family}/{name}") for name in ("predicted", "favourable")), strict=True)
    return any(one is not None and true is not None and near_constant(one, true) for one, true in told)


def _of_people(groups: Sequence[Group]) -> tuple[str, ...]:
    """What the groups of people are called, in order; () where they are numbers or runs have different ones."""
    [names, *others] = dict.fromkeys(tuple(group.first.summary.get("groups") or ()) for group in groups)
    return () if others else names


def _called(words: str, names: Sequence[str]) -> str:
    """The words with the names of the groups 0 and 1 in place of "group 0" and "group 1"."""
    for at, name in enumerate(names[:2]):
        words = words.replace(f"group {at}", f"“{name}”")
    return words


def _aside(group: Group, family: str, name: str) -> str:
    """The noise floor of a gap, and at how many clients the metric is not defined; means over runs."""
    known = {
        "noise floor": spread(group.values(f"{family}/{name}_floor")) if name in GAPS else spread([]),
        "undefined at": spread(group.values(f"{family}/{name}_undefined")),
    }
    if name in GAPS:
        known["predicted favourable"] = spread(group.values(f"{family}/predicted"))
        known["favourable"] = spread(group.values(f"{family}/favourable"))
    words = [
        f"{what} {f'{mean:g}' if what == 'undefined at' else number(mean)}" for what, (mean, _, n) in known.items() if n
    ]
    return ", ".join(words)


def _noted(cell: Cell, more: str) -> Cell:
    return Cell(cell.text, cell.exact, ", ".join(filter(None, (cell.note, more))), cell.best)

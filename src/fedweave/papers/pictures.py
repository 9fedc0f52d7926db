"""The pictures of a paper's tables: curves over rounds or over a number of the columns, planes and stacked shares."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedweave.papers.grid import PlannedCell
from fedweave.papers.table import TableRow
from fedweave.reports.pictures import Marker, Point, curves, mean_curve, save_picture, scatter, stacks

Panels = dict[tuple[str, str], dict[str, list[Point]]]  # {(column, unit): {row: its line}}


def draw_curves(
    stem: Path, title: str, over: str, planned: Sequence[PlannedCell], rows: Sequence[TableRow]
) -> list[str]:
    """Write a picture for each column and unit with finished runs, a line for each row; returns the names of the files.

    The file is `stem`.svg if there is only one picture, else it has column and unit in its name. over: "round", for the
    quantities that have a curve; or a number in the columns' names ("Cora, overlap 0.1").
    """
    panels: Panels = {}
    if over == "round":
        titles = units((it.cell.split, it.cell.quantity.unit) for it in planned)
        for it in planned:
            curve, unit = it.cell.quantity.curve, titles[it.cell.split, it.cell.quantity.unit]
            finished = [run.directory for run in it.runs if run.finished()]
            if curve is not None and finished:
                line = mean_curve([curve(directory) for directory in finished])
                panels.setdefault((it.cell.column, unit), {})[it.cell.row] = line
    else:
        titles = units((row.split, row.unit) for row in rows)
        for row in rows:
            column, _, number = row.column.partition(f", {over} ")
            if row.ours is not None:
                lines = panels.setdefault((column, titles[row.split, row.unit]), {})
                lines.setdefault(row.row, []).append(Point(float(number), row.ours, row.spread or 0.0))
    files = []
    for (column, unit), lines in panels.items():
        name = stem.name if len(panels) == 1 else f"{stem.name}-{column}-{unit}".lower().replace(" ", "-")
        above = title if len(panels) == 1 else f"{title}: {column}"
        files.append(save_picture(stem.with_name(f"{name}.svg"), curves(above, unit, lines, over)))
    return files


def draw_planes(stem: Path, title: str, plane: tuple[str, str], rows: Sequence[TableRow]) -> list[str]:
    """Write `stem`-<data set>.svg for each data set with measured rows; returns the names of the files written.

    plane: the columns across and up. rows: "data set, method" or "data set, method, label" in both columns.
    """
    files = []
    for data_set, lines in markers_by_data_set(plane, rows).items():
        path = stem.with_name(f"{stem.name}-{data_set.lower()}.svg")
        files.append(save_picture(path, scatter(f"{title}: {data_set}", plane, lines)))
    return files


def draw_stacks(stem: Path, title: str, rows: Sequence[TableRow]) -> list[str]:
    """Write `stem`.svg of the rows that are measured in every column; returns its name, [] without such rows."""
    columns = list(dict.fromkeys(row.column for row in rows))
    numbers: dict[str, dict[str, float]] = {row.row: {} for row in rows}
    for row in rows:
        if row.ours is not None:
            numbers[row.row][row.column] = row.ours
    shares = {}
    for name, by_column in numbers.items():
        if len(by_column) == len(columns):
            shares[name] = [by_column[column] for column in columns]
    return [save_picture(stem.with_name(f"{stem.name}.svg"), stacks(title, columns, shares))] if shares else []


def units(split_units: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """{(split, unit): its title in a picture}; the title has the split, "local F1", where several splits share the
    unit."""
    pairs = set(split_units)
    splits = Counter(unit for _, unit in pairs)
    return {(split, unit): f"{split} {unit}" if splits[unit] > 1 else unit for split, unit in pairs}


def markers_by_data_set(plane: tuple[str, str], rows: Sequence[TableRow]) -> dict[str, dict[str, list[Marker]]]:
    """{data set: {method: its markers}} for the rows that have both numbers."""
    by_cell = {(row.row, row.column): row for row in rows if row.ours is not None}
    panels: dict[str, dict[str, list[Marker]]] = {}
    for name in dict.fromkeys(row.row for row in rows):
        x = by_cell.get((name, plane[0]))
        y = by_cell.get((name, plane[1]))
        if x is None or y is None or x.ours is None or y.ours is None:
            continue
        panel, method, *label = name.split(", ")
        marker = Marker(", ".join(label), x.ours, y.ours, x.spread or 0.0, y.spread or 0.0)
        panels.setdefault(panel, {}).setdefault(method, []).append(marker)
    return panels

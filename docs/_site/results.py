"""The page of metrics and result keys, made from the tables of reports and from what algorithms measure."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import fedweave
from fedweave.metrics.selection import METRICS
from fedweave.reports import result_names

PACKAGE = Path(fedweave.__file__).parent
_KINDS = {"class": "classes", "number": "numbers", "labels": "labels"}
_BETTER = {"high": "higher", "low": "lower", "": ""}


def page() -> str:
    """The page."""
    return (
        "\n\n".join(
            [
                "# Metrics and result keys",
                "A name such as `global/auc` has two parts: a place, `global`, and a metric, `auc`. `summary.json` has "
                "the metrics of the last evaluation under `metrics`. `metrics.parquet` has a row for every round, "
                "client, split and metric; the client `global` stands for all examples together, and there the name "
                "has no place. What the places mean, with an example: [In plain words](../concepts.md).",
                "## Places",
                _table(("place", "measured on"), _places()),
                "## Metrics",
                "They stand behind the places `global`, `local`, `trained`, `within`, `pooled`, `best_val`, `features` "
                "and `reference`, as far as they are defined there.",
                _table(("metric", "title", "better", "what it is", "predicts"), _metrics()),
                "## Names of one place",
                _table(("name", "title", "better", "what it is"), _others()),
                "## What the server knows of each client",
                "Rows of `metrics.parquet` whose split is `server`. Each algorithm or part has its own.",
                _table(("algorithm or part", "names"), _measures()),
                "Runs between sites have three more rows for a client:",
                _table(("name", "what it is"), _meanings(result_names.FAULTS)),
                "## Keys of summary.json",
                _table(("key", "what it is"), _meanings(result_names.KEYS)),
            ]
        )
        + "\n"
    )


def _meanings(meanings: dict[str, str]) -> Iterator[tuple[str, ...]]:
    return ((f"`{name}`", _cell(text)) for name, text in meanings.items())


def _places() -> Iterator[tuple[str, ...]]:
    for name, (about, _) in result_names.PLACES.items():
        yield f"`{name}/…`", _cell(about)


def _metrics() -> Iterator[tuple[str, ...]]:
    for name, metric in METRICS.items():
        kinds = ", ".join(_KINDS[kind] for kind in metric.of)
        yield f"`{name}`", _cell(_other_title(name, metric.title)), _BETTER[metric.better], _cell(metric.note), kinds
    for name in result_names.RESULTS:
        if _is_of_all_places(name) and not name.startswith(("worst_", "best_")):
            yield *_row(name), ""


def _is_of_all_places(name: str) -> bool:
    return "/" not in name and result_names.RESULTS[name].shown and name not in result_names.GROUPS


def _row(name: str) -> tuple[str, ...]:
    last, about = name.rpartition("/")[2], result_names.meaning(name)
    title = _other_title(last, result_names.title(last))
    return f"`{name}`", _cell(title), _BETTER[result_names.better(last)], _cell(about)


def _other_title(name: str, title: str) -> str:
    """The title, "" if it is the name in words."""
    return "" if title.lower() == name.replace("_", " ") else title


def _others() -> Iterator[tuple[str, ...]]:
    for name in result_names.RESULTS:
        if not _is_of_all_places(name):
            yield _row(name)
    yield "`fairness/worst_…`", "", "", "value of the metric at the client served worst"
    yield "`fairness/best_…`", "", "", "value of the metric at the client served best"
    yield "`fairness/undefined_…`", "", "", "clients without a value of the metric"
    yield "`…_floor`", "", "", "the gap between groups that chance explains, for a model that ignores groups"
    yield "`…_undefined`", "", "", "clients at which the metric is not defined"


def measures() -> dict[str, str]:
    """{class: the docstring of its `measures`}, of all algorithms and parts that report what they know of clients."""
    result = {}
    for path in sorted((PACKAGE / "algorithms").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name != "Part":  # whose docstring is that of the protocol
                for method in node.body:
                    if isinstance(method, ast.FunctionDef) and method.name == "measures":
                        result[node.name] = " ".join((ast.get_docstring(method) or "").split())
    return result


def _measures() -> Iterator[tuple[str, ...]]:
    for name, about in measures().items():
        if about.startswith("{"):
            yield f"`{name}`", _cell(about)


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text).replace("<", "&lt;").replace("*", "\\*").replace("_{", "\\_{")

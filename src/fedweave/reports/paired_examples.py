"""Two runs on the same test examples, such as a party alone and with others: paired example by example."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa

from fedweave.experiment.runs.reading import Group
from fedweave.reports.cells import Cell, ResultTable, interval_text, signed
from fedweave.reports.paired import interval

_PLACES = ("id", "node", "graph", "edge")  # columns that name an example
_MIN_PROBABILITY = 1e-12  # whose logarithm is taken
_HEAD = ("run", "client", "test examples", "right, first run", "right, this run", "difference", "log loss, difference")
EXAMPLES_NOTE = (
    "On the same examples: this run minus the first one, of the test examples that both predict (`fedweave predict`), "
    "with the two-sided 95 % interval over examples; where there are several seeds, of each example's mean over them. "
    "It says how sure the difference is for these models on other examples, not for models of other seeds."
)

Example = tuple[str, object]  # (client, id)
Score = tuple[float, float]  # (1 where the prediction is right, else 0; log loss)
Pair = tuple[float, float, float]  # (right in the first run, right in the other, difference of log losses)


def example_differences(groups: Sequence[Group]) -> ResultTable:
    """A row for each group of runs but the first and each client whose test examples both runs predict.

    There are no rows where runs have no predictions.
    """
    rows = []
    for group in groups[1:]:
        for client, pairs in _pairs(groups[0], group).items():
            right, right_in_other, losses = zip(*pairs, strict=True)
            differences = [one - other for one, other in zip(right_in_other, right, strict=True)]
            words = (group.label, client, f"{len(pairs):,}")
            shares = (f"{statistics.fmean(right):.3f}", f"{statistics.fmean(right_in_other):.3f}")
            rows.append((*map(Cell, words + shares), difference_cell(differences), difference_cell(losses)))
    return ResultTable(_HEAD, tuple(rows), words=2)


def _pairs(first: Group, other: Group) -> dict[str, list[Pair]]:
    """{client: a pair for each example}, means over the seeds that both groups have."""
    predictions = {run.config.get("seed"): run.predictions for run in first.runs}
    predictions_of_other = {run.config.get("seed"): run.predictions for run in other.runs}
    pairs = defaultdict[Example, list[Pair]](list)
    for seed in predictions.keys() & predictions_of_other.keys():
        scores, scores_of_other = _scores(predictions[seed]), _scores(predictions_of_other[seed])
        for example in scores.keys() & scores_of_other.keys():
            right, loss = scores[example]
            right_in_other, loss_in_other = scores_of_other[example]
            pairs[example].append((right, right_in_other, loss_in_other - loss))
    by_client = defaultdict[str, list[Pair]](list)
    for client, example_id in sorted(pairs, key=str):
        right, right_in_other, loss = map(statistics.fmean, zip(*pairs[client, example_id], strict=True))
        by_client[client].append((right, right_in_other, loss))
    return by_client


def _scores(table: pa.Table | None) -> dict[Example, Score]:
    """The scores of the test examples whose class is known."""
    if table is None or not {"split", "true"} <= {*table.column_names}:
        return {}
    if not any(name.startswith("p_") for name in table.column_names):  # of numbers
        return {}
    place = next((name for name in _PLACES if name in table.column_names), "node")
    scores = {}
    for row in table.to_pylist():
        if row["split"] == "test" and row["true"] is not None:
            probability = max(row[f"p_{row['true']}"], _MIN_PROBABILITY)
            scores[row["client"], row[place]] = (float(row["predicted"] == row["true"]), -math.log(probability))
    return scores


def difference_cell(differences: Sequence[float]) -> Cell:
    """The mean of differences, with its 95 % interval as small print."""
    low, high = interval(differences)
    mean = statistics.fmean(differences)
    return Cell(signed(mean), repr(mean), interval_text(low, high))

"""Does joining pay? The global model's result beside the best that members reach alone, in one sentence."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from fedweave.accounts.verdict import Verdict
from fedweave.core.types import Values
from fedweave.metrics.selection import (
    ALONE,
    SHELF,
    SHELF_JOINT,
    WORDS_OF_PLACES,
    of_result,
    rank,
    selection_metric_of,
)
from fedweave.reports.paired import MIN_SEEDS, interval

if TYPE_CHECKING:  # the command line imports this module, and should start quickly
    import pyarrow as pa

Metrics = Mapping[str, float | None]  # of a summary
TRAIN_ALONE = ("local", "standalone")  # algorithms; the second for parties with columns of the same nodes
# {place of a result: what a reader calls it}
SHELVES = {place: WORDS_OF_PLACES[place] for place in (f"{SHELF}/local", f"{SHELF_JOINT}/local", f"{SHELF}/pooled")}


def verdict_of(summary: Values, rows: "pa.Table | None" = None) -> Verdict | None:
    """The verdict on a run with this summary; None where no member is known to have learned alone, or where all do.

    rows: of metrics.parquet, whose members give the interval of the gain.
    """
    metrics: Metrics = of_result(summary)
    if summary.get("algorithm") in TRAIN_ALONE:
        return None
    metric = selection_metric_of(metrics)
    joint = joint_value(metrics, metric)
    alone = {how: metrics.get(f"{how}/local/{metric}") for how in (ALONE, SHELF)}
    known = {how: value for how, value in alone.items() if value is not None}
    if joint is None or not known:
        return None
    chosen = summary.get("chosen_round")
    round = None if chosen == summary.get("rounds") else chosen
    verdict = Verdict(metric, joint, known, shelf_tools(summary), metrics.get(f"{SHELF}/pooled/{metric}"), round)
    if rows is None:
        return verdict
    changes = member_changes(rows, metric, verdict.strongest[0], chosen)
    over = f" over {len(changes)} members"
    return verdict._replace(interval=_interval([*changes.values()], over))


def member_changes(rows: "pa.Table", metric: str, how: str, round: float | None = None) -> dict[str, float]:
    """{member: what joining adds to its test result, positive where it is better}, of members that have both.

    rows: of metrics.parquet. how: a place of results of members alone, "alone" or "shelf". round: of the global model;
    None for the last.
    """
    joint, alone = member_values(rows, metric, round), member_values(rows, f"{how}/{metric}")
    return {client: rank(metric, joint[client]) - rank(metric, alone[client]) for client in joint if client in alone}


def member_values(rows: "pa.Table", metric: str, round: float | None = None) -> dict[str, float]:
    """{member: its test result} in a round; None for the last. rows: of metrics.parquet."""
    import pyarrow.compute as pc

    from fedweave.experiment.runs.reading import values_of

    tests = values_of(rows, metric, "test", False)
    tests = tests.filter(pc.equal(tests["round"], pc.max(tests["round"]) if round is None else int(round)))
    return dict(zip(tests["client"].to_pylist(), tests["value"].to_pylist(), strict=True))


def _interval(gains: Sequence[float], over: str) -> tuple[float, float, str] | None:
    low, high = interval(gains)
    return None if low is None or high is None or len(gains) < MIN_SEEDS else (low, high, over)


def verdict_of_seeds(summaries: Sequence[Values], rows: Sequence["pa.Table"] = ()) -> Verdict | None:
    """The verdict on runs that differ in the seed: means over those that have one, of the first one's metric.

    rows: of each run's metrics.parquet. The interval of the gain is over seeds; of fewer than three over pairs of a
    member and a seed.
    """
    verdicts = [verdict for verdict in map(verdict_of, summaries) if verdict is not None]
    if not verdicts:
        return None
    if len(summaries) == 1:
        return verdict_of(summaries[0], *rows)
    first = verdicts[0]
    same = [one for one in verdicts if one.metric == first.metric and one.alone.keys() == first.alone.keys()]
    alone = {how: fmean(one.alone[how] for one in same) for how in first.alone}
    tools = Counter[str]()
    for one in same:
        tools.update(one.tools)
    pooled = [one.pooled for one in same if one.pooled is not None]
    mean = Verdict(first.metric, fmean(one.joint for one in same), alone, dict(tools.most_common()))
    how = mean.strongest[0]
    gains, over = [rank(one.metric, one.joint) - rank(one.metric, one.alone[how]) for one in same], "seeds"
    if len(gains) < MIN_SEEDS and len(rows) == len(summaries):
        gains, over = [], "pairs of a member and a seed"
        for summary, table in zip(summaries, rows, strict=True):
            gains += member_changes(table, mean.metric, how, summary.get("chosen_round")).values()
    between = _interval(gains, f" over {len(gains)} {over}")
    return mean._replace(pooled=fmean(pooled) if pooled else None, interval=between)


def joint_value(metrics: Metrics, metric: str) -> float | None:
    """The mean over members of the global model's test results; on the global test set where members have no test
    examples."""
    for name in (f"local/{metric}", f"global/{metric}"):
        if metrics.get(name) is not None:
            return metrics[name]
    return None


def shelf_tools(summary: Values, which: str = "local") -> dict[str, int]:
    """{tool: members whose validation examples chose it} of a summary."""
    tools = (summary.get(SHELF) or {}).get(which)
    if not isinstance(tools, dict):  # another program may have written the file
        return {}
    return {str(tool): count for tool, count in tools.items() if isinstance(count, int)}


def shelf_sentences(summary: Values) -> list[str]:
    """What to know about a run's shelf: what was left out to save time."""
    drawn = (summary.get(SHELF) or {}).get("drawn")
    if not isinstance(drawn, str):
        return []
    return [f"the shelf is smaller than it could be, to save time ({drawn}); set evaluation.shelf = true for all of it"]

"""Does joining pay? The joint model's result beside the best that members reach alone, in one sentence."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from fedweave.accounts.verdict import Verdict
from fedweave.core.types import Values
from fedweave.metrics.selection import ALONE, BEST, SHELF, SHELF_JOINT, selection_metric_of

Metrics = Mapping[str, float | None]  # of a summary
TRAIN_ALONE = ("local", "standalone")  # algorithms; the second for parties with columns of the same nodes
# {place of a result: what a reader calls it}
SHELVES = {
    f"{SHELF}/local": "alone, on the shelf",
    f"{SHELF_JOINT}/local": "on the shelf, with joint columns",
    f"{SHELF}/pooled": "on the shelf, all data pooled",
}


def verdict_of(summary: Values) -> Verdict | None:
    """The verdict on a run with this summary; None where no member is known to have learned alone, or where all do."""
    metrics: Metrics = summary["metrics"]
    if summary.get("algorithm") in TRAIN_ALONE:
        return None
    metric = selection_metric_of(metrics)
    joint = joint_value(metrics, metric)
    alone = {how: metrics.get(f"{how}/local/{metric}") for how in (SHELF, ALONE)}
    known = {how: value for how, value in alone.items() if value is not None}
    if joint is None or not known:
        return None
    best, is_result = metrics.get(f"{BEST}/round"), "chosen_round" in summary
    round = None if is_result or best == summary.get("rounds") else best
    return Verdict(metric, joint, known, shelf_tools(summary), metrics.get(f"{SHELF}/pooled/{metric}"), round)


def verdict_of_seeds(summaries: Sequence[Values]) -> Verdict | None:
    """The verdict on runs that differ in the seed: means over those that have one, of the first one's metric."""
    verdicts = [verdict for verdict in map(verdict_of, summaries) if verdict is not None]
    if not verdicts:
        return None
    first = verdicts[0]
    same = [one for one in verdicts if one.metric == first.metric and one.alone.keys() == first.alone.keys()]
    alone = {how: fmean(one.alone[how] for one in same) for how in first.alone}
    tools = Counter[str]()
    for one in same:
        tools.update(one.tools)
    pooled = [one.pooled for one in same if one.pooled is not None]
    return Verdict(
        first.metric,
        fmean(one.joint for one in same),
        alone,
        dict(tools.most_common()),
        fmean(pooled) if pooled else None,
    )


def joint_value(metrics: Metrics, metric: str) -> float | None:
    """The mean over members of the joint model's test results in the round that validation chose, else in the last
    one; on the global test set where members have no test examples."""
    for name in (f"{BEST}/local/{metric}", f"local/{metric}", f"{BEST}/global/{metric}", f"global/{metric}"):
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

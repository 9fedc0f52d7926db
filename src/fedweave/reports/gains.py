"""What joining brings each member: its test result in a run, by the selection metric, less its result with training
alone on the same split."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedweave.errors import listed
from fedweave.experiment.config.toml import differences
from fedweave.experiment.runs.reading import BY_FEATURES, Group, Run, distinct, spread
from fedweave.metrics.score_intervals import NORMAL
from fedweave.metrics.selection import ALONE, PLAIN, lower, rank, title_of
from fedweave.reports.cells import MAX_ROWS, NONE, Cell, ResultTable, number, number_cell, row_of, with_sign
from fedweave.reports.effects import MIN_SEEDS_TEXT, UNDECIDED, Effect, effect, orient, ranking, three_digits
from fedweave.reports.recipes import other_settings
from fedweave.reports.verdict import TRAIN_ALONE

PERCENTS = (5, 10, 50, 90)
PERCENTILE_HEADS = tuple(f"{percent} %" for percent in PERCENTS)
MANY = 3 * MAX_ROWS  # members above which percentiles say more than rows
NOISE_NOTE = (
    "Beyond noise is a member whose accuracy differs by more than its number of test examples explains: Agresti and "
    "Caffo's 95 % interval of the two accuracies' difference leaves out 0. By chance alone up to one in forty does so "
    "either way."
)


@dataclass(frozen=True)
class Gain:
    """What joining changes for the members of one run.

    index: place of the group among all groups. by_client: {client: accuracy (or selection metric) minus its value with
    local training} for clients that have both. Where lower is better (`direction` = -1) the sign is turned, so that
    more is a gain. baseline: the label of the group that trains alone, where there are several such groups.
    baseline_settings: settings other than the algorithm in which the run that trains alone differs. beyond_noise: how
    many gain and how many lose by more than noise (`count_beyond_noise`).
    """

    index: int
    group: Group
    run: Run
    by_client: dict[str, float]
    baseline: str = ""
    baseline_settings: str = ""
    beyond_noise: tuple[int, int] | None = None

    @property
    def direction(self) -> int:
        """-1 where lower values of the selection metric are better, else 1."""
        return -1 if lower(self.run.selection_metric) else 1

    @property
    def seed(self) -> str:
        """The run's seed."""
        return str(self.run.summary.get("seed", NONE))


def local_run(run: Run, groups: Sequence[Group]) -> Run | None:
    """The run that trains alone with the split and the seed of `run`; of several, the one with the fewest other
    settings.

    Returns None without such a run, and if `run` itself trains alone.
    """
    if run.summary["algorithm"] in TRAIN_ALONE:
        return None
    candidates = []
    for group in _local_groups(groups):
        candidates += [candidate for candidate in group.runs if _same_split(candidate, run)]
    return min(candidates, key=lambda candidate: len(differences(candidate.config, run.config)), default=None)


def _local_groups(groups: Sequence[Group]) -> list[Group]:
    return [group for group in groups if group.first.summary["algorithm"] in TRAIN_ALONE]


def _same_split(run: Run, other: Run) -> bool:
    if run.partition is None or other.partition is None:
        return False
    return run.summary.get("seed") == other.summary.get("seed") and bool(run.partition.equals(other.partition))


def baseline_algorithm(run: Run) -> str:
    """The algorithm to run as well, for a comparison with training alone."""
    return TRAIN_ALONE[1] if run.section("partition").get("name") in BY_FEATURES else TRAIN_ALONE[0]


def member_gains(groups: Sequence[Group]) -> list[Gain]:
    """The gain of every run for which there is a run that trains alone, or that has the same model at each member alone
    itself; there, of the round that validation chose, as each member alone has its own."""
    all_gains = []
    local_groups = _local_groups(groups)
    for index, group in enumerate(groups):
        for run in group.runs:
            metric, reference = run.selection_metric, local_run(run, groups)
            if reference is None:
                reference, name = run, f"{ALONE}/{metric}"
            else:
                name = metric
            before = reference.clients(name)
            changes = {}
            for client, value in run.clients(metric).items():
                if client in before:
                    changes[client] = rank(metric, value - before[client])
            if not changes:
                continue
            baseline = ""
            if len(local_groups) > 1 and reference is not run:
                baseline = next(one.label for one in local_groups if any(other is reference for other in one.runs))
            settings = other_settings(reference, run)
            beyond_noise = count_beyond_noise(run, reference, name, run.result_round)
            all_gains.append(Gain(index, group, run, changes, baseline, settings, beyond_noise))
    return all_gains


def _gains_by_group(all_gains: Sequence[Gain]) -> list[list[Gain]]:
    """The member_gains of each group of runs, one for each of its seeds."""
    return distinct(all_gains, lambda gain, other: gain.group is other.group)


def _mean_change(group_gains: Sequence[Gain]) -> Effect:
    """The mean over members, of every seed."""
    return effect([spread(gain.by_client.values())[0] for gain in group_gains])


def gain_sentences(all_gains: Sequence[Gain]) -> list[str]:
    """For every group of runs, what joining changes on average, how many members gain and lose, and how much.

    All seeds of a group count together: a member counts once for each seed.
    """
    return [_gain_sentence(group_gains) for group_gains in _gains_by_group(all_gains)]


def _gain_sentence(group_gains: Sequence[Gain]) -> str:
    first = group_gains[0]
    label, direction, metric = first.group.label, first.direction, title_of(first.run.selection_metric)
    values = np.concatenate([[*gain.by_client.values()] for gain in group_gains])  # [members of all seeds]
    ups, downs = values[values > 0].tolist(), values[values < 0].tolist()
    change = _mean_change(group_gains)

    # 1. the mean change
    if change.significant:
        verb = "brings" if change.mean > 0 else "costs"
        size = f"{three_digits(abs(change.mean))} of"
        if direction < 0:  # an error
            size = f"{three_digits(abs(change.mean))} {'less' if change.mean > 0 else 'more'}"
        words = f"With {label}, joining {verb} {size} {metric} on average"
    else:
        begin = f"{UNDECIDED} with" if change.tested else "With"
        size = with_sign(direction * change.mean, three_digits)
        words = f"{begin} {label}: joining changes {metric} by {size} on average"
    alone = [f"alone: {text}" for text in (first.baseline, first.baseline_settings) if text]
    words += f" ({'; '.join([orient(change, direction).uncertainty, *alone])})"

    # 2. how many members gain and lose
    who = "pairs of a member and a seed" if len(group_gains) > 1 else "members"
    words += f"; {len(ups):,} of {len(values):,} {who} {'gains' if len(ups) == 1 else 'gain'}"
    if ups:
        words += f", by {three_digits(spread(ups)[0])} on average"
    if downs:
        words += f"; {len(downs):,} {'loses' if len(downs) == 1 else 'lose'}, by {three_digits(-spread(downs)[0])}"

    # 3. the same beyond noise, of groups with many members
    counts = [gain.beyond_noise for gain in group_gains if gain.beyond_noise is not None]
    if len(counts) == len(group_gains) and max(len(gain.by_client) for gain in group_gains) > MANY:
        gaining, losing = np.sum(counts, 0)
        words += f"; beyond the noise of test examples, {gaining:,} gain and {losing:,} lose"
    return f"{words}."


def gain_headline(all_gains: Sequence[Gain]) -> str:
    """A sentence on what joining changes in each group of runs, grouped by the result of the test; "" for fewer than
    two."""
    by_group = _gains_by_group(all_gains)
    if len(by_group) < 2:
        return ""
    titles = dict.fromkeys(title_of(gain.run.selection_metric) for gain in all_gains)
    metrics = listed([*titles], " or ")
    direction = min(gain.direction for gain in all_gains)
    significant, undecided, untested = (
        "Against training alone,",
        f"{UNDECIDED} to training alone:",
        f"Not tested, {MIN_SEEDS_TEXT}: against training alone,",
    )
    effects: dict[str, dict[str, float]] = {significant: {}, undecided: {}, untested: {}}  # {beginning: {words: mean}}
    for group_gains in by_group:
        change, label = _mean_change(group_gains), group_gains[0].group.label
        if change.tested:
            label += f"; {orient(change, direction).uncertainty}"
        beginning = untested
        if change.significant:
            beginning = significant
        elif change.tested:
            beginning = undecided
        effects[beginning][label] = change.mean
    words = []
    for beginning, means in effects.items():
        if means:
            order = ranking(means, lambda value: with_sign(direction * value, three_digits))  # the highest gain first
            words.append(f"{beginning} joining changes members' mean {metrics} by {order}.")
    return " ".join(words)


def gain_table(all_gains: Sequence[Gain]) -> ResultTable:
    """A row per run: how many members gain, the mean, and the members that gain least and most."""
    rows = []
    for gain in all_gains:
        changes = gain.by_client
        worst, best = min(changes, key=changes.__getitem__), max(changes, key=changes.__getitem__)
        mean = spread(changes.values())[0]
        count = sum(value > 0 for value in changes.values())
        lowest, highest = (number_cell(changes[name], name, with_sign) for name in (worst, best))
        counts = f"{count} of {len(changes)}"
        rows.append(row_of(gain.group.label, gain.seed, counts, lowest, number_cell(mean, form=with_sign), highest))
    return ResultTable(("run", "seed", "members helped", "least", "mean", "most"), tuple(rows), words=2)


def member_spreads(all_gains: Sequence[Gain]) -> ResultTable:
    """A row per run with many members: percentiles of their member_gains, and how many gain and lose beyond noise."""
    rows = []
    for gain in all_gains:
        values = [*gain.by_client.values()]
        if len(values) > MANY:
            counts = (NONE, NONE) if gain.beyond_noise is None else map("{:,}".format, gain.beyond_noise)
            percentiles = percentile_cells(values, differences=True)
            rows.append(row_of(gain.group.label, gain.seed, f"{len(values):,}", *percentiles, *counts))
    head = ("run", "seed", "members", *PERCENTILE_HEADS, "gain beyond noise", "lose beyond noise")
    return ResultTable(head, tuple(rows), words=2)


def percentile_cells(values: Sequence[float], differences: bool = False) -> tuple[Cell, ...]:
    """Cells of the percentiles `PERCENTS` of values; differences: with a sign."""
    form = with_sign if differences else number
    return tuple(number_cell(value, form=form) for value in np.percentile(np.array(values), PERCENTS).tolist())


def count_beyond_noise(run: Run, other: Run, name: str = PLAIN, round: int | None = None) -> tuple[int, int] | None:
    """How many members' test accuracies in `run` are above their accuracies in `other`, and how many below, beyond
    noise. name: of the accuracies in `other`. round: of `run`, by default the one that is its result.

    Returns None where accuracy is not the selection metric, or members' numbers of test examples are not known.
    """
    if run.selection_metric != PLAIN or run.partition is None:
        return None
    test_sizes = dict(zip(run.partition["client"].to_pylist(), run.partition["test"].to_pylist(), strict=True))
    accuracies_in_other = other.clients(name)
    signs = []
    for client, accuracy in run.clients(PLAIN, round=round).items():
        if client in accuracies_in_other and test_sizes.get(client):
            signs.append(difference_sign(accuracy, accuracies_in_other[client], test_sizes[client]))
    return (signs.count(1), signs.count(-1)) if signs else None


def difference_sign(share: float, other_share: float, examples: int) -> int:
    """1 if one share of `examples` test examples is above another beyond noise, -1 if it is below, else 0.

    Agresti and Caffo 2000, "Simple and effective confidence intervals for proportions and differences of proportions
    result from adding two successes and two failures". Both shares are of the same examples, which makes it cautious.
    """
    # one success and one failure are added to each
    adjusted = (share * examples + 1) / (examples + 2)
    adjusted_other = (other_share * examples + 1) / (examples + 2)
    variance = (adjusted * (1 - adjusted) + adjusted_other * (1 - adjusted_other)) / (examples + 2)
    half_width = NORMAL * math.sqrt(variance)
    return int(adjusted - adjusted_other > half_width) - int(adjusted_other - adjusted > half_width)

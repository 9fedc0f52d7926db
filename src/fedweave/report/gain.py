"""What joining brings each member: its test accuracy in a run, or what else the run is judged by, less what it has by
training alone on the same split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedweave.errors import listed
from fedweave.experiment.config.toml import differences
from fedweave.metrics.judging import WORDS
from fedweave.report.cells import NONE, Cell, Table, signed
from fedweave.report.colours import DASHES, of_run
from fedweave.report.effects import UNDECIDED, Effect, effect, ranked, three
from fedweave.report.figures import NAMED
from fedweave.report.panels import Dots, Figure, Line, Panel, legend_of
from fedweave.report.percentiles import HEADS, MANY, beyond_noise, cells
from fedweave.report.reading import BY_FEATURES, Group, Run, distinct, spread
from fedweave.report.training import conditions

ALONE = ("local", "standalone")  # the second for parties that hold different features of the same nodes
PANELS = 4  # splits that are drawn
BESIDE = 0.7  # of a member's width, over which the dots of several runs are spread
SYMBOLS = ("circle", "diamond", "square", "cross", "triangle")


@dataclass(frozen=True)
class Gain:
    """Of one run: {client: accuracy, or what else the run is judged by, less that alone} of the clients that have both;
    `beside` is the group that trains alone, where there are several, and `apart` in what else than the algorithm that
    run differs. beyond: how many gain and how many lose by more than noise (`percentiles.beyond_noise`).
    """

    at: int
    group: Group
    run: Run
    of_clients: dict[str, float]
    beside: str = ""
    apart: str = ""
    beyond: tuple[int, int] | None = None


def alone(run: Run, groups: Sequence[Group]) -> Run | None:
    """The run that trains alone on the split and with the seed of `run`, of several the one whose settings differ in
    the fewest keys; None without one, and for such a run itself."""
    if run.summary["algorithm"] in ALONE:
        return None
    others = (other for group in _alone(groups) for other in group.runs if _same_split(other, run))
    return min(others, key=lambda other: len(differences(other.config, run.config)), default=None)


def _alone(groups: Sequence[Group]) -> list[Group]:
    return [group for group in groups if group.runs[0].summary["algorithm"] in ALONE]


def missing(run: Run) -> str:
    """Which algorithm would have to be run, too."""
    return ALONE[1] if run.section("partition").get("name") in BY_FEATURES else ALONE[0]


def gains(groups: Sequence[Group]) -> list[Gain]:
    """Of every run that has such a run beside it."""
    found, several = [], _alone(groups)
    for at, group in enumerate(groups):
        for run in group.runs:
            reference = alone(run, groups)
            before = {} if reference is None else reference.clients(run.judged)
            own = {
                client: value - before[client] for client, value in run.clients(run.judged).items() if client in before
            }
            if own:
                owners = [other.label for other in several if any(each is reference for each in other.runs)]
                beside = owners[0] if len(several) > 1 else ""
                apart = "" if reference is None else conditions(reference, run)
                beyond = None if reference is None else beyond_noise(run, reference)
                found.append(Gain(at, group, run, own, beside, apart, beyond))
    return found


def sentences(found: Sequence[Gain]) -> list[str]:
    """For every group of runs, what joining changes on average, how many members gain and lose, and how much; all its
    seeds together, where a member counts once for each."""
    said = []
    for group in distinct(found, lambda one, other: one.group is other.group):
        values = [value for gain in group for value in gain.of_clients.values()]
        up, down = [value for value in values if value > 0], [value for value in values if value < 0]
        who = "pairs of a member and a seed" if len(group) > 1 else "members"
        change, metric = _change(group), WORDS[group[0].run.judged]
        beside = [f"alone: {told}" for told in (group[0].beside, group[0].apart) if told]
        about = "; ".join([change.sureness, *beside])
        if change.significant:
            does = "brings" if change.mean > 0 else "costs"
            words = f"With {group[0].group.label}, joining {does} {three(abs(change.mean))} of {metric} on average"
        else:
            begin = f"{UNDECIDED} with" if change.seeds > 1 else "With"
            by = signed(change.mean, three)
            words = f"{begin} {group[0].group.label}: joining changes {metric} by {by} on average"
        words += f" ({about}); {len(up):,} of {len(values):,} {who} {'gains' if len(up) == 1 else 'gain'}"
        words += f", by {three(spread(up)[0])} on average" if up else ""
        words += (
            f"; {len(down):,} {'loses' if len(down) == 1 else 'lose'}, by {three(-spread(down)[0])}" if down else ""
        )
        said.append(f"{words}{_beyond(group)}.")
    return said


def _beyond(group: Sequence[Gain]) -> str:
    """How many of many members gain and lose by more than noise."""
    known = [gain.beyond for gain in group if gain.beyond is not None]
    if len(known) < len(group) or max(len(gain.of_clients) for gain in group) <= MANY:
        return ""
    up, down = (sum(ways) for ways in zip(*known, strict=True))
    return f"; beyond the noise of test examples, {up:,} gain and {down:,} lose"


def headline(found: Sequence[Gain]) -> str:
    """What joining changes in each group of runs, those together of which a test says the same; "" of one group or
    none."""
    changes = {
        group[0].group.label: _change(group) for group in distinct(found, lambda one, other: one.group is other.group)
    }
    if len(changes) < 2:
        return ""
    metrics = listed([WORDS[name] for name in dict.fromkeys(gain.run.judged for gain in found)], " or ")
    ways: dict[str, dict[str, Effect]] = {
        "Against training alone,": {},
        f"{UNDECIDED} to training alone:": {},
        "Not tested, one seed: against training alone,": {},
    }
    sure, undecided, alone = ways
    for label, change in changes.items():
        ways[sure if change.significant else undecided if change.seeds > 1 else alone][label] = change
    return " ".join(
        f"{way} joining changes members' mean {metrics} by {_told(own)}." for way, own in ways.items() if own
    )


def _told(changes: Mapping[str, Effect]) -> str:
    """ "+0.0120 (fedavg; 95 % interval …), …", the highest first."""
    means = {
        f"{label}; {change.sureness}" if change.seeds > 1 else label: change.mean for label, change in changes.items()
    }
    return ranked(means, lambda value: signed(value, three))


def _change(group: Sequence[Gain]) -> Effect:
    """The mean over members, of every seed."""
    return effect([spread(gain.of_clients.values())[0] for gain in group])


def table(found: Sequence[Gain]) -> Table:
    """A row per run: how many members gain, the mean, and the members that gain least and most."""
    rows = []
    for gain in found:
        own = gain.of_clients
        ends = (end(own, key=own.__getitem__) for end in (min, max))
        named = [Cell(signed(own[client]), repr(own[client]), client) for client in ends]
        mean = spread(own.values())[0]
        helped = f"{sum(value > 0 for value in own.values())} of {len(own)}"
        about = (Cell(gain.group.label), Cell(str(gain.run.summary.get("seed", NONE))))
        rows.append((*about, Cell(helped), named[0], Cell(signed(mean), repr(mean)), named[1]))
    return Table(("run", "seed", "members helped", "least", "mean", "most"), tuple(rows), words=2)


def spreads(found: Sequence[Gain]) -> Table:
    """A row per run of many members: percentiles of their gains, and how many gain and lose beyond noise."""
    rows = []
    for gain in found:
        if len(gain.of_clients) > MANY:
            ways = ("", "") if gain.beyond is None else tuple(f"{count:,}" for count in gain.beyond)
            about = (Cell(gain.group.label), Cell(str(gain.run.summary.get("seed", NONE))))
            told = cells([*gain.of_clients.values()], differences=True)
            rows.append((*about, Cell(f"{len(gain.of_clients):,}"), *told, *(Cell(way or NONE) for way in ways)))
    return Table(("run", "seed", "members", *HEADS, "gain beyond noise", "lose beyond noise"), tuple(rows), words=2)


def figure(found: Sequence[Gain]) -> Figure | None:
    """A panel per split, of the first few; in it a dot per member and run, side by side: members in the order of their
    mean gain over the split's runs."""
    splits = distinct(found, lambda one, other: _same_split(one.run, other.run))[:PANELS]
    ends = [value for split in splits for gain in split for value in gain.of_clients.values()]
    panels = tuple(_panel(split, min(ends), max(ends), titled=len(splits) > 1) for split in splits)
    if not panels:
        return None
    names = {gain.group.label for gain in found}
    return Figure(panels, legend_of([dots for panel in panels for dots in panel.marks] if len(names) > 1 else ()))


def _panel(split: Sequence[Gain], low: float, high: float, titled: bool) -> Panel:
    clients = [client for client in split[0].of_clients if all(client in gain.of_clients for gain in split)]
    order = sorted(clients, key=lambda client: sum(gain.of_clients[client] for gain in split))
    title = f"seed {split[0].run.summary.get('seed', NONE)}" if titled else ""
    metrics = " or ".join(dict.fromkeys(WORDS[gain.run.judged] for gain in split))
    beside, ends = f"test {metrics}, less that alone", (min(low, 0.0), max(high, 0.0))
    if len(order) > MANY:
        lines = tuple(_ranks(gain) for gain in split)
        return Panel(title, lines, below="share of members", beside=beside, low=ends[0], high=ends[1], levels=(0.0,))
    shifts = [BESIDE * ((at + 0.5) / len(split) - 0.5) for at in range(len(split))]
    dots = tuple(
        Dots(
            gain.group.label,
            range(len(order)),
            [gain.of_clients[client] for client in order],
            of_run(gain.at),
            SYMBOLS[gain.at % len(SYMBOLS)],
            shift=shift,
        )
        for gain, shift in zip(split, shifts, strict=True)
    )
    below = "" if len(order) <= NAMED else "members, least gain first"
    return Panel(title, dots, tuple(order), below, beside, *ends, levels=(0.0,))


def _ranks(gain: Gain) -> Line:
    """The gain that a share of many members is below."""
    shares = [at / 100 for at in range(101)]
    values = np.quantile(np.array([*gain.of_clients.values()]), shares).tolist()
    return Line(gain.group.label, shares, values, of_run(gain.at), DASHES[gain.at % len(DASHES)])


def _same_split(one: Run, other: Run) -> bool:
    tables = one.partition, other.partition
    if tables[0] is None or tables[1] is None:
        return False
    return one.summary.get("seed") == other.summary.get("seed") and bool(tables[0].equals(tables[1]))

"""The report: one HTML page that holds all it needs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedweave.core.records import Record
from fedweave.core.text import counted
from fedweave.experiment.config import written
from fedweave.metrics.judging import OF_POSITIVE, PLAIN, THRESHOLD, WORDS, judged_by
from fedweave.report import figures, gain, tables
from fedweave.report import notes as noting
from fedweave.report.absences import absent, mostly
from fedweave.report.cells import Table, leading
from fedweave.report.compare import NOTE, caught, compared, tradeoff
from fedweave.report.disclosure import disclose, ledger, spent
from fedweave.report.groups import between_groups, favourable, named_groups
from fedweave.report.motifs import NUMBERS, drawing, kinds_of
from fedweave.report.notes import notes, of_fairest
from fedweave.report.pages import rendered
from fedweave.report.panels import Figure
from fedweave.report.reading import Group, Run, distinct, grouped, judged_alike, spread
from fedweave.report.training import unlike

Owner = tuple[Group, Run]
FAMILIES = ("global", "pooled", "within", "local", "trained", "features", "best_val")


@dataclass(frozen=True)
class Choice:
    """How the runs of a page were chosen among more. chosen: a row of each. tried: of all. notes: sentences on it."""

    chosen: Table
    tried: Table
    notes: tuple[str, ...]


def render(runs: Sequence[Run], more: Sequence[str] = (), choice: Choice | None = None) -> str:
    """The page about one or several runs; those that differ only in the seed are shown as mean ± standard deviation.

    more: further warnings, such as of runs that failed. choice: of a sweep, whose `runs` are those that were chosen.
    """
    groups = grouped(runs)
    owners = [(group, run) for group in groups for run in group.runs]
    gained, seeds = gain.gains(groups), any(len(group.runs) > 1 for group in groups)
    judged, comparable = judged_alike(groups), tables.comparable(groups)
    return rendered(
        "report.html",
        title=_title(groups),
        leads=[_lead(run) for _, run in owners] if len(owners) == 1 else _headlines(groups, gained),
        warnings=[*more, *_warnings(groups, [run for _, run in owners])],
        choice=choice,
        facts=tables.facts(groups),
        gain_sentences=gain.sentences(gained),
        per_class=tables.metrics(groups, ("per_class",)),
        costs=tables.costs(groups),
        paired=compared(groups) if comparable and seeds else Table((), ()),
        paired_note=NOTE,
        fairness=tables.metrics(groups, ("fairness",)),
        tradeoff=tradeoff(groups) if comparable else Table((), ()),
        first=groups[0].label,
        between=between_groups(groups),
        favourable=favourable(groups),
        people=named_groups(groups),
        fairest=_noted(groups, of_fairest),
        alone=tables.reward_fairness(groups),
        seeds=seeds,
        unequal=len({frozenset(run.config.get("seed") for run in group.runs) for group in groups}) > 1,
        several=len(groups) > 1,
        marked=comparable,
        **_curves(groups),
        accuracy=drawn(figures.client_accuracy(groups), "accuracy"),
        accuracy_caption=_caption(groups, judged),
        extremes=tables.extremes(groups),
        gain=drawn(gain.figure(gained), "gain"),
        gains=gain.table(gained),
        judged=WORDS.get(judged, "result"),
        missing=gain.missing(owners[0][1]),
        incentives=[found for at, group in enumerate(groups) if (found := _incentives(group, at, len(groups) > 1))],
        pairs=_of_first(groups, figures.pairs, "pairs"),
        confusions=_of_first(groups, figures.confusions, "confusion"),
        traffic=drawn(figures.traffic(groups), "traffic"),
        disclosures=_disclosures(owners),
        repeats=[_repeat(group, run) for group, run in owners],
        **_splits(owners),
        **_summary(groups, judged),
    )


def _curves(groups: Sequence[Group]) -> Record:
    """The learning curves, and whether always predicting one class is among them."""
    figure = figures.curves(groups)
    return {"curves": drawn(figure, "curves"), "constants": figures.has_constants(figure)}


def _summary(groups: Sequence[Group], judged: str) -> Record:
    """What judges and what alerts find, all else, and whether thresholds are sites' own: no sums of scores say one."""
    first, runs = leading(judged), [run for group in groups for run in group.runs]
    return {
        "summary": tables.metrics(groups, FAMILIES, first),
        "further": tables.metrics(groups, FAMILIES, lambda name: not first(name)),
        "own_thresholds": any(
            run.between_sites
            and THRESHOLD not in run.summary["metrics"]
            and judged_by(run.summary["metrics"]) in OF_POSITIVE
            for run in runs
        ),
    }


def _of_first(groups: Sequence[Group], draw: Callable[[Run], Figure | None], name: str) -> list[Record]:
    """A figure of each group's first run that has one, with its table of pairs."""
    return [
        {"title": group.label if len(groups) > 1 else "", "figure": html, "table": tables.pairs(group.first)}
        for number, group in enumerate(groups)
        if (html := drawn(draw(group.first), f"{name}-{number}"))
    ]


def _warnings(groups: Sequence[Group], runs: Sequence[Run]) -> list[str]:
    """Unfinished runs, what must not be overlooked in metrics, missing clients, what could not be compared between
    sites, and trainings that differ."""
    unfinished = [f"{run.directory}: {tables.rounds(run)}." for run in runs if not run.finished]
    missing = [f"{run.directory}: {said}" for run in runs if (said := absent(run.metrics))]
    joining = [f"{run.directory}: {run.summary['note']}." for run in runs if "note" in run.summary]
    in_metrics = _noted(groups, notes)
    why = tables.incomparable(groups) if len(groups) > 1 else ""
    apart = [f"Nothing is compared on this page, because {why}."] if why else []
    return [*apart, *unfinished, *in_metrics, *missing, *joining, *unlike(groups)]


def _noted(groups: Sequence[Group], notes: Callable[[Record], dict[str, str]]) -> list[str]:
    """What must not be overlooked in groups' metrics: a sentence for each thing, once for all seeds, and for all groups
    of which the same is said."""
    alike: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        found: dict[str, list[str]] = {}
        for run in group.runs:
            for what, sentence in notes(run.summary["metrics"]).items():
                found.setdefault(what, []).append(sentence)
        for said in found.values():
            over = f", {len(said)} of {len(group.runs)} runs (numbers of one)" if len(group.runs) > 1 else ""
            alike.setdefault((over, said[0]), []).append(group.label)
    return [f"{', '.join(labels)}{over}: {said}" for (over, said), labels in alike.items()]


def _title(groups: Sequence[Group]) -> str:
    algorithms = ", ".join(dict.fromkeys(str(group.first.summary["algorithm"]) for group in groups))
    datasets = ", ".join(dict.fromkeys(str(group.first.summary["dataset"]) for group in groups))
    return f"{algorithms} on {datasets}"


def _headlines(groups: Sequence[Group], gained: Sequence[gain.Gain]) -> list[str]:
    """How several groups of runs came out, in a sentence, and what joining changes in another; or one group's gain."""
    metric = judged_alike(groups)
    means = {group.label: spread(group.values(f"local/{metric}"))[0] for group in groups}
    known = {label: mean for label, mean in means.items() if math.isfinite(mean)}
    said, alike = [], not tables.incomparable(groups)
    if metric and len(known) > 1 and alike:
        seeds = "" if any(len(group.runs) > 1 for group in groups) else "; with other seeds the order may be another"
        said.append(f"Members' mean test {WORDS[metric]}: {gain.ranked(known, '{:.3f}'.format)}{seeds}.")
    if alike and (found := caught(groups)):
        said.append(found)
    alone = gain.headline(gained)
    return [*said, *([alone] if alone else gain.sentences(gained))]


def _lead(run: Run) -> str:
    """The result of one run in a sentence."""
    found, accuracy, metric = run.summary["metrics"], run.clients(run.judged), run.judged
    shown = {
        f"pooled/{metric}": f"{WORDS[metric]} of all members' test examples together",
        f"global/{metric}": f"global test {WORDS[metric]}",
        f"local/{metric}": "mean over clients",
    }
    parts = [f"{words} {found[name]:.3f}" for name, words in shown.items() if found.get(name) is not None]
    if accuracy:
        low, high = min(accuracy.values()), max(accuracy.values())
        worst, best = (tables.named_clients(accuracy, end) for end in (low, high))
        alone = f"of {worst} alone" if len(accuracy) == 1 else f"from {low:.3f} ({worst}) to {high:.3f} ({best})"
        parts.append(alone)
    flagged = found.get("pooled/recall") if metric in OF_POSITIVE else None
    more = "" if flagged is None else f"recall from the threshold on {flagged:.3f}"
    told = (", ".join(parts), noting.caught(found, run.classes), more)
    result = "; ".join(filter(None, told)) or f"no {WORDS[metric]} was measured"
    return " ".join(filter(None, (f"After {counted(run.evaluated, 'round')}: {result}.", mostly(run.metrics))))


def drawn(figure: Figure | None, name: str) -> Markup:
    """The figure as HTML; "" of None. name: unique on the page."""
    if figure is None:
        return Markup("")
    return Markup(rendered("figure.html", figure=figure, name=name))


def _caption(groups: Sequence[Group], judged: str) -> str:
    accuracies = [[run.clients(run.judged) for run in group.runs] for group in groups]
    drawn = [seeds for seeds in accuracies if all(seeds)]
    metric = WORDS.get(judged, "result")
    captions = [f"Test {metric} of the final model on each client's own test examples."]
    if judged == PLAIN and any(len(seeds) == 1 and not figures.is_histogram(seeds) for seeds in drawn):
        captions.append("A grey stroke is that of always predicting the client's most frequent class of training.")
    if any(figures.is_histogram(seeds) for seeds in drawn):
        captions.append("Histogram: share of clients in steps of 0.05, all seeds together.")
    if any(len(seeds) > 1 and not figures.is_histogram(seeds) for seeds in drawn):
        captions.append("With several seeds a bar is the mean ± deviation of the client of that rank, lowest first.")
    return " ".join(captions)


def _splits(owners: Sequence[Owner]) -> Record:
    """Every different split in a table; those of the groups' first runs as figures too."""
    known = [owner for owner in owners if owner[1].partition is not None]
    found = distinct(known, lambda one, other: bool(one[1].partition.equals(other[1].partition)))  # type: ignore[union-attr]
    parts = [
        {
            "figure": drawn(figures.split(alike[0][1]), f"split-{number}"),
            "caption": f"Split of {_whose(alike)}." if len(found) > 1 else "",
            "clients": tables.clients(alike[0][1]),
        }
        for number, alike in enumerate(found)
        if any(group.first is run for group, run in alike)
    ]
    return {"splits": tables.splits((_whose(alike), alike[0][1].partition) for alike in found), "parts": parts}


def _incentives(group: Group, number: int, several: bool) -> Record:
    """What a group's first run says of contributions and what was given for them; {} if nothing."""
    run, table = group.first, tables.incentives(group.first)
    if not table.rows:
        return {}
    known: dict[str, list[Record]] = {}
    kinds = NUMBERS if run.motifs is None else kinds_of(run.motifs)
    for row in [] if run.motifs is None else run.motifs.to_pylist():
        one = {"svg": drawing(row["motif"], kinds), "name": row["motif"], "graphs": row["graphs"]}
        known.setdefault(row["client"], []).append(one)
    seeds = f"seed {run.summary.get('seed')}" if len(group.runs) > 1 else ""
    return {
        "whose": ", ".join(filter(None, (group.label if several else "", seeds))),
        "figure": drawn(figures.incentives(run), f"incentives-{number}"),
        "table": table,
        "qualities": tables.qualities(run),
        "motifs": known,
        "kinds": kinds.legend(),
    }


def _disclosures(owners: Sequence[Owner]) -> list[Record]:
    """What left whom, once for all runs whose ledgers add up to the same."""
    found = distinct(((owner, disclose(owner[1])) for owner in owners), lambda one, other: one[1] == other[1])
    return [
        {
            "whose": _whose([owner for owner, _ in alike]),
            "sentences": alike[0][1].sentences,
            "members": alike[0][1].members,
            "spent": spent(alike[0][1]),
            "table": ledger(alike[0][1], times=len(alike) == 1),
        }
        for alike in found
    ]


def _whose(owners: Sequence[Owner]) -> str:
    """ "fedavg (seeds 0, 1); local (seed 0)"."""
    seeds: dict[str, list[str]] = {}
    for group, run in owners:
        seeds.setdefault(group.label, []).append(str(run.summary.get("seed")))
    return "; ".join(f"{label} (seed{'s'[: len(of) > 1]} {', '.join(of)})" for label, of in seeds.items())


def _repeat(group: Group, run: Run) -> dict[str, str]:
    return {
        "name": f"{group.label}, seed {run.summary.get('seed')}",
        "command": tables.command(run),
        "directory": str(run.directory),
        "config": written(run.config),
    }

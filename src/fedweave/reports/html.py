"""The report: one HTML page without outside references."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from fedweave.core.text import counted
from fedweave.core.types import Record
from fedweave.experiment.config import written
from fedweave.metrics.selection import OF_POSITIVE, PLAIN, THRESHOLD, lower, selection_metric_of, title_of
from fedweave.reports import figures, tables
from fedweave.reports import notes as noting
from fedweave.reports import tables as gain
from fedweave.reports.absences import absent, mostly
from fedweave.reports.cells import ResultTable, leading, unlike
from fedweave.reports.compare import NOTE, compared, headlines, tradeoff
from fedweave.reports.compliance import disclose, ledger, spent
from fedweave.reports.conditions import Condition, conditions, incomparable, overview, picture, ranks, rounds
from fedweave.reports.drawing import Figure
from fedweave.reports.embeddings import picture as picture_of_embeddings
from fedweave.reports.figures import NUMBERS, kinds_of, motif_drawing
from fedweave.reports.notes import RunFacts, notes, of_fairest
from fedweave.reports.pages import rendered
from fedweave.reports.reading import Group, Run, common_selection_metric, distinct, grouped
from fedweave.reports.tables import NOISE, between_groups, favorable, named_groups

Owner = tuple[Group, Run]
FAMILIES = ("global", "pooled", "within", "local", "trained", "intervals", "features", "reference", "best_val")


@dataclass(frozen=True)
class SelectedRuns:
    """How validation chose a page's runs among more. chosen: a row for each. tried: all runs. notes: sentences on the
    choice."""

    chosen: ResultTable
    tried: ResultTable
    notes: tuple[str, ...]


def render(
    runs: Sequence[Run],
    more: Sequence[str] = (),
    choice: SelectedRuns | None = None,
    keys: Sequence[str] = (),
    embeddings: str = "",
) -> str:
    """The page about one or several runs; those that differ only in the seed are shown as mean ± standard deviation.

    Runs in several conditions are compared within each (`conditions`).

    more: further warnings, such as on failed runs. choice: of a sweep, whose chosen runs are `runs`. keys: settings
    that define a condition. embeddings: the way to draw the embeddings of each group's first run
    (`report.embeddings.WAYS`); "" draws none.
    """
    groups = grouped(runs)
    section = conditions(groups, keys, choice is not None)
    head: Record = {"title": _title(groups), "choice": choice, "body": "", "parts": [], "ranks": None, "contents": []}
    if len(section) < 2:
        all_gains, shown = gain.gains(groups), section[0].shown if section else ""
        leads = (
            [_lead(groups[0].first)] if len(groups) == len(groups[0].runs) == 1 else headlines(groups, all_gains, shown)
        )
        body = _body(groups, embeddings)
        contents = re.findall(r'<section id="([^"]+)">\s*<h2>([^<]+)</h2>', body)  # (name, heading) of each section
        head |= {"leads": leads, "warnings": [*more, *_warnings(groups)], "body": body, "contents": contents}
        return rendered("report.html", **head)
    placed = ranks(section)
    parts = [_part(one, f"part{at}-", embeddings) for at, one in enumerate(section)]
    return rendered(
        "report.html",
        **head
        | {"leads": [placed.sentence()], "warnings": more, "parts": parts, "ranks": placed.table()}
        | {"contents": [("ranks", "Over all conditions"), *((f"{one['at']}condition", one["title"]) for one in parts)]},
    )


def _part(one: Condition, at: str, embeddings: str) -> Record:
    """A condition on the page: what comes first, and all else."""
    groups = one.groups
    return {
        "at": at,
        "title": one.title,
        "leads": headlines(groups, gain.gains(groups), one.shown),
        "warnings": _warnings(groups),
        "overview": overview(one),
        "figure": drawn(picture(one), f"{at}means"),
        "body": _body(groups, embeddings, at),
    }


def _body(groups: Sequence[Group], embeddings: str, at: str = "") -> Markup:
    """The body of a page about runs that can be compared, or about one; at: prefix of the names of sections and
    figures."""
    owners = [(group, run) for group in groups for run in group.runs]
    seeds = any(len(group.runs) > 1 for group in groups)
    selection_metric, comparable = common_selection_metric(groups), tables.comparable(groups)
    body = rendered(
        "sections.html",
        at=at,
        facts=tables.facts(groups),
        each={noun: tables.metrics(groups, (family,)) for family, noun in tables.EACH.items()},
        costs=tables.costs(groups),
        paired=compared(groups) if comparable and seeds else ResultTable((), ()),
        paired_note=NOTE,
        fairness=tables.metrics(groups, ("fairness",)),
        tradeoff=tradeoff(groups) if comparable else ResultTable((), ()),
        first=groups[0].label,
        between=between_groups(groups),
        favorable=favorable(groups),
        people=named_groups(groups),
        fairest=_sentences_of(groups, lambda summary: of_fairest(summary["metrics"])),
        alone=tables.reward_fairness(groups),
        seeds=seeds,
        unequal=len({frozenset(run.config.get("seed") for run in group.runs) for group in groups}) > 1,
        several=len(groups) > 1,
        marked=comparable,
        **_curves(groups, at),
        **_of_clients(groups, selection_metric, at),
        **_of_gains(groups, at),
        selection_metric=title_of(selection_metric),
        missing=gain.missing(owners[0][1]),
        incentives=[
            incentive
            for n, group in enumerate(groups)
            if (incentive := _incentives(group, f"{at}{n}", len(groups) > 1))
        ],
        pairs=_of_first(groups, figures.pairs, f"{at}pairs"),
        confusions=_of_first(groups, figures.confusions, f"{at}confusion"),
        embeddings=_of_first(groups, partial(picture_of_embeddings, way=embeddings), f"{at}embeddings")
        if embeddings
        else [],
        over_bytes=drawn(figures.accuracy_over_bytes(groups), f"{at}bytes"),
        traffic=drawn(figures.traffic(groups), f"{at}traffic"),
        disclosures=_disclosures(owners),
        repeats=[_repeat(group, run) for group, run in owners],
        **_splits(owners, at),
        **_summary(groups, selection_metric),
    )
    return Markup(body)


def _of_clients(groups: Sequence[Group], selection_metric: str, at: str) -> Record:
    """How the final models serve the clients."""
    return {
        "accuracy": drawn(figures.client_accuracy(groups), f"{at}accuracy"),
        "accuracy_caption": _caption(groups, selection_metric),
        "extremes": tables.extremes(groups),
        "spreads": tables.spreads(groups),
        "by_client": tables.by_client(groups),
        "summed": all(run.section("algorithm").get("scores") == "sum" for group in groups for run in group.runs),
    }


def _of_gains(groups: Sequence[Group], at: str) -> Record:
    """What joining brings each member."""
    gained = gain.gains(groups)
    return {
        "gain": drawn(gain.figure(gained), f"{at}gain"),
        "gain_sentences": gain.sentences(gained),
        "gain_spreads": gain.member_spreads(gained),
        "gains": gain.table(gained),
        "noise": NOISE,
    }


def _curves(groups: Sequence[Group], at: str) -> Record:
    """The learning curves, and whether always predicting one class is among them."""
    figure = figures.curves(groups)
    return {"curves": drawn(figure, f"{at}curves"), "constants": figures.has_constants(figure)}


def _summary(groups: Sequence[Group], metric: str) -> Record:
    """The tables of the main metrics, of all others and of each class, and whether every site chose its own
    threshold."""
    first, runs = leading(metric), [run for group in groups for run in group.runs]
    return {
        "summary": tables.metrics(groups, FAMILIES, first),
        "further": tables.metrics(groups, FAMILIES, lambda name: not first(name)),
        "own_thresholds": any(
            run.between_sites
            and THRESHOLD not in run.summary["metrics"]
            and selection_metric_of(run.summary["metrics"]) in OF_POSITIVE
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


def _warnings(groups: Sequence[Group]) -> list[str]:
    """Warnings: unfinished runs, notes on metrics, missing clients, failed comparisons between sites, different
    trainings."""
    runs = [run for group in groups for run in group.runs]
    unfinished = [f"{run.directory}: {rounds(run)}." for run in runs if not run.finished]
    missing = [f"{run.directory}: {sentence}" for run in runs if (sentence := absent(run.metrics))]
    joining = [f"{run.directory}: {run.summary['note']}." for run in runs if "note" in run.summary]
    in_metrics = _sentences_of(groups, lambda summary: notes(summary["metrics"], RunFacts.of_summary(summary)))
    why = incomparable(groups) if len(groups) > 1 else ""
    apart = [f"Nothing is compared on this page, because {why}."] if why else []
    return [*apart, *unfinished, *in_metrics, *missing, *joining, *unlike(groups)]


def _sentences_of(groups: Sequence[Group], notes: Callable[[Record], dict[str, str]]) -> list[str]:
    """The notes on groups' metrics: a sentence for each subject, once for all seeds and for all groups that share
    it."""
    alike: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        by_subject: dict[str, list[str]] = {}
        for run in group.runs:
            for what, sentence in notes(run.summary).items():
                by_subject.setdefault(what, []).append(sentence)
        for wording in by_subject.values():
            over = f", {len(wording)} of {len(group.runs)} runs (numbers of one)" if len(group.runs) > 1 else ""
            alike.setdefault((over, wording[0]), []).append(group.label)
    return [f"{', '.join(labels)}{over}: {wording}" for (over, wording), labels in alike.items()]


def _title(groups: Sequence[Group]) -> str:
    algorithms = ", ".join(dict.fromkeys(str(group.first.summary["algorithm"]) for group in groups))
    datasets = ", ".join(dict.fromkeys(str(group.first.summary["dataset"]) for group in groups))
    return f"{algorithms} on {datasets}"


def _lead(run: Run) -> str:
    """The result of one run in a sentence."""
    metrics, accuracy, metric = run.summary["metrics"], run.clients(run.selection_metric), run.selection_metric
    shown = {
        f"pooled/{metric}": f"{title_of(metric)} of all members' test examples together",
        f"global/{metric}": f"global test {title_of(metric)}",
        f"local/{metric}": "mean over clients",
    }
    parts = [f"{words} {metrics[name]:.3f}" for name, words in shown.items() if metrics.get(name) is not None]
    if accuracy:
        low, high = min(accuracy.values()), max(accuracy.values())
        if lower(metric):
            low, high = high, low
        worst, best = (tables.named_clients(accuracy, end) for end in (low, high))
        client_range = f"of {worst} alone" if len(accuracy) == 1 else f"from {low:.3f} ({worst}) to {high:.3f} ({best})"
        parts.append(client_range)
    flagged = metrics.get("pooled/recall") if metric in OF_POSITIVE else None
    more = "" if flagged is None else f"recall from the threshold on {flagged:.3f}"
    clauses = (", ".join(parts), noting.caught(metrics, run.classes), noting.intervals(metrics), more)
    result = "; ".join(filter(None, clauses)) or f"no {title_of(metric)} was measured"
    return " ".join(filter(None, (f"After {counted(run.evaluated, 'round')}: {result}.", mostly(run.metrics))))


def drawn(figure: Figure | None, name: str) -> Markup:
    """The figure as HTML; "" of None. name: unique on the page."""
    if figure is None:
        return Markup("")
    return Markup(rendered("figure.html", figure=figure, name=name))


def _caption(groups: Sequence[Group], selection_metric: str) -> str:
    accuracies = [[run.clients(run.selection_metric) for run in group.runs] for group in groups]
    drawn = [seeds for seeds in accuracies if all(seeds)]
    metric = title_of(selection_metric)
    captions = [f"Test {metric} of the final model on each client's own test examples."]
    if any(len(group.runs) == 1 and group.first.test_sizes for group in groups):
        captions[0] = captions[0][:-1] + ", whose number stands behind its name."
    alone = any(len(seeds) == 1 and not figures.is_histogram(seeds) for seeds in drawn)
    if selection_metric in figures.CONSTANT and alone:
        what = "most frequent class" if selection_metric == PLAIN else "mean"
        captions.append(f"A gray stroke marks the constant prediction of the client's {what} of training.")
    if any(figures.is_histogram(seeds) for seeds in drawn):
        captions.append("Histogram: share of clients in equal steps, all seeds together.")
    if any(len(seeds) > 1 and not figures.is_histogram(seeds) for seeds in drawn):
        captions.append("With several seeds a bar is the mean ± deviation of the client of that rank, lowest first.")
    return " ".join(captions)


def _splits(owners: Sequence[Owner], at: str) -> Record:
    """Every different split in a table; the splits of the groups' first runs as figures too."""
    known = [owner for owner in owners if owner[1].partition is not None]
    distinct_splits = distinct(known, lambda one, other: bool(one[1].partition.equals(other[1].partition)))  # type: ignore[union-attr]
    parts = [
        {
            "figure": drawn(figures.split(alike[0][1]), f"{at}split-{number}"),
            "caption": f"Split of {_whose(alike)}." if len(distinct_splits) > 1 else "",
            "clients": tables.clients(alike[0][1]),
        }
        for number, alike in enumerate(distinct_splits)
        if any(group.first is run for group, run in alike)
    ]
    return {
        "splits": tables.splits((_whose(alike), alike[0][1].partition) for alike in distinct_splits),
        "parts": parts,
    }


def _incentives(group: Group, at: str, several: bool) -> Record:
    """A group's first run: contributions and rewards of clients; {} if it measured none."""
    run, table = group.first, tables.incentives(group.first)
    if not table.rows:
        return {}
    known: dict[str, list[Record]] = {}
    kinds = NUMBERS if run.motifs is None else kinds_of(run.motifs)
    for row in [] if run.motifs is None else run.motifs.to_pylist():
        one = {"svg": motif_drawing(row["motif"], kinds), "name": row["motif"], "graphs": row["graphs"]}
        known.setdefault(row["client"], []).append(one)
    seeds = f"seed {run.summary.get('seed')}" if len(group.runs) > 1 else ""
    return {
        "whose": ", ".join(filter(None, (group.label if several else "", seeds))),
        "figure": drawn(figures.incentives(run), f"incentives-{at}"),
        "table": table,
        "qualities": tables.qualities(run),
        "motifs": known,
        "kinds": kinds.legend(),
    }


def _disclosures(owners: Sequence[Owner]) -> list[Record]:
    """The data flow, once for all runs whose ledgers add up to the same."""
    disclosures = distinct(((owner, disclose(owner[1])) for owner in owners), lambda one, other: one[1] == other[1])
    return [
        {
            "whose": _whose([owner for owner, _ in alike]),
            "sentences": alike[0][1].sentences,
            "members": alike[0][1].members,
            "spent": spent(alike[0][1]),
            "table": ledger(alike[0][1], times=len(alike) == 1),
        }
        for alike in disclosures
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

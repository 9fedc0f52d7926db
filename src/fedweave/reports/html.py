"""The report: one HTML page without outside references."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from markupsafe import Markup

from fedweave.accounts.compliance import disclose
from fedweave.core.text import capitalized
from fedweave.core.types import Record
from fedweave.experiment.config import to_toml
from fedweave.experiment.runs.reading import Group, Run, common_selection_metric, distinct, group_runs
from fedweave.metrics.selection import BEST, OF_A_ROUND, OF_POSITIVE, PLAIN, THRESHOLD, title_of
from fedweave.reports import figures, gains, tables
from fedweave.reports.absences import absence_sentence, long_absence_sentence
from fedweave.reports.cells import ResultTable, is_main
from fedweave.reports.compare import NOTE, comparison_table, headlines, tradeoff
from fedweave.reports.conditions import Condition, alone_first, conditions, incomparability, overview, rounds_text
from fedweave.reports.embeddings import picture as embeddings_figure
from fedweave.reports.first_screen import first_screen
from fedweave.reports.group_fairness import fairness_table, favorable_class, names_of_people
from fedweave.reports.members import members_table
from fedweave.reports.motifs import NUMBERS, kinds_of, motif_drawing
from fedweave.reports.notes import (
    INFORMATIVE,
    RunFacts,
    alerts_clause,
    fairest_notes,
    intervals,
    members_clause,
    notes,
    people_sentence,
)
from fedweave.reports.pages import render_template
from fedweave.reports.panels import Figure, Panel
from fedweave.reports.ranks import ranks
from fedweave.reports.recipes import training_differences
from fedweave.reports.verdict import TRAIN_ALONE, shelf_sentences, verdict_of_seeds

MAX_VERDICTS = 8  # groups whose verdict a page or a sweep shows
GroupRun = tuple[Group, Run]  # a run and its group
FAMILIES = (
    *("global", "pooled", "within", "local", "trained", "intervals"),
    *("alone", "shelf", "shelf_joint", "reference", "best_val"),
)


@dataclass(frozen=True)
class SelectedRuns:
    """How validation chose a page's runs among more. chosen: a row for each. tried: all runs. notes: sentences on the
    choice."""

    chosen: ResultTable
    tried: ResultTable
    notes: tuple[str, ...]


def render(
    runs: Sequence[Run],
    warnings: Sequence[str] = (),
    choice: SelectedRuns | None = None,
    keys: Sequence[str] = (),
    embeddings: str = "",
) -> str:
    """The page about one or several runs; those that differ only in the seed are shown as mean ± standard deviation.

    Runs in several conditions are compared within each (`conditions`). Runs that train alone come first, so that
    differences are to them.

    warnings: further ones, such as on failed runs. choice: of a sweep, whose chosen runs are `runs`. keys: settings
    that define a condition. embeddings: the way to draw the embeddings of each group's first run
    (`reports.embeddings.WAYS`); "" draws none.
    """
    groups = alone_first(group_runs(runs))
    all_conditions = conditions(groups, keys)
    page: Record = {"title": _title(groups), "choice": choice, "parts": [], "ranks": None, "warnings": warnings}
    if len(all_conditions) < 2:
        condition = all_conditions[0] if all_conditions else Condition("", tuple(groups))
        page |= {"subtitle": tables.subtitle(groups), "one": _part(condition, "", embeddings)}
        return render_template("report.html", **page)
    over_all = ranks(all_conditions)
    parts = [_part(condition, f"part{number}-", embeddings) for number, condition in enumerate(all_conditions)]
    page |= {"subtitle": over_all.sentence(), "parts": parts, "ranks": over_all.table(), "one": None}
    return render_template("report.html", **page)


def _title(groups: Sequence[Group]) -> str:
    algorithms = ", ".join(dict.fromkeys(str(group.first.summary["algorithm"]) for group in groups))
    datasets = ", ".join(dict.fromkeys(str(group.first.summary["dataset"]) for group in groups))
    return f"{algorithms} on {datasets}"


def _part(condition: Condition, at: str, embeddings: str) -> Record:
    """The runs of a condition on the page: what comes first, and what is folded. at: prefix of the names of sections
    and figures."""
    groups, single = condition.groups, condition.groups[0].first
    curves = figures.curves(groups)
    alarms, remarks = _notices(groups)
    part: Record = {
        "at": at,
        "title": condition.title,
        "sign": 0,
        "tiles": (),
        "legend": "",
        "warnings": alarms,
        "curves": "",
        "more_curves": Markup(""),
        "figure": "",
        "caption": "",
        "constants": curves is not None and any(isinstance(one, Panel) and one.levels for one in curves.panels),
    }
    if len(groups) == 1 and len(groups[0].runs) == 1:
        first = first_screen(single, disclose(single))
        verdict = " ".join(filter(None, (long_absence_sentence(single.metrics), first.verdict)))
        part |= {"verdict": verdict, "sign": first.sign, "tiles": first.tiles, "table": first.table}
        part["legend"] = first.legend
        part["leads"] = _sentences(single)
        part["figure"] = figure_html(figures.client_accuracy(groups), f"{at}members")
        part["caption"] = _caption(groups, single.selection_metric)
        part["figure_title"] = "Members"
    else:
        leads = headlines(groups, gains.member_gains(groups), condition.metric_name if condition.metric else "")
        if not any(group.first.summary["algorithm"] in TRAIN_ALONE for group in groups):
            verdicts = group_verdicts(groups)
            leads = [*verdicts, *leads] if len(groups) == 1 else [*leads[:1], *verdicts, *leads[1:]]
        part |= {"verdict": leads[0] if leads else "", "leads": leads[1:]}
        part["table"] = overview(condition) if condition.metric else ResultTable((), ())
        shown = figures.differences(groups, condition.metric_name) if condition.metric else None
        part["figure_title"] = f"Difference to {groups[0].label}"
        part["figure"] = figure_html(shown, f"{at}differences")
        part["caption"] = (
            "Paired over seeds; lines and brackets: 95 % intervals, from three seeds on." if len(groups) > 1 else ""
        )
    if curves is not None:
        part["curves"] = figure_html(replace(curves, panels=curves.panels[:1]), f"{at}curves")
        if len(curves.panels) > 1:
            more = replace(curves, panels=curves.panels[1:], legend=curves.legend if len(groups) > 1 else ())
            part["more_curves"] = figure_html(more, f"{at}more-curves")
    return part | {"body": _body(groups, embeddings, at, part["more_curves"], remarks)}


def group_verdicts(groups: Sequence[Group]) -> list[str]:
    """For each group whether joining pays: its label, and the verdict on its runs together."""
    sentences = []
    for group in groups[:MAX_VERDICTS]:
        verdict = verdict_of_seeds([run.summary for run in group.runs], [run.metrics for run in group.runs])
        if verdict is not None:
            seeds = f" ({len(group.runs)} seeds)" if len(group.runs) > 1 else ""
            sentences.append(f"{group.label}{seeds}: {verdict.sentence}")
    return sentences


def _sentences(run: Run) -> list[str]:
    """Sentences on a run's result that its tiles and its table do not have."""
    metrics, metric = run.summary["metrics"], run.selection_metric
    clauses = [alerts_clause(metrics, run.classes), intervals(metrics), members_clause(metrics, run.members)]
    if metric in OF_POSITIVE and metrics.get("pooled/recall") is not None:
        clauses.append(f"recall from the threshold on {metrics['pooled/recall']:.3f}")
    return [f"{capitalized(clause).rstrip('.')}." for clause in clauses if clause]


def _notices(groups: Sequence[Group]) -> tuple[list[str], list[str]]:
    """Warnings (unfinished runs, results that mean less than they seem, missing clients, different trainings), and
    notes that only inform."""
    reason = incomparability(groups) if len(groups) > 1 else ""
    warnings = [f"Nothing is compared on this page, because {reason}."] if reason else []
    runs = [*chain.from_iterable(group.runs for group in groups)]
    warnings += [f"{run.directory}: {rounds_text(run)}." for run in runs if not run.finished]

    def of_kind(informative: bool, run: Run) -> dict[str, str]:
        found = notes(run.summary["metrics"], RunFacts.of_summary(run.summary, run.config))
        return {subject: text for subject, text in found.items() if (subject in INFORMATIVE) == informative}

    warnings += _note_sentences(groups, partial(of_kind, False))
    remarks = _note_sentences(groups, partial(of_kind, True))
    for run in runs:
        absent = absence_sentence(run.metrics)
        if absent:
            warnings.append(absent if len(runs) == 1 else f"{run.directory}: {absent}")
        remarks += [f"{capitalized(text)}." for text in shelf_sentences(run.summary)]
        if "note" in run.summary:
            remarks.append(f"{run.summary['note']}." if len(runs) == 1 else f"{run.directory}: {run.summary['note']}.")
    return warnings + training_differences(groups), [*dict.fromkeys(remarks)]


def _note_sentences(groups: Sequence[Group], notes_of: Callable[[Run], dict[str, str]]) -> list[str]:
    """The notes on groups' metrics: a sentence for each subject, once for all seeds and for all groups that share
    it."""
    labels: dict[tuple[str, str], list[str]] = {}  # {(runs, sentence): the groups with it}
    for group in groups:
        by_subject: dict[str, list[str]] = {}
        for run in group.runs:
            for subject, sentence in notes_of(run).items():
                by_subject.setdefault(subject, []).append(sentence)
        for sentences in by_subject.values():
            runs = f", {len(sentences)} of {len(group.runs)} runs (numbers of one)" if len(group.runs) > 1 else ""
            labels.setdefault((runs, sentences[0]), []).append(group.label)
    if len(groups) == 1 and len(groups[0].runs) == 1:
        return [capitalized(sentence) for _, sentence in labels]
    return [f"{', '.join(names)}{runs}: {sentence}" for (runs, sentence), names in labels.items()]


def _body(groups: Sequence[Group], embeddings: str, at: str, more_curves: Markup, remarks: Sequence[str]) -> Markup:
    """The folded sections of a page about runs that can be compared, or about one; at: prefix of the names of sections
    and figures."""
    group_runs = list[GroupRun]()
    for group in groups:
        group_runs += [(group, run) for run in group.runs]
    runs = [run for _, run in group_runs]
    several_seeds = any(len(group.runs) > 1 for group in groups)
    metric, comparable = common_selection_metric(groups), tables.comparable(groups)
    all_gains = gains.member_gains(groups)
    incentives = [_incentives(group, f"{at}{number}", len(groups) > 1) for number, group in enumerate(groups)]
    shown_embeddings = []
    if embeddings:
        shown_embeddings = _of_first(groups, partial(embeddings_figure, way=embeddings), f"{at}embeddings")

    def is_shown(name: str) -> bool:  # metrics of the chosen round have a row without "best_val/"
        return not (name.startswith(f"{BEST}/") and name.removeprefix(f"{BEST}/").startswith(OF_A_ROUND))

    without_threshold = [run for run in runs if run.between_sites and THRESHOLD not in run.summary["metrics"]]
    body = render_template(
        "sections.html",
        at=at,
        selection_metric=title_of(metric),
        single=len(runs) == 1,
        several=len(groups) > 1,
        seeds=several_seeds,
        marked=comparable,
        first=groups[0].label,
        more_curves=more_curves,
        notes=remarks,
        # how the final models serve the members
        accuracy=figure_html(figures.client_accuracy(groups), f"{at}accuracy") if len(runs) > 1 else "",
        accuracy_caption=_caption(groups, metric),
        spreads=tables.spreads(groups),
        by_client=tables.by_client(groups),
        summed=all(run.section("algorithm").get("scores") == "sum" for run in runs),
        # what was run, and its metrics
        facts=tables.facts(groups),
        summary=tables.metrics(groups, FAMILIES, lambda name: is_shown(name) and is_main(name, metric)),
        further=tables.metrics(groups, FAMILIES, lambda name: is_shown(name) and not is_main(name, metric)),
        own_thresholds=any(run.selection_metric in OF_POSITIVE for run in without_threshold),
        each={noun: tables.metrics(groups, (family,)) for family, noun in tables.PER_ITEM.items()},
        costs=tables.costs(groups),
        paired=comparison_table(groups) if comparable and several_seeds else ResultTable((), ()),
        paired_note=NOTE,
        confusions=_of_first(groups, figures.confusions, f"{at}confusion"),
        reliabilities=_of_first(groups, figures.reliability, f"{at}reliability"),
        embeddings=shown_embeddings,
        # fairness between members and between groups of people
        fairness=tables.metrics(groups, ("fairness",)),
        tradeoff=tradeoff(groups) if comparable else ResultTable((), ()),
        between=fairness_table(groups),
        favorable=favorable_class(groups),
        people=people_sentence(names_of_people(groups)),
        fairest=_note_sentences(groups, lambda run: fairest_notes(run.summary["metrics"])),
        # what joining brings each member
        gain_sentences=[*gains.gain_sentences(all_gains), *group_verdicts(groups)] if len(runs) > 1 else [],
        gain_spreads=gains.member_spreads(all_gains),
        gains=members_table(runs[0]) if len(runs) == 1 else gains.gain_table(all_gains),
        noise=gains.NOISE_NOTE,
        missing=gains.baseline_algorithm(groups[0].first),
        alone=tables.reward_fairness(groups),
        incentives=[section for section in incentives if section],
        # the data, and what left the members
        pairs=_of_first(groups, figures.pairs, f"{at}pairs"),
        over_bytes=figure_html(figures.accuracy_over_bytes(groups), f"{at}bytes"),
        traffic=figure_html(figures.traffic(groups), f"{at}traffic"),
        disclosures=_disclosures(group_runs),
        repeats=[_repeat(group, run) for group, run in group_runs],
        **_splits(group_runs, at),
    )
    return Markup(body)


def figure_html(figure: Figure | None, name: str) -> Markup:
    """The figure as HTML; "" of None. name: unique on the page."""
    if figure is None:
        return Markup("")
    return Markup(render_template("figure.html", figure=figure, name=name))


def _of_first(groups: Sequence[Group], draw: Callable[[Run], Figure | None], name: str) -> list[Record]:
    """A figure of each group's first run that has one, with its table of pairs."""
    sections = []
    for number, group in enumerate(groups):
        html = figure_html(draw(group.first), f"{name}-{number}")
        if html:
            title = group.label if len(groups) > 1 else ""
            sections.append({"title": title, "figure": html, "table": tables.pairs(group.first)})
    return sections


def _caption(groups: Sequence[Group], metric: str) -> str:
    """The caption of the figure of members' results."""
    caption = f"Test {title_of(metric)} of each member on its own test examples"
    if any(len(run.clients(run.selection_metric)) > figures.MAX_BARS for group in groups for run in group.runs):
        return f"{caption}: shares of members in equal steps."
    if any(len(group.runs) == 1 and group.first.test_sizes for group in groups):
        caption += ", whose number stands behind its name"
    if metric == PLAIN and any(len(group.runs) == 1 for group in groups):
        caption += "; lines and brackets: Wilson's 95 % intervals"
    return f"{caption}."


def _splits(group_runs: Sequence[GroupRun], at: str) -> Record:
    """Every different split in a table; the splits of the groups' first runs as figures too."""
    with_partition = [(group, run) for group, run in group_runs if run.partition is not None]
    splits = distinct(with_partition, lambda one, other: bool(one[1].partition.equals(other[1].partition)))  # type: ignore[union-attr]
    parts, partitions = [], []
    for number, same in enumerate(splits):
        run, whose = same[0][1], _whose(same)
        partitions.append((whose, run.partition))
        if any(group.first is of_group for group, of_group in same):
            figure = figure_html(figures.split(run), f"{at}split-{number}")
            caption = f"Split of {whose}." if len(splits) > 1 else ""
            parts.append({"figure": figure, "caption": caption, "clients": tables.clients(run)})
    return {"splits": tables.splits(partitions), "parts": parts}


def _incentives(group: Group, at: str, several: bool) -> Record:
    """A group's first run: contributions and rewards of clients; {} if it measured none."""
    run, table = group.first, tables.incentives(group.first)
    if not table.rows:
        return {}
    motifs: dict[str, list[Record]] = {}  # {client: its motifs}
    kinds = NUMBERS
    if run.motifs is not None:
        kinds = kinds_of(run.motifs)
        for row in run.motifs.to_pylist():
            motif = {"svg": motif_drawing(row["motif"], kinds), "name": row["motif"], "graphs": row["graphs"]}
            motifs.setdefault(row["client"], []).append(motif)
    seed = f"seed {run.summary.get('seed')}" if len(group.runs) > 1 else ""
    return {
        "whose": ", ".join(filter(None, (group.label if several else "", seed))),
        "figure": figure_html(figures.incentives(run), f"incentives-{at}"),
        "table": table,
        "qualities": tables.qualities(run),
        "motifs": motifs,
        "kinds": kinds.legend(),
    }


def _disclosures(group_runs: Sequence[GroupRun]) -> list[Record]:
    """The data flow, once for all runs whose ledgers add up to the same."""
    flows = [(group_run, disclose(group_run[1])) for group_run in group_runs]
    sections = []
    for same in distinct(flows, lambda one, other: one[1] == other[1]):
        disclosure = same[0][1]
        section = {
            "whose": _whose([group_run for group_run, _ in same]),
            "sentences": disclosure.sentences,
            "members": disclosure.members,
            "spent": tables.privacy_table(disclosure),
            "table": tables.flow_table(disclosure, times=len(same) == 1),
        }
        sections.append(section)
    return sections


def _whose(group_runs: Sequence[GroupRun]) -> str:
    """ "fedavg (seeds 0, 1); local (seed 0)"."""
    seeds: dict[str, list[str]] = {}
    for group, run in group_runs:
        seeds.setdefault(group.label, []).append(str(run.summary.get("seed")))
    texts = [f"{label} (seed{'s' * (len(of) > 1)} {', '.join(of)})" for label, of in seeds.items()]
    return "; ".join(texts)


def _repeat(group: Group, run: Run) -> dict[str, str]:
    """How to repeat a run."""
    name = f"{group.label}, seed {run.summary.get('seed')}"
    config = to_toml(run.config)
    return {"name": name, "command": tables.command(run), "directory": str(run.directory), "config": config}

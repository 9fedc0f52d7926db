"""The first screen of a page about one run: the verdict, tiles of the main numbers, a table of metrics by place."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.filesize import decimal

from fedweave.accounts.compliance import Disclosure
from fedweave.accounts.document import MAX_NAMED, Tile
from fedweave.accounts.verdict import Verdict, short, signed
from fedweave.core.text import capitalized, counted
from fedweave.core.types import CLASS, EVALUATION, FRAMING, TRAINING
from fedweave.experiment.runs.reading import BY_FEATURES, Run
from fedweave.metrics.score_intervals import wilson
from fedweave.metrics.selection import (
    ALL_EXAMPLES,
    ALONE,
    BESIDE,
    CHOSEN_ROUND,
    CROSSING,
    LAST_ROUND,
    MEMBER_MEAN,
    METRICS,
    OF_RANKS,
    PLAIN,
    REFERENCE,
    RMSE,
    RMSE_OF_MEAN,
    SHELF,
    SHELF_JOINT,
    WORDS_OF_PLACES,
    WORST_MEMBER,
    lower,
    rank,
    sample_words,
    title_of,
)
from fedweave.reports.cells import NONE, Cell, ResultTable
from fedweave.reports.gains import baseline_algorithm
from fedweave.reports.members import ServedMember, member_results
from fedweave.reports.notes import GLOBAL_TEST
from fedweave.reports.paired import MIN_SEEDS, interval
from fedweave.reports.verdict import TRAIN_ALONE, joint_value, verdict_of

_PURPOSES = {TRAINING: "left", EVALUATION: "for evaluation"}
_SCORES = {"own": "scores of each member's model", "trained": "scores after its training"}  # parts of messages
_AT_HOME = "is known only to members that measured it at home: `fedweave audit SITE` shows it there"
_ALONE = (f"{ALONE}/local", f"{SHELF}/local", f"{SHELF_JOINT}/local", f"{SHELF}/pooled")


MEANINGS = {  # of columns of the table
    WORDS_OF_PLACES[f"{ALONE}/local"]: "Alone: the same model, trained on a member's own data only.",
    WORDS_OF_PLACES[f"{SHELF}/local"]: "Shelf: the best of the usual tools on a member's own data, such as boosting.",
    WORDS_OF_PLACES[f"{SHELF}/pooled"]: "Pooled: on all members' data together, which nobody has.",
}


class FirstScreen(NamedTuple):
    """What a page about one run begins with. sign: of the verdict, 1 where joining pays, -1 where it costs. legend:
    what the words of the table mean."""

    verdict: str
    sign: int
    tiles: tuple[Tile, ...]
    table: ResultTable
    legend: str


def first_screen(run: Run, disclosure: Disclosure) -> FirstScreen:
    """The first screen of a run; disclosure: what its ledger adds up to."""
    verdict = verdict_of(run.summary, run.metrics)
    members = member_results(run, verdict)
    tiles = (
        _result_tile(run, members),
        _joining_tile(run, verdict, members),
        _worst_tile(run, members),
        _privacy_tile(disclosure),
        _cost_tile(run),
    )
    sentence = _sentence_without(run) if verdict is None else verdict.sentence
    table = places_table(run, members)
    legend = " ".join(text for word, text in MEANINGS.items() if word in table.head)
    return FirstScreen(sentence, 0 if verdict is None else verdict.sign, tiles, table, legend)


def _sentence_without(run: Run) -> str:
    """The result, where no member is known to have learned alone."""
    metric = run.selection_metric
    value = joint_value(run.summary["metrics"], metric)
    result = f"{title_of(metric)} {short(value)}" if value is not None else f"no {title_of(metric)} was measured"
    result = capitalized(result)
    if run.summary["algorithm"] in TRAIN_ALONE:
        return f"{result} ({MEMBER_MEAN}): every member trains alone, and other runs are compared with this one."
    if _is_at_home(run):
        return f"{result} ({MEMBER_MEAN}). Whether joining pays {_AT_HOME}."
    also = baseline_algorithm(run)
    return f"{result} ({MEMBER_MEAN}). Whether joining pays is not measured: also run `{also}` with the same seed."


def _is_at_home(run: Run) -> bool:
    """Whether sites measured what they reach alone, and none of it left."""
    evaluation, by_features = run.section("evaluation"), run.section("partition").get("name") in BY_FEATURES
    asked = any(evaluation.get(kind, "auto") is not False for kind in (ALONE, SHELF))
    return run.between_sites and run.finished and asked and not by_features


def _of_round(run: Run) -> str:
    """The round that the main numbers are of."""
    return _round_words(run, CHOSEN_ROUND if "chosen_round" in run.summary else LAST_ROUND, run.result_round)


def _round_words(run: Run, name: str, round: int) -> str:
    """ "chosen round 20", and whether its selection metric ranks a sample of the links."""
    return f"{name} {round:,}{sample_words(run.selection_metric, run.ranks_sampled(round))}"


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"95 %: {short(low)} to {short(high)}"


def _result_tile(run: Run, members: Sequence[ServedMember]) -> Tile:
    """The member mean, of which the verdict speaks, with its interval over members; and the result on all
    examples, with one over these."""
    metric, size, when = run.selection_metric, run.summary.get(GLOBAL_TEST), _of_round(run)
    title, metrics = capitalized(title_of(metric)), run.summary["metrics"]
    mean, on_all = metrics.get(f"local/{metric}"), metrics.get(f"global/{metric}")
    place, between = "global test set" if size else ALL_EXAMPLES, ""
    examples = size or _examples(run, members)
    if on_all is not None and metric == PLAIN and examples:
        between = _ends(*wilson(on_all, examples))
    pooled, low, high = (metrics.get(f"pooled/{metric}{end}") for end in ("", "_low", "_high"))
    if pooled is not None and low is not None:
        place, on_all, between = WORDS_OF_PLACES["pooled"], pooled, _ends(low, high)
        examples = _examples(run, members)  # also where there is a global test set
    tested = f"{counted(examples, 'test example')}, " if examples else ""
    if mean is None:
        return Tile(f"{title}, {place}", NONE if on_all is None else short(on_all), (between, tested + when))
    also = "" if on_all is None else f"{place} {short(on_all)}" + (f" ({between})" if between else "")
    return Tile(f"{title}, {MEMBER_MEAN}", short(mean), (_between_members(metric, members), also, tested + when))


def _between_members(metric: str, members: Sequence[ServedMember]) -> str:
    """The interval of the member mean by Student's t; "" where there is none."""
    low, high = interval([one.value for one in members])
    if low is None or high is None or low == high or len(members) < MIN_SEEDS:
        return ""
    if CLASS in METRICS[metric].of or lower(metric):  # shares and errors
        low = max(0.0, low)
    if not lower(metric):  # R² and correlations are at most 1, too
        high = min(1.0, high)
    return f"{_ends(low, high)} over members"


def _examples(run: Run, members: Sequence[ServedMember]) -> int:
    """The number of members' test examples; parties with columns of the same nodes have the same ones."""
    sizes = [one.examples or 0 for one in members]
    same = run.section("partition").get("name") in BY_FEATURES
    return max(sizes, default=0) if same else sum(sizes)


def _joining_tile(run: Run, verdict: Verdict | None, members: Sequence[ServedMember]) -> Tile:
    """What joining adds to the best that members reach alone."""
    if verdict is None:
        alone = run.summary["algorithm"] in TRAIN_ALONE
        why = f"not measured: also run {baseline_algorithm(run)}"
        if alone or _is_at_home(run):
            why = "every member trains alone" if alone else _AT_HOME
        return Tile("Joining against alone", NONE, (why,))
    how, best = verdict.strongest
    texts = [f"{WORDS_OF_PLACES[one]} {short(value)}" for one, value in verdict.alone.items()]
    if verdict.pooled is not None:
        texts[-1] += f" ({WORDS_OF_PLACES[f'{SHELF}/pooled']}, {short(verdict.pooled)})"
    between = "too few members for an interval"
    if verdict.interval is not None:
        low, high, _ = verdict.interval
        between = f"95 %: {signed(low)} to {signed(high)}"
    change = signed(rank(run.selection_metric, verdict.joint) - rank(run.selection_metric, best))
    if lower(run.selection_metric):
        texts.append("positive is better")
    return Tile(f"Joining against {WORDS_OF_PLACES[how]}", change, (between, ", ".join(texts), *_gains(members)))


def _gains(members: Sequence[ServedMember]) -> tuple[str, ...]:
    changes = [one.change for one in members if one.change is not None]
    if not changes:
        return ()
    return (f"{sum(change > 0 for change in changes):,} of {counted(len(changes), 'member')} gain",)


def _worst_tile(run: Run, members: Sequence[ServedMember]) -> Tile:
    """The member that the model serves worst, and those that lose by joining."""
    title = capitalized(WORST_MEMBER)
    if not members:
        return Tile(title, NONE, ("no results of single members are known",))
    worst = members[0]
    examples = "" if worst.examples is None else f", {counted(worst.examples, 'example')}"
    losing = sorted(
        (one for one in members if one.change is not None and one.change < 0), key=lambda one: one.change or 0
    )
    notes = [f"{worst.name}{examples}", _ends(worst.low, worst.high)]
    if losing:
        names = [f"{one.name} ({signed(one.change or 0)})" for one in losing[:MAX_NAMED]]
        more = f" and {len(losing) - MAX_NAMED:,} more" if len(losing) > MAX_NAMED else ""
        notes.append(f"{'loses' if len(losing) == 1 else 'lose'} by joining: {', '.join(names)}{more}")
    elif any(one.change is not None for one in members):
        notes.append("no member loses by joining")
    return Tile(title, short(worst.value), tuple(notes))


def _privacy_tile(disclosure: Disclosure) -> Tile:
    """What left the members, and the largest ε that is known."""
    sent = dict[str, dict[str, None]]()  # {purpose: what a receiver learns in training, else the parts of messages}
    for flow in disclosure.flows:
        if flow.direction != "down" and flow.key != FRAMING and not flow.kept_back:
            head = flow.key.partition("/")[0]
            what = flow.reveals if flow.purpose == TRAINING and flow.reveals else _SCORES.get(head, head)
            sent.setdefault("also" if flow.purpose not in _PURPOSES else flow.purpose, {})[what] = None
    texts = []
    for purpose, words in {**_PURPOSES, "also": "also"}.items():
        left = [*sent.get(purpose, {})]
        if left:
            more = f" and {len(left) - MAX_NAMED:,} more" if len(left) > MAX_NAMED else ""
            texts.append(f"{words}: {'; '.join(left[:MAX_NAMED])}{more}")
    bounds = [bound for _, bound in disclosure.costs]
    if not bounds:
        return Tile("Privacy", "no noise", tuple(texts))
    largest = max(bounds, key=lambda bound: bound.epsilon)
    return Tile("Privacy", f"ε ≤ {largest.epsilon:.3g}", (f"per {largest.per}, of the member with the most", *texts))


def _cost_tile(run: Run) -> Tile:
    """Bytes and time."""
    summary, members = run.summary, max(1, int(run.summary["clients"]))
    sent, received = summary["bytes_up"] + summary.get("bytes_peer", 0), summary["bytes_down"]
    notes = [f"sent by each member in all rounds; received {decimal(received // members)}"]
    if sent + received:
        notes.append(f"{summary.get('bytes_evaluation', 0) / (sent + received):.0%} of it for evaluation")
    if "seconds" in summary:
        notes.append(f"{summary['seconds']:.1f} s, {summary['seconds_per_round']:.2g} s a round")
    return Tile("Cost", decimal(sent // members), tuple(notes))


def places_table(run: Run, members: Sequence[ServedMember]) -> ResultTable:
    """A row for each main metric, and a column for each place that has one: all examples, member mean, worst member,
    and what members reach alone. The selection metric is of the chosen round, and of the last one below it."""
    summary, metrics, metric = run.summary, run.summary["metrics"], run.selection_metric
    size = summary.get(GLOBAL_TEST)
    heads = {f"{place}": WORDS_OF_PLACES[place] for place in ("global", "local")}
    if size:  # then "global" is of the global test set, which no member has
        heads = {"global": f"global test set ({size:,})", "pooled": ALL_EXAMPLES, "local": MEMBER_MEAN}
    alone = {place: WORDS_OF_PLACES[place] for place in _ALONE}
    rows = list[tuple[str, dict[str, Cell]]]()

    def add(title: str, name: str, values: Mapping[str, float | None], with_alone: bool = True) -> None:
        cells = {head: _cell(values.get(f"{place}/{name}")) for place, head in heads.items()}
        if with_alone:
            cells |= {head: _cell(values.get(f"{place}/{name}")) for place, head in alone.items()}
        if any(cell.text for cell in cells.values()):
            rows.append((title, cells))

    # 1. The selection metric in the chosen round and in the last one; its constant prediction.
    title = title_of(metric)
    add(f"{title}, {_of_round(run)}", metric, metrics)
    if rows and members:
        rows[0][1][WORST_MEMBER] = Cell(short(members[0].value), repr(members[0].value), members[0].name)
    if run.result_round != run.last_evaluation:
        last = f"{title}, {_round_words(run, LAST_ROUND, run.last_evaluation)}"
        add(last, metric, run.last_metrics, with_alone=False)
    value, low, high = (metrics.get(f"pooled/{metric}{end}") for end in ("", "_low", "_high"))
    if value is not None and not size:
        note = "" if low is None or high is None else f"{short(low)} to {short(high)}"
        rows.append((f"{title}, {WORDS_OF_PLACES['pooled']}", {ALL_EXAMPLES: Cell(short(value), repr(value), note)}))
    constant = {PLAIN: ("majority", "the most frequent class"), RMSE: (RMSE_OF_MEAN, "the training mean")}.get(metric)
    if constant is not None:
        add(constant[1], constant[0], metrics)

    for key in metrics:  # scores of links without a model, and links between members
        kind, _, name = key.rpartition("/")
        if name == metric and (kind == CROSSING or kind.startswith(f"{REFERENCE}/")):
            words = WORDS_OF_PLACES[CROSSING] if kind == CROSSING else kind.partition("/")[2].replace("_", " ")
            rows.append((f"{title}, {words}", {heads["global"]: _cell(metrics[key])}))

    # 2. What else describes the result.
    for name in ("hits_at_10", "auc", "average_precision") if metric in OF_RANKS else (*BESIDE, "loss"):
        if name != metric:
            words = sample_words(name, run.ranks_sampled(run.result_round))
            add(f"{title_of(name)}{words}", name, metrics)
    columns = [*heads.values(), WORST_MEMBER, *alone.values()]
    shown = [head for head in columns if any(cells.get(head, Cell("")).text for _, cells in rows)]
    table = [(Cell(name), *(cells.get(head, Cell("")) for head in shown)) for name, cells in rows]
    return ResultTable(("", *shown), tuple(table))


def _cell(value: float | None) -> Cell:
    return Cell("") if value is None else Cell(short(value), repr(value))

"""A sweep as papers need it: a table in LaTeX, a caption that says what was run, and every run's numbers as CSV."""

import csv
import io
import math
import re
from collections.abc import Sequence

from fedweave.core.records import Record, Values
from fedweave.core.text import counted
from fedweave.experiment.config import flat
from fedweave.metrics.judging import WORDS
from fedweave.report.cells import LEAST_SEEDS, Cell, differences, marked
from fedweave.report.conditions import Ranks, placed, said, short
from fedweave.report.effects import effect
from fedweave.report.reading import Group, spread
from fedweave.sweep.choosing import Chosen, is_number

_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {mark: f"\\{mark}" for mark in "&%$#_{}"} | {"±": r"$\pm$", "ε": r"$\varepsilon$"}
_NOISES = {  # the first of each is what is done by default
    ("features", "mask"): "share of nonzero features masked",
    ("features", "gauss"): "noise on features, in standard deviations",
    ("edges", "drop"): "share of edges dropped",
    ("edges", "rewire"): "share of edges rewired",
    ("labels", "flip"): "share of training labels flipped",
    ("labels", "remove"): "share of training labels removed",
}
_TRAINING = ("local_steps", "optimizer", "lr", "weight_decay")
WHEN = "mean over clients, in the round that is best on validation examples"


def latex(found: Sequence[Chosen]) -> str:
    """A `table` with booktabs' rules: algorithms down, conditions across; in bold what is better than every other of
    its column by a paired test over seeds. Of several conditions the last column has the mean ranks."""
    rows = list(dict.fromkeys(one.algorithm for one in found))
    columns = list(dict.fromkeys(said(one.condition) for one in found))
    at = {(one.algorithm, said(one.condition)): one for one in found}
    cells = {column: _column([at.get((row, column)) for row in rows]) for column in columns}
    heads = [escaped(column or worded(found[0].metric)) for column in columns]
    order = placed_over(found)
    if order is not None:
        cells["rank"] = [f"{order.means[row]:.2f}" for row in rows]
        heads.append("mean rank")
    body = [
        " & ".join([escaped(row), *(column[number] for column in cells.values())]) for number, row in enumerate(rows)
    ]
    metrics = list(dict.fromkeys(worded(one.metric) for one in found))
    what = f"Test {' or '.join(metrics)} in %, {WHEN}"
    tested = any(len(one.by_seed()) >= LEAST_SEEDS for one in found)
    bold = " Bold: better than every other by a paired test over seeds." if tested else ""
    bold += "" if order is None else f" {escaped(order.sentence())}"
    lines = [
        r"\begin{table}",
        rf"  \caption{{{escaped(caption(found, what))}{bold}}}",
        rf"  \begin{{tabular}}{{l{'r' * len(cells)}}}",
        r"    \toprule",
        rf"    {' & '.join(['algorithm', *heads])} \\",
        r"    \midrule",
        *(rf"    {line} \\" for line in body),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "% \\usepackage{booktabs}\n" + "\n".join(lines) + "\n"


def placed_over(found: Sequence[Chosen]) -> Ranks | None:
    """The algorithms' ranks over the conditions; None of fewer than two, or of one algorithm."""
    means: dict[str, dict[str, float]] = {}
    for one in found:
        mean = spread(one.values())[0]
        means.setdefault(said(one.condition), {}).update({one.algorithm: mean} if math.isfinite(mean) else {})
    names = list(dict.fromkeys(one.algorithm for one in found))
    sets = {str(one.group.first.config["data"].get("name")) for one in found}
    order = placed(means, names, len(sets)) if len(means) > 1 < len(names) else None
    return order if order is not None and len(order.places) else None


def by_condition(found: Sequence[Chosen]) -> str:
    """A line of CSV per condition and algorithm: its result, its rank, and the paired difference to the first one."""
    order, lines = placed_over(found), []
    for one in found:
        where = said(one.condition)
        first = next(other for other in found if said(other.condition) == where)
        mean, deviation, seeds = spread(one.values())
        line = {"condition": where, "algorithm": one.algorithm, "metric": one.metric, "seeds": seeds, "mean": mean}
        line |= {"deviation": deviation}
        if order is not None and where in order.titles:
            line["rank"] = order.places[order.titles.index(where), order.names.index(one.algorithm)]
        gaps = [] if one is first else differences(one.by_seed(), first.by_seed())
        if gaps:
            gap = effect(gaps)
            line |= {"against": first.algorithm, "difference": gap.mean, "low": gap.low, "high": gap.high}
            line |= {"pairs": gap.seeds, "significant": int(gap.significant)}
        lines.append(line)
    return _csv(lines)


def _column(found: Sequence[Chosen | None]) -> list[str]:
    cells = [Cell("--") if one is None else Cell(_percent(one)) for one in found]
    return [
        rf"\textbf{{{cell.text}}}" if cell.best else cell.text
        for cell in marked(cells, [{} if one is None else one.by_seed() for one in found], "accuracy")
    ]


def _percent(one: Chosen) -> str:
    mean, deviation, count = spread(one.values())
    if not count:
        return "--"
    return f"{100 * mean:.2f}" + (rf" $\pm$ {100 * deviation:.2f}" if count > 1 else "")


def caption(found: Sequence[Chosen], what: str) -> str:
    """What a table or figure of these runs shows: data, cut, noise, rounds, seeds, and the settings, chosen or the
    same."""
    configs = [one.group.first.config for one in found]
    varied = {key for one in found for key in one.condition}
    seeds = sorted({run.config.get("seed", 0) for one in found for run in one.group.runs})
    several = f", mean and standard deviation over {counted(len(seeds), 'seed')} ({_ranges(seeds)})"
    parts = [
        f"{what}{several if len(seeds) > 1 else f', seed {seeds[0]}'}.",
        f"Data: {_same('data', configs, varied)}. Cut: {_same('partition', configs, varied)}.",
        *_noise(configs),
        f"Model: {_same('model', configs, varied | {key for one in found for key in one.setting})}.",
        f"Rounds: {' or '.join(map(str, sorted({config['rounds'] for config in configs})))}.",
    ]
    tuned = [f"{_named(one)}: {said(one.setting)}" for one in found if one.setting]
    fixed = [words for key in _TRAINING if (words := _fixed(key, found))]
    return " ".join(
        [
            *parts,
            *([f"Training: {'; '.join(fixed)}."] if fixed else []),
            *([f"Settings, chosen by validation: {'; '.join(tuned)}."] if tuned else []),
        ]
    )


def _fixed(key: str, found: Sequence[Chosen]) -> str:
    """ "optimizer = adam (fedavg, moon) or sgd (scaffold)": the value that was not varied, with whose it is where the
    algorithms do not have it alike; "" if none has the key."""
    path, whose = f"algorithm.{key}", dict[str, list[str]]()
    for one in found:
        value = one.group.first.config["algorithm"].get(key)
        if value is not None and path not in one.setting and path not in one.condition:
            whose.setdefault(str(value), []).append(one.algorithm)
    alike = len(whose) == 1 and set(*whose.values()) == {one.algorithm for one in found}
    told = [value if alike else f"{value} ({', '.join(dict.fromkeys(names))})" for value, names in whose.items()]
    return f"{key.replace('_', ' ')} = {' or '.join(told)}" if told else ""


def _noise(configs: Sequence[Values]) -> list[str]:
    """A sentence on the kinds of noise and their rates, if there is any."""
    found = []
    for kind in ("features", "edges", "labels"):
        rates = sorted({config.get("noise", {}).get(kind, 0) for config in configs})
        if any(rates):
            ways = dict.fromkeys(named(f"noise.{kind}", config) for config in configs)
            found.append(f"{' or '.join(ways)} = {' or '.join(f'{rate:g}' for rate in rates)}")
    return [f"Noise: {'; '.join(found)}."] if found else []


def named(key: str, config: Values) -> str:
    """A key of the grid on an axis or in a caption: of noise what it does to the data."""
    section, _, kind = key.partition(".")
    noise = config.get("noise", {})
    by = noise.get(f"{kind}_by", next((way for whose, way in _NOISES if whose == kind), ""))
    return _NOISES.get((kind, by), short(key)) if section == "noise" else short(key)


def _named(one: Chosen) -> str:
    return f"{one.algorithm} ({said(one.condition)})" if one.condition else one.algorithm


def _same(section: str, configs: Sequence[Values], varied: set[str]) -> str:
    """ "louvain (clients = 10, …)": the name, and the values that all have and that are not varied."""
    tables = [flat(config.get(section, {})) for config in configs]
    names = list(dict.fromkeys(str(table.get("name", "")) for table in tables))
    alike = {
        key: value
        for key, value in tables[0].items()
        if key not in ("name", "path", "labels") and f"{section}.{key}" not in varied
        if all(table.get(key) == value for table in tables) and value not in ("", "none", None, False, [])
    }
    values = ", ".join(f"{key} = {value}" for key, value in alike.items())
    return " or ".join(names) + (f" ({values})" if values else "")


def _ranges(seeds: Sequence[int]) -> str:
    whole = len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1
    return f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))


def worded(metric: str) -> str:
    """A metric's name in a sentence."""
    return WORDS.get(metric, metric.replace("_", " "))


def escaped(text: str) -> str:
    """The same in LaTeX."""
    return "".join(_SPECIAL.get(mark, mark) for mark in text)


def rows_of(groups: Sequence[Group], found: Sequence[Chosen], keys: Sequence[str]) -> str:
    """A line of CSV per run: its directory, algorithm, seed and values of the grid's keys, whether its setting was
    chosen, and every number of its summary."""
    chosen = {one.group.runs[0].directory for one in found}
    lines = []
    for group in groups:
        for run in group.runs:
            known = flat(run.config)
            about = {
                "run": run.directory.name,
                "algorithm": run.summary["algorithm"],
                "seed": run.config.get("seed", 0),
            }
            about |= {key: known.get(key, "") for key in keys} | {"chosen": int(group.runs[0].directory in chosen)}
            about |= {key: value for key, value in run.summary.items() if key in ("seconds", "bytes_up", "bytes_down")}
            known = run.summary["metrics"].items()
            lines.append(about | {key: value for key, value in known if is_number(value) and math.isfinite(value)})
    return _csv(lines)


def _csv(lines: Sequence[Record]) -> str:
    head = list(dict.fromkeys(key for line in lines for key in line))
    file = io.StringIO()
    writer = csv.DictWriter(file, head, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def file_name(text: str) -> str:
    """Words as the name of a file."""
    signed = re.sub(r"-(?=[\d.])", "m", text.lower())  # -1 is another value than 1
    return re.sub(r"[^a-z0-9]+", "-", signed).strip("-")

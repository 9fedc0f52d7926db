"""What the documentation has of `benchmarks.baselines_table`, made of its runs in docs/results/baselines-runs.csv.

It writes docs/results/baselines.csv: a line for each method, data set and partition of which all runs are in the file
(`benchmarks.baselines_table` explains the columns). In docs/findings/baselines.md it replaces the table over all of
them. Its stars are by the paired t-test between `fedavg` and each other method, over seeds, corrected over all of them
after Benjamini and Hochberg, such that of all stars 5 % are expected to be false. Nothing is run.

    python -m benchmarks.baselines_page [--runs FILE] [--docs DIR]
"""

import argparse
import csv
import io
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.baselines_table import HEAD, METHODS, Choice, Runs, cells, choose, metric_of
from fedweave.reports.paired import MIN_SEEDS, paired_differences

SEEDS = 5
LEVEL = 0.05
SETS = {
    "cora": "Cora",
    "citeseer": "CiteSeer",
    "chameleon-filtered": "chameleon-f.",
    "minesweeper": "minesweeper",
    "amazon-computers": "amazon-c.",
}
CUTS = {"louvain": "Louvain", "dirichlet": "Dirichlet .5", "metis": "METIS"}

Place = tuple[str, str]  # data set, partition
Choices = dict[Place, dict[str, Choice]]  # by place and method


def places(runs: Runs) -> list[dict[str, Any]]:
    """The data sets and partitions that there are runs of, in the order of the pages."""
    return sorted(runs.cells(), key=lambda where: (list(SETS).index(where["set"]), list(CUTS).index(where["cut"])))


def choices(runs: Runs, seeds: int = SEEDS) -> Choices:
    """The runs of all methods that did not fail, in the order of the table."""
    result: Choices = {}
    for where in places(runs):
        of_place = result[where["set"], where["cut"]] = {}
        for method in METHODS:
            choice = choose(runs, where, method, seeds)
            if choice is not None and not choice.failed:
                of_place[method] = choice
    return result


def p_value(differences: Sequence[float]) -> float:
    """Of the two-sided t-test that the mean of these differences is 0; 1 for fewer than `MIN_SEEDS`."""
    from scipy.stats import t

    if len(differences) < MIN_SEEDS:
        return 1.0
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    if not deviation:
        return float(not mean)
    return float(2 * t.sf(abs(mean) / deviation * math.sqrt(len(differences)), len(differences) - 1))


def reject(p: Mapping[Any, float], level: float = LEVEL) -> set[Any]:
    """The keys whose hypotheses are rejected such that a share `level` of these is expected to be true (Benjamini and
    Hochberg 1995): the k smallest p-values, k the largest for which the k-th is at most level · k / n."""
    order = sorted(p, key=p.__getitem__)
    below = [k for k, key in enumerate(order, 1) if p[key] <= level * k / len(order)]
    return set(order[: max(below, default=0)])


def p_values(choices: Choices) -> dict[tuple[Place, str], float]:
    """{(place, method): p} of every method against `fedavg`."""
    result = {}
    for place, of_place in choices.items():
        for method, choice in of_place.items():
            if method != "fedavg":
                result[place, method] = p_value(paired_differences(choice.tests(), of_place["fedavg"].tests()))
    return result


def overview(choices: Choices) -> Iterator[str]:
    """The lines of the table of all methods and places."""
    significant = reject(p_values(choices))
    heads = [f"{SETS[name]}, {CUTS[cut]}" for name, cut in choices]
    yield f"| method | {' | '.join(heads)} | mean gain over `fedavg` |"
    yield f"|{' --- |' * (len(heads) + 2)}"
    for method in sorted(METHODS, key=lambda name: name != "fedavg"):
        cells, gains = [], []
        for place, of_place in choices.items():
            if method not in of_place:
                cells.append("—")
                continue
            tests = of_place[method].tests()
            star = "\\*" if (place, method) in significant else ""
            cells.append(f"{statistics.fmean(tests.values()):.3f}".replace("0.", ".") + star)
            gains.append(statistics.fmean(paired_differences(tests, of_place["fedavg"].tests())))
        gain = ""
        if method != "fedavg":
            gain = f"{statistics.fmean(gains):+.3f}".replace("0.", ".").replace("-", "\N{MINUS SIGN}")
        count = f" ({len(gains)})" if len(gains) < len(choices) else ""
        yield f"| `{method}` | {' | '.join(cells)} | {gain}{count} |"


def sentence(choices: Choices) -> str:
    """How many comparisons there are, how many have a star with and without the correction, and how many of the chosen
    points lie at an end of their grid."""
    p = p_values(choices)
    uncorrected = sum(value <= LEVEL for value in p.values())
    edges = [choice.edge for of_place in choices.values() for choice in of_place.values()]
    share = 100 * statistics.fmean(edges)
    return (
        f"Of {len(p)} comparisons with `fedavg`, {len(reject(p))} have a star; {uncorrected} have a 95 % interval "
        f"without 0. {sum(edges)} of {len(edges)} chosen points\n({share:.0f} %) lie at an end of their grid of three, "
        "so that one beyond it may be better."
    )


def results_csv(runs: Runs, seeds: int = SEEDS) -> str:
    """docs/results/baselines.csv of these runs."""
    methods = sorted(METHODS, key=lambda name: ("fedavg", "local", name).index(name))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["set", "cut", "clients", "rounds", "metric", *HEAD, "commit"])
    for where in places(runs):
        about = [where["set"], where["cut"], where["clients"], where["rounds"], metric_of(where)]
        for columns in cells(runs, where, methods, seeds):
            writer.writerow([*about, *columns])
    return text.getvalue()


def findings_page(text: str, choices: Choices) -> str:
    """docs/findings/baselines.md with the table over all methods, and the sentence below it, of these runs."""
    blocks = "\n".join(overview(choices)), sentence(choices)
    old = re.search(r"\| method \| Cora, Louvain \|.*?\n\n.*?(?=\n\n)", text, re.DOTALL)
    if old is None:
        raise SystemExit("docs/findings/baselines.md has no table that begins with | method | Cora, Louvain |")
    return text[: old.start()] + "\n\n".join(blocks) + text[old.end() :]


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("docs/results/baselines-runs.csv"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    args = parser.parse_args()
    runs = Runs(args.runs, fixed=True)
    findings = args.docs / "findings" / "baselines.md"
    (args.docs / "results" / "baselines.csv").write_text(results_csv(runs))
    findings.write_text(findings_page(findings.read_text(), choices(runs)))
    print(sentence(choices(runs)))


if __name__ == "__main__":
    main()

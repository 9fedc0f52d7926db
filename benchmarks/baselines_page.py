"""The pages about `benchmarks.baselines_table`, of its runs in docs/results/baselines-runs.csv; nothing is run.

In docs/results/baselines.md the tables below the introduction are written anew, with a line for each method, data set
and cut of which all runs are there. In docs/findings/baselines.md the table over all of them takes the place of the one
that is there. Its stars are by the paired t-test between `fedavg` and each other method, over seeds, corrected over all
of them after Benjamini and Hochberg, such that of all stars 5 % are expected to be false.

    python -m benchmarks.baselines_page [--runs FILE] [--docs DIR]
"""

import argparse
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.baselines_table import METHODS, Chosen, Runs, cell, chosen, table
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

Place = tuple[str, str]


def places(runs: Runs) -> list[dict[str, Any]]:
    """What there are runs of, in the order of the pages."""
    return sorted(runs.cells(), key=lambda where: (list(SETS).index(where["set"]), list(CUTS).index(where["cut"])))


def everything(runs: Runs, seeds: int = SEEDS) -> dict[Place, dict[str, Chosen]]:
    """{(set, cut): {method: its runs}}, in the order of the table, of what is there and did not fail."""
    return {
        (where["set"], where["cut"]): {
            method: found
            for method in METHODS
            if (found := chosen(runs, where, method, seeds)) is not None and not found.failed
        }
        for where in places(runs)
    }


def chance(found: Sequence[float]) -> float:
    """How probable differences with a mean as far from 0 as these are if their expectation is 0, by Student's t; 1 of
    fewer than `MIN_SEEDS`."""
    from scipy.stats import t

    if len(found) < MIN_SEEDS:
        return 1.0
    mean, deviation = statistics.fmean(found), statistics.stdev(found)
    if not deviation:
        return float(not mean)
    return float(2 * t.sf(abs(mean) / deviation * math.sqrt(len(found)), len(found) - 1))


def rejected(chances: Mapping[Any, float], level: float = LEVEL) -> set[Any]:
    """Whose hypotheses are rejected such that a share `level` of these is expected to be true (Benjamini and Hochberg
    1995): the k smallest chances, k the largest for which the k-th is at most level · k / n."""
    order = sorted(chances, key=chances.__getitem__)
    kept = [k for k, key in enumerate(order, 1) if chances[key] <= level * k / len(order)]
    return set(order[: max(kept, default=0)])


def chances(there: Mapping[Place, Mapping[str, Chosen]]) -> dict[tuple[Place, str], float]:
    """That of every method against `fedavg`, in each place."""
    return {
        (place, method): chance(paired_differences(found.tests(), of["fedavg"].tests()))
        for place, of in there.items()
        for method, found in of.items()
        if method != "fedavg"
    }


def overview(there: Mapping[Place, Mapping[str, Chosen]]) -> Iterator[str]:
    """The lines of the table of all methods and places."""
    starred = rejected(chances(there))
    heads = [f"{SETS[name]}, {CUTS[cut]}" for name, cut in there]
    yield f"| method | {' | '.join(heads)} | mean gain over `fedavg` |"
    yield f"|{' --- |' * (len(heads) + 2)}"
    for method in sorted(METHODS, key=lambda name: name != "fedavg"):
        cells, gains = [], []
        for place, of in there.items():
            found = of.get(method)
            if found is None:
                cells.append("—")
                continue
            star = " *" if (place, method) in starred else ""
            cells.append(cell(list(found.tests().values())).replace("0.", ".") + star)
            gains.append(statistics.fmean(paired_differences(found.tests(), of["fedavg"].tests())))
        gain = (
            ""
            if method == "fedavg"
            else f"{statistics.fmean(gains):+.3f}".replace("0.", ".").replace("-", "\N{MINUS SIGN}")
        )
        part = f" ({len(gains)})" if len(gains) < len(there) else ""
        yield f"| `{method}` | {' | '.join(cells)} | {gain}{part} |"


def sentence(there: Mapping[Place, Mapping[str, Chosen]]) -> str:
    """How many comparisons there are, how many have a star with and without the correction, and how many of the chosen
    points lie at an end of their grid."""
    found = chances(there)
    alone = sum(p <= LEVEL for p in found.values())
    edges = [one.edge for of in there.values() for one in of.values()]
    share = 100 * statistics.fmean(edges)
    return (
        f"Of {len(found)} comparisons with `fedavg`, {len(rejected(found))} have a star; {alone} have a 95 % interval "
        f"without 0. {sum(edges)} of {len(edges)} chosen points\n({share:.0f} %) lie at an end of their grid of three, "
        "so that one beyond it may be better."
    )


def page(text: str, runs: Runs, seeds: int = SEEDS) -> str:
    """docs/results/baselines.md with the tables of these runs."""
    methods = sorted(METHODS, key=lambda name: ("fedavg", "local", name).index(name))
    about = text[: text.index("\n## ")].rstrip()
    return "\n".join([about, *(line for at in places(runs) for line in table(runs, at, methods, seeds))]) + "\n"


def renewed(text: str, there: Mapping[Place, Mapping[str, Chosen]]) -> str:
    """docs/findings/baselines.md with the table over all methods, and the sentence below it, of these runs."""
    parts = "\n".join(overview(there)), sentence(there)
    old = re.compile(r"\| method \| Cora, Louvain \|.*?\n\n.*?(?=\n\n)", re.DOTALL)
    found = old.search(text)
    if found is None:
        raise SystemExit("docs/findings/baselines.md has no table that begins with | method | Cora, Louvain |")
    return text[: found.start()] + "\n\n".join(parts) + text[found.end() :]


def main() -> None:
    """Write both pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("docs/results/baselines-runs.csv"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    given = parser.parse_args()
    runs = Runs(given.runs, fixed=True)
    there, main_page = everything(runs), given.docs / "findings" / "baselines.md"
    results = given.docs / "results" / "baselines.md"
    results.write_text(page(results.read_text(), runs))
    main_page.write_text(renewed(main_page.read_text(), there))
    print(sentence(there))


if __name__ == "__main__":
    main()

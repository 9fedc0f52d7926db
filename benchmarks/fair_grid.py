"""Chooses the hyperparameters of `fedweave reproduce f2gnn` on validation nodes, with seed 0.

Every candidate of `f2gnn.GRIDS` is run once. Its score is accuracy / (ΔSP + ΔEO) on all clients' validation nodes in
the fairest round (`metrics.best_rounds.fairest`), if there is a round whose accuracy beats the better constant
prediction and that does not predict one class for nearly everybody; those without come last, by accuracy.
Test nodes are never looked at. The best are printed as entries of `f2gnn.CHOICES`; the runs are kept where the tables'
are, so that none is done twice.

    python -m benchmarks.fair_grid [--datasets NBA German Credit Bail] [--methods F²GNN …] [--out reproduced] [--jobs 2]
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedweave.experiment.config import Document
from fedweave.metrics.best_rounds import FAIREST
from fedweave.papers import grid
from fedweave.papers.f2gnn import GRIDS, OURS, experiment
from fedweave.papers.paper import PaperCell, PaperTable, Quantity
from fedweave.papers.quantities import summary
from fedweave.sweeps.runs import PlannedRun
from fedweave.sweeps.scheduler import Progression, execute

NOTHING_READ = Quantity("", lambda run: None)


@dataclass(frozen=True)
class Candidate:
    """A method's hyperparameters on a data set, and their run."""

    dataset: str
    method: str
    values: Document
    run: PlannedRun


def candidates(datasets: Sequence[str], methods: Sequence[str], out: Path) -> Iterator[Candidate]:
    """All of `GRIDS`, of data at hand."""
    stock = grid.Stock()
    for dataset in datasets:
        for method in methods:
            for values in GRIDS[method]:
                document = experiment(dataset, method, **values)
                table = PaperTable("", (PaperCell("", "", "", document, NOTHING_READ),), 1)
                [planned] = grid.plan(table, out, stock)
                if not planned.runs:
                    raise SystemExit(f"{dataset}, {method}: {planned.status}")
                yield Candidate(dataset, method, values, planned.runs[0])


def rank(found: dict[str, float]) -> tuple[bool, float]:
    """What candidates are compared by: found is {"accuracy", "constant", "gaps", "alike"} on validation nodes."""
    gaps = found.get("gaps", math.nan)
    if not found["accuracy"] > found["constant"] or math.isnan(gaps) or found.get("alike") == 1:
        return False, found["accuracy"]
    return True, found["accuracy"] / gaps if gaps else math.inf


def validated(run: Path) -> dict[str, float]:
    """{"accuracy", "constant", "gaps", "alike"} of a finished run's fairest round on validation nodes, "round"."""
    metrics, prefix = summary(run)["metrics"], f"{FAIREST}/val/"
    found = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
    return found | {"round": metrics[f"{FAIREST}/round"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(OURS), choices=OURS)
    parser.add_argument("--methods", nargs="+", default=list(GRIDS), choices=list(GRIDS))
    parser.add_argument("--out", type=Path, default=Path("reproduced"))
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    console, chosen = Console(), list(candidates(args.datasets, args.methods, args.out))
    runs = {it.run.name: it.run for it in chosen}
    todo = [run for run in runs.values() if not run.finished()]
    with Progression(console, len(runs), len(runs) - len(todo)) as progress:
        failed = execute(todo, args.jobs, progress)
    for name, why in failed.items():
        print(f"{name} failed: {why}")
    _show([it for it in chosen if it.run.name not in failed])


def _show(chosen: Sequence[Candidate]) -> None:
    found = {it.run.name: validated(it.run.directory) for it in chosen}
    print("| data | method | values | round | accuracy | constant | ΔSP + ΔEO | one class for nearly everybody |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | --- |")
    for it in chosen:
        of = found[it.run.name]
        numbers = " | ".join(f"{of.get(name, math.nan):.4f}" for name in ("accuracy", "constant", "gaps"))
        alike = "yes" if of.get("alike") == 1 else "no"
        print(f"| {it.dataset} | {it.method} | {it.values} | {of['round']:.0f} | {numbers} | {alike} |")
    groups = dict.fromkeys((it.method, it.dataset) for it in chosen)
    for group in groups:
        best = max((it for it in chosen if (it.method, it.dataset) == group), key=lambda it: rank(found[it.run.name]))
        print(f"    {group!r}: {best.values},")


if __name__ == "__main__":
    main()

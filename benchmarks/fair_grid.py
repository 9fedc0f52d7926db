"""Chooses the hyperparameters of `fedweave reproduce f2gnn` on validation nodes, with seed 0.

Every candidate of `f2gnn.GRIDS` is run once. Its score is accuracy / (ΔSP + ΔEO) on all clients' validation nodes in
the fairest round (`metrics.best_rounds.fairest`), if there is a round whose accuracy beats the better constant
prediction and that does not predict one class for nearly all nodes; candidates without such a round come last, by
accuracy. Test nodes are not used. A table has a row for each candidate, with these numbers in its fairest round; then
the best are printed as entries of `f2gnn.CHOICES`. The runs are saved with those of the tables, so that no run is
repeated.

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


def rank(scores: dict[str, float]) -> tuple[bool, float]:
    """What candidates are compared by. scores: {"accuracy", "constant", "gaps", "alike"} on validation nodes."""
    gaps = scores.get("gaps", math.nan)
    if not scores["accuracy"] > scores["constant"] or math.isnan(gaps) or scores.get("alike") == 1:
        return False, scores["accuracy"]
    return True, scores["accuracy"] / gaps if gaps else math.inf


def validation_scores(run: Path) -> dict[str, float]:
    """{"accuracy", "constant", "gaps", "alike"} of a finished run's fairest round on validation nodes, "round"."""
    metrics, prefix = summary(run)["metrics"], f"{FAIREST}/val/"
    scores = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
    return scores | {"round": metrics[f"{FAIREST}/round"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(OURS), choices=OURS)
    parser.add_argument("--methods", nargs="+", default=list(GRIDS), choices=list(GRIDS))
    parser.add_argument("--out", type=Path, default=Path("reproduced"))
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    everything = list(candidates(args.datasets, args.methods, args.out))
    runs = {candidate.run.name: candidate.run for candidate in everything}
    todo = [run for run in runs.values() if not run.finished()]
    with Progression(Console(), len(runs), len(runs) - len(todo)) as progress:
        failures = execute(todo, args.jobs, progress)
    for name, reason in failures.items():
        print(f"{name} failed: {reason}")
    print_table([candidate for candidate in everything if candidate.run.name not in failures])


def print_table(complete: Sequence[Candidate]) -> None:
    """A row for each candidate, and the best of each method and data set."""
    best: dict[tuple[str, str], tuple[tuple[bool, float], Document]] = {}
    print("| data | method | values | round | accuracy | constant | ΔSP + ΔEO | one class for nearly all nodes |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | --- |")
    for candidate in complete:
        scores = validation_scores(candidate.run.directory)
        numbers = " | ".join(f"{scores.get(name, math.nan):.4f}" for name in ("accuracy", "constant", "gaps"))
        cells = [candidate.dataset, candidate.method, str(candidate.values), f"{scores['round']:.0f}", numbers]
        print(f"| {' | '.join(cells)} | {'yes' if scores.get('alike') == 1 else 'no'} |")
        group = candidate.method, candidate.dataset
        if group not in best or rank(scores) > best[group][0]:
            best[group] = rank(scores), candidate.values
    for group, (_, values) in best.items():
        print(f"    {group!r}: {values},")


if __name__ == "__main__":
    main()

"""The field's baselines on several data sets and partitions: one table for each, all runs as CSV.

Every method runs at the point of its grid with the best validation score after the last round, of seed 0 or of
`--tune` seeds. Columns: this point; the test score after the last round of the models that clients use on their own
nodes; its paired differences to FedAvg and to local training with half of their 95 % intervals (Student's t over
seeds); the test score of the global model; seconds of a round divided by FedAvg's; kB that a client sends and receives
in a round. Each seed draws one partition and one start for all methods.

A run that is in the CSV already is not done again, so an interrupted table continues; `commit` is the code of each run
(for rows made before that column, the commit that added them). Where a change of code moves numbers, delete the rows
that it moves. `python -m benchmarks.baselines_page` makes the pages. Methods that need SGD are also compared with
FedAvg by SGD (`fedavg_sgd`), because otherwise the difference would be that of the optimizers.

    python -m benchmarks.baselines_table [--sets cora chameleon-filtered] [--cuts louvain] [--methods fedavg local …]
        [--seeds 3] [--tune 1] [--rounds 60] [--device cuda] [--out DIR]
"""

import argparse
import csv
import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common import commit, mean_half_width
from fedweave.errors import FedweaveError, UserError
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.reports.paired import paired_differences

Grid = Sequence[Mapping[str, Any]]


def rates(*values: float, names: Sequence[str] = ("lr",)) -> Grid:
    """A grid of learning rates."""
    return [dict.fromkeys(names, value) for value in values]


ADAM, SGD = rates(0.003, 0.01, 0.03), rates(0.1, 0.3, 1.0)
# {name: (algorithm, settings, grid)}
METHODS: dict[str, tuple[str, dict[str, Any], Grid]] = {
    "local": ("local", {}, ADAM),
    "fedavg": ("fedavg", {}, ADAM),
    "fedavg_sgd": ("fedavg", {"optimizer": "sgd"}, SGD),
    "fedprox": ("fedprox", {}, ADAM),
    "scaffold": ("scaffold", {}, SGD),
    "feddyn": ("feddyn", {}, rates(0.01, 0.03, 0.1)),
    "feddc": ("feddc", {}, rates(0.01, 0.03, 0.1)),
    "fednova": ("fednova", {}, rates(0.03, 0.1, 0.3)),
    "moon": ("moon", {}, ADAM),
    "fedproto": ("fedproto", {}, ADAM),
    "fedavg_ft": ("fedavg_ft", {}, ADAM),
    "fedper": ("fedper", {}, ADAM),
    "fedrep": ("fedrep", {}, ADAM),
    "ditto": ("ditto", {}, ADAM),
    "apfl": ("apfl", {}, ADAM),
    "pfedme": ("pfedme", {}, rates(0.03, 0.1, 0.3)),
    "graphfl": ("graphfl", {}, rates(0.03, 0.1, 0.3)),
    "perfedavg": ("graphfl", {"server": "sgd", "meta_steps": 3}, rates(0.1, 0.3, 1.0, names=("meta_lr", "server_lr"))),
    "fedpub": ("fedpub", {}, ADAM),
    "fedgta": ("fedgta", {}, ADAM),
    "fedtgp": ("fedtgp", {}, ADAM),
    "fedtad": ("fedtad", {}, ADAM),
    "adafgl": ("adafgl", {}, ADAM),
    "fgssl": ("fgssl", {}, ADAM),
    "fggp": ("fggp", {}, ADAM),
    "fedaux": ("fedaux", {}, ADAM),
    "feddep": ("feddep", {}, ADAM),
}
MINORITIES = {"minesweeper": "auc"}  # the metric where one class is rare; accuracy elsewhere
CUTS: dict[str, dict[str, Any]] = {"louvain": {}, "dirichlet": {"alpha": 0.5}, "metis": {}}
KEYS = ("set", "cut", "clients", "rounds", "method", "settings", "seed")
MEASURED = ("val", "test", "global", "trained", "seconds", "bytes_up", "bytes_down", "failed")
COLUMNS = (*KEYS, *MEASURED, "commit")


def data_section(name: str) -> dict[str, Any]:
    """A registered set, or a file NAME/NAME.npz in the folder of data."""
    file = Path(os.environ.get("FEDWEAVE_DATA", "../shared/data")) / name / f"{name}.npz"
    try:
        resolve({"data": {"name": name}})
    except UserError:
        return {"name": "npz", "path": str(file.resolve())}
    return {"name": name}


def run(key: Mapping[str, Any], device: str = "cpu") -> dict[str, Any]:
    """What one run measures; `failed` says why there is nothing."""
    algorithm, settings, _ = METHODS[key["method"]]
    document = {
        "seed": key["seed"],
        "rounds": key["rounds"],
        "data": data_section(key["set"]),
        "partition": {"name": key["cut"], "clients": key["clients"], **CUTS[key["cut"]]},
        "model": {"name": "gcn"},
        "engine": {"device": device},
        "algorithm": {"name": algorithm, **settings, **json.loads(key["settings"])},
    }
    metric, seconds = MINORITIES.get(key["set"], "accuracy"), []
    try:
        built = build(resolve(document))
        began = time.perf_counter()
        for step in train(built.algorithm, built.fed, key["rounds"], eval_every=0):
            now, last = time.perf_counter(), step
            seconds.append(now - began)
            began = now
    except FedweaveError as error:  # not supported, or diverged
        return {"failed": str(error)}
    ledger, calls = built.fed.ledger, key["rounds"] * key["clients"]
    return {
        "val": statistics.fmean(last.of_clients(metric, "val").values()),
        "test": statistics.fmean(last.of_clients(metric).values()),
        "global": last.summary.get(f"global/{metric}"),
        "trained": last.summary.get(f"trained/{metric}"),
        "seconds": statistics.median(seconds[2:-1] or seconds),  # the last one's holds the evaluation
        "bytes_up": ledger.bytes_up / calls,
        "bytes_down": ledger.bytes_down / calls,
    }


class Runs:
    """All runs, as rows of a CSV file to which each is added when it ends.

    fixed: nothing is run; what the file does not have is absent.
    """

    def __init__(self, file: Path, device: str = "cpu", fixed: bool = False) -> None:
        self._file, self._device, self._fixed, self._commit = file, device, fixed, commit()
        self._rows: dict[tuple[str, ...], dict[str, Any]] = {}
        if file.exists() or fixed:
            with file.open(newline="") as lines:
                rows = csv.DictReader(lines)
                if tuple(rows.fieldnames or ()) != COLUMNS:
                    raise UserError(f"{file}: the columns are not {', '.join(COLUMNS)}. Take another --out.")
                self._rows = {tuple(row[key] for key in KEYS): _measures(row) for row in rows}
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("w", newline="") as lines:
                csv.writer(lines, lineterminator="\n").writerow(COLUMNS)

    def cells(self) -> list[dict[str, Any]]:
        """{"set", "cut", "clients", "rounds"} of every table that there are runs of, in the order of the file."""
        found = dict.fromkeys(row[:4] for row in self._rows)
        return [{"set": name, "cut": cut, "clients": int(n), "rounds": int(rounds)} for name, cut, n, rounds in found]

    def of(self, **key: Any) -> dict[str, Any] | None:
        """A run's measures and its commit, those of the file or of a run that is made now; None of an absent run."""
        name = tuple(str(key[one]) for one in KEYS)
        if name not in self._rows and not self._fixed:
            found = dict.fromkeys(MEASURED, "") | run(key, self._device) | {"commit": self._commit}
            self._rows[name] = found
            with self._file.open("a", newline="") as lines:
                csv.writer(lines, lineterminator="\n").writerow((*name, *found.values()))
            print(*name, found["failed"] or f"val {found['val']:.4f} test {found['test']:.4f}", flush=True)
        return self._rows.get(name)


def _measures(row: Mapping[str, str]) -> dict[str, Any]:
    measures: dict[str, Any] = {}
    for name in (*MEASURED, "commit"):
        is_text = name in ("failed", "commit") or not row[name]
        measures[name] = row[name] if is_text else float(row[name])
    return measures


@dataclass(frozen=True)
class Choice:
    """A method on one data set and cut: the point of its grid, {seed: measures} of its runs there, `edge` whether that
    point is the first or the last of three or more; `failed` says why there is nothing."""

    settings: str
    runs: dict[int, dict[str, Any]]
    edge: bool = False
    failed: str = ""

    def tests(self) -> dict[int, float]:
        """{seed: the test score}."""
        return {seed: one["test"] for seed, one in self.runs.items()}

    def commits(self) -> list[str]:
        """Of which code the runs are."""
        return list(dict.fromkeys(one["commit"] for one in self.runs.values()))


def choose(runs: Runs, where: Mapping[str, Any], method: str, seeds: int, tune: int = 1) -> Choice | None:
    """The method at the point that is best on validation examples of the first `tune` seeds, of equal ones the first;
    None where runs that this needs are absent."""
    points = [json.dumps(values) for values in METHODS[method][2]]
    validation: dict[str, float] = {}  # of the points at which no run failed
    failures = []
    for point in points:
        tried = [runs.of(**where, method=method, settings=point, seed=seed) for seed in range(tune)]
        measured = [run for run in tried if run is not None]
        if len(measured) < tune:
            return None
        if any(run["failed"] for run in measured):
            failures.append(measured[0]["failed"])
        else:
            validation[point] = statistics.fmean(run["val"] for run in measured)
    if not validation:
        return Choice("", {}, failed=failures[0])
    best = max(validation, key=validation.__getitem__)
    completed = {}
    for seed in range(seeds):
        run = runs.of(**where, method=method, settings=best, seed=seed)
        if run is None:
            return None
        if not run["failed"]:
            completed[seed] = run
    return Choice(best, completed, edge=len(points) > 2 and best in (points[0], points[-1]))


HEAD = "method", "chosen", "clients' models", "to fedavg", "to local", "global", "s / fedavg's", "kB up", "kB down"


def table(runs: Runs, where: dict[str, Any], methods: Sequence[str], seeds: int, tune: int = 1) -> Iterator[str]:
    """The lines of one set's table on one cut."""
    metric = metric_of(where)
    yield f"\n## {where['set']}, {where['cut']}, {where['clients']} clients, {where['rounds']} rounds, {metric}\n"
    yield f"| {' | '.join((*HEAD, 'commit'))} |"
    yield f"|{' --- |' * (len(HEAD) + 1)}"
    for columns in cells(runs, where, methods, seeds, tune):
        yield f"| {' | '.join((f'`{columns[0]}`', *columns[1:]))} |"


def metric_of(where: Mapping[str, Any]) -> str:
    """The metric of a data set."""
    return MINORITIES.get(where["set"], "accuracy")


def cells(runs: Runs, where: dict[str, Any], methods: Sequence[str], seeds: int, tune: int = 1) -> Iterator[list[str]]:
    """What stands under `HEAD` and "commit" for each method that was run on one set's cut."""
    tests: dict[str, dict[int, float]] = {}
    fedavg_seconds = 0.0
    for method in methods:
        choice = choose(runs, where, method, seeds, tune)
        if choice is None:
            continue
        if choice.failed:
            yield [method, "—", choice.failed, *[""] * (len(HEAD) - 2)]
            continue
        tests[method] = choice.tests()
        rows = list(choice.runs.values())
        seconds, up, down = (
            statistics.median(run[key] for run in rows) for key in ("seconds", "bytes_up", "bytes_down")
        )
        if method == "fedavg":
            fedavg_seconds = seconds
        differences = []
        for reference in ("fedavg", "local"):
            if reference in tests and reference != method:
                paired = paired_differences(tests[method], tests[reference])
                differences.append(mean_half_width(paired))
            else:
                differences.append("")
        global_scores = [run["global"] for run in rows if run["global"] not in (None, "")]
        yield [
            method,
            ", ".join(f"{key} {value}" for key, value in json.loads(choice.settings).items()),
            mean_half_width(list(tests[method].values()), ".3f"),
            *differences,
            mean_half_width(global_scores, ".3f") if global_scores else "",
            f"{seconds / fedavg_seconds:.1f}" if fedavg_seconds else "",
            f"{up / 1000:.0f}",
            f"{down / 1000:.0f}",
            ", ".join(choice.commits()),
        ]


def main() -> None:
    """Print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["cora", "chameleon-filtered"])
    parser.add_argument("--cuts", nargs="+", default=["louvain"], choices=CUTS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tune", type=int, default=1, help="seeds by whose validation a point is chosen")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("runs/baselines"))
    parser.add_argument("--device", default="cpu", help="as [engine] device")
    args = parser.parse_args()
    args.methods.sort(key=lambda method: ("fedavg", "local", method).index(method))  # the references first
    runs, lines = Runs(args.out / "runs.csv", args.device), []
    for name, cut in product(args.sets, args.cuts):
        where = {"set": name, "cut": cut, "clients": args.clients, "rounds": args.rounds}
        for line in table(runs, where, args.methods, args.seeds, args.tune):
            lines.append(line)
            print(line, flush=True)
    (args.out / "table.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

"""The field's baselines on several data sets and cuts: one table for each, all runs as CSV.

Every method runs at the point of its grid with the best validation score after the last round, of seed 0 or of
`--tune` seeds; the table shows tests after the last round, of the models that clients use on their own nodes. Seeds are
paired: each draws one cut and one start for all methods; differences to FedAvg and to local training have 95 %
intervals (Student's t over seeds). A run that is in the CSV already is not done again, so an interrupted table goes on;
`commit` says of which code each is (for rows made before that column, with which commit they came here). Where a
change of code moves numbers, delete the rows that it moves. `python -m benchmarks.baselines_page` makes the pages.
Methods of SGD are compared with FedAvg by SGD, too (`fedavg_sgd`): what differs otherwise is the optimizer.

    python -m benchmarks.baselines_table [--sets cora chameleon-filtered] [--cuts louvain] [--methods fedavg local …]
        [--seeds 3] [--tune 1] [--rounds 60] [--device cuda] [--out DIR]
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import fedweave
from fedweave.errors import FedweaveError, UserError
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.reports.paired import interval, paired_differences

Grid = Sequence[Mapping[str, Any]]


def rates(*values: float, names: Sequence[str] = ("lr",)) -> Grid:
    """A grid of learning rates."""
    return [dict.fromkeys(names, value) for value in values]


ADAM, SGD = rates(0.003, 0.01, 0.03), rates(0.1, 0.3, 1.0)
# {name: (algorithm, settings, what is tried)}
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
MINORITIES = {"minesweeper": "auc"}  # what is judged where one class is rare; accuracy elsewhere
CUTS: dict[str, dict[str, Any]] = {"louvain": {}, "dirichlet": {"alpha": 0.5}, "metis": {}}
KEYS = ("set", "cut", "clients", "rounds", "method", "settings", "seed")
MEASURED = ("val", "test", "global", "trained", "seconds", "bytes_up", "bytes_down", "failed")
COLUMNS = (*KEYS, *MEASURED, "commit")


def data(name: str) -> dict[str, Any]:
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
        "data": data(key["set"]),
        "partition": {"name": key["cut"], "clients": key["clients"], **CUTS[key["cut"]]},
        "model": {"name": "gcn"},
        "engine": {"device": device},
        "algorithm": {"name": algorithm, **settings, **json.loads(key["settings"])},
    }
    metric, seconds = MINORITIES.get(key["set"], "accuracy"), []
    try:
        built = build(resolve(document))
        at = time.perf_counter()
        for step in train(built.algorithm, built.fed, key["rounds"], eval_every=0):
            now, last = time.perf_counter(), step
            seconds.append(now - at)
            at = now
    except FedweaveError as error:  # refused, or diverged
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


def commit() -> str:
    """The commit of the checkout that fedweave is imported from, with a + where its files differ from that; "" outside
    of a checkout."""

    def git(*words: str) -> str:
        asked = ["git", "-C", str(Path(fedweave.__file__).parent), *words]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
    return git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")


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
    words = ("failed", "commit")
    return {name: row[name] if name in words or not row[name] else float(row[name]) for name in COLUMNS[len(KEYS) :]}


@dataclass(frozen=True)
class Chosen:
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


def chosen(runs: Runs, where: Mapping[str, Any], method: str, seeds: int, tune: int = 1) -> Chosen | None:
    """The method at the point that is best on validation examples of the first `tune` seeds, of equal ones the first;
    None where runs that this needs are absent."""
    points = [json.dumps(at) for at in METHODS[method][2]]
    tried = {at: [runs.of(**where, method=method, settings=at, seed=seed) for seed in range(tune)] for at in points}
    if any(one is None for found in tried.values() for one in found):
        return None
    there = {at: [one for one in found if one is not None] for at, found in tried.items()}
    sound = {at: found for at, found in there.items() if not any(one["failed"] for one in found)}
    if not sound:
        return Chosen("", {}, failed=there[points[0]][0]["failed"])
    best = max(sound, key=lambda at: statistics.fmean(one["val"] for one in sound[at]))
    all_of = {seed: runs.of(**where, method=method, settings=best, seed=seed) for seed in range(seeds)}
    if any(one is None for one in all_of.values()):
        return None
    ended = {seed: one for seed, one in all_of.items() if one is not None and not one["failed"]}
    return Chosen(best, ended, edge=len(points) > 2 and best in (points[0], points[-1]))


def cell(values: Sequence[float], sign: str = "") -> str:
    """Mean and half of the 95 % interval, or the mean alone of one value."""
    low, high = interval(values)
    return f"{statistics.fmean(values):{sign}.3f}" + ("" if low is None else f" ± {(high - low) / 2:.3f}")


def table(runs: Runs, where: dict[str, Any], methods: Sequence[str], seeds: int, tune: int = 1) -> Iterator[str]:
    """The lines of one set's table on one cut."""
    metric = MINORITIES.get(where["set"], "accuracy")
    yield f"\n## {where['set']}, {where['cut']}, {where['clients']} clients, {where['rounds']} rounds, {metric}\n"
    head = "method", "chosen", "clients' models", "to fedavg", "to local", "global", "s / fedavg's", "kB up", "kB down"
    yield f"| {' | '.join((*head, 'commit'))} |"
    yield f"|{' --- |' * (len(head) + 1)}"
    ends: dict[str, dict[int, float]] = {}
    pace = 0.0
    for method in methods:
        found = chosen(runs, where, method, seeds, tune)
        if found is None or found.failed:
            if found:
                yield f"| `{method}` | — | {found.failed} |{' |' * (len(head) - 2)}"
            continue
        ends[method] = found.tests()
        ended = list(found.runs.values())
        seconds, up, down = (
            statistics.median(one[key] for one in ended) for key in ("seconds", "bytes_up", "bytes_down")
        )
        pace = seconds if method == "fedavg" else pace
        away = [
            cell(paired_differences(ends[method], ends[other]), "+") if other in ends and other != method else ""
            for other in ("fedavg", "local")
        ]
        whole = [one["global"] for one in ended if one["global"] not in (None, "")]
        columns = (
            f"`{method}`", ", ".join(f"{k} {v}" for k, v in json.loads(found.settings).items()),
            cell(list(ends[method].values())), *away, cell(whole) if whole else "",
            f"{seconds / pace:.1f}" if pace else "", f"{up / 1000:.0f}", f"{down / 1000:.0f}",
            ", ".join(found.commits()),
        )  # fmt: skip
        yield f"| {' | '.join(columns)} |"


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
    given = parser.parse_args()
    given.methods.sort(
        key=lambda method: ("fedavg", "local", method).index(method)
    )  # those that others are held against
    runs, lines = Runs(given.out / "runs.csv", given.device), []
    for name, cut in product(given.sets, given.cuts):
        where = {"set": name, "cut": cut, "clients": given.clients, "rounds": given.rounds}
        for line in table(runs, where, given.methods, given.seeds, given.tune):
            lines.append(line)
            print(line, flush=True)
    (given.out / "table.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

"""What this machine needs: one command for a CPU and one for a GPU.

    python -m benchmarks [--write]      # a CPU, one thread, processor time
    python -m benchmarks --gpu          # a GPU: its tests, then `benchmarks.gpu`

It prints a page with machine, commit and date; --write puts it into benchmarks/README.md, below "Last results".
"""

import argparse
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import date
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow.parquet import read_metadata

from benchmarks.gpu import commit
from benchmarks.simulation import in_turns, sides_of
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.run import run

PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- results of python -m benchmarks -->\n", "<!-- end of results -->\n"
OURS, LEAN, PYG = "fedweave, vmap", "lean loop, sparse and fused", "plain PyG loop"
GOALS = {(10, PYG): 6, (100, PYG): 16, (10, LEAN): 2, (100, LEAN): 5}  # times as fast as the loop
MANY = 1_000_000  # rounds, of which some are made
MODELS = {"gcn": 64, "gat": 8, "pna": 64}  # hidden columns; 8 heads of 8 columns are as wide as the others
CLIENTS = {"data": {"name": "synthetic", "features": 32, "degree": 4.0}, "partition": {"name": "random"}}


def loops(rounds: int, turns: int) -> Iterator[str]:
    """FedAvg on Cora compared with two loops over clients."""
    yield "| clients of Cora | fedweave, s per round | loop | s per round | times as fast | goal |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for clients in (10, 100):
        sides, _ = sides_of(clients, rounds, torch.device("cpu"))
        times = in_turns({name: sides[name] for name in (OURS, LEAN, PYG)}, turns)
        ours = median(times[OURS])
        for name in (LEAN, PYG):
            ratio, goal = median(times[name]) / ours, GOALS[clients, name]
            both = f"{_spread(times[OURS])} | {name} | {_spread(times[name])}"
            yield f"| {clients} | {both} | {ratio:.1f} | {goal}, {'met' if ratio >= goal else 'missed'} |"


def _spread(seconds: list[float]) -> str:
    low, high = np.quantile(seconds, [0.1, 0.9])
    return f"{median(seconds):.4f} ({low:.4f} to {high:.4f})"


def models(rounds: int) -> Iterator[str]:
    """Training rounds of models of one width, in turns: 100 clients of 50 nodes."""
    yield "| 100 clients of 50 nodes | s per round, no evaluation | times a gcn |"
    yield "| --- | --- | --- |"
    going = {name: _rounds(100, {"name": name, "hidden": hidden}) for name, hidden in MODELS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in MODELS}
    for number in range(rounds):
        for name, steps in going.items():
            began = time.process_time()
            next(steps)
            if number >= 4:  # steps are recorded by then
                seconds[name].append(time.process_time() - began)
    for name, taken in seconds.items():
        yield f"| {name} | {_spread(taken)} | {median(taken) / median(seconds['gcn']):.1f} |"


def scale(rounds: int) -> Iterator[str]:
    """Many clients, each called and evaluated in every round."""
    yield "| clients of 50 nodes | s per round, evaluated | µs per client |"
    yield "| --- | --- | --- |"
    for clients in (300, 1_000):
        steps, taken = _rounds(clients, {"name": "gcn", "hidden": 64}, 1), list[float]()
        last = time.process_time()
        for _ in islice(steps, rounds):
            now = time.process_time()
            taken.append(now - last)
            last = now
        yield f"| {clients:,} | {_spread(taken[4:])} | {1e6 * median(taken[4:]) / clients:.0f} |"


def _rounds(clients: int, model: dict[str, Any], eval_every: int = 0) -> Iterator[object]:
    built = build(resolve(_document(clients, model)))
    return train(built.algorithm, built.fed, MANY, eval_every=eval_every)


def _document(clients: int, model: dict[str, Any], **settings: Any) -> dict[str, Any]:
    data, partition = CLIENTS["data"] | {"nodes": 50 * clients}, CLIENTS["partition"] | {"clients": clients}
    common = {"algorithm": {"name": "fedavg"}, "engine": {"threads": 1, "checkpoint_seconds": 1.0}}
    return {"data": data, "partition": partition, "model": model, **common, **settings}


def memory(rounds: int) -> Iterator[str]:
    """Memory that rows of metrics and of the ledger take while a run goes on."""
    yield "| rounds of 300 clients, evaluated | MB of rows in memory | rows of metrics | rows of the ledger |"
    yield "| --- | --- | --- | --- |"
    with TemporaryDirectory() as folder:
        for count in (rounds, 2 * rounds):
            watched = _Watched()
            settings = resolve(_document(300, {"name": "gcn", "hidden": 4}, rounds=count))
            run(settings, Path(folder) / f"{count}", watched)
            rows = [read_metadata(Path(folder) / f"{count}/{name}.parquet") for name in ("metrics", "ledger")]
            yield f"| {count} | {watched.most / 1e6:.1f} | {rows[0].num_rows:,} | {rows[1].num_rows:,} |"


class _Watched:
    """Notes the most bytes of Arrow tables after a round."""

    most = 0

    def begin(self, *_: object) -> None:
        """Nothing."""

    def step(self, _: object) -> None:
        """Note them."""
        self.most = max(self.most, pa.total_allocated_bytes())

    def stopping(self, _: int) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


def commands(times: int) -> Iterator[str]:
    """Processor time of whole commands, whose modules were compiled before."""
    yield "| command | processor seconds |"
    yield "| --- | --- |"
    root = PAGE.parents[1]
    with TemporaryDirectory() as folder:
        few = [
            "run",
            "experiments/digits.toml",
            "--quiet",
            "--overwrite",
            "--set",
            "rounds=3",
            "--out",
            f"{folder}/run",
        ]
        surrounding = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        surrounding |= {"PYTHONPYCACHEPREFIX": f"{folder}/compiled", "OMP_NUM_THREADS": "1"}
        for shown, words in (
            ("python -c 'import torch'", ["-c", "import torch"]),
            ("fedweave --help", ["-m", "fedweave", "--help"]),
            ("fedweave list algorithms", ["-m", "fedweave", "list", "algorithms"]),
            ("fedweave check experiments/digits.toml", ["-m", "fedweave", "check", "experiments/digits.toml"]),
            ("fedweave run experiments/digits.toml --set rounds=3", ["-m", "fedweave", *few]),
        ):
            taken = []
            for _ in range(times + 1):
                before = _of_children()
                subprocess.run([sys.executable, *words], env=surrounding, cwd=root, check=True, capture_output=True)
                taken.append(_of_children() - before)
            yield f"| `{shown}` | {median(taken[1:]):.1f} |"


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def processor() -> str:
    """The name of this machine's processor."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(errors="replace").splitlines() if about.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def measured() -> Iterator[str]:
    """The lines of the page."""
    load = os.getloadavg()[0]
    yield (
        f"{processor()}, {os.cpu_count()} cores, load {load:.0f} at the beginning; Python {platform.python_version()}, "
        f"torch {torch.__version__}; commit {commit()}, {date.today().isoformat()}. Processor time, one thread, "
        "medians, in brackets the 10 % and 90 % quantiles."
    )
    for part in (loops(14, 2), models(16), scale(10), memory(100), commands(2)):
        yield ""
        yield from part
    yield ""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="measure a GPU instead")
    parser.add_argument("--write", action="store_true", help="put the results into benchmarks/README.md")
    given = parser.parse_args()
    if given.gpu:
        tests = [sys.executable, "-m", "pytest", "-q", "-rs", "tests/test_gpu.py"]
        sys.exit(
            subprocess.run(tests).returncode or subprocess.run([sys.executable, "-m", "benchmarks.gpu"]).returncode
        )
    torch.set_num_threads(1)
    lines = []
    for line in measured():
        print(line, flush=True)
        lines.append(f"{line}\n")
    if given.write:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{''.join(lines)}{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()

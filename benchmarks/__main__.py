"""What this machine needs: one command for a CPU and one for a GPU.

    python -m benchmarks [--write]      # a CPU, one thread, processor time
    python -m benchmarks --gpu          # a GPU: its tests, then `benchmarks.gpu`

It prints a page with machine, commit and date; --write puts it into benchmarks/README.md, below "Last results".
"""

import argparse
import os
import platform
import resource
import shlex
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

import pyarrow as pa
import torch
from pyarrow.parquet import read_metadata

from benchmarks.common import MANY_ROUNDS, commit, durations, in_turns, median_quantiles
from benchmarks.simulation import sides_of
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.run import run
from fedweave.python.training import Silent

PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- results of python -m benchmarks -->\n", "<!-- end of results -->\n"
OURS, LEAN, PYG = "fedweave, vmap", "lean loop, sparse and fused", "plain PyG loop"
GOALS = {(10, PYG): 6, (100, PYG): 16, (10, LEAN): 2, (100, LEAN): 5}  # times as fast as the loop
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
            both = f"{median_quantiles(times[OURS])} | {name} | {median_quantiles(times[name])}"
            yield f"| {clients} | {both} | {ratio:.1f} | {goal}, {'met' if ratio >= goal else 'missed'} |"


def models(rounds: int) -> Iterator[str]:
    """Training rounds of models of one width, in turns: 100 clients of 50 nodes."""
    yield "| 100 clients of 50 nodes | s per round, no evaluation | times a gcn |"
    yield "| --- | --- | --- |"
    trainings = {name: _rounds(100, {"name": name, "hidden": hidden}) for name, hidden in MODELS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in MODELS}
    for number in range(rounds):
        for name, steps in trainings.items():
            began = time.process_time()
            next(steps)
            if number >= 4:  # steps are recorded by then
                seconds[name].append(time.process_time() - began)
    for name, times in seconds.items():
        yield f"| {name} | {median_quantiles(times)} | {median(times) / median(seconds['gcn']):.1f} |"


def scale(rounds: int) -> Iterator[str]:
    """Many clients, each called and evaluated in every round."""
    yield "| clients of 50 nodes | s per round, evaluated | µs per client |"
    yield "| --- | --- | --- |"
    for clients in (300, 1_000):
        steps = _rounds(clients, {"name": "gcn", "hidden": 64}, 1)
        times = list(durations(islice(steps, rounds)))[4:]
        yield f"| {clients:,} | {median_quantiles(times)} | {1e6 * median(times) / clients:.0f} |"


def _rounds(clients: int, model: dict[str, Any], eval_every: int = 0) -> Iterator[object]:
    built = build(resolve(_document(clients, model)))
    return train(built.algorithm, built.fed, MANY_ROUNDS, eval_every=eval_every)


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
            observer, out = _ArrowMemory(), Path(folder) / f"{count}"
            run(resolve(_document(300, {"name": "gcn", "hidden": 4}, rounds=count)), out, observer)
            metrics, ledger = (read_metadata(out / f"{name}.parquet").num_rows for name in ("metrics", "ledger"))
            yield f"| {count} | {observer.max_bytes / 1e6:.1f} | {metrics:,} | {ledger:,} |"


class _ArrowMemory(Silent):
    """Records the largest memory of Arrow tables after a round."""

    max_bytes = 0

    def step(self, reached: object) -> None:
        self.max_bytes = max(self.max_bytes, pa.total_allocated_bytes())


def commands(times: int) -> Iterator[str]:
    """Processor time of whole commands, whose modules were compiled before."""
    yield "| command | processor seconds |"
    yield "| --- | --- |"
    root = PAGE.parents[1]
    with TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"PYTHONPYCACHEPREFIX": f"{folder}/compiled", "OMP_NUM_THREADS": "1"}
        for command, options in (
            ("python -c 'import torch'", []),
            ("fedweave --help", []),
            ("fedweave list algorithms", []),
            ("fedweave check experiments/digits.toml", []),
            (
                "fedweave run experiments/digits.toml --set rounds=3",
                ["--quiet", "--out", f"{folder}/run", "--overwrite"],
            ),
        ):
            words = shlex.split(command.replace("fedweave ", "python -m fedweave ", 1))[1:] + options
            seconds = []
            for _ in range(times + 1):
                before = _children_seconds()
                subprocess.run([sys.executable, *words], env=environment, cwd=root, check=True, capture_output=True)
                seconds.append(_children_seconds() - before)
            yield f"| `{command}` | {median(seconds[1:]):.1f} |"


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def processor() -> str:
    """The name of this machine's processor."""
    path = Path("/proc/cpuinfo")
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


def page_lines() -> Iterator[str]:
    """Measure, and give the lines of the page."""
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
    args = parser.parse_args()
    if args.gpu:
        tests = [sys.executable, "-m", "pytest", "-q", "-rs", "tests/test_gpu.py"]
        status = subprocess.run(tests).returncode
        sys.exit(status or subprocess.run([sys.executable, "-m", "benchmarks.gpu"]).returncode)
    torch.set_num_threads(1)
    lines = []
    for line in page_lines():
        print(line, flush=True)
        lines.append(f"{line}\n")
    if args.write:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{''.join(lines)}{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()

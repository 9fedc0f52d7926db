"""FedAvg by real sites of which one is killed every 20 rounds, against undisturbed simulations of the same experiment.

    python -m benchmarks.load [--rounds 200] [--every 20] [--seeds 5] [--out FILE.json]

Three sites have Cora (experiments/fedavg-cora.toml), each as a process on loopback. Every 20 rounds, or as soon
afterwards as all sites take part again, a random site's processes are ended by SIGKILL and started again. Printed are
the mean local test accuracy of the disturbed and the undisturbed runs, the kills as (round, site), the rounds that the
site missed after each, the rounds in which metrics.parquet reports each site as missing, and what the ledger has of the
training replies (`ledger_replies`).
"""

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import EXPERIMENTS, last_round
from benchmarks.flare import running_project
from fedweave.experiment.config import Config, read, resolve
from fedweave.experiment.runs.files import LEDGER, METRICS, read_table
from fedweave.sites.flare.journal import entries, journal_path
from fedweave.sites.flare.provision import provision
from fedweave.sites.operation.experiments import hand_out, split
from fedweave.sites.operation.processes import SiteProcess, descendants, free_port
from fedweave.sites.operation.project import Project
from fedweave.sites.operation.running import RUN, run

SITES, STEP = ("bank-a", "bank-b", "bank-c"), "FedAvg.train"
ENGINE = {"name": "flare", "threads": 1, "quorum": 0.6, "rejoin_seconds": 0.0}


@dataclass
class Reaper:
    """Watches a run, and kills a random site each time that `every` more rounds are done and no site is lost.

    kills: (round, site) of the kills so far.
    """

    project: Path
    sites: tuple[str, ...]
    every: int
    generator: np.random.Generator
    kills: list[tuple[int, str]] = field(default_factory=list)
    _due: int = 0

    def __call__(self, now: dict[str, Any]) -> None:
        self._due = self._due or self.every
        if now["status"] != "running" or now["lost"] or not self._due <= now["round"] < now["rounds"]:
            return
        site = SiteProcess(self.project / str(self.generator.choice(self.sites)))
        kill(site)
        site.start(threads=1)
        self.kills.append((now["round"], site.folder.name))
        self._due += self.every


def kill(member: SiteProcess) -> None:
    """End a member's processes as a power cut does, and wait until they are gone."""
    pid = member.pid()
    for number in [] if pid is None else [pid, *descendants(pid)]:
        os.kill(number, signal.SIGKILL)
    while member.pid() is not None:
        time.sleep(0.01)


def simulate(config: Config) -> float:
    """Mean over clients of the test accuracy at the end of an undisturbed run."""
    document = {**config.plain(), "engine": {"name": "simulation", "mode": "loop", "threads": 1}}
    return last_round(document, config.general.rounds)[1].summary["local/accuracy"]


def missing_rounds(directory: Path) -> dict[str, list[int]]:
    """{site: the rounds in which metrics.parquet reports it as missing}."""
    result: dict[str, list[int]] = {}
    for row in read_table(directory, METRICS).to_pylist():
        if row["metric"] == "missing":
            result.setdefault(row["client"], []).append(row["round"])
    return result


def ledger_replies(directory: Path, project: Path, rounds: int) -> dict[str, Any]:
    """What the ledger has of the training replies: how many of each site, `absent` rounds without any, and those that
    are `unsent` by the site's local ledger."""
    run_number = json.loads((directory / RUN).read_text())["run"]
    received, sent = set(), set()
    for row in read_table(directory, LEDGER).to_pylist():
        if row["step"] == STEP and row["direction"] == "up":
            received.add((row["client"], row["round"]))
    for site in SITES:
        for entry in entries(journal_path(project / site, run_number)):
            if entry.step == STEP:
                sent.add((site, entry.round))
    return {
        "replies": Counter(site for site, _ in received),
        "absent": sorted({*range(1, rounds + 1)} - {round for _, round in received}),
        "unsent": sorted(received - sent),
    }


def measure(rounds: int, every: int, seeds: int, directory: Path) -> dict[str, Any]:
    """One disturbed run of seed 0, and undisturbed ones of all seeds."""
    settings = [f"partition.clients={len(SITES)}", f"rounds={rounds}"]
    configs = [read(EXPERIMENTS / "fedavg-cora.toml", [*settings, f"seed={seed}"])[0] for seed in range(seeds)]
    config = resolve({**configs[0].plain(), "engine": ENGINE})
    project, about = directory / "project", Project(SITES, "localhost", free_port())
    provision(project, SITES, about.host, about.port)
    about.save(project)
    hand_out(*split(config, SITES), project, SITES)
    reaper, began = Reaper(project, SITES, every, np.random.default_rng(0)), time.monotonic()
    with running_project(project):
        summary = run(config, project, directory / "out", False, reaper)
    seconds = time.monotonic() - began
    missing, missed = missing_rounds(directory / "out"), []
    for (at, site), (until, _) in pairwise([*reaper.kills, (rounds, "")]):
        missed.append(sum(at < round <= until for round in missing.get(site, [])))
    undisturbed = [simulate(config_of_seed) for config_of_seed in configs]
    return {
        "rounds": rounds,
        "seconds": seconds,
        "kills": reaper.kills,
        "missing": missing,
        "missed": missed,
        "ledger": ledger_replies(directory / "out", project, rounds),
        "disturbed": summary["metrics"]["local/accuracy"],
        "undisturbed": undisturbed,
        "mean": statistics.mean(undisturbed),
        "deviation": statistics.stdev(undisturbed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        result = measure(args.rounds, args.every, args.seeds, Path(scratch))
    print(
        f"accuracy {result['disturbed']:.4f}, undisturbed {result['mean']:.4f} ± {result['deviation']:.4f} "
        f"{[round(accuracy, 4) for accuracy in result['undisturbed']]}\n"
        f"kills {result['kills']}, rounds missed after each {result['missed']}, reported {result['missing']}\n"
        f"ledger {result['ledger']}, {result['seconds']:.0f} s"
    )
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

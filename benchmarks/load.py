"""FedAvg by real sites of which one is killed every so often, against undisturbed simulations of the same experiment.

    python -m benchmarks.load [--rounds 200] [--every 20] [--seeds 5] [--out FILE.json]

Three sites hold Cora (experiments/fedavg-cora.toml), each a process of its own on loopback. Every 20 rounds, or as soon
after as all sites take part again, a random site's processes are ended by SIGKILL and started again.
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

from benchmarks.flare import ROOT, started
from fedweave.experiment.build import build
from fedweave.experiment.config import Config, read, resolve
from fedweave.experiment.rounds import train
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

    kills: (round, site) of those that it did.
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
    for each in [] if pid is None else [pid, *descendants(pid)]:
        os.kill(each, signal.SIGKILL)
    while member.pid() is not None:
        time.sleep(0.01)


def simulated(config: Config) -> float:
    """Mean over clients of the test accuracy at the end of an undisturbed run."""
    built = build(resolve({**config.plain(), "engine": {"name": "simulation", "mode": "loop", "threads": 1}}))
    *_, last = train(built.algorithm, built.fed, config.general.rounds, eval_every=0)
    return last.summary["local/accuracy"]


def named(directory: Path) -> dict[str, list[int]]:
    """{site: the rounds in which metrics.parquet says that it was missing}."""
    found: dict[str, list[int]] = {}
    for row in read_table(directory, METRICS).to_pylist():
        if row["metric"] == "missing":
            found.setdefault(row["client"], []).append(row["round"])
    return found


def accounted(directory: Path, project: Path, rounds: int) -> dict[str, Any]:
    """What the ledger has of the training replies: how many of each site, `absent` rounds without any, and those
    `unsent` by the site's own ledger."""
    table, number = read_table(directory, LEDGER).to_pylist(), json.loads((directory / RUN).read_text())["run"]
    arrived = {(row["client"], row["round"]) for row in table if row["step"] == STEP and row["direction"] == "up"}
    kept = {site: entries(journal_path(project / site, number)) for site in SITES}
    left = {(site, entry.round) for site, own in kept.items() for entry in own if entry.step == STEP}
    return {
        "replies": Counter(site for site, _ in arrived),
        "absent": sorted({*range(1, rounds + 1)} - {round for _, round in arrived}),
        "unsent": sorted(arrived - left),
    }


def measure(rounds: int, every: int, seeds: int, directory: Path) -> dict[str, Any]:
    """One disturbed run of seed 0, and undisturbed ones of all seeds."""
    settings = [f"partition.clients={len(SITES)}", f"rounds={rounds}"]
    source = ROOT / "experiments/fedavg-cora.toml"
    configs = [read(source, [*settings, f"seed={seed}"])[0] for seed in range(seeds)]
    config = resolve({**configs[0].plain(), "engine": ENGINE})
    project, about = directory / "project", Project(SITES, "localhost", free_port())
    provision(project, SITES, about.host, about.port)
    about.save(project)
    hand_out(*split(config, SITES), project, SITES)
    reaper, began = Reaper(project, SITES, every, np.random.default_rng(0)), time.monotonic()
    with started(project):
        summary = run(config, project, directory / "out", False, reaper)
    seconds = time.monotonic() - began
    calm = [simulated(each) for each in configs]
    return {
        "rounds": rounds,
        "seconds": seconds,
        "kills": reaper.kills,
        "missing": (missing := named(directory / "out")),
        "missed": [
            sum(at < round <= until for round in missing.get(site, []))
            for (at, site), (until, _) in pairwise([*reaper.kills, (rounds, "")])
        ],
        "ledger": accounted(directory / "out", project, rounds),
        "disturbed": summary["metrics"]["local/accuracy"],
        "undisturbed": calm,
        "mean": statistics.mean(calm),
        "deviation": statistics.stdev(calm),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(args.rounds, args.every, args.seeds, Path(scratch))
    print(
        f"accuracy {found['disturbed']:.4f}, undisturbed {found['mean']:.4f} ± {found['deviation']:.4f} "
        f"{[round(each, 4) for each in found['undisturbed']]}\n"
        f"kills {found['kills']}, rounds missed after each {found['missed']}, named {found['missing']}\n"
        f"ledger {found['ledger']}, {found['seconds']:.0f} s"
    )
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

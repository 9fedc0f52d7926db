"""Seconds per exchange between real processes over TLS on this machine: a bare group call, `Flare.map`, and `Flare.map`
of a step whose replies are in a secure sum.

    python -m benchmarks.flare [--sites 3 10] [--megabytes 0.4 4 40] [--repeats 10] [--out FILE.json]

Every exchange sends a message of the given size to all sites and receives one of the same size from each. The bare call
returns the bytes as they came; `map` decodes, runs a step that returns its message, encodes, checks and meters; the
secure one also encodes the message as integers, masks them, signs and opens, and every sixteenth agrees on keys. All
run in the same job, in turns. A line for each number of sites and size: median seconds of the three calls, how much
longer `map` takes than the bare call, the ratio of secure and plain `map` (of medians and of means), and the largest
resident memory of a site's job process afterwards.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from nvflare.collab import collab
from nvflare.collab.runtime.controller import CollabController
from nvflare.collab.runtime.executor import CollabExecutor
from nvflare.job_config.api import FedJob

from fedweave.core.federation import Client, Sends, on_client, step_info
from fedweave.core.mechanism import SecureSum
from fedweave.core.tree import Tree, encode, map_leaves
from fedweave.core.types import TRAINING
from fedweave.engines.calls import Keys
from fedweave.engines.resend import LastReceived
from fedweave.privacy.secure_sum import FixedPoint
from fedweave.sites.flare.accounts import Accounts
from fedweave.sites.flare.federation import Flare, Link
from fedweave.sites.flare.holdings import Holdings
from fedweave.sites.flare.journal import Journal, journal_path
from fedweave.sites.flare.link import CollabLink
from fedweave.sites.flare.masking import Masking
from fedweave.sites.flare.memory import Memory
from fedweave.sites.flare.provision import provision
from fedweave.sites.flare.requests import Open
from fedweave.sites.flare.scores import Scoring
from fedweave.sites.flare.server import RESULT
from fedweave.sites.flare.site import Site
from fedweave.sites.flare.sitefile import Rules
from fedweave.sites.operation.processes import free_port, members, wait_until_open
from fedweave.sites.operation.project import Project, administer, read_project

ROOT = Path(__file__).parents[1]
RUN = "bench"


@dataclass(frozen=True)
class Mirror:
    """An algorithm of one step."""

    @on_client(sends={"w": "what was sent"})
    def echo(self, client: Client, message: Tree) -> Tree:
        return {"w": message["w"]}

    @on_client(sends={"w": Sends("the mean of what was sent", SecureSum(fraction=20))})
    def words(self, client: Client, message: Tree) -> Tree:
        return {"w": map_leaves(lambda leaf: FixedPoint(32, 20).encode(leaf, 1 << 24), message["w"])}


def join_run(kit: Path, name: str, sites: Sequence[str]) -> Any:
    """The state (`participation.Participation`) of a site that has joined a run of `Mirror`. kit: its folder."""
    folder = Path(tempfile.mkdtemp())
    ledger = Journal(journal_path(folder, RUN))
    masking, memory = Masking(kit, name, RUN, sites, ledger), Memory(folder, persistent=True)
    return SimpleNamespace(
        algorithm=Mirror(),
        run=RUN,
        folder=folder,
        ready=True,
        pin="",
        order=SimpleNamespace(admit=lambda *call: None, purpose=TRAINING),
        enter=lambda *call: None,
        last=LastReceived(resend=True),
        renew=lambda: None,
        scoring_of=lambda step: Scoring(),
        ends_with=lambda step: False,
        classes=2,
        labels=None,
        device=torch.device("cpu"),
        graph_on_device=None,
        limit=1 << 30,
        request=SimpleNamespace(predict=False),
        target={},
        memory=memory,
        message_digest=lambda request, info, message: memory.message_digest(request.step, message, info),
        keys=Keys(0),
        random_id="site",
        rules=Rules(),
        accounts=Accounts(folder),
        ledger=ledger,
        masking=masking,
        prepare_sum=lambda request, payload: (
            masking.open(request, payload)
            if isinstance(request, Open)
            else masking.agree(request, step_info(Mirror().words), payload)
        ),
        holdings=Holdings(graph=None, test=None, data=None),  # type: ignore[arg-type]
    )


def server_of_run(link: Link, sites: Sequence[str]) -> Flare:
    """The server's side of that run."""
    fed = Flare(link, sites, ledger=Journal(Path(tempfile.mkdtemp()) / "ledger.jsonl"))
    fed._sums.run = RUN
    return fed


class Echo(Site):
    """A site that has joined a run of `Mirror`, with a bare function."""

    def __init__(self, sites: list[str]) -> None:
        super().__init__()
        self.sites = sites

    @collab.init
    def begin(self) -> None:
        super().begin()
        kit = Path(collab.workspace.get_root_dir())
        self._member._job = join_run(kit, collab.site_name, self.sites)  # type: ignore[union-attr]

    @collab.publish
    def bare(self, blob: bytes) -> bytes:
        return blob

    @collab.publish
    def memory(self) -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Bench:
    """Measures, and leaves the numbers where a job's results are collected."""

    def __init__(self, sites: list[str], megabytes: list[float], repeats: int) -> None:
        self.sites, self.megabytes, self.repeats = sites, megabytes, repeats

    @collab.main
    def main(self) -> None:
        fed = server_of_run(CollabLink(600), self.sites)
        rows = [self._measure(fed, size) for size in self.megabytes]
        results = Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id())) / RESULT
        results.mkdir()
        (results / "progress.json").write_text(json.dumps({"rows": rows}))

    def _measure(self, fed: Flare, megabytes: float) -> dict[str, Any]:
        tree = {"w": {str(i): torch.randn(int(megabytes * 1e6 / 16)) for i in range(4)}}
        blob, mirror = encode(tree), Mirror()
        seconds: dict[str, list[float]] = {"bare": [], "map": [], "secure": []}
        for repeat in range(self.repeats + 1):
            began = time.perf_counter()
            answers = collab.clients(timeout=600).bare(blob)
            bare_end = time.perf_counter()
            replies = fed.map(mirror.echo, tree)
            map_end = time.perf_counter()
            secure_sum = fed.map(mirror.words, tree)
            secure_end = time.perf_counter()
            if not len(answers) == len(replies) == len(secure_sum) == len(self.sites):
                raise RuntimeError(f"sites are missing: {answers.failures} {replies.missing} {secure_sum.missing}")
            if repeat:  # the first warms up
                seconds["bare"].append(bare_end - began)
                seconds["map"].append(map_end - bare_end)
                seconds["secure"].append(secure_end - map_end)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        memory = max(size for _, size in collab.clients(timeout=60).memory())
        overhead = medians["map"] / medians["bare"] - 1
        mean = statistics.mean(seconds["secure"])  # agreeing on keys is part of one in sixteen
        ratios = {"ratio": medians["secure"] / medians["map"], "ratio_of_means": mean / statistics.mean(seconds["map"])}
        return {"megabytes": megabytes, **medians, **ratios, "overhead": overhead, "site_mb": memory}


def measure(count: int, megabytes: list[float], repeats: int) -> list[dict[str, Any]]:
    """Provision `count` sites, run one job on them, and stop them."""
    sites = [f"site-{i}" for i in range(count)]
    with tempfile.TemporaryDirectory() as scratch:
        directory, project = Path(scratch) / "project", Project(tuple(sites), "localhost", free_port())
        provision(directory, sites, project.host, project.port)
        project.save(directory)
        for path in directory.glob("*/local/resources.json"):
            resources = json.loads(path.read_text())
            resources["class_allow_list"].insert(0, "benchmarks.")
            path.write_text(json.dumps(resources))
        with running_project(directory), administer(directory) as admin:
            admin.wait_for(sites, 120)
            with tempfile.TemporaryDirectory() as folder:
                job = admin._session.submit_job(str(write_job(Path(folder), sites, megabytes, repeats)))
            while (status := admin.over(job)) is None:
                time.sleep(0.5)
            result = admin.fetch(job, lambda path: None)
        if result is None:
            raise RuntimeError(f"the job ended without a result: {status}")
        return [{"sites": count, **row} for row in result["rows"]]


@contextmanager
def running_project(directory: Path) -> Iterator[None]:
    """Starts the processes of a project, with one thread each, and stops them at the end."""
    processes, project = members(directory), read_project(directory)
    try:
        for process in processes:
            process.start(threads=1)
            if process.kind == "server":
                wait_until_open(process, project.host, project.port)
        yield
    finally:
        for process in reversed(processes):
            process.stop()


def write_job(folder: Path, sites: list[str], megabytes: list[float], repeats: int) -> Path:
    job = FedJob(name="exchange", min_clients=len(sites))
    job.job.set_app_packages(["benchmarks", "fedweave", "nvflare"])
    server = job.to_server(Bench(sites, megabytes, repeats), "_server")
    job.to_server(CollabController(server_obj_id=server, sync_task_timeout=300), id="controller")
    site = job.to_clients(Echo(sites), id="_client")
    job.to_clients(CollabExecutor(client_obj_id=site), id="executor", tasks=["*"])
    job.export_job(str(folder))
    return folder / job.name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.4, 4.0, 40.0])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    rows = [row for count in args.sites for row in measure(count, args.megabytes, args.repeats)]
    for row in rows:
        print(
            f"{row['sites']:3} sites {row['megabytes']:6.1f} MB  bare {row['bare']:7.3f} s  map {row['map']:7.3f} s  "
            f"overhead {row['overhead']:+.0%}  secure {row['secure']:7.3f} s ({row['ratio']:.2f} of map; of means "
            f"{row['ratio_of_means']:.2f})  {row['site_mb']:.0f} MB per site"
        )
    if args.out:
        args.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    from benchmarks.flare import main as run  # so that the job names its classes by an importable path

    run()

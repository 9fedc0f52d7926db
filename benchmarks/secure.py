"""Processor seconds of one exchange of 4 MB with sites in this process, plain and in a secure sum, in turns.

    python -m benchmarks.secure [--sites 3 10] [--megabytes 4] [--repeats 16]

There is no network between them, so that only the work of the secure sum is added. A line for each number of sites and
way of counting: "all" counts all sites, one after the other; "path" counts the server and the median site, as if every
site had a separate machine. Seconds are medians; the ratio is of means, which include the key agreement once in 16
sums. The last line has the bytes of an exchange by step.
"""

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch

from benchmarks.flare import RUN, Mirror, join_run
from fedweave.core.ledger import Ledger
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.member import Member
from fedweave.sites.flare.provision import provision
from fedweave.sites.flare.requests import Answer


class LocalLink:
    """A `Link` to members in this process, which measures the time that they need."""

    def __init__(self, members: Mapping[str, Member]) -> None:
        self.members, self.late = members, Counter[str]()
        self.all = self.median = 0.0

    def unreachable(self) -> dict[str, str]:
        return {}

    def exchange(self, request: str, blobs: Mapping[str, bytes]) -> tuple[dict[str, Answer], dict[str, str]]:
        answers, seconds = {}, []
        for site, blob in blobs.items():
            began = time.process_time()
            answers[site] = self.members[site].answer(request, blob)
            seconds.append(time.process_time() - began)
        self.all, self.median = self.all + sum(seconds), self.median + statistics.median(seconds)
        return answers, {}


def member(folder: Path, sites: list[str]) -> Member:
    """A site that has joined a run of `Mirror`."""
    result = Member(folder, folder.name, None)  # type: ignore[arg-type]
    result._job = join_run(folder, folder.name, sites)
    return result


def measure(count: int, megabytes: float, repeats: int) -> None:
    sites = [f"site-{i}" for i in range(count)]
    with tempfile.TemporaryDirectory() as scratch:
        project = Path(scratch) / "project"
        provision(project, sites, "localhost", 8002)
        link = LocalLink({site: member(project / site, sites) for site in sites})
        fed = Flare(link, sites, ledger=Ledger())
        fed._sums.run = RUN
        tree = {"w": {str(i): torch.randn(int(megabytes * 1e6 / 16)) for i in range(4)}}
        seconds: dict[tuple[str, str], list[float]] = {}
        for repeat in range(repeats + 1):
            fed.begin(repeat)
            for kind, step in (("plain", Mirror().echo), ("secure", Mirror().words)):
                link.all = link.median = 0.0
                began = time.process_time()
                fed.map(step, tree)
                total = time.process_time() - began
                if repeat:  # the first warms up
                    seconds.setdefault((kind, "all"), []).append(total)
                    seconds.setdefault((kind, "path"), []).append(total - link.all + link.median)
        for way in ("all", "path"):
            plain, secure = (seconds[kind, way] for kind in ("plain", "secure"))
            times = f"plain {statistics.median(plain):.3f} s, secure {statistics.median(secure):.3f} s"
            ratio = statistics.mean(secure) / statistics.mean(plain)
            print(f"{count:3} sites, {way:4}: {times}, ratio of means {ratio:.2f}")
        sizes = Counter[str]()
        for row in fed.ledger.table().to_pylist():
            sizes[row["step"]] += row["bytes"]
        print({step: round(size / (repeats + 1)) for step, size in sizes.items()}, "bytes an exchange")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--megabytes", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for count in args.sites:
        measure(count, args.megabytes, args.repeats)


if __name__ == "__main__":
    main()

"""Real processes of a project, and a link that calls sites in this process."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fedweave.config import Config, resolve
from fedweave.engines.flare.federation import Answer
from fedweave.engines.flare.member import Member
from fedweave.engines.flare.provision import provision
from fedweave.sites.processes import free_port, members, wait_until_open
from fedweave.sites.project import Project, read_project
from fedweave.sites.splitting import hand_out, split

SITES = ("bank-a", "bank-b", "bank-c")
HERE = Path(__file__).parent
MODELS = {"fedego": "ego"}  # of algorithms that want another than the GCN


def experiment(algorithm: str = "fedavg", **settings: object) -> Config:
    """A small experiment on the embedded digits, cut for three sites."""
    engine = {"name": "flare", "threads": 1, "checkpoint_seconds": 0.0, "timeout": 60.0}
    document = {
        "seed": 3,
        "rounds": settings.pop("rounds", 4),
        "data": {"name": "digits"},
        "partition": {"name": "louvain", "clients": 3, "holdout": True},
        "model": {"name": MODELS.get(algorithm, "gcn"), "hidden": 16},
        "algorithm": {"name": algorithm, **settings.pop("algorithm_settings", {})},  # type: ignore[dict-item]
        "engine": engine | settings,
    }
    return resolve(document)


class InProcess:
    """A `Link` that calls members in this process, and breaks where a test wants it to.

    absent: sites that cannot be reached. spoil: {site: what becomes of its answer}. tamper: {site: what becomes of the
    bytes that it sends to others, "lost" if they do not arrive}. passed: bytes between sites.
    """

    def __init__(self, project: Path) -> None:
        self.members = {site: Member(project / site, site, partial(self._deliver, site)) for site in SITES}
        self.late: Counter[str] = Counter()
        self.absent: dict[str, str] = {}
        self.spoil: dict[str, object] = {}
        self.tamper: dict[str, Callable[[bytes], bytes | str]] = {}
        self.passed: list[bytes] = []

    def _deliver(self, site: str, peers: Sequence[str], label: str, blob: bytes, seconds: float) -> dict[str, str]:
        changed = self.tamper.get(site, lambda blob: blob)(blob)
        if isinstance(changed, str):
            return dict.fromkeys(peers, changed)
        self.passed += [changed] * len(peers)
        told = {peer: self.members[peer].accept(site, label, changed) for peer in peers}
        return {peer: why for peer, why in told.items() if why}

    def unreachable(self) -> dict[str, str]:
        return dict(self.absent)

    def exchange(self, request: str, blobs: Mapping[str, bytes]) -> tuple[dict[str, Answer], dict[str, str]]:
        answers = {site: self.members[site].answer(request, blob) for site, blob in blobs.items()}
        for site, change in self.spoil.items():
            if site in answers:
                answers[site] = change(answers[site])  # type: ignore[operator]
        return answers, {}


def make_project(directory: Path) -> Path:
    """A project with digits split over three sites; not started."""
    project = Project(SITES, "localhost", free_port())
    provision(directory, project.sites, project.host, project.port)
    project.save(directory)
    hand_out(*split(experiment(), SITES), directory, SITES)
    return directory


@contextmanager
def processes(provisioned: Path) -> Iterator[Path]:
    """The same project with its four processes running; `mischief` in a site's folder makes that site misbehave."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(HERE / "mischief") + (f":{before}" if before else "")
    project = members(provisioned)
    try:
        for member in project:
            member.start(threads=1)
            if member.kind == "server":
                wait_until_open(member, "localhost", read_project(provisioned).port)
        yield provisioned
    finally:
        for member in reversed(project):
            member.stop()
        os.environ.pop("PYTHONPATH")
        if before:
            os.environ["PYTHONPATH"] = before

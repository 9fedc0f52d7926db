"""Real processes of a project, and a link that calls sites in this process."""

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.core.algorithm import capabilities
from fedweave.core.ledger import Ledger
from fedweave.core.replies import Replies, ReplyBatch, as_row
from fedweave.core.tree import Tree, decode, map_leaves
from fedweave.engines.calls import of_client
from fedweave.experiment.build import build
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.rounds import train
from fedweave.models.edge_settings import has_ports
from fedweave.models.edges import model_of_form
from fedweave.sites.flare import steps
from fedweave.sites.flare.admin import write_job
from fedweave.sites.flare.agreement import common_form, server_graphs
from fedweave.sites.flare.alignment import max_features
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.member import Member
from fedweave.sites.flare.provision import provision
from fedweave.sites.flare.requests import Answer, pin, versions
from fedweave.sites.flare.sitefile import FINE, SITE_FILE, write_site_file
from fedweave.sites.operation.experiments import hand_out, split
from fedweave.sites.operation.processes import free_port, members, wait_until_open
from fedweave.sites.operation.project import Project, administer, read_project
from fedweave.sites.operation.running import run
from tests.contract.federations import distance

NAMES = ("bank-a", "bank-b", "bank-c", "bank-d", "bank-e")
SITES = NAMES[:3]
HERE = Path(__file__).parent
VERTICAL = [name for name, kind in ALGORITHMS.items() if capabilities(kind).vertical]
NORMS = {"fedbn": {"norm": "batch"}}
MODELS = {"fedego": "ego"} | dict.fromkeys(VERTICAL, "gcnii")  # of algorithms that want another than the GCN
# Data, cuts and settings that an algorithm needs. FairGFL's noise is the sites' own and not the simulation's; of nodes
# as different as these, whose codes lose one bit of 256 to it on average, both find the same ones in common.
DATA = {"fairgfl": {"name": "synthetic", "nodes": 400, "classes": 3, "features": 40, "signal": 0.3}}
PEOPLE = ("f2gnn", "fairfed", "fairaug")  # want a sensitive attribute and two classes
DATA |= {name: {"name": "synthetic", "nodes": 300, "classes": 2, "features": 20, "sensitive": True} for name in PEOPLE}
CUTS = {"fairgfl": {"name": "overlap", "clients": 3, "overlap": 0.2}}
SETTINGS: dict[str, dict[str, object]] = {
    "fairgfl": {"epsilon_a": 5.5, "alpha": 1.0, "encoder": "random", "code_size": 256, "threshold": 0.1},
    "fedego": {"batches": 2, "epochs": 2, "server_epochs": 2},
    "fednova": {"batch": 32},  # with 8 it would train on fewer examples than sites allow
    "feddep": {"local_steps": 2, "epochs": 2, "exchanges": 2, "hidden": [16]},
    "fedsage": {"local_steps": 2},
    "fedsage_plus": {"local_steps": 2, "epochs": 2, "exchanges": 2, "hidden": [16]},
}
HORIZONTAL_CUT = {"name": "louvain", "clients": 3, "holdout": True}
DATA["fairaug"] |= {"nodes": 600}  # of which it trains on few: as many of either group
CUTS |= dict.fromkeys(PEOPLE, HORIZONTAL_CUT)
VERTICAL_CUT = {"name": "vertical", "clients": 3, "widths": (1.0, 2.0, 1.0)}


def experiment(algorithm: str = "fedavg", **settings: object) -> Config:
    """A small experiment on the embedded digits, cut for three sites; without what members reach alone, by default."""
    cut = VERTICAL_CUT if algorithm in VERTICAL else CUTS.get(algorithm, HORIZONTAL_CUT)
    given = settings.pop("partition", {})
    model = {"name": MODELS.get(algorithm, "gcn"), "hidden": 16} | NORMS.get(algorithm, {})
    engine = {"name": "flare", "threads": 1, "checkpoint_seconds": 0.0, "timeout": 60.0, "wait": 0.0}
    document = {
        "seed": 3,
        "rounds": settings.pop("rounds", 4),
        "partition": given if "name" in given else cut | given,
        "data": DATA.get(algorithm, {"name": "digits"}) | settings.pop("data", {}),
        "model": model | settings.pop("model", {}),
        "evaluation": settings.pop("evaluation", {"shelf": False, "alone": False}),
        "algorithm": {"name": algorithm} | SETTINGS.get(algorithm, {}) | settings.pop("algorithm_settings", {}),
        "engine": engine | settings,
    }
    return resolve(document)


def tables(root: Path, labelled: Sequence[str] = SITES[:1]) -> dict[str, object]:
    """A folder of three parties, who share 60 of their 75 or 80 nodes, each in an order of its own; only the `labelled`
    know labels. Returns the sections of an experiment on it."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 100)
    for at, site in enumerate(SITES):
        held = rng.permutation([*range(60), *range(60 + 10 * at, 80 + 10 * at - 5 * (at == 1))])
        x = np.eye(3)[y][:, : at + 1] + rng.normal(0, 0.5, (100, at + 1))
        header = ["id", "split", *(["label"] if site in labelled else []), *(f"f{column}" for column in range(at + 1))]
        rows = [
            [
                f"person{i}",
                ("train", "val", "test")[i % 3],
                *([f"c{y[i]}"] if site in labelled else []),
                *map(str, x[i]),
            ]
            for i in held
        ]
        edges = [[f"person{i}", f"person{j}"] for i, j in rng.choice(held, (150, 2)) if i != j]
        for name, lines in (("nodes", [header, *rows]), ("edges", [["source", "target"], *edges])):
            (root / site).mkdir(parents=True, exist_ok=True)
            (root / site / f"{name}.csv").write_text("".join(",".join(line) + "\n" for line in lines))
    return {
        "data": {"name": "parties", "path": str(root), "normalize": "standard", "labels": ["c0", "c1", "c2"]},
        "partition": {"name": "parties", "use_dataset_split": True, "labels": "holders"},
    }


def bring(project: Path, root: Path) -> Path:
    """The project with the tables of `root` as its sites' own data."""
    for site in SITES:
        shutil.copytree(root / site, project / site / "data", dirs_exist_ok=True)
        about = {"path": "data", "labels": ["c0", "c1", "c2"], "normalize": "standard"}
        write_site_file(project / site / SITE_FILE, about, measures=list(FINE))
    return project


def join_request(config: Config, run: str = "r1", after: int = -1) -> str:
    """What an honest server asks first."""
    about = {"sites": SITES, "versions": versions(config.plain())}
    return json.dumps({"kind": "join", "run": run, "document": config.plain(), "round": after} | about)


def call_request(config: Config, step: str, round: int = 1, kind: str = "step", **more: object) -> str:
    """What an honest server asks then."""
    about = {
        "kind": kind,
        "pin": pin(config.plain(), list(SITES)),
        "step": step,
        "round": round,
        "again": 0,
        "saved": -1,
    }
    return json.dumps(about | more)


def job_of(member: Member) -> Any:
    """What a member holds of the job that it has joined."""
    return member._job


class InProcess:
    """A `Link` that calls members in this process, and breaks where a test wants it to.

    absent: sites that cannot be reached. spoil: {site: what becomes of its answer}. tamper: {site: what becomes of the
    bytes that it sends to others, "lost" if they do not arrive}. passed: bytes between sites.
    """

    def __init__(self, project: Path, submitter: str = "") -> None:
        self.members = {site: Member(project / site, site, partial(self._deliver, site), submitter) for site in SITES}
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
                answers[site] = change(answers[site])
        return answers, {}


def joined(
    project: Path, config: Any, run: str = "r1", after: int = -1, **options: Any
) -> tuple[Flare, Any, InProcess]:
    """A federation that all sites have joined, its algorithm, and the link."""
    link = InProcess(project, options.pop("submitter", ""))
    vertical = config.algorithm.name in VERTICAL
    ports = has_ports(config.model.make())
    graphs, seed = server_graphs(project / "server", torch.float32, ports), config.general.seed
    fed = Flare(link, SITES, ledger=options.pop("ledger", Ledger()), seed=seed, graphs=graphs, **options)
    replies = fed.join(config.plain(), run, after, vertical)
    features, fed.classes = max_features(replies), replies[SITES[0]]["classes"]
    fed.begin(max(after, 0) + 1)
    form = {} if vertical else common_form(replies)
    return fed, config.algorithm.make(model_of_form(config.model.make(), form, features, fed.classes)), link


def simulated(config: Any) -> tuple[Any, Any]:
    document = config.plain()
    engine = {"name": "simulation", "mode": "loop", "resend": document["engine"]["resend"]}
    built = build(resolve({**document, "engine": engine}))
    *_, last = train(built.algorithm, built.fed, config.general.rounds)
    for name in [name for name in last.summary if "pooled/" in name]:
        del last.summary[name]  # which no server can say
    return last, built.fed


def seed_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites draw the simulation's privacy noise, not their own."""
    secrets = list[torch.Tensor]()

    def keyed(call: torch.Tensor, purpose: str, word: torch.Tensor) -> torch.Tensor:
        secrets.append(of_client(call, "secret", word))
        return of_client(call, purpose, word)

    monkeypatch.setattr("fedweave.sites.flare.member.of_client", keyed)
    monkeypatch.setattr(steps, "noise_key", lambda path: secrets.pop())
    monkeypatch.setattr(steps, "label_secrets", lambda path, version: None)


def renamed(tree: Any, sim: Any) -> Any:
    """What an algorithm keeps of clients in the simulation, under the sites' names."""
    names = dict(zip(sim.clients, NAMES[: len(sim.clients)], strict=True))
    return {names.get(key, key): renamed(of, sim) if isinstance(of, dict) else of for key, of in tree.items()}


def private(project: Path, site: str, run: str = "r1") -> Any:
    """What a site keeps to itself."""
    path = project / site / "runs" / run / "state.safetensors"
    return decode(path.read_bytes()) if path.exists() else {}


def cut_again(project: Path, config: Any) -> Path:
    """The project with the data of another experiment."""
    (project / "server/test.npz").unlink(missing_ok=True)
    hand_out(*split(config, SITES), project, SITES)
    return project


def set_policy(project: Path, policy: str, site: str = "bank-b") -> None:
    """Give a site this policy instead of its own."""
    path = project / site / "site.toml"
    path.write_text(path.read_text().partition("[policy]")[0] + f"[policy]\n{policy}\n")


def check_equal(last: Any, config: Any, within: float = 1e-5) -> tuple[Any, Any]:
    """What sites ended with has the state and the summary of the simulation; returns the simulation's, and its
    federation."""
    expected, sim = simulated(config)
    assert distance(last.state, renamed(expected.state, sim)) <= within
    assert last.summary == pytest.approx(expected.summary, abs=1e-5)
    return expected, sim


def check_private(project: Path, sim: Any, run: str = "r1", within: float = 1e-5) -> None:
    """What each site keeps to itself is what its client keeps in the simulation."""
    for site, client in zip(SITES, sim.clients, strict=True):
        assert distance(private(project, site, run), sim.snapshot().get(client, {})) <= within


def replies_of(trees: Mapping[str, Tree]) -> Replies:
    """What the sites answered, one tree of each."""
    return Replies(
        list(trees), [ReplyBatch((at,), map_leaves(as_row, tree)) for at, tree in enumerate(trees.values())], {}
    )


def make_project(directory: Path, algorithm: str = "fedavg", sites: Sequence[str] = ()) -> Path:
    """A project with digits split over the sites as the experiment with `algorithm` has them; not started. Without
    `sites` they are SITES, as it is when this is called."""
    sites = sites or SITES
    project = Project(tuple(sites), "localhost", free_port())
    provision(directory, project.sites, project.host, project.port)
    project.save(directory)
    hand_out(*split(experiment(algorithm, partition={"clients": len(sites)}), sites), directory, sites)
    return directory


def copied(provisioned: Path, to: Path) -> Path:
    """A copy of that project as `to`, with nothing of its runs and a port of its own: the project may be running."""
    of_runs = ("process.*", "runs", "ledgers", "states", "heads.json", "*.log", "log.json", "log.txt", "error_log.txt")
    of_jobs = "-".join("?" * length for length in (8, 4, 4, 4, 12))  # folders that NVFlare names by job
    shutil.copytree(provisioned, to, ignore=shutil.ignore_patterns(*of_runs, of_jobs))
    replace(read_project(to), port=free_port()).save(to)
    return to


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


class Refused(NamedTuple):
    """What became of two submitted jobs with code, one for all and one for the sites alone.

    verdicts: NVFlare's. by: who refused each. left: the jobs' folders at sites. marker: what the code would write.
    """

    verdicts: list[str | None]
    by: list[list[str]]
    left: list[Path]
    marker: Path


def refuse(running: Path, folder: Path) -> Refused:
    """Submit the two jobs."""
    marker = folder / "marker"
    found = Refused([], [], [], marker)
    with administer(running) as admin:
        assert admin.wait_for(SITES, 60) == list(SITES)
        for to in ("all", "sites"):
            job = admin._session.submit_job(str(carrying(folder / to, marker, to)))
            found.verdicts.append(until(lambda job=job: admin.over(job)))
            # NVFlare writes who refused after it says that the job is over
            told = until(lambda job=job: admin._session.get_job_meta(job).get("job_deploy_detail")) or []
            found.by.append([line.split(":")[0] for line in told if "BYOC not permitted" in line])
            found.left.extend(running / site / job for site in SITES if (running / site / job).exists())
    return found


def carrying(folder: Path, marker: Path, to: str) -> Path:
    """A job for NVFlare whose code would leave a `marker`: for the server too, or for "sites" alone."""
    job = write_job(folder, "r1", SITES, experiment(rounds=1).plain())
    code = job / "app"
    if to == "sites":
        code = Path(shutil.copytree(job / "app", job / "carrier"))
        meta = json.loads((job / "meta.json").read_text())
        (job / "meta.json").write_text(json.dumps(meta | {"deploy_map": {"app": ["server"], "carrier": list(SITES)}}))
    (code / "custom").mkdir()
    (code / "custom/carried.py").write_text(f"open({str(marker)!r}, 'w').close()\n\n\nclass Carried:\n    pass\n")
    file = code / "config/config_fed_client.json"
    config = json.loads(file.read_text())
    config["components"].append({"id": "edge_attrs", "path": "carried.Carried", "args": {}})
    file.write_text(json.dumps(config))
    return job


def until(answer: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What `answer` gives, once it gives something."""
    deadline = time.monotonic() + seconds
    while not (found := answer()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


class Ran(NamedTuple):
    """A run of real sites: its experiment, folder and summary, and what it told meanwhile."""

    config: Config
    folder: Path
    summary: dict[str, Any]
    told: list[dict[str, Any]]


def ran(running: Path, folder: Path) -> Ran:
    """Twelve rounds of FedAvg."""
    config, told = experiment("fedavg", rounds=12), list[dict[str, Any]]()
    return Ran(config, folder, run(config, running, folder, False, told.append), told)

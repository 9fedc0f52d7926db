"""A program in the server's place, which says to sites whatever it likes; and the sites, honest and in this process."""

import json
from pathlib import Path
from typing import Any

import torch

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.tree import Tree, decode, encode, map_leaves
from fedweave.experiment.config import Config
from fedweave.sites.flare.journal import Records, journal_path, read_journal
from fedweave.sites.flare.requests import Answer, versions
from fedweave.sites.operation.experiments import hand_out, split
from tests.sites.projects import SITES, InProcess, call_request, experiment, join_request
from tests.sites.projects import set_policy as set_policy

SITE = "bank-b"
DATA = {"name": "synthetic", "nodes": 240, "classes": 3, "features": 8}


def agreed(name: str = "fedavg", **settings: Any) -> Config:
    """What honest servers and sites run here."""
    return experiment(name, data=DATA, **settings)


def make_sites(root: Path, name: str = "fedavg") -> Path:
    """Three sites' folders, as a project has them, without certificates."""
    for folder in ("server", *SITES):
        (root / folder).mkdir(parents=True)
        (root / folder / "privacy.secret").touch(mode=0o600)
        (root / folder / "privacy.secret").write_text("5" * 64)
    hand_out(*split(agreed(name), SITES), root, SITES)
    return root


class Cheat:
    """The server of one job, at one site.

    lies: what it says in place of the truth, in every request.
    """

    def __init__(self, project: Path, config: Config | None = None, run: str = "r1", **lies: Any) -> None:
        self.config, self.run, self.lies = config or agreed(), run, lies
        self.member, self.folder = InProcess(project).members[SITE], project / SITE

    def join(self, after: int = -1, **lies: Any) -> Answer:
        told = {"versions": versions(lies["document"])} if "document" in lies else {}
        return self.say(join_request(self.config, self.run, after), {}, **told | lies)

    def call(self, step: str, round: int = 1, message: Tree | None = None, **lies: Any) -> Answer:
        return self.say(call_request(self.config, step, round), self.weights() if message is None else message, **lies)

    def say(self, request: str, message: Tree, **lies: Any) -> Answer:
        return self.member.answer(json.dumps(json.loads(request) | self.lies | lies), encode(message))

    def weights(self, scale: float = 1.0) -> Tree:
        """What a round begins with."""
        w = models.init(self.config.model.make().build(8, 3), random.key(1), torch.float32)
        return {"w": map_leaves(lambda leaf: leaf * scale, w)}

    def records(self, run: str | None = None) -> Records:
        return read_journal(journal_path(self.folder, run or self.run))

    def refusals(self, run: str | None = None) -> list[dict[str, Any]]:
        return [note for note in self.records(run).notes if note["note"] == "refused"]


def reply(answer: Answer) -> Tree:
    """What left, which must be something."""
    assert not answer.refusal, answer.refusal
    return decode(answer.blob)

"""The live page: what it says is what the run's files say, and nobody else is served."""

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.core.federation import Sends, StepInfo
from fedweave.core.ledger import Ledger
from fedweave.core.mechanism import LDP, Gaussian
from fedweave.experiment.config import resolve
from fedweave.experiment.runs import run as runs
from fedweave.privacy.accountant import bounds, over_rounds
from fedweave.privacy.mechanisms import epsilon
from fedweave.report.live import PAGE, LivePage, followed, state
from fedweave.report.terminal import Terminal, screen
from fedweave.report.tracking import Observers

DOCUMENT: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "synthetic", "nodes": 90, "classes": 3, "features": 6},
    "partition": {"clients": 3},
    "model": {"hidden": 4},
    "algorithm": {"local_steps": 1},
    "engine": {"threads": 1, "checkpoint_seconds": 0.0},
}


class Looking:
    """Asks the page of a run after every round."""

    def __init__(self, page: LivePage) -> None:
        self.page, self.heard = page, list[dict[str, Any]]()

    def begin(self, *about: Any) -> None:
        self.heard.append(ask(self.page))

    def step(self, reached: Any) -> None:
        self.heard.append(ask(self.page))

    def stopping(self, number: int) -> None: ...

    def end(self) -> None: ...


def get(page: LivePage, path: str, host: str = "") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", int(page.address.rstrip("/").rpartition(":")[2]), timeout=10)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read()


def ask(page: LivePage) -> dict[str, Any]:
    status, body = get(page, "/state.json")
    assert status == 200
    return dict(json.loads(body))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LivePage, Looking, Path]]:
    directory = tmp_path_factory.mktemp("live") / "run"
    page = LivePage(directory)
    looking = Looking(page)
    runs.run(resolve(DOCUMENT), directory, Observers([Terminal(screen(quiet=True)), looking]))
    yield page, looking, directory
    page.close()


def test_the_page_follows_the_run_and_says_when_it_is_over(watched: tuple[LivePage, Looking, Path]) -> None:
    """A round is saved after its observers were told."""
    page, looking, _ = watched
    assert "waiting" in looking.heard[0]
    assert [now.get("round") for now in looking.heard[1:]] == [None, 1, 2]
    assert not any(now["finished"] for now in looking.heard)
    last = ask(page)
    assert (last["finished"], last["round"], last["rounds"]) == (True, 3, 3)
    drawn = last["figures"]
    assert drawn.count("<svg") == 5  # two accuracies, a loss, bytes up and down
    assert "Global test accuracy" in drawn
    assert "Sent by all clients" in drawn
    assert [one["name"] for one in last["members"]] == ["client-0", "client-1", "client-2"]


def test_nothing_else_is_served_and_to_nobody_else(watched: tuple[LivePage, Looking, Path]) -> None:
    page, _, directory = watched
    assert page.address.startswith("http://127.0.0.1:")
    assert get(page, "/")[1].decode() == PAGE
    for path in ("/summary.json", "/../config.toml", f"/{directory}/config.toml", "/state.json?x"):
        assert get(page, path)[0] == 404
    assert get(page, "/state.json", "evil.example:80")[0] == 403  # a name of others that leads here
    assert not re.search(r"https?://", PAGE)
    assert "innerHTML" not in PAGE


def test_a_run_of_sites_is_followed_to_its_servers_folder(
    watched: tuple[LivePage, Looking, Path], tmp_path: Path
) -> None:
    out, there = tmp_path / "out", tmp_path / "bank/server/runs/ab12"
    out.mkdir()
    there.parent.mkdir(parents=True)
    (out / "run.json").write_text(json.dumps({"run": "ab12", "project": str(tmp_path / "bank")}))
    assert followed(out) == out
    there.symlink_to(watched[2])
    assert followed(out) == there
    assert state(out)["round"] == 3
    (out / "run.json").write_text("[]")
    assert followed(out) == out


def test_epsilon_over_rounds_ends_at_the_bound_of_all() -> None:
    ledger = Ledger()
    info = StepInfo.of({"h": Sends("h", Gaussian(1.0, 1.0)), "c": Sends("c", LDP(0.5, "node", "codes"))})
    for number in range(1, 4):
        names = ["a", "b"] if number < 3 else ["b"]
        ledger.record(number, 0, "s", names, "up", {"h": torch.zeros(2), "c": 1.0}, 0.0, info)
    found = over_rounds(ledger.table())
    assert found["row"] == {n: pytest.approx(epsilon(n**0.5, 1e-5)) for n in (1, 2, 3)}
    assert found["node"] == {1: 0.5, 2: 0.5, 3: 0.5}  # drawn once
    assert {own.per: own.epsilon for own in bounds(ledger.table())} == {per: own[3] for per, own in found.items()}


def test_epsilon_over_rounds_never_falls_and_is_of_whom_it_cost_most() -> None:
    """In the last round a client is called that has sent less; and rounds are noted in another order."""
    ledger = Ledger()
    info = StepInfo.of({"h": Sends("h", Gaussian(1.0, 1.0, delta=1e-7))})
    for number, names in ((3, ["b"]), (1, ["a"]), (2, ["a"])):
        ledger.record(number, 0, "s", names, "up", {"h": torch.zeros(2)}, 0.0, info)
    found = over_rounds(ledger.table())["row"]
    assert list(found) == [1, 2, 3]
    assert found == {n: pytest.approx(epsilon(min(n, 2) ** 0.5, 1e-7)) for n in (1, 2, 3)}


def test_what_is_no_run_is_not_watched(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["watch", str(tmp_path / "none")]).exit_code == 2

"""Answers, and what was asked, that are lost on the way while the site lives."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.sites.flare import link
from fedweave.sites.flare import site as sites
from fedweave.sites.flare.requests import Answer


class Counting:
    """A member that says how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def answer(self, request: str, blob: bytes) -> Answer:
        self.asked.append(request)
        return Answer(b"answer to " + blob)


class Group(dict[str, Any]):
    """What NVFlare gives of a call to several sites; the first `lose` answers, or requests, do not arrive."""

    def __init__(self, network: "Network", names: list[str], **options: Any) -> None:
        super().__init__()
        self.network, self.names, self.options, self.failures = network, names, options, dict[str, Any]()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items())

    def ping(self) -> "Group":
        self.update({f"{name}.job": self.network.site.ping() for name in self.names})
        return self

    def call(self, *given: Any) -> "Group":
        self.network.calls += 1
        lost = self.network.lose if self.network.calls == 1 else ""
        if lost != "request":
            answer = self.network.site.call(*given)
            if lost != "answer":
                for name in self.names:
                    about = SimpleNamespace(target_name=f"{name}.job")
                    self.options["process_resp_cb"](about, answer, arrivals=self.options["arrivals"])
        return self


class Network:
    """NVFlare with one site."""

    caller, clients = "server", (SimpleNamespace(name="a"),)

    def __init__(self, lose: str) -> None:
        self.lose, self.calls, self.site = lose, 0, sites.Site()
        self.site._member = self.member = Counting()

    def get_clients(self, names: list[str]) -> Any:
        return lambda **options: Group(self, names, **options)


@pytest.mark.parametrize("lose", ["answer", "request", ""])
def test_what_is_lost_on_the_way_is_asked_again_within_seconds_and_done_once(
    lose: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = Network(lose)
    monkeypatch.setattr(link, "collab", network)
    monkeypatch.setattr(sites, "collab", network)
    monkeypatch.setattr(link, "_PROBE", 0.05)
    found, lost = link.CollabLink(30.0).exchange("step", {"a": b"x"})
    assert (found["a"].blob, lost) == (b"answer to x", {})
    assert network.member.asked == ["step"]
    assert ("a lives and is at work on nothing" in caplog.text) == bool(lose)


def test_what_a_site_is_at_work_on_is_for_the_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network("")
    network.site._at_work = 7
    for caller, told in (("server", 7), ("bank-b", 0)):
        monkeypatch.setattr(sites, "collab", SimpleNamespace(caller=caller))
        assert network.site.ping() == told


def test_a_call_of_another_number_is_done_and_an_old_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network("")
    monkeypatch.setattr(sites, "collab", network)
    for number in (1, 1, 3, 2):
        told = network.site.call(f"step {number}", b"", number)
    assert network.member.asked == ["step 1", "step 3"]
    assert told["refusal"] == "that call was answered long ago"

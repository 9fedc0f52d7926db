"""What policies keep at home is not among what a ledger, a journal and their reports say that a receiver learned."""

import json
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')
import torch

from fedweave.accounts.ledger import Flow, flows, of_member
from fedweave.core.federation import Sends, StepInfo
from fedweave.core.tree import Tree, decode, leaves
from fedweave.core.types import FRAMING
from fedweave.experiment.rounds import train
from fedweave.sites.flare.audit import audit, compare
from fedweave.sites.flare.compliance import of_site
from fedweave.sites.flare.joining import withheld_in
from fedweave.sites.flare.peers import WITHHELD
from fedweave.sites.flare.scores import NOTHING, Scoring
from fedweave.sites.flare.sitefile import FINE
from tests.sites.projects import SITES, experiment, joined, set_policy

MEASURES = dict(zip(SITES, (FINE, (), ("loss",)), strict=True))


def sent(ledger: list[Flow]) -> list[Flow]:
    return [flow for flow in ledger if flow.direction == "up" and flow.key != FRAMING]


def test_reports_of_three_sites_say_what_each_policy_let_leave(project: Path) -> None:
    for site, measures in MEASURES.items():
        set_policy(project, f"measures = {list(measures)}", site)
    fed, algorithm, link = joined(project, experiment("fedavg", rounds=1))
    arrived: dict[str, Tree] = {}  # the last reply, which has scores

    def keep(site: str, answer: object) -> object:
        reply = decode(answer.blob)
        if "own" in reply:
            arrived[site] = reply
        return answer

    link.spoil = {site: lambda answer, site=site: keep(site, answer) for site in SITES}
    list(train(algorithm, fed, 1))
    ledger = fed.ledger.table()
    of_class = {"auc": "AUC", "loss": "loss", "classes": "class"}
    for site, measures in MEASURES.items():
        assert compare(project / site, "r1", ledger) == ([], [])
        rows = {row["key"]: row["reveals"] for row in of_member(ledger, site).to_pylist() if row["direction"] == "up"}
        for path, leaf in leaves(arrived[site]):
            # Every score is of some example and in some pair, so that only what is kept back has no number but 0.
            assert rows[path].startswith(NOTHING) == (not leaf.any()), (site, path)
        journal = audit(project / site).ledger
        assert {flow.reveals for flow in sent(flows(journal))} == {
            flow.reveals for flow in sent(flows(of_member(ledger, site)))
        }
        scored = [flow for flow in sent(flows(journal)) if flow.step == "FedAvg.score" and not flow.kept_back]
        told = " ".join(flow.reveals for flow in scored)
        for measure, word in of_class.items():
            if measure not in measures:
                assert word not in told, (site, measure)
        assert "hits" in told
        before = next(row[0] for row in of_site(project / site).sections[0].grid.rows if row[0].startswith("before"))
        assert ("labels" in before) == ("classes" in measures)


def test_a_description_names_what_leaves_only_where_something_that_it_covers_does_not() -> None:
    info = StepInfo({"own": Sends("all scores"), "own/classes": Sends("counts")})
    paths = ["own/accuracy", "own/loss", "own/auc", "own/classes", "own/mean/loss"]
    found = Scoring(measures=("loss", "auc")).declaration(info, paths).sends
    assert found["own"] == info.sends["own"]
    assert not {"own/accuracy", "own/loss", "own/auc", "own/mean/loss"} & found.keys()
    assert found["own/classes"].reveals.startswith(NOTHING)
    found = Scoring(measures=("loss",)).declaration(info, paths).sends
    [text] = {found[path].reveals for path in ("own/accuracy", "own/loss", "own/mean/loss")}
    withheld = {"AUC": found["own/auc"].reveals, "class": found["own/classes"].reveals}
    assert all(nothing.startswith(NOTHING) for nothing in withheld.values())
    for word in ("hits", "loss", "AUC", "class"):
        assert (word in text) == (word not in withheld)
        assert [key for key, nothing in withheld.items() if word in nothing] == [word] * (word in withheld)


def test_only_what_a_site_names_and_leaves_empty_is_entered_as_withheld() -> None:
    reply = {"features": 3, "nodes": -1, "edges": torch.tensor(5), "split": torch.zeros(0), "labels": torch.zeros(0)}
    assert withheld_in(reply, json.dumps({WITHHELD: ["labels", "nodes", "features", "edges"]})) == ("nodes", "labels")
    assert not withheld_in(reply, "")
    assert not withheld_in(reply, json.dumps({WITHHELD: 1}))


def test_a_measure_of_pairs_of_classes_reveals_how_many_there_are() -> None:
    info, reply = StepInfo({"own": Sends("all scores")}), {"own": {"auc": torch.ones(1, 2), "loss": torch.ones(1, 2)}}
    _, declared, _ = Scoring(measures=("auc",)).prepare(reply, info, 2)
    assert declared.sends["own/auc"].reveals.startswith("AUC, how many")

"""A server that does not follow the protocol, and a site that holds it to what was agreed (docs/security.md)."""

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.algorithms import parts
from fedweave.cli import app
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.mechanism import LDP
from fedweave.core.tree import Tree, map_leaves
from fedweave.datasets.npz import SPLIT
from fedweave.errors import CallRefused
from fedweave.experiment.config import resolve
from fedweave.ops.sparsified import Sparsified
from fedweave.sites.flare.alignment import opening_tree, read_openings
from fedweave.sites.flare.masking import tensor
from fedweave.sites.flare.order import Order
from fedweave.sites.flare.policy import check_batches
from fedweave.sites.flare.requests import Answer, pin, versions
from fedweave.sites.flare.sitefile import Rules
from fedweave.sites.protocols.identity import read_identity
from fedweave.sites.protocols.intersection import IntersectionParty, digest
from tests.contract.federations import algorithm
from tests.privacy.authority import write_kits
from tests.random_graphs import random_graph
from tests.refusals import check_facts, refusal
from tests.security.cheating import SITE, Cheat, agreed, make_sites, reply, set_policy
from tests.sites.projects import SITES, bring, experiment, job_of, join_request, tables

Plan = list[tuple[str, int, int]]  # step, round, occurrence


# --- the algorithm's order


@pytest.mark.parametrize(
    ("honest", "cheat"),
    [
        ([], ("train", 0, 0)),  # nothing is set up
        ([], ("train", 1, 1)),  # FedAvg trains once a round
        ([("train", 1, 0)], ("train", 1, 0)),
        ([("train", 2, 0)], ("train", 1, 0)),
        ([("train", 1, 0), ("score", 1, 0)], ("score", 1, 0)),
        ([("score", 1, 0)], ("train", 1, 0)),
        ([("train", 1, 0)], ("keep_trained", 1, 0)),  # a step of prediction
        ([("train", 4, 0)], ("train", 5, 0)),  # four rounds were agreed
    ],
)
def test_a_call_out_of_order_is_refused_and_in_the_journal(project: Path, honest: Plan, cheat: Any) -> None:
    server = Cheat(project)
    assert not server.join().refusal
    for step, round, again in honest:
        reply(server.call(f"FedAvg.{step}", round, again=again))
    left = len(server.records().entries)
    step, round, again = cheat
    answer = server.call(f"FedAvg.{step}", round, again=again)
    assert (answer.blob, answer.final) == (b"", True)
    check_facts(answer.refusal, f"FedAvg.{step}, occurrence {again + 1} in round {round}")
    [noted] = server.refusals()
    assert noted["asked"] == f"step FedAvg.{step}, occurrence {again + 1} in round {round}"
    check_facts(noted["why"], "expected")
    assert server.call("FedAvg.train", 4).refusal == answer.refusal  # the site's part in the job is over
    assert len(server.records().entries) == left


def test_nothing_is_answered_before_joining_nor_a_second_join(project: Path) -> None:
    server = Cheat(project)
    check_facts(server.call("FedAvg.train").refusal, "joined")
    assert [note["asked"] for note in server.refusals("no-run")] == ["step FedAvg.train, occurrence 1 in round 1"]
    server = Cheat(project)
    assert not server.join().refusal
    check_facts(server.join().refusal, "joins once")


def test_set_up_runs_once_and_each_segment_as_often_as_the_model_has_it() -> None:
    """GLASU with a secure sum: a set-up step called again with another share would change what its sums are of."""
    calls = algorithm("glasu", secure_sum=True).calls(3)
    order = Order(calls, -1, 9)
    order.admit("GLASU.begin", 0, 0)
    for name, *cheat in (("begin", 0, 0), ("begin", 0, 1), ("begin", 1, 0)):
        with refusal("call-refused", f"GLASU.{name}"):
            order.admit(f"GLASU.{name}", *cheat)
    infers = sum(step.__name__ == "infer" for step in calls.round)
    for again in range(infers):
        order.admit("GLASU.infer", 1, again)
    with refusal("call-refused", "GLASU.pull or GLASU.pull_sum or GLASU.update"):
        order.admit("GLASU.infer", 1, infers)
    predicting = Order(calls, 9, 9, predict=True)
    predicting.admit("GLASU.infer_full", 9, 0)
    for step in ("begin", "infer", "score"):
        with pytest.raises(CallRefused):
            predicting.admit(f"GLASU.{step}", 9, 0)


# --- what was agreed


def test_the_configuration_is_pinned(project: Path) -> None:
    server, other = Cheat(project), agreed(algorithm_settings={"local_steps": 9})
    assert not server.join().refusal
    check_facts(server.call("FedAvg.train", pin=pin(other.plain(), [*SITES])).refusal, "configuration")
    check_facts(Cheat(project, other).join().refusal, "run r1")
    check_facts(Cheat(project).join(sites=[*SITES, "bank-d"]).refusal, "run r1")
    longer = resolve(agreed().plain() | {"rounds": 9})
    assert not Cheat(project, longer).join().refusal  # what a resumed run may change


PLUG_IN = """
from dataclasses import dataclass
from pathlib import Path
from fedweave.algorithms import FedAvg

Path({mark!r}).touch()

@dataclass(frozen=True)
class Own(FedAvg):
    "FedAvg by another name."
"""


@pytest.mark.parametrize("section", ["algorithm", "model", "partition", "data", "parts"])
def test_no_file_that_a_server_names_is_run_unless_the_owner_lists_it(
    project: Path, tmp_path: Path, section: str
) -> None:
    """Some .py file that lies at the site, whatever the configuration calls it; also by a way around the list."""
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed/other.py").touch()
    (tmp_path / "own.py").write_text(PLUG_IN.format(mark=str(tmp_path / "ran")))
    set_policy(project, f'files = ["{tmp_path}/allowed/other.py"]')
    for file in (f"{tmp_path}/own.py", f"{tmp_path}/allowed/../own.py"):
        document = agreed().plain()
        if section == "parts":
            document["algorithm"]["parts"] = ["uniform", {"name": f"{file}:Own"}]
        else:
            document[section] = {"name": f"{file}:Own"}
        check_facts(Cheat(project).join(document=document).refusal, "policy.files", f"{tmp_path}/own.py")
    assert not (tmp_path / "ran").exists()


def test_a_file_that_the_owner_lists_is_run(project: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(PLUG_IN.format(mark=str(tmp_path / "ran")))
    set_policy(project, f'files = ["{tmp_path}/own.py"]')
    document = agreed().plain()
    document["algorithm"] |= {"name": f"{tmp_path}/own.py:Own"}
    assert not Cheat(project).join(document=document).refusal
    assert (tmp_path / "ran").exists()


def test_a_listed_file_is_the_same_at_the_server_and_for_as_long_as_the_run_lasts(
    project: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.py"
    own.write_text(PLUG_IN.format(mark=str(tmp_path / "ran")))
    set_policy(project, f'files = ["{own}"]')
    document = agreed().plain()
    document["algorithm"] |= {"name": f"{own}:Own"}
    theirs = versions(document)
    other = Cheat(project).join(document=document, versions=theirs | {"own.py": "0" * 64})
    check_facts(other.refusal, "own.py")
    check_facts(Cheat(project).join(document=document, versions=versions({})).refusal, "none")
    assert not Cheat(project).join(document=document).refusal
    own.write_text(own.read_text() + "\n# edited")
    check_facts(Cheat(project).join(document=document).refusal, "plug-ins")
    check_facts(Cheat(project, run="r2").join(document=document, versions=theirs).refusal, "own.py")
    assert not Cheat(project, run="r2").join(document=document).refusal


def test_an_algorithm_of_a_file_can_be_listed(project: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(PLUG_IN.format(mark=str(tmp_path / "ran")))
    document = agreed().plain()
    document["algorithm"] |= {"name": f"{tmp_path}/own.py:Own"}
    listed = f'files = ["{tmp_path}/own.py"]\nalgorithms = ["fedavg"'
    set_policy(project, f"{listed}]")
    check_facts(Cheat(project).join(document=document).refusal, "Own", "fedavg")
    set_policy(project, f'{listed}, "{tmp_path}/../{tmp_path.name}/own.py:Own"]')  # another way to the same file
    assert not Cheat(project).join(document=document).refusal
    set_policy(project, f'files = ["{tmp_path}/own.py"]\nalgorithms = ["{tmp_path}/own.py:Another"]')
    check_facts(Cheat(project).join(document=document).refusal, "Own")


@pytest.mark.parametrize("part", ["missing_neighbours", "file"])
def test_a_listed_algorithm_has_no_parts_of_others_unless_the_owner_lists_them(
    project: Path, tmp_path: Path, part: str
) -> None:
    """FedAvg by name, and another algorithm by its parts."""
    (tmp_path / "own.py").write_text("from fedweave.algorithms.parts import Clip\n")
    if part == "file":
        part = f"{tmp_path}/own.py:Clip"
    listed, config = f'files = ["{tmp_path}/own.py"]', agreed(algorithm_settings={"parts": [part]})
    set_policy(project, listed)
    assert not Cheat(project, config, run="r0").join().refusal  # any algorithm is allowed
    listed += '\nalgorithms = ["fedavg", "fedsage_plus"]'
    set_policy(project, listed)
    server = Cheat(project, config)
    refusal = server.join().refusal
    check_facts(refusal, "policy.parts", "fedavg", f"{part}")
    check_facts(refusal, f'policy.parts = ["{part}"]')
    assert not (project / SITE / "ledgers/r1.jsonl").exists() or server.records().entries == []
    set_policy(project, f"{listed}\nparts = {json.dumps(['secure_sum', part])}")
    assert not Cheat(project, config).join().refusal
    assert not Cheat(project, run="r2").join().refusal


@pytest.mark.parametrize("name", ["fedweave", "torch"])
def test_other_versions_are_refused(project: Path, name: str) -> None:
    theirs = json.loads(join_request(agreed()))["versions"] | {name: "0.0.1"}
    check_facts(Cheat(project).join(versions=theirs).refusal, f"{name}")
    check_facts(Cheat(project).join(versions={}).refusal, "none")


def test_other_files_of_the_same_version_are_refused(project: Path) -> None:
    """As of a site whose installation is some commits behind."""
    own = json.loads(join_request(agreed()))["versions"]
    release, _, files = own["fedweave"].partition(", files ")
    assert release == version("fedweave")
    theirs = own | {"fedweave": f"{release}, files {files[::-1]}"}
    told = Cheat(project).join(versions=theirs).refusal
    assert own["fedweave"] in told
    assert theirs["fedweave"] in told


def test_a_run_goes_back_only_to_what_the_site_itself_kept(project: Path) -> None:
    server = Cheat(project)
    server.join()
    for round in (1, 2, 3, 4):
        reply(server.call("FedAvg.train", round, saved=2 if round == 4 else -1))
    check_facts(Cheat(project).join(after=1).refusal, "state")
    check_facts(ahead(project, after=2, round=2).refusal, "order")
    assert not ahead(project, after=2, round=3).refusal
    check_facts(Cheat(project).join(after=-1).refusal, "state")


def ahead(project: Path, after: int, round: int) -> Any:
    server = Cheat(project)
    assert not server.join(after=after).refusal
    return server.call("FedAvg.train", round, saved=after)


def test_a_checkpoint_that_the_server_takes_back_is_refused(project: Path) -> None:
    server = Cheat(project)
    server.join()
    reply(server.call("FedAvg.train", 3, saved=2))
    check_facts(server.call("FedAvg.train", 4, saved=1).refusal, "round 1", "round 2")


def test_a_new_job_of_a_run_ends_the_one_before(project: Path) -> None:
    """Two jobs of one run at a time would answer each round twice."""
    first, second = Cheat(project), Cheat(project)
    first.join()
    reply(first.call("FedAvg.train"))
    assert not second.join().refusal
    check_facts(first.call("FedAvg.train", 2).refusal, "r1")
    reply(second.call("FedAvg.train"))
    assert len(first.refusals()) == 1


# --- few people, crafted weights


@pytest.mark.parametrize("row", [0, 1], ids=["train", "val"])
def test_nothing_is_trained_or_scored_on_a_few_nodes(project: Path, row: int) -> None:
    path = project / SITE / "data.npz"
    arrays = dict(np.load(path))
    arrays[SPLIT[row]] = arrays[SPLIT[row]][:9]
    np.savez(path, **arrays)
    answer = Cheat(project).join()
    check_facts(answer.refusal, "policy.min_nodes")
    assert answer.blob == b""
    assert " 9 " not in answer.refusal
    set_policy(project, "min_nodes = 9")
    assert not Cheat(project).join().refusal


class Parties(Cheat):
    """A server that goes on as it likes after a vertical federation's sites have joined; the others' parts are its own
    programs', with their certificates."""

    def __init__(self, project: Path, root: Path, policy: str = "") -> None:
        sections: Any = tables(root, SITES)
        bring(project, root)
        write_kits(project, SITES)
        set_policy(project, policy)
        for site in SITES:
            (project / site / "ids.key").touch(mode=0o600)
            (project / site / "ids.key").write_text(bytes(range(32)).hex())
        super().__init__(project, experiment("glasu", **sections))
        others = [site for site in SITES if site != SITE]
        self.others = {
            site: IntersectionParty(site, read_identity(project / site), "r1", SITES, bytes(32)) for site in others
        }
        self.own = reply(self.join())

    def ask(self, kind: str, message: Tree, **more: Any) -> Answer:
        asked = {"kind": kind, "pin": pin(self.config.plain(), [*SITES]), "round": -1, **more}
        return self.say(json.dumps(asked), message)

    def openings(self, names: list[str]) -> tuple[dict[str, Any], Tree]:
        """All parties', two of which have these names; and the list of the one before the site."""
        opened = {site: party.open(names) for site, party in self.others.items()}
        self.lists = {site: points for site, (points, _) in opened.items()}
        told = {site: opening_tree(own) | form(points) for site, (points, own) in opened.items()}
        told[SITE] = self.own["signed"] | form(self.own["ids"].numpy())
        points = torch.from_numpy(opened[SITES[0]][0])
        return {site: told[site] for site in SITES}, {"ids": points, "signature": torch.zeros(1, dtype=torch.uint8)}

    def blind(self, names: list[str]) -> None:
        """Have the site take all its turns."""
        openings, message = self.openings(names)
        heard = read_openings(openings)
        for party in self.others.values():
            party.receive_openings(heard)
        reply(self.ask("blind", message | {"openings": openings}, turn=1))
        last = SITES[SITES.index(SITE) - 2]
        passed, signature = self.others[SITES[0]].blind(1, self.lists[last], b"")
        message = {"ids": torch.from_numpy(passed), "signature": tensor(signature)}
        reply(self.ask("blind", message, turn=2))


def form(points: np.ndarray) -> Tree:
    return {"size": len(points), "digest": tensor(digest(points))}


@pytest.mark.parametrize("what", ["few", "one, often", "enough"])
def test_no_crowd_is_aligned_that_is_too_small(project: Path, tmp_path: Path, what: str) -> None:
    """A server that names one place learns whether, and with which label and edges, one person is there."""
    server = Parties(project, tmp_path / "data")
    check_facts(server.ask("align", {"width": 3, "common": torch.arange(20)}).refusal, "blinded")
    server = Parties(project, tmp_path / "data")
    server.blind([f"person{i}" for i in range(12)])
    one = torch.zeros(20, dtype=torch.int64)
    chosen = {"few": torch.arange(9), "one, often": one, "enough": torch.arange(75)}[what]
    answer = server.ask("align", {"width": 3, "common": chosen})
    if what == "enough":
        assert reply(answer)["nodes"] == 75
        [noted] = [note for note in server.records().notes if note["note"] == "aligned"]
        assert noted["common"] == noted["own"] == 75
        told = " ".join(CliRunner().invoke(app, ["audit", str(server.folder)]).output.split())
        check_facts(told, "bank-a 12, bank-b 75, bank-c 12", "75", "75")
        check_facts(server.ask("align", {"width": 3, "common": torch.arange(40)}).refusal, "once")
    else:
        assert answer.refusal
        assert answer.blob == b""
        assert ("policy.min_nodes" in answer.refusal) == (what == "few")


def test_ids_cannot_be_tried_out_by_the_thousand_where_the_policy_bounds_lists(project: Path, tmp_path: Path) -> None:
    """Whoever works with the server learns which of the ids on its own list a site has, so a list is to be short."""
    server = Parties(project, tmp_path / "data", "max_ids = 100")
    openings, message = server.openings([f"person{i}" for i in range(101)])
    answer = server.ask("blind", message | {"openings": openings}, turn=1)
    check_facts(answer.refusal, "policy.max_ids", "bank-a", "101", "100")
    assert answer.blob == b""


@pytest.mark.parametrize("lie", ["again", "later", "twice", "unsigned", "no list", "no openings"])
def test_ids_are_blinded_once_in_turn_and_only_those_of_a_site(project: Path, tmp_path: Path, lie: str) -> None:
    server = Parties(project, tmp_path / "data")
    openings, message = server.openings([f"person{i}" for i in range(12)])
    first = message | {"openings": openings}
    if lie == "again":
        reply(server.ask("blind", first, turn=1))
        answer = server.ask("blind", first, turn=1)
    elif lie == "later":
        answer = server.ask("blind", first, turn=2)
    elif lie == "twice":
        answer = server.ask("blind", first | {"ids": message["ids"][:1].repeat(12, 1)}, turn=1)
    elif lie == "unsigned":
        answer = server.ask("blind", first | {"ids": server.own["ids"][:12].clone()}, turn=1)
    elif lie == "no list":
        answer = server.ask("blind", first | {"ids": 1.0}, turn=1)
    else:
        answer = server.ask("blind", message | {"openings": {"bank-a": 1}}, turn=1)
    check_facts(answer.refusal, "alignment:")
    assert answer.blob == b""


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_reach_no_step(project: Path, value: float, sparse: bool) -> None:
    server = Cheat(project)
    server.join()
    weights = server.weights()
    weights["w"]["0"]["weight"][0, 0] = value
    weights = map_leaves(Sparsified, weights) if sparse else weights
    check_facts(server.call("FedAvg.train", message=weights).refusal, "finite")
    assert not (project / SITE / "runs/r1/state.safetensors").exists()


def test_weights_that_jump_are_refused_where_the_policy_bounds_them(project: Path) -> None:
    assert trained(project, 1.0, 1e3).blob
    set_policy(project, "max_change = 0.5")
    assert trained(project, 1.0, 1.001, run="r2").blob
    check_facts(trained(project, 1.0, 1e3, run="r3").refusal, "policy.max_change")
    after = Cheat(project, run="r3")  # nor does another job of the run begin afresh
    after.join(after=1)
    check_facts(after.call("FedAvg.train", 2, after.weights(1e3), saved=1).refusal, "policy.max_change")
    assert trained(project, 1.0, run="r5").blob
    anew = Cheat(project, run="r5")  # nor one that says that there was nothing before
    assert not anew.join().refusal
    check_facts(anew.call("FedAvg.train", 1, anew.weights(1e3)).refusal, "policy.max_change")
    other = Cheat(project, run="r4")  # nor weights in another form
    other.join()
    assert other.call("FedAvg.train", 1, map_leaves(Sparsified, other.weights())).blob
    far = map_leaves(Sparsified, other.weights(1e3))
    check_facts(other.call("FedAvg.train", 2, far).refusal, "policy.max_change")


@pytest.mark.parametrize("form", ["dense", "sparse", "whole", "spread"])
def test_no_step_is_the_first_to_get_weights_that_jump(project: Path, form: str) -> None:
    """Weights far from those that were trained, for the step that scores, which has had none in the run; also as whole
    numbers, or of a shape that spreads to the same."""
    set_policy(project, "max_change = 0.5")
    server = Cheat(project)
    server.join()
    reply(server.call("FedAvg.train", 1))
    near = server.weights(1.001)
    far = {
        "dense": server.weights(1e6),
        "sparse": map_leaves(Sparsified, server.weights(1e6)),
        "whole": changed_bias(near, torch.full((3,), 10**6)),
        "spread": changed_bias(near, torch.full((1, 3), 1e6)),
    }[form]
    check_facts(server.call("FedAvg.score", 1, far).refusal, "policy.max_change")
    honest = Cheat(project)
    assert not honest.join(after=0).refusal
    assert honest.call("FedAvg.score", 1, near).blob


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_whole_numbers_among_weights_are_bounded_too(project: Path, dtype: torch.dtype) -> None:
    set_policy(project, "max_change = 0.5")
    server = Cheat(project)
    server.join()
    reply(server.call("FedAvg.score", 1, changed_bias(server.weights(), torch.zeros(3, dtype=dtype))))
    jumped = changed_bias(server.weights(), torch.ones(3, dtype=dtype))
    check_facts(server.call("FedAvg.score", 2, jumped).refusal, "policy.max_change")


def changed_bias(message: Tree, bias: torch.Tensor) -> Tree:
    """The weights with another bias of the output."""
    return {"w": message["w"] | {"1": message["w"]["1"] | {"bias": bias}}}


def trained(project: Path, *scales: float, run: str = "r1") -> Any:
    """The answer to the last of several rounds."""
    server = Cheat(project, run=run)
    assert not server.join().refusal
    return [server.call("FedAvg.train", i, server.weights(scale)) for i, scale in enumerate(scales, 1)][-1]


def histogram(server: Cheat) -> list[float]:
    """How many test nodes are of each class, by weights that put every node into class k."""
    found = []
    for k in range(3):
        weights = server.weights(0.0)
        weights["w"]["1"]["bias"] = torch.eye(3)[k]
        found.append(float(reply(server.call("FedAvg.score", k + 1, weights))["own"]["accuracy"][2, 0]))
    return found


def test_rounded_scores_give_no_exact_counts_of_classes(project: Path) -> None:
    server = Cheat(project)
    server.join()
    exact = histogram(server)
    told = reply(server.call("FedAvg.score", 4))["own"]
    assert sum(exact) == told["accuracy"][2, 1]  # an honest site's answers give them away
    assert told["f1"].any()
    set_policy(project, 'round_scores = 10\ndeny = ["labels"]')
    server = Cheat(project, run="r2")
    server.join()
    coarse = histogram(server)
    assert coarse == [round(count / 10) * 10 for count in exact] != exact
    loud = server.weights(0.0)  # a class whose every example has a loss of 10⁶ would be counted by a rounded sum
    loud["w"]["1"]["bias"] = torch.tensor([-1e6, 0.0, 0.0])
    told = reply(server.call("FedAvg.score", 4, loud))["own"]
    assert not any(told[name].any() for name in told if name != "accuracy")


@pytest.mark.parametrize("policy", ["", "round_scores = 10"])
def test_no_measure_of_an_evaluation_tells_how_many_a_class_has(project: Path, policy: str) -> None:
    """FedEgo's evaluation tells how far labels are from those that the server sends: if all in one class, its share."""
    set_policy(project, policy)
    server = Cheat(project, agreed("fedego", rounds=5))
    server.join()
    algorithm, graph = job_of(server.member).algorithm, job_of(server.member).graph
    theta, phi = algorithm.split_weights(models.init(algorithm.model, random.key(1), torch.float32))
    found = []
    for own in range(3):
        message = {"theta": theta, "phi": phi, "labels": torch.eye(3)[own]}
        left = reply(server.call("FedEgo.score", own + 1, message))
        found.append(1 - float(left["measures"]["emd"]) / 2)
    counts = torch.bincount(graph.y[graph.masks[0]], minlength=3)
    exact = (counts / counts.sum()).tolist()
    assert found == ([1.0] * 3 if policy else pytest.approx(exact, abs=1e-6))


# --- caps


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ('epsilon = 3.5\nunbounded = ["n", "own", "trained"]', "policy.epsilon: ε = 3 is spent"),
        ("calls = {train = 3}", "policy.calls: train has replied 3 times"),
        ('calls = {"FedAvg.train" = 3}', "policy.calls: FedAvg.train has replied 3 times"),
    ],
)
def test_caps_are_shared_by_jobs_that_run_at_the_same_time(
    project: Path, monkeypatch: pytest.MonkeyPatch, policy: str, said: str
) -> None:
    """Each job by itself stays below them."""
    monkeypatch.setattr(parts.BySize, "protection", parts.Protection(LDP(1.0, "client")))
    set_policy(project, policy)
    jobs = [Cheat(project, agreed(rounds=2), run=run) for run in ("r1", "r2")]
    for server in jobs:
        assert not server.join().refusal
    answers = [server.call("FedAvg.train", round) for round in (1, 2) for server in jobs]
    assert [bool(answer.refusal) for answer in answers] == [False, False, False, True]
    assert said in answers[-1].refusal


def test_bytes_of_all_jobs_count(project: Path) -> None:
    first = Cheat(project, run="r0")
    first.join()
    first.call("FedAvg.train")
    joining, training = (entry.size for entry in first.records().entries)
    set_policy(project, f'measures = ["classes"]\nbytes = {3 * joining + 3 * training - 1}')
    one, other = Cheat(project, run="r1"), Cheat(project, run="r2")
    one.join()
    other.join()
    assert one.call("FedAvg.train").blob
    check_facts(other.call("FedAvg.train").refusal, "policy.bytes")


def test_what_a_site_keeps_is_its_owners(project: Path) -> None:
    server = Cheat(project)
    server.join()
    reply(server.call("FedAvg.train"))
    for name in ("ledgers", "runs", "runs/r1"):
        assert (project / SITE / name).stat().st_mode & 0o777 == 0o700
    assert (project / SITE / "ledgers/r1.jsonl").stat().st_mode & 0o777 == 0o600


def test_an_encoder_of_more_coordinates_than_were_agreed_makes_no_codes(project: Path) -> None:
    """Each coordinate leaves with its ε: four times as many would cost four times what the site counts."""
    config = agreed("fairgfl", algorithm_settings={"epsilon_a": 0.1, "code_size": 8, "alpha": 1.0, "encoder": "random"})
    for size, form in ((32, (8, 32)), (8, (8, 8))):
        cheat = Cheat(project, config, run=f"r{size}")
        reply(cheat.join())
        encoder = {"weight": torch.ones(form), "low": torch.zeros(size)}
        answer = cheat.call("FedAvg.train", 1, cheat.weights() | {"OverlapWeights": {"encoder": encoder}})
        assert bool(answer.blob) == (size == 8)
    check_facts(Cheat(project, config, run="r32").refusals()[-1]["why"], "encoder")


@pytest.mark.parametrize("how", ["standard", "none"])
def test_noise_for_single_examples_is_none_where_scaling_moves_them_all(project: Path, how: str) -> None:
    part = {"name": "dp_examples", "sigma": 1.0, "examples": 60}
    plain = agreed(algorithm_settings={"parts": ["uniform", part], "local_steps": 1}).plain()
    config = resolve(plain | {"model": {"name": "mlp"}})
    path = project / SITE / "site.toml"
    text = re.sub(r"(?m)^normalize = .*\n", "", path.read_text())
    path.write_text(text.replace("[data]", f'[data]\nnormalize = "{how}"'))
    answer = Cheat(project, config).join()
    assert bool(answer.blob) == (how == "none")
    if how != "none":
        check_facts(Cheat(project, config).refusals()[-1]["why"], "ε")


def test_where_models_predict_new_records_their_scores_stay_at_home(project: Path) -> None:
    """The step that keeps a model for its owner scores it where the server leaves out one word."""
    cheat = Cheat(project)
    reply(cheat.join())
    reply(cheat.call("FedAvg.train", 1))
    again = Cheat(project)
    reply(again.join(1, predict=True))
    answer = again.call("FedAvg.score", 1, predict=True)
    assert answer.blob == b""
    check_facts(again.refusals()[-1]["why"], "predict")


def test_a_site_whose_evaluations_are_used_up_still_keeps_its_model(project: Path) -> None:
    set_policy(project, "evaluations = 1")
    cheat = Cheat(project, agreed(rounds=1))
    reply(cheat.join())
    reply(cheat.call("FedAvg.train", 1))
    assert reply(cheat.call("FedAvg.score", 1))
    again = Cheat(project, agreed(rounds=1))
    reply(again.join(1, predict=True))
    assert not reply(again.call("FedAvg.score", 1, again.weights() | {"keep": torch.tensor(1)}, predict=True))


@pytest.mark.parametrize(
    ("decay", "rate", "good"),
    [
        ({}, None, True),
        ({}, 0.5, True),
        ({}, 0.1, False),
        ({}, -1e6, False),
        ({"decay": 0.5, "decay_every": 1}, 0.25, True),
        ({"decay": 0.5, "decay_every": 1}, 0.0, True),
        ({"decay": 0.5, "decay_every": 1}, -0.1, False),
        ({"decay": 0.5, "decay_every": 1}, 0.6, False),
        ({"decay": 0.5, "decay_every": 1}, torch.tensor(-1e6), False),
    ],
)
def test_a_server_lowers_a_learning_rate_as_agreed_and_turns_none_around(
    tmp_path: Path, decay: dict[str, Any], rate: Any, good: bool
) -> None:
    """GLASU's step backwards, of any length, would write what the server likes into a party's weights."""
    settings = {"exchanges": 1, "batch": 0, "lr": 0.5, **decay}
    config = agreed("glasu", algorithm_settings=settings)
    server = Cheat(make_sites(tmp_path / "project", "glasu"), config)
    reply(server.join())
    found = job_of(server.member).holdings
    about = {"kind": "align", "pin": pin(config.plain(), [*SITES]), "round": -1}
    reply(server.say(json.dumps(about), {"width": found.data.features, "common": torch.arange(found.data.nodes)}))
    begin = {"clients": 3, "share": torch.tensor(1 / 3), "tail": random.key(7)}
    reply(server.call("GLASU.begin", 0, begin))
    h = reply(server.call("GLASU.infer", 1, {"batch": random.key(8), "segment": 0}))["h"]
    answer = server.call("GLASU.update", 1, {"h": h} | ({} if rate is None else {"lr": rate}))
    assert bool(answer.blob) == good, answer.refusal
    if not good:
        check_facts(answer.refusal, f"lr is {float(rate):g}")


def test_where_labels_are_drawn_no_party_has_a_sum_of_gradients_for_others(tmp_path: Path) -> None:
    """Parties that a server has left out of drawing would add zeros, and the sum would be one party's own gradient."""
    drawn = {"exchanges": 1, "batch": 0, "lr": 0.5, "secure_sum": True}
    for epsilon, refused in ((2.0, True), (None, False)):
        config = agreed("glasu", algorithm_settings=drawn | ({} if epsilon is None else {"label_epsilon": epsilon}))
        server = Cheat(make_sites(tmp_path / f"{epsilon}", "glasu"), config)
        reply(server.join())
        found = job_of(server.member).holdings
        about = {"kind": "align", "pin": pin(config.plain(), [*SITES]), "round": -1}
        reply(server.say(json.dumps(about), {"width": found.data.features, "common": torch.arange(found.data.nodes)}))
        reply(server.call("GLASU.begin", 0, {"clients": 3, "share": torch.tensor(1 / 3), "tail": random.key(7)}))
        said = server.call("GLASU.pull_sum", 1, {"h": torch.zeros(1)}).refusal
        assert ("out of the algorithm's order" in said) == refused, said


def test_a_job_that_predicts_leaves_what_training_goes_on_from(project: Path) -> None:
    """Also one of an earlier round, whose server says that it has saved that; it would delete what came after."""
    set_policy(project, "max_change = 9.0")
    server = Cheat(project, agreed(rounds=9))
    reply(server.join())
    for round in (1, 2, 3, 4):
        reply(server.call("FedAvg.train", round))
    folder = project / SITE / "runs/r1"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {"before-2", "before-3", "before-4", "state.safetensors", "download.safetensors"} <= before.keys()
    for after in (1, 4):
        predicting = Cheat(project, agreed(rounds=9))
        reply(predicting.join(after, predict=True))
        assert not predicting.call("FedAvg.keep_trained", after, predict=True, saved=after).refusal
    left = ("predictions", "scorer")  # what a job of predictions leaves
    there = {path.name: path.read_bytes() for path in folder.iterdir() if not any(name in path.name for name in left)}
    assert there == before
    later = Cheat(project, agreed(rounds=9))
    reply(later.join(after=1))  # from no later round than it really has saved
    assert not later.call("FedAvg.train", 2).refusal


@pytest.mark.parametrize("batch", [9, 10])
def test_a_batch_of_fewer_nodes_than_the_policy_allows_is_trained_on_nowhere(project: Path, batch: int) -> None:
    set_policy(project, "min_nodes = 10")
    answer = Cheat(project, agreed("fedsage", algorithm_settings={"batch": batch})).join()
    assert bool(answer.blob) == (batch == 10)
    graph = random_graph(60)
    for own, what in (
        (algorithm("glasu", batch=1), "GLASU (batch)"),
        (algorithm("fedsage_plus", batch=16, sample=1), "MissingNeighbours (sample)"),
        (algorithm("graphfl", examples=1), "MetaGradient (examples)"),
    ):
        with refusal("call-refused", f"policy.min_nodes: {what}", "10"):
            check_batches(Rules(min_nodes=10), own, graph, {})

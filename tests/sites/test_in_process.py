"""Members and the server's federation without NVFlare between them: what is sent, kept, refused and counted."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')
import torch

from fedweave.algorithms import ALGORITHMS, parts
from fedweave.algorithms.score_sums import sum_declaration
from fedweave.core.algorithm import capabilities
from fedweave.core.federation import Sends, StepInfo
from fedweave.core.ledger import Ledger
from fedweave.core.mechanism import LDP
from fedweave.core.tree import Tree, decode, encode
from fedweave.core.types import HELD
from fedweave.errors import ClientsMissing
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.metrics.measured import ROUNDED_SCORES
from fedweave.privacy.secure_sum import FixedPoint
from fedweave.reports.notes import notes
from fedweave.sites.flare import member as members
from fedweave.sites.flare import steps
from fedweave.sites.flare.audit import compare
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.journal import Journal, entries
from fedweave.sites.flare.machine import read_about
from fedweave.sites.flare.predicted import before_of
from fedweave.sites.flare.scores import NOTHING, Scoring, as_arrived, read_scoring
from tests.contract.federations import distance
from tests.refusals import check_facts, refusal
from tests.sites.projects import (
    CUTS,
    SITES,
    VERTICAL,
    InProcess,
    call_request,
    check_equal,
    check_private,
    cut_again,
    experiment,
    job_of,
    join_request,
    joined,
    private,
    renamed,
    seed_noise,
    set_policy,
    simulated,
)
from tests.stand_in import DEVICE, present

DRAWN = {"fairgfl": "OverlapWeights"}  # what holds noise that sites draw by themselves
NOISY = {"dp_fedavg", "fedsage_plus"}  # whose clients' noise reaches the models
APART = {"cffl"}  # its server needs examples of its own, which the digits leave it none of
OF_SITES = [
    name
    for name, kind in ALGORITHMS.items()
    if not (capabilities(kind).pooled or capabilities(kind).ids or capabilities(kind).graph_level) and name not in APART
]


@pytest.mark.often("fedavg", "glasu", "fedego", "scaffold")
@pytest.mark.parametrize("name", OF_SITES)
def test_sites_give_the_numbers_of_the_simulation(project: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = experiment(name, rounds=2)
    if name in NOISY:
        seed_noise(monkeypatch)
    if name in VERTICAL or name in CUTS:
        project = cut_again(project, config)
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    expected, sim = simulated(config)
    told = renamed(expected.state, sim)
    if name in DRAWN:
        told["parts"][DRAWN[name]].pop("true")  # which no server knows
        assert float(last.state["parts"][DRAWN[name]]["nodes"].sum()) > 0.5
    assert distance(last.state, told) <= 1e-5
    areas = {key for key in expected.summary if "auc" in key}  # they jump where two scores change places
    for kind, within in ((areas, 1e-3), (expected.summary.keys() - areas, 1e-5)):
        assert {key: last.summary[key] for key in kind} == pytest.approx(
            {key: expected.summary[key] for key in kind}, abs=within
        )
    assert last.summary.keys() == expected.summary.keys()
    for site, client in zip(SITES, sim.clients, strict=True):
        here, there = private(project, site), sim.snapshot().get(client, {})
        if name in DRAWN:
            drawn, seeded = (state.pop(DRAWN[name])["codes"] for state in (here, there))
            assert drawn.shape == seeded.shape
            assert not torch.equal(drawn, seeded)
        if name == "f2gnn":  # a row for each node, and padding, of which sites and the simulation have their own
            ours, theirs = (state.pop("DivergenceStart")["p"] for state in (here, there))
            count = int(sim.graphs[client].real.sum())
            assert distance({"p": ours[:count]}, {"p": theirs[:count]}) <= 1e-5
        assert distance(here, there) <= 1e-5


TRAINING: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {"schedule": "cosine", "warmup": 1, "optimizer": "adamw", "clip_gradient": 0.2}),
    ("fedavg", {"local_epochs": 1, "batch_size": 31, "optimizer_state": "fresh"}),
    ("fedavg", {"parts": [{"name": "top_k", "keep": 0.2}, "quantize"]}),
    ("fedavg", {"optimizer": "sgd", "model": {"norm": "batch"}}),
    ("local", {"schedule": "linear", "local_epochs": 1, "batch_size": 31, "optimizer_state": "fresh"}),
]


@pytest.mark.often("fedavg-settings2")
@pytest.mark.parametrize(("name", "settings"), TRAINING)
def test_sites_train_as_the_simulation_does(project: Path, name: str, settings: dict[str, Any]) -> None:
    """Rates and passes come from the server's messages, and packed updates cross as they are."""
    settings = dict(settings)
    config = experiment(name, rounds=3, model=settings.pop("model", {}), algorithm_settings=settings)
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 3)
    expected, sim = simulated(config)
    assert distance(last.state, renamed(expected.state, sim)) <= 1e-5
    check_private(project, sim)
    ours, theirs = (
        {row["key"]: row["bytes"] for row in engine.ledger.table().to_pylist() if row["direction"] == "up"}
        for engine in (fed, sim)
    )
    updates = [key for key in theirs if key.startswith("update/")]
    assert {key: ours[key] for key in updates} == {key: theirs[key] for key in updates}
    assert bool(updates) == (name == "fedavg")


@pytest.mark.often("fedproto")
@pytest.mark.parametrize("name", ["fedproto", "fedtgp", "local"])
def test_sites_have_the_models_that_the_experiment_gives_them(project: Path, name: str) -> None:
    models = {"each": [{}, {"name": "sage", "hidden": 16}, {"name": "mlp", "hidden": 16, "layers": 3}]}
    fed, algorithm, _ = joined(project, experiment(name, rounds=2, model=models))
    *_, last = train(algorithm, fed, 2)
    _, sim = check_equal(last, experiment(name, rounds=2, model=models))
    states = [private(project, site) for site in SITES]
    assert [len(state["w"]) for state in states] == [2, 2, 3]
    for state, client in zip(states, sim.clients, strict=True):
        assert distance(state, sim.snapshot()[client]) <= 1e-5


@pytest.mark.often("fedavg")
@pytest.mark.parametrize("name", ["fedavg", "glasu"])
def test_a_site_computes_on_its_own_device(project: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What leaves it and what it keeps is that of a site without one."""
    config = experiment(name, rounds=2)
    project = cut_again(project, config) if name in VERTICAL else project
    site = project / SITES[1] / "site.toml"
    site.write_text(site.read_text() + '\n[site]\ndevice = "cuda"\n')
    with present():
        monkeypatch.setattr(
            members, "choose_device", lambda wanted, where: DEVICE if wanted == "cuda" else torch.device("cpu")
        )
        fed, algorithm, _ = joined(project, config)
        *_, last = train(algorithm, fed, 2)
    check_equal(last, config)


def test_a_site_without_the_device_that_it_names_refuses(project: Path) -> None:
    site = project / SITES[1] / "site.toml"
    site.write_text(site.read_text() + '\n[site]\ndevice = "cuda:999"\n')
    with pytest.raises(ClientsMissing, match=SITES[1]):
        joined(project, experiment())
    site.write_text(site.read_text().replace("cuda:999", "gpu"))
    with refusal("config.site", "site.device"):
        read_about(site)


def test_sites_that_share_no_weights_exchange_what_parts_send(project: Path) -> None:
    """Each is judged by its own model."""
    alone = {"share": [], "parts": [{"name": "proximal", "adaptive": True}]}
    config = experiment("fedavg", rounds=2, algorithm_settings=alone)
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    check_equal(last, config)
    assert {row["key"] for row in fed.ledger.table().to_pylist() if row["direction"] == "up" and row["shape"]} >= {
        "loss"
    }
    assert not [row for row in fed.ledger.table().to_pylist() if row["key"].startswith(("w", "update"))]


@pytest.mark.often("dp_fedavg-settings0")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dp_fedavg", {}),
        ("fedavg", {"parts": ["uniform", {"name": "dp_examples", "sigma": 1.0}]}),
        ("fedego", {"sigma": 0.1}),
        ("fedsage_plus", {}),
        ("fairgfl", {}),
        ("glasu", {"sigma": 0.1, "clip": 1.0}),
        ("glasu", {"label_epsilon": 2.0}),
        ("glasu", {"label_epsilon": 2.0, "backward": "exchanged", "steps": 1, "batch": 0}),
    ],
)
def test_every_kind_of_noise_can_be_drawn_from_a_sites_secret(
    project: Path, name: str, settings: dict[str, Any]
) -> None:
    """No simulation has keys of that kind, which give words outside of PyTorch's transforms alone."""
    first = {"labels": "first"} if "label_epsilon" in settings else {}
    model = {"model": {"name": "mlp", "hidden": 16}} if "parts" in settings else {}
    config = resolve(experiment(name, rounds=2, algorithm_settings=settings, partition=first).plain() | model)
    fed, algorithm, _ = joined(cut_again(project, config), config)
    *_, last = train(algorithm, fed, 2)
    assert 0 <= last.summary["global/accuracy"] <= 1
    assert any(row["mechanism"] not in ("", "none") for row in fed.ledger.table().to_pylist())


def test_sites_without_a_sensitive_attribute_take_no_part_where_one_is_needed(project: Path) -> None:
    """They refuse as they join, before anything leaves, and say why in their own journals alone."""
    with refusal("clients-missing", "'join': 0 of 3", "bank-a:"):
        joined(project, experiment("f2gnn"))


def test_what_leaves_is_on_the_disk_before_it_leaves(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the moment of every sync the site's journal holds the entry; a site replies only after that."""
    config, synced = experiment("fedavg", rounds=1), list[int]()
    path = project / "bank-a/ledgers/r1.jsonl"
    real = os.fsync

    def sync(descriptor: int) -> None:
        real(descriptor)
        if path.exists() and os.path.sameopenfile(descriptor, reader.fileno()):
            synced.append(len(entries(path)))

    path.parent.mkdir(exist_ok=True)
    path.touch()
    with open(path) as reader:
        monkeypatch.setattr(os, "fsync", sync)
        fed, algorithm, _ = joined(project, config)
        after = len(entries(path))
        assert synced == [*range(1, after + 1)]
        list(train(algorithm, fed, 1))
    assert synced == [*range(1, len(entries(path)) + 1)]
    assert len(synced) > after > 0


def test_private_state_survives_the_site_and_equals_the_simulations(project: Path) -> None:
    config = experiment("local", rounds=4)
    fed, algorithm, link = joined(project, config)
    steps = train(algorithm, fed, 4)
    next(steps), next(steps)
    fresh = InProcess(project)
    fresh.members["bank-b"].answer(join_request(config, after=2), b"")
    link.members["bank-b"] = fresh.members["bank-b"]
    list(steps)
    _, sim = simulated(config)
    for site, client in zip(SITES, sim.clients, strict=True):
        kept = decode((project / site / "runs/r1/state.safetensors").read_bytes())
        assert distance(kept, sim.snapshot()[client]) <= 1e-5


def test_sites_go_back_to_the_checkpoint_when_the_server_does(project: Path) -> None:
    config = experiment("local", rounds=5)
    fed, algorithm, _ = joined(project, config)
    for step in train(algorithm, fed, 4):
        if step.round == 2:
            saved = fed.snapshot()  # rounds 3 and 4 are lost with the server
    again, algorithm, _ = joined(project, config, after=2)
    again.restore(saved)
    *_, last = train(algorithm, again, 5, resume=(2, {}))
    expected, sim = simulated(config)
    assert last.summary == pytest.approx(expected.summary, abs=1e-5)
    kept = decode((project / "bank-c/runs/r1/state.safetensors").read_bytes())
    assert distance(kept, sim.snapshot()["client-2"]) <= 1e-5


def test_snapshots_are_kept_only_as_far_back_as_the_server_may_go(project: Path) -> None:
    fed, algorithm, _ = joined(project, experiment("local", rounds=5))
    for step in train(algorithm, fed, 5):
        if step.round == 3:
            fed.snapshot()
    kept = sorted(path.name for path in (project / "bank-a/runs/r1").glob("before-*"))
    assert kept == ["before-4", "before-5"]


def test_ledger_is_the_simulations_and_redone_rounds_stand_twice(project: Path, tmp_path: Path) -> None:
    config = experiment("fedavg", rounds=2)
    path = tmp_path / "journal.jsonl"
    fed, algorithm, _ = joined(project, config, ledger=Journal(path))
    list(train(algorithm, fed, 2))
    _, sim = simulated(config)
    rows = [row for row in fed.ledger.table().to_pylist() if row["step"] != "(join)"]
    columns = ("round", "step", "direction", "key", "shape", "bytes", "mechanism", "reveals", "applied")
    names = dict(zip(sim.clients, SITES, strict=True))
    wanted = sorted((names[r["client"]], *(r[c] for c in columns)) for r in sim.ledger.table().to_pylist())
    assert sorted((row["client"], *(row[c] for c in columns)) for row in rows) == wanted
    with open(path, "a") as file:
        file.write('{"round": 2, "ca')  # the server died while it wrote
    once = fed.ledger.bytes_up
    again, algorithm, _ = joined(project, config, after=1, ledger=Journal(path))
    list(train(algorithm, again, 2, resume=(1, {"w": algorithm.init(again)["w"]})))
    steps = [entry.step for entry in entries(path) if entry.round == 2 and entry.direction == "up"]
    assert steps.count("FedAvg.train") == 2 * len(SITES)
    assert again.ledger.bytes_up > 1.4 * once


@pytest.mark.often("fedavg")
@pytest.mark.parametrize("name", ["fedavg", "fedego", "glasu", "dfedgnn"])
def test_what_sites_have_is_not_sent_again_where_that_is_asked(project: Path, name: str) -> None:
    config = experiment(name, rounds=3, resend=False)
    if name in VERTICAL or name in CUTS:
        project = cut_again(project, config)
    fed, algorithm, _ = joined(project, config, resend=False)
    *_, last = train(algorithm, fed, 3)
    expected, sim = check_equal(last, config)
    assert simulated(experiment(name, rounds=3))[0].summary == expected.summary
    rows = [row for row in fed.ledger.table().to_pylist() if not row["step"].startswith("(")]
    columns = ("round", "step", "direction", "key", "shape", "bytes")
    names = dict(zip(sim.clients, SITES, strict=True))
    there = [row for row in sim.ledger.table().to_pylist() if not row["step"].startswith("(")]
    ours, theirs = (
        [tuple(row[c] for c in columns) for row in found if row["direction"] != "peer"] for found in (rows, there)
    )
    assert sorted(ours) == sorted(theirs)
    assert {row["client"] for row in rows} == {names[row["client"]] for row in there}
    trained = [
        row["key"] for row in rows if row["step"] == "FedAvg.train" and row["round"] > 1 and row["direction"] == "down"
    ]
    assert not any(key.startswith("w/") for key in trained)
    assert (HELD in trained) == (name == "fedavg")


def test_a_bound_on_changes_sees_what_was_not_sent_again(project: Path) -> None:
    set_policy(project, "max_change = 1e-9")
    config = experiment("fedavg", rounds=2, resend=False)
    fed, algorithm, _ = joined(project, config, quorum=0.6, resend=False)
    first = algorithm.init(fed)
    state = algorithm.round(first, fed)
    algorithm.evaluate(first, fed)  # of weights that sites have
    assert not fed.faults()
    fed.begin(2)
    algorithm.round(state, fed)
    assert fed.faults()[("bank-b", "missing")] == 1


def test_who_failed_a_call_is_sent_everything(project: Path) -> None:
    config = experiment("fedavg", rounds=1, resend=False)
    fed, algorithm, link = joined(project, config, quorum=0.6, resend=False)
    w = {"w": algorithm.init(fed)["w"]}
    link.spoil["bank-b"] = lambda answer: answer._replace(blob=b"junk")
    fed.begin(1)
    fed.map(algorithm.train, w)
    link.spoil.clear()
    assert fed.map(algorithm.score, w).clients == SITES
    down = [
        row for row in fed.ledger.table().to_pylist() if row["step"] == "FedAvg.score" and row["direction"] == "down"
    ]
    assert {row["client"] for row in down if row["key"].startswith("w/")} == {"bank-b"}


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("nan", "not finite"),
        ("shape", r"not \["),
        ("garbage", "encoding"),
        ("undeclared", "declares"),
        ("huge", "limit"),
        ("enormous", "update reaches"),
        ("negative", "n is -3"),
    ],
)
def test_a_bad_reply_is_refused_and_named_and_the_others_count(project: Path, what: str, said: str) -> None:
    config = experiment("fedavg", rounds=1)
    fed, algorithm, link = joined(project, config, quorum=0.6, limit=400_000)

    def spoil(answer: Any) -> Any:
        tree = decode(answer.blob)
        if "update" not in tree:
            return answer
        weight = tree["update"]["0"]["weight"]
        changed = {
            "nan": weight * np.nan,
            "shape": weight[None],
            "huge": torch.zeros(200_000),
            "enormous": weight * 1e30,
        }.get(what, weight)
        tree["update"]["0"]["weight"] = changed
        tree |= {"graph": weight} if what == "undeclared" else {}
        tree |= {"n": torch.tensor(-3)} if what == "negative" else {}
        return answer._replace(blob=b"\x80\x04junk" if what == "garbage" else encode(tree))

    link.spoil["bank-b"] = spoil
    fed.begin(1)
    replies = fed.map(algorithm.train, {"w": algorithm.init(fed)["w"]})
    assert replies.clients == ("bank-a", "bank-c")
    assert re.search(said, replies.missing["bank-b"])
    assert fed.faults()[("bank-b", "refused")] == 1


def test_too_few_replies_end_the_round_and_name_the_sites(project: Path) -> None:
    fed, algorithm, link = joined(project, experiment("fedavg"))
    link.absent["bank-c"] = "cable cut"
    with refusal("clients-missing", "bank-c:"):
        algorithm.round(algorithm.init(fed), fed)


def test_the_servers_log_gives_the_reason_of_every_absence_once(project: Path) -> None:
    fed, algorithm, link = joined(project, experiment("fedavg"), quorum=0.5)
    w, said = algorithm.init(fed)["w"], list[str]()
    fed._faults._log = SimpleNamespace(warning=lambda text, *given, **_: said.append(text % given))
    for round, why in enumerate(["", "cable cut", "cable cut", "asleep"], 1):
        link.absent = {"bank-c": why} if why else {}
        fed.begin(round)
        fed.map(algorithm.train, {"w": w})
    assert said == ["round 2: bank-c is left out: cable cut", "round 4: bank-c is left out: asleep"]


def test_metrics_that_are_not_of_the_same_sites_are_noted(project: Path) -> None:
    """Of coarse scores comes accuracy alone, so that what is counted by class is of the others."""
    (project / "server/test.npz").unlink()  # all clients' test examples are pooled then
    config = experiment("fedavg", rounds=1)
    fed, algorithm, _ = joined(project, config)
    *_, exact = train(algorithm, fed, 1)
    assert ROUNDED_SCORES not in exact.summary
    set_policy(project, "round_scores = 10")
    fed, algorithm, _ = joined(project, config, "r2")
    *_, coarse = train(algorithm, fed, 1)
    assert coarse.summary[ROUNDED_SCORES] == 1
    assert coarse.of_clients(ROUNDED_SCORES) == {"bank-b": 1.0}
    others = {site: value for site, value in exact.of_clients("f1").items() if site != "bank-b"}
    assert coarse.of_clients("f1") == others
    assert coarse.of_clients("accuracy").keys() == set(SITES)
    assert coarse.summary["global/f1"] != pytest.approx(coarse.summary["global/accuracy"], abs=1e-6)
    assert "coarse" in notes(coarse.summary)
    assert "coarse" not in notes(exact.summary)
    path = project / "bank-b/ledgers/r2.jsonl"
    told = {key.key: key.reveals for entry in entries(path) if entry.step == "FedAvg.score" for key in entry.keys}
    assert {key for key in told if told[key].startswith(NOTHING)} == {
        "own/loss", "own/f1", "own/classes", "own/auc", "trained/loss", "trained/f1"
    }  # fmt: skip
    assert all(told[f"{kind}/accuracy"].endswith("as multiples of 10") for kind in ("own", "trained"))
    assert compare(project / "bank-b", "r2", fed.ledger.table()) == ([], [])
    of_run: dict[str, dict[str, str]] = {site: {} for site in SITES}
    for row in fed.ledger.table().to_pylist():
        if row["step"] == "FedAvg.score" and row["direction"] == "up" and row["key"] in told:
            of_run[row["client"]][row["key"]] = row["reveals"]
    assert of_run["bank-b"] == told, "the run's ledger says what the site's own does"
    assert not of_run["bank-a"]["own/f1"].startswith(NOTHING)


def test_in_sums_values_are_rounded_and_not_their_words() -> None:
    """Whose words have a digit behind the point: 4 of 26 are no 5 of 25."""
    info, words = StepInfo(sum_declaration(True)), FixedPoint(64, 1)
    pairs = words.encode(torch.tensor([[4.0, 26.0], [16.0, 26.0], [4.0, 4.0]]), 2.0**52)
    found, _, _ = Scoring(10).prepare({"own": {"accuracy": pairs}}, info, 3)
    assert words.decode(found["own"]["accuracy"], torch.float64).tolist() == [[0, 30], [20, 30], [0, 0]]


def test_hits_and_examples_are_rounded_and_all_else_is_zeros_by_hand() -> None:
    pairs = torch.tensor([[4.0, 26.0], [16.0, 26.0], [4.0, 4.0]])
    found = Scoring(10).redact({"own": {"accuracy": pairs, "f1": pairs}, "measures": {"accuracy": pairs}}, 3)
    assert found["own"]["accuracy"].tolist() == [[0, 30], [20, 30], [0, 0]]
    assert not found["own"]["f1"].any()
    assert not found["measures"]["accuracy"].any()  # whatever an algorithm calls so


def test_scores_are_called_rounded_only_where_they_are() -> None:
    """A site may say of exact scores that they are rounded."""
    reply: Tree = {"own": {"accuracy": torch.tensor([[7.0, 20.0]]), "loss": torch.tensor([[3.5, 20.0]])}}
    info, tens = StepInfo({"own": Sends("scores")}), Scoring(10)
    assert as_arrived(info, reply, tens) is info
    assert as_arrived(info, tens.redact(reply, 3), None) is info
    coarse = as_arrived(info, tens.redact(reply, 3), tens)
    assert coarse.sends["own/loss"].reveals.startswith(NOTHING)
    assert coarse.sends["own/accuracy"].reveals.endswith("multiples of 10")
    said = {"step": 5, "measures": ["loss"], "epsilon": 2.0}
    assert read_scoring(json.dumps({"(scores)": said})) == Scoring(5, ("loss",), 2.0)
    odd = [said | change for change in ({"step": -3}, {"step": "x"}, {"epsilon": -1.0}, {"measures": 3})]
    notes = ["", "[]", '{"(scores)": 3}', *(json.dumps({"(scores)": one}) for one in odd)]
    assert [read_scoring(note) for note in notes] == [None] * 7


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ('deny = ["update"]', "policy.deny: update may not leave"),
        ("mixup = {update = 8}", "policy.mixup: update needs at least 8"),
        ("noise = {update = 0.5}", "policy.noise: update needs at least 0.5"),
        ("bytes = 3000", "policy.bytes"),
        ("epsilon = 1e9", "policy.epsilon: nothing bounds what update reveals (mechanism: none), so no ε holds"),
        ('epsilon = 1e9\nunbounded = ["update"]', "policy.epsilon: nothing bounds what n reveals"),
        ('algorithms = ["local"]', "policy.algorithms: fedavg is not among local"),
    ],
)
def test_a_policy_stops_its_site_and_says_so_on_both_sides(project: Path, policy: str, said: str) -> None:
    set_policy(project, policy)
    sent: list[bytes] = []
    config = experiment("fedavg", rounds=2)
    fed, algorithm, link = joined(project, config, quorum=0.6)
    link.spoil["bank-b"] = lambda answer: (sent.append(answer.blob), answer)[1]
    state = algorithm.init(fed)
    for number in (1, 2):
        fed.begin(number)
        replies = fed.map(algorithm.train, {"w": state["w"]})
        assert said in replies.missing["bank-b"]
    assert b"".join(sent) == b""
    assert link.members["bank-b"].answer("{}", b"").final


def test_epsilon_is_summed_over_all_runs_of_the_site(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_policy(project, 'epsilon = 2.5\nunbounded = ["n", "own", "trained"]')
    monkeypatch.setattr(parts.BySize, "protection", parts.Protection(LDP(1.0, "client")))
    config = experiment("fedavg", rounds=2)
    reached = []
    for run in ("r1", "r2"):
        fed, algorithm, _ = joined(project, config, run=run, quorum=0.6)
        for number in (1, 2):
            fed.begin(number)
            replies = fed.map(algorithm.train, {"w": algorithm.init(fed)["w"]})
            reached.append("bank-b" in replies.clients)
    assert reached == [True, True, False, False]


def test_wrong_data_fails_that_site_alone_and_tells_nobody_else(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (project / "bank-b/data.npz").unlink()
    folder = project / "bank-b/data"
    folder.mkdir()
    (folder / "nodes.csv").write_text("id,label,split,income\n1,0,train,123456\n2,1,test,secret-word\n")
    (folder / "edges.csv").write_text("source,target\n1,2\n")
    site = project / "bank-b/site.toml"
    site.write_text(site.read_text().replace("data.npz", "data"))
    fed, _, _ = joined(project, experiment("fedavg"), quorum=0.6)
    replies = fed.map(algorithm_of(fed).score, {"w": algorithm_of(fed).init(fed)["w"]})
    reason = replies.missing["bank-b"]
    assert not any(word in reason for word in ("123456", "secret-word", "income"))
    assert any("secret-word" in record.getMessage() for record in caplog.records)


def algorithm_of(fed: Flare) -> Any:
    config = experiment("fedavg")
    return config.algorithm.make(config.model.make().build(64, fed.classes))


def test_a_step_that_raises_keeps_its_words_at_home(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed, algorithm, link = joined(project, experiment("fedavg"), quorum=0.6)
    honest = members.find_step

    def leaking(own: Any, name: str) -> Any:
        if own is bad:
            raise ValueError("income is 123456")
        return honest(own, name)

    bad = job_of(link.members["bank-c"]).algorithm
    monkeypatch.setattr(members, "find_step", leaking)
    replies = fed.map(algorithm.train, {"w": algorithm.init(fed)["w"]})
    check_facts(replies.missing["bank-c"], "ValueError")
    assert "123456" not in replies.missing["bank-c"]


def test_a_step_that_writes_into_a_sites_data_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed, algorithm, link = joined(project, experiment("fedavg"), quorum=0.6)
    honest, bad = members.find_step, job_of(link.members["bank-c"])

    def writing(own: Any, name: str) -> Any:
        step = honest(own, name)

        def relabels(client: Any, message: Any) -> Any:
            client.graph.y.zero_()
            return step(client, message)

        relabels.__name__, relabels.__self__ = step.__name__, step.__self__
        relabels.on_client = step.on_client
        return relabels if bad is not None and own is bad.algorithm else step

    monkeypatch.setattr(members, "find_step", writing)
    replies = fed.map(algorithm.train, {"w": algorithm.init(fed)["w"]})
    assert list(replies.missing) == ["bank-c"]
    check_facts(replies.missing["bank-c"], "FedAvg.train", "client.graph.y")


def test_only_marked_steps_can_be_called(project: Path) -> None:
    _, algorithm, link = joined(project, experiment("fedavg"))
    for name in ("FedAvg.round", "FedAvg._loss", "FedAvg.__class__", "os.system", "exec"):
        member = InProcess(fed_project(link)).members["bank-a"]
        assert not member.answer(join_request(experiment(), "r9"), b"").refusal
        check_facts(member.answer(call_request(experiment(), name), encode({})).refusal, "no step")
    assert algorithm.train


def fed_project(link: InProcess) -> Path:
    return link.members["bank-a"]._folder.parent


def test_noise_comes_from_the_sites_own_secret(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server knows the seed, the run and every message; with all of that it cannot name the key, and nobody can
    name the next one."""
    seen: list[bytes] = []
    honest = steps.Client

    def watching(graph: Any, state: Any, key: Any, secret: Any, test: Any, **more: Any) -> Any:
        seen.append(bytes(secret))
        return honest(graph, state, key, secret, test, **more)

    monkeypatch.setattr(steps, "Client", watching)
    for run in ("r1", "r2"):  # the same seed, the same calls
        fed, algorithm, _ = joined(project, experiment("fedavg"), run=run)
        fed.begin(1)
        fed.map(algorithm.train, {"w": algorithm.init(fed)["w"]}, clients=["bank-a"])
    assert len(set(seen)) == 2
    assert {len(key) for key in seen} == {32}
    monkeypatch.setattr(steps.os, "urandom", lambda count: b"\0" * count)
    here, there = (bytes(steps.noise_key(project / site / "privacy.secret")) for site in ("bank-a", "bank-b"))
    assert here != there


def test_a_card_does_not_say_of_features_that_were_cut_that_they_are_as_they_were(project: Path) -> None:
    """`sites init --split` scales them as its configuration says."""
    assert before_of(project / "bank-a").form.scaling == {"how": "handed out"}
    site = project / "bank-a/site.toml"
    site.write_text(site.read_text().replace("random_id", "# random_id"))
    assert before_of(project / "bank-a").form.scaling == {"how": "none"}


def test_a_site_exports_by_what_it_noted_of_its_data_in_the_run(project: Path) -> None:
    """Other columns or scaling, said later, are of later runs."""
    site = project / "bank-a/site.toml"
    as_made = site.read_text()
    site.write_text(as_made.replace('normalize = "none"', 'normalize = "standard"', 1))
    joined(project, experiment("fedavg"), run="r1")
    then = before_of(project / "bank-a").form
    site.write_text(as_made)
    assert before_of(project / "bank-a").form.scaling == {"how": "handed out"}
    assert before_of(project / "bank-a", "r1").form.scaling == then.scaling
    assert len(then.scaling["shift"]) == then.features


def test_a_readable_secret_is_refused(project: Path) -> None:
    secret = project / "bank-a/privacy.secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    os.chmod(secret, 0o644)
    fed, algorithm, _ = joined(project, experiment("fedavg"), quorum=0.6)
    replies = fed.map(algorithm.train, {"w": algorithm.init(fed)["w"]})
    assert list(replies.missing) == ["bank-a"]


def test_what_the_server_holds_has_no_secret_and_no_private_data(project: Path) -> None:
    secrets = [(project / site / "privacy.secret").read_text().strip() for site in SITES]
    for path in [*(project / "server").rglob("*"), *(project / "admin").rglob("*")]:
        if path.is_file():
            content = path.read_bytes()
            assert not any(secret.encode() in content for secret in secrets)
            assert path.name != "data.npz"


def test_sites_can_keep_their_counts_to_themselves(project: Path) -> None:
    set_policy(project, 'deny = ["labels", "nodes"]')
    replies = Flare(InProcess(project), SITES, ledger=Ledger()).join(experiment().plain(), "r1", -1)
    assert [replies[site]["nodes"] > 0 for site in SITES] == [True, False, True]
    assert [len(replies[site]["labels"]) for site in SITES] == [10, 0, 10]
    assert all(len(replies[site]["split"]) == 3 for site in SITES)


def test_under_a_cap_on_epsilon_a_site_keeps_back_counts_that_nothing_bounds(project: Path) -> None:
    set_policy(project, 'epsilon = 1.0\nunbounded = ["nodes", "update", "n", "own", "trained"]')
    replies = Flare(InProcess(project), SITES, ledger=Ledger()).join(experiment().plain(), "r1", -1)
    assert (replies["bank-b"]["nodes"] > 0, replies["bank-b"]["edges"]) == (True, -1)
    noted = {line.key: line.reveals for entry in entries(project / "bank-b/ledgers/r1.jsonl") for line in entry.keys}
    assert (noted["nodes"], noted["edges"]) == ("how many nodes the site holds", "nothing: kept back")
    assert [len(replies["bank-b"][key]) for key in ("split", "labels")] == [0, 0]
    assert replies["bank-b"]["features"] == replies["bank-a"]["features"]

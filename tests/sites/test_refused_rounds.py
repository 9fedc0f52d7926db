"""A round that a site refuses costs none of those before it, and what left the sites twice is told and counted."""

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.cli.sites import Teller
from fedweave.errors import ClientsMissing, FedweaveError, UserError
from fedweave.experiment.config import dumps
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT, METRICS, read_table
from fedweave.experiment.runs.resuming import Stop
from fedweave.experiment.runs.run import run
from fedweave.privacy.gaussian import epsilon
from fedweave.sites.flare.journal import entries, journals
from fedweave.sites.flare.policy import Spent, replies_of
from fedweave.sites.flare.server import Progress, Server, backend
from fedweave.sites.flare.sitefile import FINE
from fedweave.sites.operation.running import _resume_hint
from fedweave.sites.operation.running import run as run_at_sites
from tests.contract.federations import distance
from tests.refusals import check_facts, refusal
from tests.sites.projects import (
    SITES,
    VERTICAL,
    InProcess,
    check_private,
    cut_again,
    experiment,
    renamed,
    set_policy,
    simulated,
)

ROUNDS, WHOLE = 6, 3
# What bank-b refuses in round 4: training, before its state has changed, or the evaluation, after it has.
REFUSED = [
    *(("local", step) for step in ("train", "score")),  # a state at every site
    *(("fedego", step) for step in ("train", "score")),  # and at the server
    ("fedadam", "train"),
    ("gcfl_plus", "score_personal"),
    *(("glasu", step) for step in ("update", "score")),  # parties
]


def job(project: Path, out: Path, config: Any) -> Progress:
    """What one job of the run does, at a server and sites that were started anew."""
    progress, server = Progress(), Server("r1", SITES, "")
    build = partial(server._join, root=project / "server", folder=out, link=InProcess(project))
    run(config, out, progress, True, backend(build, Stop(lambda number: None)))
    return progress


def sent(project: Path, site: str, step: str) -> Counter[int]:
    """{round: how often} the site's own journal says that `step` left."""
    path = project / site / "ledgers/r1.jsonl"
    return Counter(e.round for e in entries(path) if e.step.endswith(step) and e.direction == "up")


@pytest.mark.often("local-train")
@pytest.mark.parametrize(("algorithm", "step"), REFUSED)
def test_a_refusal_keeps_every_whole_round(project: Path, tmp_path: Path, algorithm: str, step: str) -> None:
    config, out = experiment(algorithm, rounds=ROUNDS, checkpoint_seconds=3600.0), tmp_path / "out"
    if algorithm in VERTICAL:
        project = cut_again(project, config)
    most = WHOLE * config.algorithm.values.get("local_updates", 1) if step == "update" else WHOLE
    set_policy(project, f"calls = {{{step} = {most}}}")
    with refusal("clients-missing", "policy.calls"):
        job(project, out, config)
    assert Checkpoint.load(out / CHECKPOINT).round == WHOLE
    assert set(read_table(out, METRICS)["round"].to_pylist()) == set(range(1, WHOLE + 1))

    set_policy(project, "calls = {}")
    resumed = job(project, out, config)
    expected, sim = simulated(config)
    assert (resumed.after, resumed.again, resumed.round) == (WHOLE, 1, ROUNDS)
    assert distance(Checkpoint.load(out / CHECKPOINT).state, renamed(expected.state, sim)) <= 1e-5
    check_private(project, sim)
    first = sent(project, "bank-a", "infer" if algorithm in VERTICAL else "train")
    assert {round for round in range(1, ROUNDS + 1) if first[round] > first[1]} == {WHOLE + 1}


def test_a_refusal_in_the_first_round_begins_anew_and_says_so(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, out = experiment("local", rounds=2), tmp_path / "out"
    set_policy(project, "calls = {score = 0}")
    with pytest.raises(ClientsMissing):
        job(project, out, config)
    assert not (out / CHECKPOINT).exists()
    set_policy(project, f"measures = {[*FINE]}")
    resumed = job(project, out, config)
    assert (resumed.after, resumed.again) == (0, 1)
    expected, _ = simulated(config)
    assert resumed.summary == pytest.approx(expected.summary, abs=1e-5)
    assert sent(project, "bank-a", "train") == {1: 2, 2: 1}
    Teller()(resumed.plain() | {"status": "running"})
    check_facts(capsys.readouterr().out, "round 1")


def test_what_leaves_again_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for after, again, said in (
        (3, 0, ["continuing after round 3 of 6"]),
        (3, 1, ["continuing after round 3 of 6", "round 4 had begun before"]),
        (3, 2, ["continuing after round 3 of 6", "rounds 4 to 5 had begun before"]),
        (0, 0, []),
    ):
        Teller()({**Progress("running", after, 6, after=after, again=again).plain()})
        *told, last = capsys.readouterr().out.splitlines()
        assert last.startswith(f"round {after}/6")
        assert [line[: len(words)] for line, words in zip(told, said, strict=True)] == said


def test_a_site_that_is_lost_within_a_round_is_told_at_once_and_the_last_round_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell, now = Teller(), Progress("running", 3, 6, seconds=1.0).plain()
    for new in (
        {},
        {"lost": {"bank-b": "it is gone"}},
        {"status": "failed", "error": "no"},
        {"status": "failed", "round": 4},
    ):
        tell(now | new)
    assert capsys.readouterr().out.splitlines() == [
        "round 3/6  1.0 s",
        "round 3/6  1.0 s  bank-b: it is gone",
        "round 4/6  1.0 s",
    ]


def test_who_is_waited_for_after_the_last_round_is_in_no_further_round(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedweave.cli.sites.SILENCE", -1.0)
    for done, facts in ((2, ("round 3: ", "bank-a")), (3, ("after the last round, 3: ", "bank-a"))):
        Teller()(Progress("running", done, 3).plain() | {"waiting": ("bank-a",)})
        check_facts(capsys.readouterr().out, *facts)


@pytest.mark.often("train = 2, score = 2-train")
@pytest.mark.parametrize(
    ("caps", "short"),
    [("train = 3, score = 2", ""), ("train = 2, score = 2", "train"), ('train = 3, "FedAvg.score" = 1', "score")],
)
def test_a_cap_that_ends_a_run_is_found_before(project: Path, tmp_path: Path, caps: str, short: str) -> None:
    """What `sites check` says of three rounds, evaluated after the second and the last, is what becomes of them."""
    config = experiment("fedavg", rounds=3)
    config = replace(config, general=replace(config.general, eval_every=2))
    (tmp_path / "config.toml").write_text(dumps(config.plain()))
    set_policy(project, f"calls = {{{caps}}}")

    def checked() -> str:
        return CliRunner().invoke(app, ["sites", "check", str(project), str(tmp_path / "config.toml")]).output

    before = checked()
    if short:
        with pytest.raises(ClientsMissing, match=rf"policy\.calls: (FedAvg\.)?{short}"):
            job(project, tmp_path / "out", config)
        check_facts(before, f"{short}", "0 times")
        check_facts(before, "round 3 of 3")
    else:
        assert job(project, tmp_path / "out", config).round == 3
        assert "has replied" not in before
        said = "train has replied 3 times and may 3 times, so that a run that begins now would lose the site in round 1"
        assert said in checked()


def test_a_cap_on_bytes_that_is_reached_is_found_before(project: Path, tmp_path: Path) -> None:
    config = experiment("fedavg", rounds=1)
    (tmp_path / "config.toml").write_text(dumps(config.plain()))
    job(project, tmp_path / "out", config)
    set_policy(project, "bytes = 10")
    said = CliRunner().invoke(app, ["sites", "check", str(project), str(tmp_path / "config.toml")]).output
    left = Spent.of(entries(project / "bank-b/ledgers/r1.jsonl")).bytes
    check_facts(said, f"policy.bytes: {left:,}", "10")


@pytest.mark.often("2")
@pytest.mark.parametrize("fit", [3, 2])
def test_a_cap_on_epsilon_that_ends_a_run_is_found_before(project: Path, tmp_path: Path, fit: int) -> None:
    """What `sites check` says of three noisy rounds is what becomes of them; at σ = 8 one has μ = 1/4."""
    config = experiment("dp_fedavg", rounds=3, algorithm_settings={"clip": 0.5, "sigma": 8.0})
    (tmp_path / "config.toml").write_text(dumps(config.plain()))
    set_policy(project, f'epsilon = {epsilon(fit**0.5 / 4, 1e-5) + 1e-9}\nunbounded = ["own", "trained"]')
    said = CliRunner().invoke(app, ["sites", "check", str(project), str(tmp_path / "config.toml")]).output
    ends = "so that a run that begins now would lose the site in round 3 of 3"
    assert (ends in " ".join(said.split())) == (fit == 2)
    assert ("no fault found" in said) == (fit == 3)
    if fit == 2:
        with refusal("clients-missing", "policy.epsilon"):
            job(project, tmp_path / "out", config)
    else:
        assert job(project, tmp_path / "out", config).round == 3


@pytest.mark.slow
def test_a_site_whose_calls_are_used_up_goes_on_when_its_owner_allows_more(owned: Path, tmp_path: Path) -> None:
    config, out = experiment("local", rounds=ROUNDS, checkpoint_seconds=3600.0), tmp_path / "out"
    earlier = Spent.of(entry for journal in journals(owned / SITES[1]) for entry in entries(journal))
    fine = f"measures = {[*FINE]}"
    set_policy(owned, f"calls = {{score = {replies_of(earlier, 'score') + WHOLE}}}\n{fine}")
    told: list[dict[str, Any]] = []
    with pytest.raises((UserError, FedweaveError), match=rf"What round {WHOLE} reached is saved.*--resume"):
        run_at_sites(config, owned, out, False, told.append)
    set_policy(owned, fine)
    (tmp_path / "config.toml").write_text(dumps(config.plain()))
    words = ["sites", "run", str(tmp_path / "config.toml"), "--sites", str(owned), "--out", str(out), "--resume"]
    said = CliRunner().invoke(app, words, catch_exceptions=False)
    check_facts(said.output, f"round {WHOLE} of {ROUNDS}", f"round {WHOLE + 1}")
    expected, _ = simulated(config)
    assert json.loads((out / "summary.json").read_text())["metrics"] == pytest.approx(expected.summary, abs=1e-5)


def test_only_a_round_whose_checkpoint_there_is_counts_as_saved(tmp_path: Path) -> None:
    """The round was over, and the server's disk full."""
    assert not _resume_hint({"round": 3}, tmp_path)
    Checkpoint(round=2).save(tmp_path / CHECKPOINT)
    check_facts(_resume_hint({"round": 3}, tmp_path), "round 2")


def test_training_that_diverges_at_every_site_is_told_as_in_a_simulation(project: Path, tmp_path: Path) -> None:
    """All did reply, so "bring them back" and a lower quorum would not help."""
    with refusal("clients-missing", "algorithm.lr") as error:
        job(project, tmp_path / "run", experiment("fedavg", algorithm_settings={"lr": 1e38}))
    assert "quorum" not in str(error.value)

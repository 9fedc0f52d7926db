"""Scores that leave in secure sums alone: the simulation's numbers, and no member's own."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.tree import leaves
from fedweave.errors import CallRefused, ClientsMissing, ConfigError
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.sites.flare.audit import compare
from fedweave.sites.flare.journal import journal_path, read_journal
from fedweave.sites.flare.predicted import read_flags
from fedweave.sites.flare.server import flagging_known
from tests.refusals import check_facts, refusal
from tests.security.cheating import SITE, Cheat, agreed, reply
from tests.sites.projects import SITES, experiment, joined, set_policy
from tests.sites.test_carrying_at_sites import on_transfers, own_tables, transfers
from tests.sites.test_prediction_at_home import predict
from tests.sites.test_secure_sums import made, metered, project, words  # noqa: F401

NAMED = 'measures = ["loss", "auc", "histogram"]'


def summed(**settings: Any) -> Any:
    return agreed("fedavg", rounds=2, algorithm_settings={"scores": "sum", "lr": 0.1} | settings)


def in_simulation(config: Any, **settings: Any) -> Any:
    document = config.plain() | {"engine": {"name": "simulation", "mode": "loop"}}
    document["algorithm"] |= settings
    built = build(resolve(document))
    *_, last = train(built.algorithm, built.fed, 2)
    return last, built.fed


def apart(summary: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in summary.items() if not name.startswith(("local/", "best_val/"))}


def test_sites_have_the_simulations_numbers_and_each_ones_words_are_noise(project: Path) -> None:  # noqa: F811
    """What is counted is that of scores which each site tells, too, to the bit; means over members to 1e-9."""
    config = summed()
    fed, algorithm, link = joined(project, config)
    heard = words(link, SITE, "own")
    *_, last = train(algorithm, fed, 2)
    expected, sim = in_simulation(config)
    assert last.summary == expected.summary
    assert {"pooled/auc", "pooled/auc_error", "within/auc", "local/accuracy", "best_val/round"} <= {*last.summary}
    whole, _ = in_simulation(config, scores="each")
    same = apart(last.summary).keys() & apart(whole.summary).keys() - {"pooled/auc"}
    assert {"global/accuracy", "global/loss", "global/macro_f1", "per_class/recall/0", "within/auc"} <= same
    for name in same:
        assert last.summary[name] == whole.summary[name]
    for name in ("local/accuracy", "local/loss", "best_val/val/macro_f1"):
        assert last.summary[name] == pytest.approx(whole.summary[name], abs=1e-9)
    assert abs(last.summary["pooled/auc"] - whole.summary["pooled/auc"]) <= last.summary["pooled/auc_error"]
    assert not any(name.startswith(("fairness/", "trained/")) for name in last.summary)
    assert len(heard) == 2
    for own in heard:
        bits = torch.cat([leaf.view(-1) for _, leaf in leaves(own) if leaf.dtype == torch.int32])[:, None]
        ones = (bits >> torch.arange(32) & 1).double().mean()
        assert float(ones) == pytest.approx(0.5, abs=6 * 0.5 / (32 * len(bits)) ** 0.5)
    rows = [row for row in fed.ledger.table().to_pylist() if row["step"] == "FedAvg.score_sum" and row["shape"]]
    assert {row["mechanism"].partition(",")[0] for row in rows if row["direction"] == "up"} == {
        "secure sum of all clients"
    }
    assert [compare(project / site, "r1", fed.ledger.table()) for site in SITES] == [([], [])] * len(SITES)
    assert metered(fed) == metered(sim)


def test_training_is_what_it_is_with_scores_of_each(project: Path) -> None:  # noqa: F811
    """The step finds no state and leaves a kept optimizer's as it is, also at sites and one client after the other."""
    config = summed(participation=0.7)
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    for settings in ({}, {"scores": "each"}):
        expected, _ = in_simulation(config, **settings)
        for path, leaf in leaves(expected.state):
            assert torch.equal(leaf, dict(leaves(last.state))[path])


@pytest.mark.parametrize("settings", [{"share": ["0/*"]}, {"parts": ["drift"]}])
def test_scores_are_added_up_of_one_model_on_lasting_data_alone(settings: Any) -> None:
    with pytest.raises(ConfigError, match="scores"):
        resolve(agreed(algorithm_settings={"scores": "sum"} | settings).plain()).check_made()


def test_nobody_tells_how_many_of_each_class_it_has_unless_its_policy_says_so(project: Path) -> None:  # noqa: F811
    """Neither as it joins nor with scores; a denial holds whatever the measures name, and sums are of all members."""
    for policy, told in (("", False), (f'{NAMED}\ndeny = ["labels"]', False), ('measures = ["classes"]', True)):
        for site in SITES:
            set_policy(project, f"{policy}", site)
        server = Cheat(project, agreed(), run=f"r{len(policy)}")
        found = reply(server.join())
        own = reply(server.call("FedAvg.score"))["own"]
        assert own["accuracy"].any()
        assert (found["labels"].numel() > 0) == told
        for name in ("f1", "classes", "auc"):
            assert bool(own[name].any()) == (told and name != "auc")
    *_, last = train(*_at(project, summed()), 2)
    whole, _ = in_simulation(summed(), scores="each")
    for name in ("global/accuracy", "global/macro_f1", "global/majority"):
        assert last.summary[name] == whole.summary[name]
    assert last.summary["scores/uncounted"] == 1  # histograms are named by nobody
    assert not any(name.startswith("pooled/") for name in last.summary)


@pytest.mark.often("", 'measures = ["loss"]')
@pytest.mark.parametrize(
    "policy", ["", 'measures = ["loss"]', "round_scores = 10", "score_epsilon = 1.0", f'{NAMED}\ndeny = ["labels"]']
)
def test_all_members_may_have_one_rule_for_sums(project: Path, policy: str) -> None:  # noqa: F811
    """Nothing is known then that nobody tells, and the server's ledger says what every site's own does."""
    for site in SITES:
        set_policy(project, policy, site)
    fed, algorithm, _ = joined(project, summed())
    [last] = train(algorithm, fed, 1)
    by_class = not policy or policy.startswith('measures = ["loss"]')
    assert 0 < last.summary["global/accuracy"] <= 1
    assert ("local/macro_f1" in last.summary) == by_class
    assert ("local/loss" in last.summary) == ("loss" in policy)
    assert not any(name.startswith("pooled/") for name in last.summary)
    assert [compare(project / site, "r1", fed.ledger.table()) for site in SITES] == [([], [])] * len(SITES)


def _at(project: Path, config: Any) -> Iterator[Any]:  # noqa: F811
    fed, algorithm, _ = joined(project, config, run="summed")
    return iter((algorithm, fed))


def test_a_policy_has_scores_leave_in_sums_alone(project: Path) -> None:  # noqa: F811
    set_policy(project, 'secure_sum = ["own"]\nmin_sites = 3')
    with pytest.raises(ClientsMissing, match=r"policy.secure_sum: own may only leave in a secure sum .*scores = .sum."):
        joined(project, agreed())
    *_, last = train(*_at(project, summed()), 2)
    assert last.summary["global/accuracy"] > 0


def test_a_server_gets_no_sites_own_scores_by_asking_otherwise(project: Path) -> None:  # noqa: F811
    """For each by itself, which the algorithm's order has not, nor for words without a sum, nor in a sum of two."""
    sum_of_two = {"epoch": 1, "slot": 0, "peers": [SITE, SITES[0]]}
    for at, (step, lies) in enumerate((("score", {}), ("score_sum", {}), ("score_sum", {"sum": sum_of_two}))):
        server = Cheat(project, summed(), run=f"c{at}")
        reply(server.join())
        reply(server.call("FedAvg.train"))
        answer = server.call(f"FedAvg.{step}", **lies)
        assert answer.refusal
        assert not answer.blob


def test_a_site_whose_scores_are_of_drawn_labels_adds_their_hits_alone(project: Path) -> None:  # noqa: F811
    set_policy(project, f'{NAMED}\nscore_epsilon = 1.0\nepsilon = 9.0\nunbounded = ["update", "n", "nodes"]')
    *_, last = train(*_at(project, summed()), 2)
    assert 0 < last.summary["scores/uncounted"] < 1  # the others' are counted
    lines = [line for entry in read_journal(journal_path(project / SITE, "summed")).entries for line in entry.keys]
    [hits] = {line.mechanism for line in lines if line.key == "own/accuracy"}
    check_facts(hits, "local differential privacy")
    check_facts(hits, "secure sum")


def test_words_of_scores_are_counted_among_evaluations(project: Path) -> None:  # noqa: F811
    set_policy(project, "evaluations = 1")
    with refusal("clients-missing", "evaluations"):
        joined(project, summed())


def test_sites_weigh_classes_by_all_members_counts_and_none_tells_its_own(project: Path) -> None:  # noqa: F811
    """As in the simulation; an owner may deny them, and a server gets none without a sum."""
    config = summed(class_weight="balanced", parts=["class_counts"])
    fed, algorithm, link = joined(project, config)
    heard = words(link, SITE, "class_counts")
    *_, last = train(algorithm, fed, 2)
    expected, _ = in_simulation(config)
    for path, leaf in leaves(expected.state):
        assert torch.equal(leaf, dict(leaves(last.state))[path])
    [own] = heard
    assert (own.abs() > 2**32).any()  # a pad of 64 bits, where no class has so many examples
    server = Cheat(project, config, run="cheated")
    reply(server.join())
    answer = server.call("ClassCounts.count_classes", 0, {"classes": torch.zeros(3, dtype=torch.int64)})
    check_facts(answer.refusal, "secure sum")
    for denied in ("class_counts", "labels"):
        set_policy(project, f'deny = ["{denied}"]\ncalls = {{count_classes = 5}}')
        with refusal("clients-missing", "class_counts"):
            joined(project, config, run=f"without{denied[0]}")


def test_all_sites_flag_by_the_threshold_of_all_validation_examples(project: Path, tmp_path: Path) -> None:  # noqa: F811
    """The simulation's, which the server tells them with the model, and the ledger has it; of edges as examples."""
    whole = transfers(tmp_path / "data")
    own_tables(whole, project)
    scores = {"name": "fedavg", "scores": "sum", "lr": 0.1}
    config = on_transfers(whole, scaled="none", algorithm=scores, evaluation={"positive": 1, "threshold": "f1"})
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    fed.snapshot()
    expected, _ = in_simulation(config)
    threshold = last.summary["pooled/threshold"]
    assert threshold == expected.summary["pooled/threshold"]
    path = tmp_path / "summary.json"
    told = {"rounds": 2, "class_count": 2, "metrics": last.summary}
    path.write_text(json.dumps(told))
    flags = flagging_known(config, path, "last")
    ledger = predict(project, config, algorithm, last.state, "global", flags)
    for site in SITES:
        found = pq.read_table(project / site / "runs/r1/predictions.parquet").to_pandas()
        assert (found["threshold"] == threshold).all()
        assert ((found["score"] >= threshold) == found["flagged"]).all()
    down = {row["key"] for row in ledger.table().to_pylist() if row["direction"] == "down" and row["step"] == "(join)"}
    assert {"positive", "threshold"} <= down
    path.write_text(json.dumps(told | {"metrics": {}}))
    assert flagging_known(config, path, "last") is None  # and each site flags by a threshold of its own


@pytest.mark.parametrize(
    ("evaluation", "metrics", "positive"),
    [
        ({"metric": "average_precision"}, {"judged/average_precision": 0.0}, 0),
        ({"metric": "auc", "threshold": "f1"}, {"judged/auc": -1.0, "scores/positive": 0.0}, 0),
        ({"threshold": "f1"}, {"local/accuracy": 0.9}, 1),  # neither class is rare in the run
        ({"threshold": "f1"}, {}, None),  # the run was never evaluated
        ({}, {"local/accuracy": 0.9}, None),  # nothing is to be flagged
        ({"metric": "auc", "positive": 0}, {"judged/auc": -1.0}, None),  # the sites read it in the settings
    ],
)
def test_without_a_common_threshold_all_sites_get_the_class_of_the_run(
    tmp_path: Path, evaluation: dict[str, Any], metrics: dict[str, float], positive: int | None
) -> None:
    config = experiment("fedavg", evaluation=evaluation)
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({"rounds": 2, "class_count": 2, "metrics": metrics}))
    found = flagging_known(config, path, "last")
    assert found == positive
    if positive is not None:
        assert read_flags({"positive": positive}) == positive


def test_all_sites_flag_the_class_that_the_server_sends_else_their_logs_name_it(
    project: Path,  # noqa: F811
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = transfers(tmp_path / "data")
    own_tables(whole, project)
    config = on_transfers(whole, scaled="none", evaluation={"metric": "average_precision"})
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    fed.snapshot()
    scores = list[list[float]]()
    for positive in (0, 1, None):
        caplog.clear()
        with caplog.at_level("INFO"):
            predict(project, config, algorithm, last.state, "global", positive)
        events = [getattr(record, "fields", {}).get("event") for record in caplog.records]
        assert events.count("flagged-class") == (len(SITES) if positive is None else 0)
        scores.append([])
        for site in SITES:
            scores[-1] += pq.read_table(project / site / "runs/r1/predictions.parquet")["score"].to_pylist()
    assert [a + b for a, b in zip(*scores[:2], strict=True)] == pytest.approx([1.0] * len(scores[0]))


@pytest.mark.parametrize(
    "told",
    [
        {"positive": 2, "threshold": 0.5},
        {"positive": 2},
        {"threshold": 0.5},
        {"positive": 1, "threshold": math.nan},
        {"positive": 1, "threshold": -math.inf},
        {"positive": 1, "threshold": 1.5},
        {"positive": torch.tensor([0, 1]), "threshold": 0.5},
        torch.tensor([0.5, 1.0]),
    ],
)
def test_a_site_flags_by_nothing_that_cannot_be(told: Any) -> None:
    with pytest.raises(CallRefused, match="flagged"):
        read_flags(told)

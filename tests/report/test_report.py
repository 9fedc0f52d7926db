"""The report as its readers meet it: its numbers are those of the run's files, and no name from data becomes code."""

import json
import math
import os
import re
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import ttest_1samp, ttest_rel

from fedweave.accounts.compliance import disclose
from fedweave.accounts.ledger import POOLED
from fedweave.core.federation import Sends, StepInfo
from fedweave.core.ledger import Ledger
from fedweave.core.mechanism import LDP, Clipped, Gaussian, Mixup
from fedweave.core.text import printable
from fedweave.core.types import EVALUATION, KEPT_BACK, PREDICTION
from fedweave.experiment.config import dumps
from fedweave.experiment.runs.reading import Group, Run, group_runs, read_run, read_runs, spread
from fedweave.metrics.selection import of_result
from fedweave.privacy.accountant import bounds, over_rounds, states_bound
from fedweave.privacy.gaussian import epsilon
from fedweave.python.comparing import paired_rows
from fedweave.reports import drawing, figures, gains, tables
from fedweave.reports.cells import Cell, count_text, mark_best, mean_cell, number, with_sign
from fedweave.reports.compare import comparison_table as compared_groups
from fedweave.reports.compare import tradeoff
from fedweave.reports.effects import UNDECIDED, comparison_sentence, effect, ranking, three_digits
from fedweave.reports.first_screen import first_screen
from fedweave.reports.html import render
from fedweave.reports.paired import paired_test, paired_tests
from fedweave.reports.recipes import recipe, training_differences
from fedweave.reports.result_names import RESULTS, better, readable
from tests import commands
from tests.commands import SMALL
from tests.commands import call as fedweave
from tests.refusals import check_facts

VOID = {"meta", "link", "img", "br", "input"}


class Page(HTMLParser):
    """A page's texts: tables by section, everything else by tag, and all elements with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[list[str]]]] = {}
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._section, self._open = "header", []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "section":
            self._section = dict(attrs)["id"] or ""
        elif tag == "table":
            self.tables.setdefault(self._section, []).append([])
        elif tag == "tr":
            self.tables[self._section][-1].append([])
        elif tag in ("td", "th"):
            self.tables[self._section][-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"script", "style"} & set(self._open):
            return
        self.texts.append(data)
        if {"td", "th"} & set(self._open):
            note = "span" in self._open
            self.tables[self._section][-1][-1][-1] += f" | {data}" if note else data

    def row(self, section: str, name: str) -> list[str]:
        """The cells of the row whose first cell begins with `name`, small print cut off."""
        rows = [row for table in self.tables[section] for row in table if row[0].split(" | ")[0] == name]
        assert len(rows) == 1, (name, rows)
        return [cell.split(" | ")[0] for cell in rows[0][1:]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """FedAvg with two seeds, and training alone."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "small.toml").write_text(SMALL)
    made = {}
    for name, words in {"s0": [], "s1": ["--set", "seed=1"], "alone": ["--algorithm", "local"]}.items():
        made[name] = folder / name
        commands.run("run", str(folder / "small.toml"), "--out", str(made[name]), "-q", *words)
    return made


@pytest.fixture(scope="module")
def summaries(runs: dict[str, Path]) -> dict[str, Any]:
    """The runs' summaries, with the metrics of the chosen round."""
    read = {name: json.loads((path / "summary.json").read_text()) for name, path in runs.items()}
    return {name: summary | {"metrics": of_result(summary)} for name, summary in read.items()}


@pytest.fixture(scope="module")
def page(runs: dict[str, Path]) -> str:
    return render(read_runs([runs["s0"]]))


@pytest.fixture(scope="module")
def compared(runs: dict[str, Path]) -> Page:
    return Page(render(read_runs(list(runs.values()))))


@pytest.fixture
def copied(runs: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of the first run, its tables changed and some of its files left out."""

    def make(*without: str, **changed: Callable[[pa.Table], pa.Table]) -> Path:
        target = tmp_path / "copy"
        shutil.copytree(runs["s0"], target)
        for name in without:
            (target / name).unlink()
        for name, change in changed.items():
            path = target / f"{name}.parquet"
            pq.write_table(change(pq.read_table(path)), path)
        return target

    return make


def test_the_numbers_of_one_run_are_those_of_its_files(page: str, runs: dict[str, Path], summaries: Any) -> None:
    shown, found, chosen = Page(page), summaries["s0"]["metrics"], summaries["s0"]["chosen_round"]
    assert shown.row("summary", "Accuracy, all examples") == [f"{found['global/accuracy']:.4f}"]
    assert shown.row("summary", "Macro F1, member mean") == [f"{found['local/macro_f1']:.4f}"]
    assert shown.row("fairness", "Test loss entropy") == [f"{found['fairness/test_loss_entropy']:.4f}"]
    titles = {attributes.get("title") for _, attributes in shown.elements}
    assert {repr(value) for value in found.values()} <= titles
    split = pq.read_table(runs["s0"] / "partition.parquet").to_pylist()
    metrics = pq.read_table(runs["s0"] / "metrics.parquet").to_pylist()
    for part in split:
        (last,) = (
            row["value"]
            for row in metrics
            if (row["round"], row["client"], row["split"], row["metric"])
            == (chosen, part["client"], "test", "accuracy")
        )
        sizes = [str(part[name]) for name in ("nodes", "edges_kept", "edges_cut", "train", "val", "test")]
        assert shown.row("split", part["client"]) == [*sizes, f"{last:.4f}"]


def test_seeds_are_grouped_as_mean_and_deviation(compared: Page, summaries: Any) -> None:
    both = [summaries[name]["metrics"]["global/accuracy"] for name in ("s0", "s1")]
    mean, alone = sum(both) / 2, summaries["alone"]["metrics"]["global/accuracy"]
    deviation = abs(both[0] - both[1]) / math.sqrt(2)  # of two numbers, with n - 1
    expected = f"{mean:.4f} ± {deviation:.4f}" if deviation else f"{mean:.4f} ± 0"
    assert compared.row("summary", "Accuracy, all examples") == [f"{alone:.4f}", expected]
    assert compared.tables["summary"][0][0] == ["", "local", "fedavg (2 seeds)"]
    assert [compared.row("run", run)[0] for run in ("fedavg", "local")] == ["0, 1", "0"]
    assert not [own for _, own in compared.elements if "best" in (own.get("class") or "").split()]  # one common seed


def test_only_what_a_paired_test_over_seeds_calls_better_is_marked() -> None:
    cells = [Cell("a"), Cell("b"), Cell("c")]
    clear = [{0: 0.80, 1: 0.81, 2: 0.82}, {0: 0.70, 1: 0.71, 2: 0.73}, {0: 0.60, 1: 0.62, 2: 0.61}]
    assert [cell.best for cell in mark_best(cells, clear, "accuracy")] == [True, False, False]
    assert [cell.best for cell in mark_best(cells, clear, "loss")] == [False, False, True]
    assert not any(cell.best for cell in mark_best(cells, clear, "seconds"))
    noisy = [{0: 0.80, 1: 0.60, 2: 0.90}, {0: 0.70, 1: 0.71, 2: 0.73}, clear[2]]
    assert not any(cell.best for cell in mark_best(cells, noisy, "accuracy"))
    assert not any(cell.best for cell in mark_best(cells, [{0: 0.9}, {0: 0.1}, {0: 0.1}], "accuracy"))
    assert not any(cell.best for cell in mark_best(cells[:1], clear[:1], "accuracy"))


def with_accuracy(run: Run, seed: int, accuracy: float, label: str) -> Run:
    metrics = {"global/accuracy": accuracy, "fairness/test_loss_variance": accuracy}
    summary = run.summary | {"metrics": metrics, "algorithm": label, "seed": seed}
    return replace(run, summary=summary, config=run.config | {"seed": seed, "algorithm": {"name": label}})


def edit_summary(directory: Path, **values: Any) -> dict[str, Any]:
    """Change values of a run's summary.json; returns what it had before."""
    before: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    (directory / "summary.json").write_text(json.dumps(before | values))
    return before


def edit_config(directory: Path, old: str, new: str) -> None:
    text = (directory / "config.toml").read_text()
    assert old in text
    (directory / "config.toml").write_text(text.replace(old, new))


def test_groups_are_compared_over_their_common_seeds(runs: dict[str, Path]) -> None:
    """Against SciPy's paired test."""
    one, two, run = [0.70, 0.72, 0.71], [0.75, 0.78, 0.74, 0.10], read_run(runs["s0"])
    made = [with_accuracy(run, seed, value, "one") for seed, value in enumerate(one)]
    made += [with_accuracy(run, seed, value, "two") for seed, value in enumerate(two)]
    found = compared_groups(group_runs(made))
    wanted = ttest_rel(two[:3], one).confidence_interval(0.95)
    assert [cell.text for cell in found.rows[0]] == [
        "Accuracy, all examples",
        "two",
        f"★ +{np.mean(np.array(two[:3]) - one):.4f}",
        f"+{wanted.low:.4f} to +{wanted.high:.4f}",
        "3",
    ]
    assert found.rows[1][2].text.startswith("▽ +")  # a variance is better if lower
    two_seeds = compared_groups(group_runs([run for run in made if run.summary["seed"] < 2]))
    assert not {"★", "▽"} & {row[2].text[0] for row in two_seeds.rows}


@pytest.mark.parametrize("seed", range(20))
def test_the_level_is_for_all_groups_together(seed: int) -> None:
    """Holm's adjusted p by its definition, of SciPy's tests; of one group the test as it is."""
    rng = np.random.default_rng(seed)
    several = [(rng.normal(shift, 1.0, 5)).tolist() for shift in (0.0, 1.5, -2.0, 3.0)]
    p = np.array([ttest_1samp(found, 0).pvalue for found in several])
    order = np.argsort(p)
    adjusted = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    wanted = np.zeros(len(p), int)
    wanted[order] = np.where(adjusted <= 0.05, np.sign([np.mean(several[at]) for at in order]), 0)
    assert paired_tests([*several, [5.0, 5.1]]) == [*wanted, 0]  # two seeds are not tested, and count for nothing
    assert [paired_tests([found])[0] for found in several] == [paired_test(found) for found in several]


def test_python_and_the_page_have_one_verdict(runs: dict[str, Path]) -> None:
    """Three groups against the first: what has a mark in the one has a verdict in the other, and nothing else has."""
    run, values = read_run(runs["s0"]), {"a": [0.70, 0.72, 0.71], "b": [0.80, 0.82, 0.811], "c": [0.72, 0.77, 0.71]}
    made = [with_accuracy(run, at, one, label) for label, each in values.items() for at, one in enumerate(each)]
    groups = group_runs(made)
    marks = {(row[1].text, row[0].text): row[2].text[0] for row in compared_groups(groups).rows}
    rows = {(row["group"], readable(row["metric"])): row["verdict"] for row in paired_rows(groups)}
    assert {key: {"★": "better", "▽": "worse"}.get(mark, "") for key, mark in marks.items()} == rows
    assert {"better", "worse", ""} == set(rows.values())


def test_a_page_of_several_runs_begins_with_one_sentence_and_pictures(compared: Page, runs: dict[str, Path]) -> None:
    """Whatever the number of runs; what they have alike stands once."""
    tags = [(tag, own.get("class")) for tag, own in compared.elements]
    order = [tags.index(one) for one in (("p", "verdict"), ("table", "main"), ("div", "pair"), ("details", "part"))]
    assert order == sorted(order)
    assert tags.count(("p", "verdict")) == 1
    groups = group_runs(read_runs(list(runs.values())))
    alike, odd = tables.facts(groups)
    assert "synthetic" in {row[1].text for row in alike.rows}
    assert {len(row) for row in alike.rows} == {2}
    assert [row[0].text for row in odd.rows] == ["fedavg", "local"]
    assert not {*odd.head} & {row[0].text for row in alike.rows}
    many = {f"run{at}": at / 20 for at in range(20)}
    assert ranking(many, str).count("run") < len(many) / 2


def test_compare_is_a_command(runs: dict[str, Path]) -> None:
    code, said, _ = fedweave("compare", str(runs["alone"]), str(runs["s0"]), str(runs["s1"]))
    assert (code, "difference to local" in said, "★" in said.split("Differences")[0]) == (0, True, False)
    assert fedweave("compare", str(runs["s0"]), str(runs["s1"]))[0] == 2


def test_algorithms_that_train_with_other_settings_are_named(runs: dict[str, Path], tmp_path: Path) -> None:
    alike = group_runs(read_runs(list(runs.values())))
    assert training_differences(alike) == []
    other = shutil.copytree(runs["alone"], tmp_path / "other")
    edit_config(other, "local_steps = 1", "local_steps = 5")
    found = read_runs([runs["s0"], other])
    [said] = training_differences(group_runs(found))
    check_facts(said, "fedavg with adam, lr 0.01, 1 step", "local with adam, lr 0.01, 5 steps")
    check_facts(render(found), "5 steps")
    assert training_differences(group_runs([*found, *read_runs([runs["alone"]])])) == [], "they have one way in common"
    ego = replace(found[0], config={"algorithm": {"optimizer": "adam", "batches": 5, "epochs": 4, "batch": 32}})
    assert recipe(ego) == "adam, 20 steps of 32 examples"


def test_runs_of_other_lengths_are_compared_with_a_word_on_it_and_of_other_clients_not_at_all(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    longer = shutil.copytree(runs["alone"], tmp_path / "longer")
    edit_config(longer, "rounds = 3", "rounds = 9")
    groups = group_runs(read_runs([runs["s0"], longer]))
    assert training_differences(groups) == [
        "local has rounds = 9 where the other has 3: a difference to fedavg may come from that."
    ]
    [said] = gains.gain_sentences(gains.member_gains(groups))
    check_facts(said, "rounds = 9", "3")
    other = shutil.copytree(runs["s1"], tmp_path / "other")
    edit_summary(other, clients=4)
    edit_config(other, "clients = 3", "clients = 4")
    code, _, problem = fedweave("compare", str(runs["s0"]), str(other))
    assert (code, "of other numbers of clients (fedavg" in problem) == (2, True)
    page = render(read_runs([runs["s0"], other]))
    assert not Page(page).tables.get("differences")


def test_parties_who_hold_the_same_people_are_compared_with_one_that_holds_everything(tmp_path: Path) -> None:
    vertical = {"name": "vertical", "clients": 3}
    data = {"name": "synthetic", "nodes": 60, "features": 9, "classes": 2}
    about = {"rounds": 1, "data": data, "partition": vertical, "model": {"name": "gcn", "hidden": 8}}
    for name, more in (("glasu", {}), ("pooled_gnn", {}), ("other", {"data": data | {"nodes": 90}})):
        kind = "pooled_gnn" if name == "other" else name
        (tmp_path / f"{name}.toml").write_text(dumps(about | {"algorithm": {"name": kind}} | more))
        assert fedweave("run", str(tmp_path / f"{name}.toml"), "--out", str(tmp_path / name))[0] == 0
    code, told, _ = fedweave("compare", str(tmp_path / "glasu"), str(tmp_path / "pooled_gnn"))
    assert (code, "difference to glasu" in told) == (0, True)
    code, _, problem = fedweave("compare", str(tmp_path / "glasu"), str(tmp_path / "other"))
    assert (code, "(glasu: 24 test nodes; pooled_gnn: 36 test nodes)" in problem) == (2, True)


def test_compare_says_which_runs_cannot_be_compared_and_why(runs: dict[str, Path], tmp_path: Path) -> None:
    other = shutil.copytree(runs["alone"], tmp_path / "other")
    edit_summary(other, dataset="moons")
    problem = fedweave("compare", str(runs["s0"]), str(other))[2]
    check_facts(problem, "fedavg on synthetic", "local on moons")
    (other / "summary.json").unlink()
    problem = fedweave("compare", str(runs["s0"]), str(other))[2]
    check_facts(problem, "finished")


def test_fairness_is_marked_on_test_numbers_alone(compared: Page, page: str, summaries: Any) -> None:
    found = summaries["s0"]["metrics"]
    assert Page(page).row("fairness", "Train loss variance") == [number(found["fairness/train_loss_variance"])]
    starred = {name for name in RESULTS if name.startswith(("test_loss", "train_loss", "accuracy_"))}
    names = {name for name in starred if better(name)}
    assert names == {"test_loss_variance", "test_loss_entropy", "accuracy_deviation"}
    variance = summaries["alone"]["metrics"]["fairness/test_loss_variance"]
    assert compared.row("fairness", "Test loss variance")[0] == number(variance)


def test_gain_is_each_members_accuracy_less_what_it_has_alone(runs: dict[str, Path], compared: Page) -> None:
    """Seed 1 has no run of `local` on its split, so no gain either."""
    one, alone = read_run(runs["s0"]).clients("accuracy"), read_run(runs["alone"]).clients("accuracy")
    groups = group_runs(read_runs(list(runs.values())))
    [found] = gains.member_gains(groups)
    assert found.by_client == {client: one[client] - alone[client] for client in alone}
    assert compared.row("gain", "fedavg")[0] == "0"
    helped = [value for value in found.by_client.values() if value > 0]
    said = next(text for text in compared.texts if text.startswith("With fedavg: joining "))
    check_facts(said, f"{len(helped)} of 3")
    assert compared.row("gain", "fedavg")[1] == f"{len(helped)} of 3"
    assert gains.member_gains(groups[:1]) == []


def test_of_several_runs_alone_the_one_of_the_same_settings_counts(runs: dict[str, Path], tmp_path: Path) -> None:
    """Each is beside the one whose learning rate it has; the sentence says which."""
    quick = tmp_path / "alone, quick"
    shutil.copytree(runs["alone"], quick)
    edit_config(quick, "\nlr = 0.01\n", "\nlr = 0.2\n")
    groups = group_runs(read_runs([quick, runs["s0"], runs["alone"]]))
    [found] = gains.member_gains(groups)
    assert found.baseline == "local, algorithm.lr=0.01"
    check_facts(gains.gain_sentences([found])[0], "local, algorithm.lr=0.01")
    run = groups[1].first
    assert (reference := gains.local_run(run, groups)) is not None
    assert reference.directory == runs["alone"]


def test_a_run_between_sites_is_told_from_its_simulation_by_a_word(runs: dict[str, Path], tmp_path: Path) -> None:
    run = read_run(runs["s0"])
    flare = {"name": "flare", "timeout": 60.0, "quorum": 1.0}
    labels = [group.label for group in group_runs([run, replace(run, config=run.config | {"engine": flare})])]
    assert labels == ["fedavg, simulated", "fedavg, between sites"]


@pytest.mark.parametrize(("partition", "missing"), [("louvain", "local"), ("vertical", "standalone")])
def test_what_to_run_to_see_what_joining_brings(page: str, runs: dict[str, Path], partition: str, missing: str) -> None:
    run = read_run(runs["s0"])
    assert gains.baseline_algorithm(replace(run, config={"partition": {"name": partition}})) == missing
    check_facts(page, "<code>local</code>")


def gained(label: str, **of_clients: float) -> gains.Gain:
    """Of a run on some split."""
    split = pa.table({"client": list("abc")})
    run = Run(Path(label), {}, {"seed": 0, "algorithm": label}, split, split, split, {}, True, 1, 0.0)
    return gains.Gain(0, Group(label, (run,)), run, of_clients)


def test_sentences_and_tables_of_gains_by_hand() -> None:
    found = [gained("one", a=0.2, b=-0.1, c=0.05), gained("two", a=-0.4, b=0.0, c=0.1)]
    assert gains.gain_sentences(found) == [
        "With one: joining changes accuracy by +0.0500 on average (one seed, not tested); 2 of 3 members gain, by "
        "0.125 on average; 1 loses, by 0.100.",
        "With two: joining changes accuracy by \N{MINUS SIGN}0.100 on average (one seed, not tested); 1 of 3 members "
        "gains, by 0.100 on average; 1 loses, by 0.400.",
    ]
    assert [cell.text for cell in gains.gain_table(found).rows[0]] == [
        "one",
        "0",
        "2 of 3",
        "\N{MINUS SIGN}0.1000",
        "+0.0500",
        "+0.2000",
    ]


def test_over_seeds_the_mean_of_all_comes_first_and_pairs_are_counted() -> None:
    """Most members may lose where those that gain are told of."""
    found = [gained("one", a=0.05, b=-0.2, c=0.0), gained("one", a=-0.1, b=-0.1, c=-0.05)]
    found = [replace(one, group=found[0].group) for one in found]
    assert gains.gain_sentences(found) == [
        "With one: joining changes accuracy by \N{MINUS SIGN}0.0667 on average (2 seeds, not tested: an interval needs "
        "3 seeds); 1 of 6 pairs of a member and a seed gains, by 0.0500 on average; 4 lose, by 0.113."
    ]
    [none] = gains.gain_sentences([gained("two", a=0.1, b=-0.1)])
    assert none.startswith(
        "With two: joining changes accuracy by +0 on average (one seed, not tested); 1 of 2 members gains"
    )


def test_a_sentence_claims_no_more_than_its_interval_shows() -> None:
    """Against SciPy's t-test; at its border, with too few seeds, and for several runs."""
    for values in ([0.1, 0.2, 0.15], [0.1, 0.2, -0.15], [0.01, 0.4, 0.2, 0.2], [-0.2, -0.21, -0.19, -0.2]):
        wanted = ttest_1samp(values, 0.0)
        own, bounds = effect(values), wanted.confidence_interval(0.95)
        assert (own.mean, own.low, own.high) == pytest.approx((np.mean(values), *bounds))
        assert own.significant == (wanted.pvalue < 0.05)
    assert not effect([0.1, 0.1]).significant  # an interval of width 0, by chance
    assert not effect([0.1]).significant
    many = [gained(name, a=value + at / 1000) for name, value in (("up", 0.1), ("down", -0.1)) for at in range(3)]
    many += [gained("level", a=value) for value in (0.3, -0.2, 0.01)]
    owners = {gain_.group.label: gain_.group for gain_ in many}
    many = [replace(one, group=owners[one.group.label]) for one in many]
    said = gains.gain_sentences(many)
    assert [line.split(":")[0].split(",")[0] for line in said] == ["With up", "With down", f"{UNDECIDED} with level"]
    assert ("joining brings 0.101 of" in said[0], "joining costs 0.0990 of" in said[1]) == (True, True)
    head = gains.gain_headline(many)
    sure, undecided = head.split(UNDECIDED)
    assert ("(up;" in sure, "(down;" in sure, "level" in sure, "(level;" in undecided) == (True, True, False, True)


def test_the_best_run_is_ahead_only_where_a_paired_test_says_so(runs: dict[str, Path]) -> None:
    run, name = read_run(runs["s0"]), "global/accuracy"

    def told(**values: Sequence[float]) -> str:
        made = [with_accuracy(run, at, value, label) for label, own in values.items() for at, value in enumerate(own)]
        return comparison_sentence(group_runs(made), name, "accuracy")

    assert told(one=[0.5, 0.52, 0.51], two=[0.7, 0.71, 0.72]).startswith("two is ahead of one by 0.200 (95 % interval ")
    assert told(one=[0.5, 0.9, 0.51], two=[0.7, 0.71, 0.72]).startswith(
        f"{UNDECIDED} between two and one (+0.0733; 95 %"
    )
    assert told(one=[0.5, 0.5], two=[0.7, 0.7]).startswith("Not tested, 2 seeds; an interval needs 3 seeds: ")
    few = told(one=[0.5, 0.51, 0.52], two=[0.7, 0.71, 0.72], few=[0.6, 0.6])
    assert few.startswith("two is ahead of one by 0.200 (95 % interval ")
    assert few.endswith("Not tested against few: an interval needs 3 seeds.")
    assert told(one=[0.5], two=[0.7]).startswith("Not tested, one seed: ")
    assert told(one=[0.5, 0.6, 0.7]) == ""
    three_of = told(one=[0.5, 0.51, 0.52], two=[0.7, 0.71, 0.72], three=[0.71, 0.69, 0.72])
    assert three_of.startswith(
        f"{UNDECIDED} between two and three (+0.00333; 95 %"
    )  # one is surely below: not named so


def of_seeds(label: str, worst: Sequence[float], gaps: Sequence[float], accuracy: Sequence[float], size: int) -> Group:
    rows = pa.table({"client": list("abc")})
    about, runs = {"algorithm": label, "bytes_up": size, "bytes_down": size}, []
    for seed, (low, gap, value) in enumerate(zip(worst, gaps, accuracy, strict=True)):
        metrics = {"fairness/worst_accuracy": low, "groups/global/sp": gap / 2, "groups/global/eo": gap / 2}
        summary = about | {"seed": seed, "metrics": metrics | {"global/accuracy": value}}
        runs.append(Run(Path(label), {"seed": seed}, summary, rows, rows, rows, {}, True, 1, 0.0))
    return Group(label, tuple(runs))


def tradeoff_of(first: Group, other: Group) -> dict[str, Cell]:
    found = tradeoff([first, other])
    return dict(zip(found.head, found.rows[0], strict=True))


def test_which_run_is_fairer_is_said_with_its_price() -> None:
    """Student's t of three seeds is 4.303: of differences .1, .2 and .3 the half width is .248, of .1 alone it is 0."""
    plain = of_seeds("plain", [0.4, 0.4, 0.4], [0.3, 0.4, 0.5], [0.8, 0.8, 0.8], 1000)
    fair = of_seeds("fair", [0.5, 0.5, 0.5], [0.2, 0.2, 0.2], [0.7, 0.75, 0.8], 1500)
    told = tradeoff_of(plain, fair)
    members, people = "between members", "between groups of people"
    assert (told[members].text, told[people].text) == ("fairer", "no significant difference")
    assert (told["worst-off member's accuracy"].text, told["SP + EO"].text) == ("+0.1000", "\N{MINUS SIGN}0.2000")
    assert told["SP + EO"].note == "\N{MINUS SIGN}0.4484 to +0.0484"
    assert told["accuracy, all test examples"].text == "\N{MINUS SIGN}0.0500"
    assert told["bytes"].text == "1.50 times"
    assert tradeoff_of(fair, plain)[members].text == "less fair"
    one, other = (Group(group.label, group.runs[:1]) for group in (plain, fair))
    check_facts(tradeoff_of(one, other)[members].text, "1 seed")
    one, other = (Group(group.label, group.runs[:2]) for group in (plain, fair))
    check_facts(tradeoff_of(one, other)[members].text, "2 seeds")
    assert tradeoff_of(one, one)["bytes"].text == "the same"


def test_a_constant_model_is_named_on_the_page(copied: Callable[..., Path]) -> None:
    directory = copied()
    constant = {"global/accuracy": 0.25, "global/classes_predicted": 1.0, "global/majority": 0.5}
    in_chosen = {f"best_val/{name}": value for name, value in constant.items()}
    edit_summary(directory, metrics=read_run(directory).summary["metrics"] | constant | in_chosen)
    run = read_run(directory)
    said = " ".join(Page(render([run])).texts)
    assert said.count("predicts one class for all test examples; it is right for 25.0%") == 1
    drawn = figures.curves(group_runs([run]))
    assert drawn.panels[0].levels == (0.5,)


@pytest.mark.parametrize("other", ["local/matched_accuracy", "scores/coarse"])
def test_no_line_is_drawn_of_other_clients_than_the_curve(other: str, copied: Callable[..., Path]) -> None:
    directory, levels = copied(), []
    metrics = read_run(directory).summary["metrics"]
    level = {"local/majority": 0.5, "best_val/local/majority": 0.5}
    for changed in (level, level | {other: 1.0, f"best_val/{other}": 1.0}):
        edit_summary(directory, metrics=metrics | changed)
        drawn = figures.curves(2 * group_runs([read_run(directory)]))
        levels.append(drawn.panels[0].levels)
    assert levels == [(0.5,), ()]


def test_only_the_seed_may_differ_in_a_group(runs: dict[str, Path]) -> None:
    first, second = read_run(runs["s0"]), read_run(runs["s1"])
    other = {**second.config, "algorithm": {**second.config["algorithm"], "lr": 0.5}}
    changed = replace(second, config=other)
    assert [len(group.runs) for group in group_runs([first, second])] == [2]
    assert [group.label for group in group_runs([first, changed])] == [
        f"fedavg, algorithm.lr={first.config['algorithm']['lr']}",
        "fedavg, algorithm.lr=0.5",
    ]
    assert [len(group.runs) for group in group_runs([first, second, replace(first)])] == [2, 1]  # a seed twice
    asked = {**second.config, "requester": "anna"}
    assert [len(group.runs) for group in group_runs([first, replace(second, config=asked)])] == [2]
    ranks = {**asked, "evaluation": {**asked["evaluation"], "ranks": "all"}}  # another round may be chosen
    assert [len(group.runs) for group in group_runs([first, replace(second, config=ranks)])] == [1, 1]
    assert [len(group.runs) for group in group_runs([first, replace(second, finished=False)])] == [1, 1]


def test_curves_hold_what_was_measured(runs: dict[str, Path]) -> None:
    both = read_runs([runs["s0"], runs["s1"]])
    per_seed = []
    for run in both:
        rows = pq.read_table(run.directory / "metrics.parquet").to_pylist()
        own = [r for r in rows if r["client"] != "global" and (r["split"], r["metric"]) == ("train", "loss")]
        per_seed.append([statistics.fmean(r["value"] for r in own if r["round"] == t) for t in (1, 2, 3)])
    figure = figures.curves(group_runs(both))
    [line] = figure.panels[1].marks
    assert list(line.x) == [1, 2, 3]
    assert line.y == pytest.approx([statistics.fmean(pair) for pair in zip(*per_seed, strict=True)])
    spreads = [abs(one - other) / math.sqrt(2) for one, other in zip(*per_seed, strict=True)]
    assert np.subtract(line.high, line.y) == pytest.approx(spreads)
    assert both[0].curve("accuracy", "test", True)[3] == both[0].summary["metrics"]["global/accuracy"]


def test_members_are_rows_worst_first_with_intervals_or_a_histogram(runs: dict[str, Path]) -> None:
    """Of each member the chosen round's accuracy, Wilson's interval by its formula, and what it reaches alone."""
    run = read_run(runs["s0"])
    [panel] = figures.client_accuracy(group_runs([run])).panels
    best = run.clients("accuracy")
    assert [row.value for row in panel.rows] == sorted(best.values())
    name, row = panel.rows[0].name.partition(" ")[0], panel.rows[0]
    n, z = run.test_sizes[name], 1.959963984540054
    middle = (row.value + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(row.value * (1 - row.value) / n + z * z / (4 * n * n))
    assert (row.low, row.high) == pytest.approx((middle - half, middle + half))
    check_facts(row.text, f"{row.value:.3f}", f"{row.low:.2f}", f"{row.high:.2f}")
    check_facts(drawing.panel_svg(panel), *(one.text for one in panel.rows))
    ranked = figures.distribution("", [{"a": 0.5, "b": 0.25}, {"a": 0.75, "b": 1.0}], "#000000").marks[0]
    assert list(ranked.y) == [0.5, 0.75]  # means of the lowest and of the highest, not of a and of b
    many = {f"c{i}": i / 50 for i in range(51)}
    assert figures.is_histogram([many])
    assert not figures.is_histogram([dict(list(many.items())[:50])])
    shares, centers = figures.histogram([0.0, 0.01, 0.99, 1.0])
    assert (shares[0], shares[-1], shares.sum()) == (0.5, 0.5, 1.0)
    assert (centers[0], centers[-1]) == pytest.approx((0.025, 0.975))
    drawn = drawing.panel_svg(figures.distribution("", [many], "#000000"))
    assert re.findall(r">([\d.]+)</text>", drawn)[-6:] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    check_facts(drawn, "<title>0.00 to 0.05: ")


def test_stacked_labels_add_up_to_the_clients_counts(runs: dict[str, Path]) -> None:
    run = read_run(runs["s0"])
    figure = figures.split(run)
    bars = figure.panels[0].marks
    assert np.array([bar.y for bar in bars]).T.tolist() == run.partition["labels"].to_pylist()
    row = tables.splits([("it", run.partition)]).rows[0]
    kept, cut = (sum(run.partition[name].to_pylist()) for name in ("edges_kept", "edges_cut"))
    assert [cell.text for cell in row[5:]] == [f"{kept:,}", f"{cut:,}", f"{cut / (2 * kept + cut):.1%}"]


def test_the_ledger_adds_up_to_what_the_run_sent(page: str, summaries: Any, runs: dict[str, Path]) -> None:
    found = disclose(read_run(runs["s0"]))
    for way, total in (("up", "bytes_up"), ("down", "bytes_down")):
        assert sum(one.bytes for one in found.flows if one.direction == way) == summaries["s0"][total]
    assert sum(one.bytes for one in found.flows if one.purpose == "evaluation") == summaries["s0"]["bytes_evaluation"]
    shown = Page(page)
    table = shown.tables["ledger"][0]
    assert len(table) == 1 + len(found.flows)
    (n,) = (row for row in table if row[3] == "FedAvg.train: n")
    what = ["training", "each member", "server", "FedAvg.train: n", "number of training examples", "none"]
    assert n[:8] == [*what, "9", "72 bytes"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", n[8])
    down = [row for row in table if row[1] == "server"]
    assert {row[0] for row in down} == {"training", "evaluation"}
    assert [row[4] for row in down if row[3].endswith(": w")] == [
        "the global model's weights, computed from all members' updates"
    ] * 2
    words = "Each of the 3 clients sent “number of training examples” (FedAvg.train: n) 3 times: 8 bytes each time, "
    assert words + "24 bytes per client in all." in shown.texts


def one_ledger(runs: dict[str, Path], *messages: tuple[list[str], dict[str, Any], Any, str]) -> tuple[str, ...]:
    """Sentences about messages (clients, tree, mechanism, what it reveals) of a run of four clients, one per call."""
    ledger = Ledger()
    for call, (clients, tree, mechanism, reveals) in enumerate(messages):
        info = StepInfo(dict.fromkeys(tree, Sends(reveals, mechanism)))
        ledger.record(1, call, "step", clients, "up", tree, 0.0, info)
    run = read_run(runs["s0"])
    return disclose(replace(run, ledger=ledger.table(), summary=run.summary | {"clients": 4})).sentences


def test_what_policies_keep_back_is_one_sentence(runs: dict[str, Path]) -> None:
    zeros = {key: f"{KEPT_BACK}zeros instead of {key}" for key in ("losses", "AUC")}
    messages = [(["a"], {key: torch.zeros(2)}, None, reveals) for key, reveals in zeros.items()]
    said = one_ledger(runs, (list("abcd"), {"n": 1}, None, "a count"), *messages)
    [sentence] = [sentence for sentence in said if "zeros" in sentence]
    check_facts(sentence, "step: AUC (zeros instead of AUC; 1 of", "step: losses (zeros instead of losses; 1 of")
    assert all("n" in sentence for sentence in said if "No privacy mechanism" in sentence)


def test_a_round_that_was_done_again_has_left_again(runs: dict[str, Path]) -> None:
    """Between sites a message of the same round and call leaves twice where a run was resumed."""
    ledger, run = Ledger(), read_run(runs["s0"])
    tree, info = {"w": {"0": torch.zeros(2, 2), "1": torch.zeros(3)}}, StepInfo({"w": Sends("weights")})
    for round in (1, 2, 2, 3):
        ledger.record(round, 0, "step", list("abc"), "up", tree, 0.0, info)
    ledger.purpose = PREDICTION  # of a run of three rounds, twice: it was not continued for that
    for _ in range(2):
        ledger.record(3, 0, "look", list("abc"), "up", {"h": torch.zeros(1)}, 0.0, StepInfo({"h": Sends("rows")}))
    said = disclose(replace(run, ledger=ledger.table()))
    assert said.sentences[0] == (
        "Each of the 3 clients sent “weights” (step: w) 4 times: 28 bytes each time, 112 bytes per client in all."
    )
    check_facts(" ".join(said.sentences), "round 2 left more than once")
    assert [flow.messages for flow in said.flows if (flow.step, flow.key) == ("step", "w")] == [12]


def test_sentences_say_what_the_ledger_shows_and_no_more(runs: dict[str, Path]) -> None:
    w = {"w": {"0": torch.zeros(2, 2), "1": torch.zeros(3)}}
    said = one_ledger(runs, (list("abcd"), w, None, "weights"), (["a"], w, None, "weights"))
    sizes = "28 bytes each time, 28 bytes to 56 bytes per client in all."
    assert said[0] == f"Each of the 4 clients sent “weights” (step: w) 1 to 2 times: {sizes}"
    assert any("No privacy" in sentence for sentence in said)
    assert not any("mentions" in sentence for sentence in said)  # that nothing else left is never claimed
    said = one_ledger(runs, (list("ab"), {"h": torch.zeros(5)}, LDP(1.0, "node"), "label distribution"))
    words = "local differential privacy, ε = 1 per node"
    assert said[0] == f"2 of the 4 clients sent “label distribution” (step: h) once, {words}: 20 bytes."
    kept = one_ledger(runs, (list("ab"), {"h": torch.zeros(0)}, None, "labels"))
    assert kept[0] == "2 of the 4 clients kept “labels” back (step: h is empty, once)."
    assert not any("No privacy" in sentence or "No ε" in sentence for sentence in said)
    assert any("Check these" in sentence and "step: h (label distribution)" in sentence for sentence in said)
    said = one_ledger(runs, (["a"], {"x": torch.zeros(5)}, None, ""))
    check_facts(" ".join(said), "step: x.")
    assert one_ledger(runs, (list("abcd"), {}, None, ""))[0] == "No client sent anything but empty replies."


def test_what_noise_bounds_is_added_up(runs: dict[str, Path]) -> None:
    """Client a sends noised rows twice, μ = 3 and 4 are one of μ = 5; the codes are drawn once and cost ε = 2 once."""
    h, codes = {"h": {"x": torch.zeros(2), "y": torch.zeros(2)}}, {"codes": torch.zeros(2)}
    drawn = LDP(2.0, "node", release="codes")
    messages: Any = [
        (list("ab"), h, (Clipped(1.0), Gaussian(1.0, 3.0)), "rows"),
        (["a"], h, Gaussian(0.5, 2.0), "rows"),
    ]
    messages += [(list("ab"), codes, drawn, "codes")] * 3 + [(list("cd"), codes, Mixup(4), "codes")]
    said = one_ledger(runs, *messages)
    rows = f"ε = {epsilon(5.0, 1e-5):.4g} at δ = 1e-05 after 2 messages."
    check_facts(" ".join(said), f"per row: {rows}", "per node: ε = 2 after 3 messages")
    check_facts(" ".join(said), "No ε", "step: codes")


def test_what_went_to_several_peers_is_one_release_and_a_repeated_round_another() -> None:
    noised, w = StepInfo({"w": Sends("w", LDP(1.0, "row"))}), {"w": {"0": torch.zeros(1), "1": torch.zeros(1)}}
    ledger = Ledger()
    for _ in range(2):  # the round was done again
        ledger.record(1, 0, "step", list("aab"), "peer", w, 0.0, noised, list("bca"))
    [bound] = bounds(ledger.table())
    assert (bound.per, bound.epsilon, bound.delta, bound.messages) == ("row", 2.0, None, 2)


def test_noise_on_what_nothing_limits_bounds_no_epsilon() -> None:
    """As FedEgo's, whose embeddings are not clipped: no ε is stated, and none of 0."""
    ledger, info = Ledger(), StepInfo.of({"h": Sends("rows", Gaussian(100.0))})
    ledger.record(1, 0, "step", ["a"], "up", {"h": torch.zeros(2)}, 0.0, info)
    assert bounds(ledger.table()) == []
    assert over_rounds(ledger.table()) == {}
    assert [states_bound(text) for text in ledger.table()["applied"].to_pylist() if text] == [False]


def test_of_several_deltas_the_smallest_is_stated_and_of_several_clients_the_largest_epsilon() -> None:
    ledger = Ledger()
    for client, mu, delta in (("b", 4.0, 1e-3), ("a", 3.0, 1e-7), ("a", 4.0, 1e-5), ("c", 1.0, 1e-5)):
        info = StepInfo.of({"h": Sends("rows", Gaussian(1.0, mu, delta=delta))})
        ledger.record(1, 0, "step", [client], "up", {"h": torch.zeros(2)}, 0.0, info)
    [bound] = bounds(ledger.table())
    assert (bound.per, bound.delta, bound.messages) == ("row", 1e-7, 2)
    assert bound.epsilon == pytest.approx(epsilon(5.0, 1e-7))


@pytest.mark.parametrize("name", ["fedavg", "centralized", "pooled_gnn"])
def test_pooled_data_is_named_where_an_algorithm_pools_it(name: str, runs: dict[str, Path]) -> None:
    run = read_run(runs["s0"])
    said = disclose(replace(run, summary=run.summary | {"algorithm": name})).sentences
    assert (POOLED in said) == (name in ("centralized", "pooled_gnn"))


def test_what_went_from_client_to_client_is_told_apart(runs: dict[str, Path]) -> None:
    ledger, w = Ledger(), {"w": torch.zeros(5)}
    ledger.record(1, 0, "step", list("ab"), "up", {})
    ledger.record(1, 0, "step", list("aab"), "peer", w, info=StepInfo.of({"w": "weights"}), to=list("bca"))
    run = read_run(runs["s0"])
    said = disclose(replace(run, ledger=ledger.table(), summary=run.summary | {"clients": 4})).sentences
    assert said[:2] == (
        "No client sent anything but empty replies to the server.",
        "2 of the 4 clients sent “weights” to other clients (step: w) 1 to 2 times: 20 bytes each time, "
        "20 bytes to 40 bytes per client in all.",
    )
    check_facts(" ".join(said), f"{ledger.bytes_peer} bytes")


HOSTILE = ("</script><script>alert(1)</script>", "\"><img src=x onerror='alert(2)'>", "{{ 7 * 7 }}&amp;<b>\u2028")


def test_names_from_data_stay_text(copied: Callable[..., Path], page: str) -> None:
    names = dict(zip(("client-0", "client-1", "client-2"), HOSTILE, strict=True))

    def renamed(table: pa.Table) -> pa.Table:
        clients = [names.get(client, client) for client in table["client"].to_pylist()]
        table = table.set_column(table.schema.get_field_index("client"), "client", pa.array(clients))
        if "reveals" in table.column_names:
            at = table.schema.get_field_index("reveals")
            said = [f"{HOSTILE[0]} {text}" if text else "" for text in table["reveals"].to_pylist()]
            table = table.set_column(at, "reveals", pa.array(said))
        return table

    directory = copied(metrics=renamed, ledger=renamed, partition=renamed)
    edit_summary(directory, dataset=HOSTILE[0], algorithm=HOSTILE[1])
    hostile, plain = Page(render([read_run(directory)])), Page(page)
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    assert not [name for _, attributes in hostile.elements for name in attributes if name.startswith("on")]
    assert {row[0] for row in hostile.tables["split"][-1][1:]} == set(map(printable, HOSTILE))
    assert f"{HOSTILE[1]} on {HOSTILE[0]}" in hostile.texts


def test_nothing_is_loaded_from_elsewhere(page: str, compared: Page) -> None:
    for shown in (Page(page), compared):
        assert not [tag for tag, _ in shown.elements if tag in ("link", "img", "iframe", "object", "base", "form")]
        loads = ("src", "href", "srcset", "data", "action", "poster")
        outside = [attributes for _, attributes in shown.elements if set(loads) & set(attributes)]
        places = {attributes.get("href", "") for attributes in outside}  # of the page itself, for its contents bar
        assert all(place.startswith("#") for place in places)
        assert {place[1:] for place in places} <= {attributes.get("id") for _, attributes in shown.elements}
        assert all(set(loads) & set(attributes) == {"href"} for attributes in outside)
    style = page[page.index("<style>") : page.index("</style>")]
    assert not re.search(r"url\(|@import", style)
    assert "default-src 'none'" in page
    assert page.count("<!DOCTYPE html>") == 1
    assert "<script" not in page


def test_a_page_of_one_run_has_five_tiles_and_folds_the_rest(page: str, runs: dict[str, Path]) -> None:
    """Each folded section has a heading and says what one finds there; members have the numbers of test examples."""
    shown, run = Page(page), read_run(runs["s0"])
    tags = [(tag, own.get("class")) for tag, own in shown.elements]
    [tiles] = re.findall(r'<div class="tiles">(.*?)</div>\s*(?:<p|<div class="scroll")', page, re.S)
    assert tiles.count("<h3>") == 5
    folded = re.findall(r'<details class="part"><summary><h2>([^<]+)</h2> <span>([^<]+)</span>', page)
    assert len(folded) == tags.count(("details", "part")) == len({heading for heading, _ in folded})
    assert page.index("<h2>Members</h2>") < page.index('<details class="part">')
    assert run.test_sizes
    assert all(f"{client} ({size:,})" in page for client, size in run.test_sizes.items())


def test_the_table_of_places_has_the_terminals_words_and_the_files_numbers(page: str, summaries: Any) -> None:
    shown, found = Page(page), summaries["s0"]["metrics"]
    [table] = [table for table in shown.tables["header"] if "member mean" in table[0]]
    rows = {row[0]: dict(zip(table[0], row, strict=True)) for row in table}
    best = rows[f"accuracy, chosen round {found['best_val/round']}"]
    assert best["all examples"] == f"{found['best_val/global/accuracy']:.3f}"
    assert best["member mean"] == f"{found['best_val/local/accuracy']:.3f}"
    assert rows["macro F1"]["member mean"] == f"{found['local/macro_f1']:.3f}"


def test_the_first_tile_names_the_round_of_its_number_without_members(copied: Any, summaries: Any) -> None:
    """As where scores left the members only as a sum."""
    run = read_run(copied(metrics=lambda rows: rows.filter(pc.field("client") == "global")))
    assert not run.clients("accuracy")
    shown, found = first_screen(run, disclose(run)), summaries["s0"]["metrics"]
    assert shown.tiles[0].value == f"{found['best_val/local/accuracy']:.3f}"
    assert shown.tiles[0].notes[-1].endswith(f"chosen round {found['best_val/round']}")


def test_the_first_screen_of_sites_that_keep_scores_at_home_says_so(copied: Any) -> None:
    """Zeros are nothing that left, and what members measured at home is not called unmeasured."""

    def keep_back(rows: pa.Table) -> pa.Table:
        kept = rows.to_pylist()
        for row in kept:
            if row["purpose"] == EVALUATION:
                row["reveals"] = f"{KEPT_BACK}zeros"
        return pa.Table.from_pylist(kept, rows.schema)

    run = read_run(copied(ledger=keep_back))
    without = {key: value for key, value in run.summary["metrics"].items() if not key.startswith(("alone/", "shelf/"))}
    run = replace(run, summary={**run.summary, "metrics": without})
    simulated = first_screen(run, disclose(run))
    assert not [note for note in simulated.tiles[3].notes if note.startswith("for evaluation: ")]
    sites = replace(run, config={**run.config, "engine": {"name": "flare"}})
    between = first_screen(sites, disclose(sites))
    for text in (between.verdict, *between.tiles[1].notes):
        check_facts(text, "at home", "fedweave audit")
    assert "audit" not in simulated.verdict


@pytest.mark.parametrize(("metric", "values"), [("rmse", (0.1, 0.2, 9.0)), ("r2", (-0.9, 0.9, 1.0))])
def test_an_interval_over_members_has_only_values_that_the_metric_can_have(
    runs: dict[str, Path], metric: str, values: tuple[float, ...]
) -> None:
    names = [f"m{number}" for number in range(len(values))]
    run, columns = read_run(runs["s0"]), {"round": 1, "split": "test", "metric": metric}
    rows = pa.table({"client": names, "value": values} | {key: [one] * len(names) for key, one in columns.items()})
    found = {f"judged/{metric}": -1.0, f"local/{metric}": statistics.fmean(values)}
    run = replace(run, metrics=rows, summary={**run.summary, "metrics": found})
    low, high = map(float, re.findall(r"-?\d+\.\d+", first_screen(run, disclose(run)).tiles[0].notes[0]))
    expected = ttest_1samp(values, 0).confidence_interval()
    if metric == "rmse":
        assert (low, high) == (0, pytest.approx(expected.high, abs=1e-3))
    else:
        assert (low, high) == (pytest.approx(expected.low, abs=1e-3), 1)


def test_the_command_writes_one_file_and_the_same_again(runs: dict[str, Path], tmp_path: Path) -> None:
    target = tmp_path / "deep.html"
    words = ("report", str(runs["s0"]), str(runs["alone"]), "-o", str(target))
    code, said, _ = fedweave(*words)
    first = target.read_bytes()
    assert (code, said.strip()) == (0, str(target))
    assert fedweave(*words)[0] == 0
    assert target.read_bytes() == first
    assert os.listdir(tmp_path) == ["deep.html"]


def test_what_is_not_a_run_or_damaged_is_named(
    copied: Callable[..., Path], runs: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    begun = copied("summary.json", "metrics.parquet", "ledger.parquet")
    damaged = shutil.copytree(runs["s0"], tmp_path / "damaged")
    (damaged / "summary.json").write_text('{"algorithm": ')
    for directories, code, said in (
        ([tmp_path / "absent"], 2, "no directory"),
        ([tmp_path / "empty"], 2, "not the directory of a run"),
        ([begun], 2, "no metrics.parquet and no ledger.parquet yet"),
        ([begun, begun], 2, "twice"),
        ([damaged], 1, "summary.json is damaged"),
    ):
        found, _, problem = fedweave("report", *map(str, directories), "-o", str(tmp_path / "no.html"))
        assert (found, said in problem, (tmp_path / "no.html").exists()) == (code, True, False), said


def test_an_unfinished_run_says_so_and_shows_what_it_has(copied: Callable[..., Path], runs: dict[str, Path]) -> None:
    def early(table: pa.Table) -> pa.Table:
        return table.filter(pc.field("round") <= 2)

    shown = Page(render([read_run(copied("summary.json", metrics=early, ledger=early))]))
    assert shown.row("run", "Rounds") == ["unfinished: round 2 of 3"]
    rows = [r for r in pq.read_table(runs["s0"] / "metrics.parquet").to_pylist() if r["round"] == 2]
    test = [r for r in rows if (r["split"], r["metric"]) == ("test", "accuracy")]
    local = statistics.fmean(r["value"] for r in test if r["client"] != "global")
    (pooled,) = (r["value"] for r in test if r["client"] == "global")
    assert shown.row("summary", "Accuracy, member mean") == [f"{local:.4f}"]
    assert shown.row("summary", "Accuracy, all examples") == [f"{pooled:.4f}"]
    assert shown.row("summary", "Seconds") == ["-"]


def test_a_finished_run_and_its_tables_give_the_same_summary(copied: Callable[..., Path], summaries: Any) -> None:
    again, expected = read_run(copied("summary.json")).summary, summaries["s0"]["metrics"]
    later = ("pooled/", "per_class/", "best_val/pooled/", "best_val/per_class/")  # of the chosen round at the end only
    assert {name: value for name, value in again["metrics"].items() if not name.startswith(later)} == pytest.approx(
        {name: value for name, value in expected.items() if not name.startswith(later)}
    )
    for key in ("bytes_up", "bytes_down", "clients", "rounds", "seed", "chosen_round"):
        assert again[key] == summaries["s0"][key], key


def test_a_run_without_a_split_is_still_reported(copied: Callable[..., Path]) -> None:
    page = Page(render([read_run(copied("partition.parquet"))]))
    check_facts(" ".join(page.texts), "partition.parquet")


def test_what_sites_do_not_know_or_keep_back_is_left_open(copied: Callable[..., Path]) -> None:
    def of_sites(table: pa.Table) -> pa.Table:
        first = np.arange(len(table)) == 0
        for name in ("nodes", "train", "labels"):
            told = [None if hidden else value for hidden, value in zip(first, table[name].to_pylist(), strict=True)]
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, pa.array(told, table.schema.field(name).type))
        return table.set_column(
            table.schema.get_field_index("edges_cut"), "edges_cut", pa.nulls(len(table), pa.int64())
        )

    run = read_run(copied(partition=of_sites))
    assert render([run])
    clients, split = tables.clients(run), tables.splits([("it", run.partition)])
    assert [cell.text for cell in clients.rows[0]][1:5:2] == ["-", "-"]
    assert clients.rows[1][1].text != "-"
    assert [cell.text for cell in split.rows[0]][-2:] == ["-", "-"]
    assert split.rows[0][1].text == f"{len(clients.rows)}"


def test_the_median_of_an_even_number_of_clients_lies_between_the_middle_two() -> None:
    for sizes, wanted in (([28, 32], "30"), ([32, 28, 1, 90], "30"), ([27, 28], "27.5"), ([5, 9, 1_200_000], "9")):
        part = pa.table({"nodes": sizes, "edges_kept": [0] * len(sizes), "edges_cut": [0] * len(sizes)})
        assert tables.splits([("it", part)]).rows[0][3].text == wanted


def test_numbers_are_written_so_that_they_can_be_compared() -> None:
    values = (0.0, 0.96567, 0.0002, -1.5, 4.07e-4, 3.1e-6, -2.04e-5)
    wanted = ["0.0000", "0.9657", "0.00020", "-1.5000", "0.00041", "0.0000031", "-0.000020"]
    assert [*map(number, values)] == wanted
    values = (0.076, 0.4400, -0.28791, 1.0, 12.345, 123.4, 12345.6, 0.0, 0.00012345, 1e-12)
    wanted = ["0.0760", "0.440", "-0.288", "1.00", "12.3", "123", "12,346", "0", "0.000123", "0"]
    assert [*map(three_digits, values)] == wanted
    assert spread([1.0, None, 3.0, math.nan]) == (2.0, math.sqrt(2), 2)
    assert with_sign(4.07e-4) == "+0.00041"
    assert mean_cell([0.5, None], number).note == "in 1 of 2 runs"


@pytest.mark.parametrize(
    ("values", "form", "text"),
    [
        ([5.9, 6.0], count_text, "6.0 ± 0.1"),
        ([2000, 2010], count_text, "2,005 ± 7"),
        ([2e-5, 2.2e-5], number, "0.000021 ± 0.000001"),
        ([0.5, 0.50001], number, "0.5000 ± <0.0001"),
        ([0.5, 0.5], number, "0.5000 ± 0"),
        ([0.5, 0.7], number, "0.6000 ± 0.1414"),
        ([0.5, None], number, "0.5000"),
        ([None], number, "-"),
    ],
)
def test_a_mean_has_the_decimals_of_its_deviation(values: Any, form: Any, text: str) -> None:
    assert mean_cell(values, form).text == text


def test_rounds_without_an_evaluation_do_not_hide_the_last_one(tmp_path: Path) -> None:
    """What the server knows of each client is kept after every round, evaluated or not."""
    (tmp_path / "cgsv.toml").write_text(SMALL)
    out = tmp_path / "run"
    words = ("--algorithm", "cgsv", "--out", str(out), "--set", "eval_every=2")
    commands.run("run", str(tmp_path / "cgsv.toml"), *words)
    metrics = pq.read_table(out / "metrics.parquet")
    evaluated = (pc.field("round") == 3) & (pc.field("split") != "server")
    pq.write_table(metrics.filter(~evaluated), out / "metrics.parquet")
    (out / "summary.json").unlink()
    run = read_run(out)
    assert (run.done, run.last_evaluation) == (3, 2)
    assert set(run.clients("accuracy")) == set(run.server_values("value"))
    assert all(set(rounds) == {1, 2, 3} for rounds in run.server_values("value").values())
    assert sum(of[3] for of in run.server_values("value").values()) == pytest.approx(1.0)


def test_thousands_of_members_make_a_small_page(runs: dict[str, Path]) -> None:
    """What left, and what it cost, in a line for all alike; the largest and the smallest clients of many."""
    run, count = read_run(runs["s0"]), 2_000
    names = [f"client-{at}" for at in range(count)]
    made = Ledger()
    noisy = StepInfo.of({"h": Sends("h", (Clipped(1.0), Gaussian(4.0, sensitivity=2.0, per="row")))})
    made.record(1, 1, "A.s", names, "up", {"h": torch.zeros(3)}, info=noisy)
    part = run.partition.slice(0, 1).to_pylist()[0] if run.partition is not None else {}
    rows = [part | {"client": name, "nodes": at} for at, name in enumerate(names)]
    split = pa.Table.from_pylist(rows, run.partition.schema) if run.partition is not None else None
    many = replace(run, ledger=made.table(), partition=split, summary=run.summary | {"clients": count})
    found = disclose(many)
    assert [row[0].text for row in tables.privacy_table(found).rows] == ["each member"]
    shown = tables.clients(many).rows
    assert len(shown) < 100
    assert (shown[0][0].text, shown[-1][0].text) == (names[-1], names[0])
    assert len(render([many])) < 200_000


def test_a_page_says_why_no_client_has_a_score(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL.replace("local_steps = 1", 'local_steps = 1\nscores = "sum"'))
    assert fedweave("run", str(tmp_path / "small.toml"), "--out", str(tmp_path / "run"), "-q")[0] == 0
    check_facts(render(read_runs([tmp_path / "run"])), "as a sum")

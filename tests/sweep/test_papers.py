"""What papers need of a sweep: settings chosen by validation, tables, charts; its runs dealt to several machines."""

import csv
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.errors import ConfigError
from fedweave.experiment.config import read, resolve
from fedweave.experiment.runs.reading import Group
from fedweave.reports.pictures import Point
from fedweave.sweeps import charts, choosing, results, scheduler
from fedweave.sweeps.captions import caption
from fedweave.sweeps.comparison import rank_algorithms, rows_by_condition
from fedweave.sweeps.latex import latex
from fedweave.sweeps.plan import grid_of_options, keys_of, plan_runs, share
from tests.refusals import check_facts, refusal
from tests.sweep.test_sweep import SMALL, in_process

VALIDATION, SHOWN = "best_val/val/accuracy", "local/accuracy"
KEYS = ("algorithm.lr", "partition.clients")


def group(name: str, lr: float, clients: int, val: list[float], test: list[float]) -> Group:
    """Runs as they are read, with seeds 0, 1, …; the validation and the test accuracy of each."""
    config = {
        "rounds": 5,
        "data": {"name": "cora_x"},
        "partition": {"name": "louvain", "clients": clients, "slack": 0.1},
        "model": {"name": "gcn", "hidden": 8},
        "algorithm": {"name": name, "lr": lr},
    }
    runs = [
        SimpleNamespace(
            config=config | {"seed": seed},
            directory=Path(f"{name}-{lr}-{clients}-s{seed}"),
            selection_metric="accuracy",
            summary={"algorithm": name, "seconds": 1.0, "metrics": {VALIDATION: one, SHOWN: other, "note": "x"}},
        )
        for seed, (one, other) in enumerate(zip(val, test, strict=True))
    ]
    return Group(f"{name} {lr} {clients}", tuple(runs))


GROUPS = [
    group("fedavg", 0.1, 5, [0.8, 0.9], [0.70, 0.72]),
    group("fedavg", 0.2, 5, [0.7, 0.7], [0.90, 0.92]),  # better on test: no reason to choose it
    group("fedavg", 0.1, 10, [0.5, 0.5], [0.5, 0.5]),
    group("fedavg", 0.2, 10, [0.6, 0.6], [0.4, 0.41]),
    group("moon", 0.1, 5, [0.9], [0.99]),  # one of its seeds failed
    group("moon", 0.2, 5, [0.6, 0.6], [0.80, 0.83]),
    group("moon", 0.1, 10, [0.6, 0.6], [0.6, 0.6]),
    group("moon", 0.2, 10, [0.5, 0.5], [0.7, 0.7]),
]
APART = choosing.conditions(KEYS)


def test_settings_are_chosen_by_validation_in_every_condition() -> None:
    assert APART == ("partition.clients",)
    found = choosing.choose(GROUPS, KEYS, APART)
    told = [(one.algorithm, one.condition["partition.clients"], one.setting["algorithm.lr"]) for one in found]
    assert told == [("fedavg", 5, 0.1), ("fedavg", 10, 0.2), ("moon", 5, 0.2), ("moon", 10, 0.1)]
    assert {one.tried for one in found} == {2}
    rows = choosing.table(found, {SHOWN: "test"}).rows
    assert [cell.text for cell in rows[0]] == ["fedavg", "5", "lr = 0.1", "0.7100 ± 0.0141"]


def test_keys_over_which_algorithms_are_compared_are_not_chosen() -> None:
    both = choosing.conditions(KEYS, ["algorithm.lr"])
    assert both == KEYS
    assert len(choosing.choose(GROUPS, KEYS, both)) == len(GROUPS)


def test_a_setting_at_the_end_of_three_is_told() -> None:
    three = [group("fedavg", lr, 5, [lr], [0.5]) for lr in (0.1, 0.2, 0.3)]
    check_facts(" ".join(choosing.describe_choices(choosing.choose(three, KEYS, APART))), "fedavg", "lr = 0.3")
    two = choosing.choose(three[:2], KEYS, APART)
    assert not [one for one in two if one.edges]


def test_a_range_has_its_own_ends_and_two_values_are_enough_below_the_constant_prediction() -> None:
    three = [group("fedavg", lr, 5, [-lr], [0.5]) for lr in (0.0187, 0.1, 0.3)]
    ranged = {"algorithm.lr": ["1e-3..1", "log"]}
    assert [one.edges for one in choosing.choose(three, KEYS, APART, ranged)] == [()]
    near = {"algorithm.lr": ["9e-3..1", "log"], "fedavg:algorithm.lr": ["1.7e-2..1", "log"]}  # its own range counts
    assert [one.edges for one in choosing.choose(three, KEYS, APART, near)] == [("algorithm.lr",)]
    two = three[:2]
    assert [one.failing for one in choosing.choose(two, KEYS, APART)] == [()]
    for run in (run for one in two for run in one.runs):
        run.summary["metrics"]["local/majority"] = 0.6
    [found] = choosing.choose(two, KEYS, APART)
    assert (found.edges, found.failing) == ((), ("algorithm.lr",))
    check_facts(" ".join(choosing.describe_choices([found])), "fedavg", "lr = 0.0187")


def test_nothing_is_chosen_without_validation_examples() -> None:
    nan = float("nan")
    assert choosing.choose([group("fedavg", 0.1, 5, [nan], [0.5])], KEYS, APART) == []


def test_the_latex_table_has_a_caption_that_says_what_was_run() -> None:
    text = latex(choosing.choose(GROUPS, KEYS, APART))
    assert r"\label{tab:sweep}" in text
    assert r"algorithm & clients = 5 & clients = 10 & mean rank \\" in text
    assert r"moon & 81.50 $\pm$ 2.12 & 60.00 $\pm$ 0.00 & 1.00 \\" in text  # two seeds make nothing bold
    assert r"fedavg & 71.00 $\pm$ 1.41 & 40.50 $\pm$ 0.71 & 2.00 \\" in text
    assert r"cora\_x" in text
    check_facts(text, "2 seeds (0, 1)")
    check_facts(text, "louvain (slack = 0.1)")
    check_facts(text, "gcn (hidden = 8)")
    check_facts(text, "fedavg (clients = 10): lr = 0.2")


def test_a_caption_names_noise_and_what_was_not_tuned_and_bold_needs_seeds() -> None:
    made = [group("fedavg", 0.1, 5, [0.5], [0.5]), group("scaffold", 0.2, 5, [0.5], [0.6])]
    noisy = group("fedavg", 0.1, 5, [0.5], [0.4])
    for one, optimizer, rate in ((made[0], "adam", 0.0), (made[1], "sgd", 0.0), (noisy, "adam", 0.25)):
        config = one.first.config
        config["algorithm"] |= {"optimizer": optimizer, "local_steps": 3}
        config["noise"] = {"labels": rate, "labels_by": "flip"}
    found = choosing.choose([*made, noisy], ("algorithm.lr", "noise.labels"), ("noise.labels",))
    text = caption(found, "Test")
    check_facts(text, "0 or 0.25")
    check_facts(text, "local steps = 3; optimizer = adam (fedavg) or sgd (scaffold)")
    assert "; lr" not in text  # it was tuned
    [chart] = charts.charts_over_keys(found)
    assert (chart.over, chart.name) == ("share of training labels flipped", "over-noise-labels")
    assert not any("Bold" in latex(one) for one in (found, choosing.choose(GROUPS, KEYS, APART)))
    three = [
        group(name, 0.1, 5, [0.5] * 3, test) for name, test in (("fedavg", [0.4, 0.5, 0.6]), ("moon", [0.6, 0.7, 0.81]))
    ]
    text = latex(choosing.choose(three, KEYS, APART))
    check_facts(text, "Bold")
    assert r"moon & \textbf{70.33" in text


def test_csv_has_a_line_per_run() -> None:
    lines = [*csv.DictReader(results.runs_as_csv(GROUPS, choosing.choose(GROUPS, KEYS, APART), KEYS).splitlines())]
    assert len(lines) == sum(len(group.runs) for group in GROUPS)
    assert [line["chosen"] for line in lines[:4]] == ["1", "1", "0", "0"]
    assert lines[1] == {
        "run": "fedavg-0.1-5-s1",
        "algorithm": "fedavg",
        "seed": "1",
        "algorithm.lr": "0.1",
        "partition.clients": "5",
        "chosen": "1",
        "seconds": "1.0",
        VALIDATION: "0.9",
        SHOWN: "0.72",
    }


def test_csv_of_conditions_has_ranks_and_paired_differences() -> None:
    found = choosing.choose(GROUPS, KEYS, APART)
    lines = rows_by_condition(found)
    assert [(line["condition"], line["algorithm"], line["rank"]) for line in lines] == [
        ("clients = 5", "fedavg", 2),
        ("clients = 10", "fedavg", 2),
        ("clients = 5", "moon", 1),
        ("clients = 10", "moon", 1),
    ]
    gap = lines[2]  # .80, .83 less .70, .72: .10, .11, of two seeds
    assert (gap["difference"], gap["against"], gap["significant"]) == (pytest.approx(0.105), "fedavg", 0)
    assert gap["low"] == pytest.approx(0.105 - 12.706 * 0.005, abs=1e-4)
    assert "against" not in lines[0]


def test_each_condition_is_judged_by_its_own_metric() -> None:
    """Average precision in one, where a class is rare, and accuracy in the other."""
    groups = [group(name, 0.1, clients, [0.5, 0.5], [0.6, 0.6]) for name in ("fedavg", "moon") for clients in (5, 10)]
    for one in (one for own in groups[::2] for one in own.runs):
        one.selection_metric = "average_precision"
        one.summary["metrics"] |= {"best_val/val/average_precision": 0.2, "local/average_precision": 0.3}
    found = choosing.choose(groups, KEYS, APART)
    assert [(one.metric, one.values()[0]) for one in found] == [("average_precision", 0.3), ("accuracy", 0.6)] * 2
    [said] = results.describe_numbers(groups, found)
    check_facts(said, "average precision (clients = 5), accuracy (clients = 10)")
    assert results.describe_numbers(groups) == (results.NOTE_WITHOUT_COMMON_METRIC,)
    check_facts(latex(found), "Test average precision or accuracy in")


def test_the_setting_of_the_lowest_error_is_chosen_and_the_algorithm_of_the_lowest_ranks_first() -> None:
    errors = {("fedavg", 0.1): 3.0, ("fedavg", 0.2): 2.0, ("moon", 0.1): 1.0, ("moon", 0.2): 4.0}
    groups = []
    for clients in (5, 10):
        for (name, lr), error in errors.items():
            one = group(name, lr, clients, [0.5, 0.5], [0.5, 0.5])
            for at, run in enumerate(one.runs):
                run.selection_metric = "rmse"
                run.summary["metrics"] |= {"best_val/val/rmse": error, "local/rmse": error + 0.01 * at}
            groups.append(one)
    chosen = choosing.choose(groups, KEYS, APART)
    settings = [(one.algorithm, one.setting["algorithm.lr"]) for one in chosen]
    assert sorted(settings) == [("fedavg", 0.2)] * 2 + [("moon", 0.1)] * 2
    [order] = [rank_algorithms(chosen)]
    assert dict(zip(order.names, order.places[0], strict=True)) == {"fedavg": 2, "moon": 1}
    check_facts(" ".join(choosing.describe_choices(chosen)), "lowest")
    assert results.describe_numbers(groups)[0].startswith("RMSE, ")


def test_a_chart_over_every_number_that_is_varied() -> None:
    [chart] = charts.charts_over_keys(choosing.choose(GROUPS, KEYS, APART))
    assert (chart.over, chart.name) == ("clients", "over-partition-clients")
    assert [(at, round(mean, 3)) for at, mean, _ in chart.lines["moon"]] == [(5, 0.815), (10, 0.6)]
    both = charts.charts_over_keys(choosing.choose(GROUPS, KEYS, choosing.conditions(KEYS, KEYS)))
    assert [(chart.over, chart.where) for chart in both] == [
        ("lr", "clients = 5"),
        ("lr", "clients = 10"),
        ("clients", "lr = 0.1"),
        ("clients", "lr = 0.2"),
    ]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL.replace("local_steps = 1", "local_steps = 1\ntune = {lr = [0.01, 0.1], mu = [0.5]}"))
    return path


def test_tune_is_a_grid_of_the_algorithms_that_have_the_key(config: Path) -> None:
    made, _ = plan_runs(config, config.parent, "0", "fedavg,fedprox", [], ["algorithm.mu=1,2"])
    values = [(run.config.algorithm.name, run.config.algorithm.values) for run in made]
    assert [(name, own["lr"], own.get("mu")) for name, own in values] == [
        *(("fedavg", lr, None) for lr in (0.01, 0.1)),
        *(("fedprox", lr, mu) for lr in (0.01, 0.1) for mu in (1.0, 2.0)),  # --grid in the place of tune
    ]
    tried = grid_of_options(config, [], ["algorithm.mu=1,2", "fedprox:algorithm.mu=3", "rounds=1,2"])
    assert keys_of(tried) == ("algorithm.lr", "algorithm.mu", "rounds")
    cuts = '{name = "louvain", clients = 3},{name = "dirichlet", clients = 3, alpha = 0.1}'
    tried = grid_of_options(config, [], [f"partition={cuts}", "algorithm.lr=1"])
    of_cut = ("partition.name", "partition.alpha")  # in what whole sections differ
    assert keys_of(tried) == ("algorithm.lr", "algorithm.mu", *of_cut)
    made, _ = plan_runs(config, config.parent, "0", "fedavg", [], [f"partition={cuts}"])
    assert [(run.config.partition.name, run.config.partition.values.get("alpha")) for run in made] == [
        ("louvain", None),
        ("dirichlet", 0.1),
    ] * 2  # lr of the configuration's tune
    one, notes = read(config)
    assert one.algorithm.values["lr"] == 0.01
    check_facts(notes[0], "algorithm.tune")


@pytest.mark.parametrize("wrong", ["0.1", "{lr = 0.1}", "{lr = []}"])
def test_tune_is_lists(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(SMALL.replace("local_steps = 1", f"tune = {wrong}"))
    with refusal("config.tune", "algorithm.tune:"):
        plan_runs(tmp_path / "e.toml", tmp_path, "0", "", [], [])
    with pytest.raises(ConfigError, match=r"algorithm.tune.*leave it out"):
        resolve({"data": {"name": "synthetic"}, "algorithm": {"tune": {"lr": [0.1]}}})


def test_shards_are_all_runs_once(config: Path) -> None:
    made, _ = plan_runs(config, config.parent, "0-2", "", [], [])
    dealt = [share(made, f"{number}/4") for number in (1, 2, 3, 4)]
    assert sorted(run.name for own in dealt for run in own) == sorted(run.name for run in made)
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    for wrong in ("0/4", "5/4", "1", "a/b"):
        with refusal("config.shard", f"--shard {wrong}"):
            share(made, wrong)


def invoke(*words: Any) -> Any:
    return CliRunner().invoke(app, ["sweep", *map(str, words)])


def test_a_sweep_in_shards_ends_in_tables_and_charts(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "execute", in_process)
    out = tmp_path / "out"
    words = [config, "--out", out, "--seeds", "0", "--grid", "noise.labels=0,0.5", "--set", "partition.val=0.3"]
    first = invoke(*words, "--shard", "1/2")
    assert first.exit_code == 0, first.output
    check_facts(first.stdout, "1/2")
    assert not (out / "sweep.md").exists()
    check_facts(invoke(*words, "--latex", "--csv").stdout, "4 runs, 2 of them")
    chosen = (out / "sweep.md").read_text().split("All:")[0]
    assert chosen.startswith("Settings chosen by validation:")
    check_facts(chosen, "validation")
    check_facts((out / "sweep.tex").read_text(), "noise labels = 0.5")
    assert len((out / "sweep.csv").read_text().splitlines()) == 5
    assert (out / "over-noise-labels.svg").read_text().startswith("<svg")


def test_the_page_is_of_the_settings_that_validation_chose(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting that is better on test after the last round is folded away where validation prefers another."""
    monkeypatch.setattr(scheduler, "execute", in_process)
    out = tmp_path / "out"
    words = [config, "--out", out, "--seeds", "0", "--algorithms", "fedavg,local", "--set", "partition.val=0.3"]
    assert invoke(*words).exit_code == 0  # the grid of the file: lr = 0.01 or 0.1
    for path in out.glob("runs/fedavg*/summary.json"):
        summary = json.loads(path.read_text())
        better = "lr = 0.01" in (path.parent / "config.toml").read_text()
        reached = dict.fromkeys(("local/accuracy", "best_val/local/accuracy"), 0.111 + 0.888 * better)
        summary["metrics"] |= {VALIDATION: 0.2 + 0.1 * (not better)} | reached
        path.write_text(json.dumps(summary))
    said = invoke(*words, "--set", "rounds=2")
    page = (out / "report.html").read_text()
    top, chosen = page.partition('id="chosen"')[::2]
    verdict = "".join(re.findall(r'<p class="verdict">(.*?)</p>', top))
    check_facts(verdict, "0.111 (fedavg)")
    assert verdict.count("0.999") == 0
    tried, rest = chosen.partition('id="clients"')[::2]
    assert "lr=0.01" in tried
    assert "lr=0.01" not in top + rest.partition('id="run"')[0]
    assert "0.01 has" not in said.stdout  # notes compare what was chosen with what was chosen


def test_without_matplotlib_figures_are_refused_before_anything_runs(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = invoke(config, "--out", tmp_path / "out", "--figures", tmp_path / "figures")
    assert (said.exit_code, "fedweave[figures]" in said.stderr) == (2, True)
    assert not (tmp_path / "out").exists()
    over = invoke(config, "--over", "rounds")
    assert (over.exit_code, "--over rounds" in over.stderr) == (2, True)


def test_figures_are_pictures_with_captions(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs pip install 'fedweave[figures]'")
    from fedweave.sweeps.figures import save_charts

    found = charts.charts_over_keys(choosing.choose(GROUPS, KEYS, APART))
    files = [Path(one) for one in save_charts(found, tmp_path / "figures")]
    assert [path.suffix for path in files] == [".svg", ".pdf", ".tex"]
    assert files[1].read_bytes().startswith(b"%PDF")
    before = files[0].read_bytes()
    save_charts(found, tmp_path / "figures")
    assert files[0].read_bytes() == before  # the same picture, to the byte
    assert r"\includegraphics{over-partition-clients.pdf}" in files[2].read_text()
    assert r"Data: cora\_x" in files[2].read_text()


def test_many_lines_are_told_apart_and_named_below_them() -> None:
    pytest.importorskip("matplotlib", reason="needs pip install 'fedweave[figures]'")
    from fedweave.sweeps.figures import figure_of

    lines = {f"method-{at}": [Point(1, 0.5, 0.1), Point(2, 0.6, 0.1)] for at in range(10)}
    figure = figure_of(charts.Chart("c", "test accuracy", "clients", "", "", lines))
    axes = figure.axes[0]
    drawn = [one.lines[0] for one in axes.containers]
    assert len({line.get_color() for line in drawn}) == 10
    assert len({str(line._unscaled_dash_pattern) for line in drawn}) == 10  # in gray, too
    assert len({line.get_xdata()[0] for line in drawn}) == 10
    assert max(abs(line.get_xdata()[0] - 1) for line in drawn) < 0.3
    assert (axes.get_legend(), len(figure.legends)) == (None, 1)
    few = figure_of(charts.Chart("c", "test accuracy", "round", "", "", dict([*lines.items()][:3])))
    assert (len(few.legends), few.axes[0].get_legend() is None) == (0, False)


def test_files_of_a_number_and_of_its_negative_have_names_of_their_own() -> None:
    assert charts.file_name("rounds epsilon = -1") != charts.file_name("rounds epsilon = 1")


def test_a_grid_may_hold_lists(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(SMALL)
    wanted = ["algorithm.class_weight=[1.0,30.0],balanced"]
    made, _ = plan_runs(tmp_path / "e.toml", tmp_path, "0", "fedavg", [], wanted)
    weights = [run.config.algorithm.values["class_weight"] for run in made]
    assert [own if isinstance(own, str) else [*own] for own in weights] == [[1.0, 30.0], "balanced"]

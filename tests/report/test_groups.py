"""What the page and the terminal say of two groups of people: the numbers of the run's files, floors beside gaps."""

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fedweave.experiment.runs.reading import group_runs, read_run, read_runs
from fedweave.metrics.selection import of_result
from fedweave.reports import terminal
from fedweave.reports.cells import with_sign
from fedweave.reports.group_fairness import fairness_table, names_of_people
from fedweave.reports.html import render
from fedweave.reports.notes import fairest_notes, people_sentence
from tests import commands
from tests.refusals import check_facts
from tests.report.test_report import Page

PEOPLE = """
rounds = 3
fair_margin = -1.0
[data]
name = "synthetic"
nodes = 120
classes = 2
features = 6
sensitive = true
sens_label_correlation = 0.8
sens_feature_shift = 2.0
[partition]
clients = 3
[model]
hidden = 4
[algorithm]
local_steps = 2
[engine]
threads = 1
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds."""
    folder = tmp_path_factory.mktemp("people")
    (folder / "people.toml").write_text(PEOPLE)
    made = [folder / f"s{seed}" for seed in (0, 1)]
    for seed, out in enumerate(made):
        commands.run("run", folder / "people.toml", "-q", "--set", f"seed={seed}", "--out", out)
    return made


def metrics(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())["metrics"]
    return found


def test_the_page_has_a_section_with_the_noise_floor_beside_every_gap(runs: list[Path]) -> None:
    page, found = Page(render([read_run(runs[0])])), metrics(runs[0])
    [table] = page.tables["groups"]
    rows = {(row[0].split(" | ")[0], row[1]): row[2] for row in table[1:]}
    for words, family in (("global", "groups/global"), ("global, fairest round", "best_fair/groups/global")):
        for title, name in (("SP, statistical parity", "sp"), ("EO, equal opportunity", "eo")):
            gap, floor = (found[f"{family}/{key}"] for key in (name, f"{name}_floor"))
            shares = [found[f"{family}/{key}"] for key in ("predicted", "favorable")]
            beside = "noise floor {:.4f}, predicted favorable {:.4f}, favorable {:.4f}".format(floor, *shares)
            assert rows[title, words] == f"{gap:.4f} | {beside}"
    assert rows["SP, signed", "global"] == with_sign(found["groups/global/sp_signed"])
    check_facts(rows["SP, statistical parity", "median of clients"], "0")
    assert not [row for row in page.tables["summary"] if "Global/sp" in str(row)]
    both = Page(render(read_runs(runs)))
    [row] = [row for row in both.tables["groups"][0] if row[0].startswith("SP, stat") and row[1] == "global"]
    mean = sum(metrics(run)["groups/global/sp"] for run in runs) / 2
    assert row[2].startswith(f"{mean:.4f} ± ")


def test_rows_of_a_group_of_people_have_its_name(runs: list[Path]) -> None:
    run = read_run(runs[0])
    titles = [row[0].text for row in fairness_table(group_runs([run])).rows]
    assert "Accuracy of group 0" in titles
    named = replace(run, summary=run.summary | {"groups": ["f", "m"]})
    rows = fairness_table(group_runs([named])).rows
    assert "Accuracy of “f”" in [row[0].text for row in rows]
    assert next(row[0].note for row in rows if row[0].text == "SP, signed") == "“m” minus “f”"
    assert not any("group 0" in row[0].text for row in rows)


def test_a_run_without_a_sensitive_attribute_has_no_such_section(tmp_path: Path) -> None:
    plain = "\n".join(line for line in PEOPLE.splitlines() if not line.startswith("sens"))
    (tmp_path / "plain.toml").write_text(plain)
    commands.run("run", tmp_path / "plain.toml", "--out", tmp_path / "run")
    assert "groups" not in Page(render([read_run(tmp_path / "run")])).tables


def test_an_unfinished_run_says_the_same(runs: list[Path]) -> None:
    whole = of_result(json.loads((runs[1] / "summary.json").read_text()))
    kept = (runs[1] / "summary.json").read_bytes()
    (runs[1] / "summary.json").unlink()
    again = read_run(runs[1]).summary["metrics"]
    (runs[1] / "summary.json").write_bytes(kept)
    later = ("pooled/", "per_class/", "best_val/pooled/", "best_val/per_class/")  # measured at the end
    whole, again = ({k: v for k, v in one.items() if not k.startswith(later)} for one in (whole, again))
    assert again == pytest.approx(whole)


def test_the_terminal_shows_gaps_and_floors(runs: list[Path]) -> None:
    summary = json.loads((runs[0] / "summary.json").read_text())
    console = Console(width=100, file=io.StringIO(), record=True)
    terminal.show_result(console, summary, runs[0])
    text = console.export_text()
    lines = [line.split() for line in text.splitlines()]
    found = summary["metrics"]
    keys = ("global/sp", "global/sp_floor", "global/sp_signed", "median/sp")
    shares = [f"{found[f'groups/global/{name}']:.4f}" for name in ("predicted", "favorable")]
    assert ["sp", *(f"{found[f'groups/{key}']:.4f}" for key in keys), "0", "clients", *shares] in lines
    words = f"SP {found['best_fair/groups/global/sp']:.4f}, EO {found['best_fair/groups/global/eo']:.4f}"
    check_facts(text, f"{found['best_fair/round']}")
    assert words in text


def test_classes_that_have_names_are_called_by_them(runs: list[Path]) -> None:
    """By the summary's names or, before there is a summary, by the configuration's; a number is none."""
    plain = read_run(runs[0])
    text = render([plain])
    check_facts(text, "class 1")
    check_facts(text, "class 0")
    names = ["default", "<repaid>"]
    told = replace(plain, summary=plain.summary | {"classes": names})
    configured = replace(plain, config=plain.config | {"data": plain.section("data") | {"labels": names}})
    for one in (told, configured):
        text = render([one])
        check_facts(text, "“&lt;repaid&gt;” (1)")
        assert "class 0" not in text
        assert "class 1" not in text
    check_facts(render([plain, told]), "class 1")


CONSTANT = {
    "best_fair/round": 2,
    "best_fair/global/accuracy": 0.8,
    "best_fair/global/classes_predicted": 1.0,
    "best_fair/groups/global/sp": 0.0,
    "best_fair/val/accuracy": 0.8,
    "best_fair/val/constant": 0.8,
    "best_fair/val/gaps": 0.0,
    "best_fair/val/margin": 0.0,
}


def test_a_fairest_round_that_is_none_is_not_called_so() -> None:
    summary = {"metrics": CONSTANT, "rounds": 3, "seconds": 1.0, "seconds_per_round": 0.3, "peak_rss_mb": 1.0}
    console = Console(width=100, file=io.StringIO(), record=True)
    terminal.show_result(console, summary | {"bytes_up": 1, "bytes_down": 1}, Path("one"))
    text = console.export_text()
    check_facts(text, "2", "0.8000", "SP 0.0000")
    check_facts(text, "0.800;")


def test_a_fairest_round_is_one_where_the_margin_and_the_gaps_allow_it() -> None:
    above = CONSTANT | {"best_fair/val/accuracy": 0.85, "best_fair/global/classes_predicted": 2.0}
    assert fairest_notes(above) == {}
    [said] = fairest_notes(above | {"best_fair/val/margin": 0.1}).values()
    check_facts(said, "0.1")
    del above["best_fair/val/gaps"]
    assert "fallen back" in fairest_notes(above)
    assert fairest_notes({"best_fair/round": 1}) == fairest_notes({}) == {}


def test_the_page_says_that_no_round_was_fair(runs: list[Path], tmp_path: Path) -> None:
    """By a margin that no round reaches; of a finished run, and of one that is not."""
    config = tmp_path / "people.toml"
    config.write_text(PEOPLE.replace("fair_margin = -1.0", "fair_margin = 1.0"))
    commands.run("run", config, "--out", tmp_path / "run")
    why = "no round&#39;s accuracy on validation is more than 1 above"
    assert why in render([read_run(tmp_path / "run")])
    (tmp_path / "run" / "summary.json").unlink()
    assert why in render([read_run(tmp_path / "run")])
    assert why not in render([read_run(runs[0])])


def test_the_page_says_which_group_is_which_where_they_have_names() -> None:
    def of(*names: str) -> Any:
        return SimpleNamespace(first=SimpleNamespace(summary={"groups": list(names)}))

    assert people_sentence(names_of_people([of("f", "m"), of("f", "m")])) == "Group 0 is “f”, group 1 is “m”."
    assert names_of_people([of("f", "m"), of("m", "f")]) == names_of_people([of()]) == ()
    assert people_sentence(()) == ""

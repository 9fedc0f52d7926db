"""Drift of tables: the two distances by hand and by scipy, what moves and what does not, and where histograms are."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp
from typer.testing import CliRunner

from fedweave.accounts.document import MAX_TILES
from fedweave.apply.drift import NewValues, Shift, TableDrift, drift
from fedweave.apply.histograms import Reference
from fedweave.apply.scorer import scorer_at
from fedweave.cli import app
from fedweave.experiment.runs.files import HISTOGRAMS, SCORER
from fedweave.metrics.drift import BINS, by_chance, kolmogorov_smirnov, of_categories, of_numbers, stability_index
from fedweave.reports.drift import document, flagged_change
from tests import commands
from tests.refusals import check_facts, refusal
from tests.runs.test_edges_as_examples import tables as transfers
from tests.runs.test_predictions import made
from tests.runs.test_scoring import CUSTOMERS, FAST, SPLIT, customers


def test_distances_by_hand() -> None:
    """Shares 1/2, 1/4, 1/4 become 1/4, 1/4, 1/2."""
    before, now = (20, 10, 10), (5, 5, 10)
    assert stability_index(before, now) == pytest.approx(0.25 * math.log(2) * 2, abs=1e-12)
    assert kolmogorov_smirnov(before, now) == pytest.approx(0.25, abs=1e-12)
    assert stability_index(before, before) == kolmogorov_smirnov(before, (2, 1, 1)) == 0
    assert stability_index(before, now) == pytest.approx(stability_index(now, before), abs=1e-12)
    assert stability_index((1, 0, 0), (1, 0, 0)) == 0
    assert stability_index((1, 1), (2, 0)) == pytest.approx(
        0.5 * math.log(2) + (1e-4 - 0.5) * math.log(2e-4), abs=1e-12
    )
    assert math.isnan(stability_index((0, 0), (1, 1)))


@pytest.mark.parametrize("kind", ["few values", "many values", "ties"])
def test_kolmogorov_smirnov_is_scipys_on_binned_data(kind: str) -> None:
    """And on the data itself where every value has a bin."""
    draw = np.random.default_rng(0)
    if kind == "few values":
        before, now = draw.integers(0, 12, 500), draw.binomial(11, 0.4, 300)
    elif kind == "many values":
        before, now = draw.normal(size=700), draw.normal(0.3, 1.5, 400)
    else:
        before, now = np.round(draw.lognormal(1, 1, 900)), np.round(draw.lognormal(1.2, 1, 250))
    histogram = of_numbers("x", "node", before.astype(np.float64))
    counts = histogram.count(now.astype(np.float64))
    assert histogram.total == len(before)
    assert len(histogram.counts) <= BINS
    binned = [np.repeat(np.arange(len(each)), each) for each in (histogram.counts, counts)]
    ours = kolmogorov_smirnov(histogram.counts, counts)
    assert ours == pytest.approx(ks_2samp(*binned).statistic, abs=1e-12)
    exact = ks_2samp(before, now).statistic
    assert ours <= exact + 1e-12
    if kind == "few values":
        assert ours == pytest.approx(exact, abs=1e-12)


def test_bins_do_not_move_by_rounding() -> None:
    draw = np.random.default_rng(0)
    values = np.round(draw.normal(40, 9, 2000))
    histogram = of_numbers("age", "node", values)
    assert histogram.count(values * (1 + 1e-7)) == histogram.count(values * (1 - 1e-7)) == histogram.counts
    assert max(histogram.counts) < 2.5 * len(values) / BINS
    one = of_numbers("constant", "node", np.ones(5))
    assert (one.edges, one.counts) == ((), (5,))
    of = of_categories("job", "node", ("clerk", "nurse"), np.array([0, 1, 1, -1]))
    assert of.counts == (1, 2, 1)
    assert [of.bin_name(at) for at in range(3)] == ["clerk", "nurse", "none of these"]


def test_chance_is_exceeded_about_as_often_as_it_says() -> None:
    draw, exceeded = np.random.default_rng(0), 0
    for _ in range(600):
        histogram = of_numbers("x", "node", draw.normal(size=4000))
        counts = histogram.count(draw.normal(size=800))
        exceeded += stability_index(histogram.counts, counts) > by_chance(histogram.counts, counts, 1)
    assert 0.02 < exceeded / 600 < 0.09
    assert by_chance((10, 10), (10, 10), 50) > by_chance((10, 10), (10, 10), 1)


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its data, and other tables: more of the same, and some that moved."""
    root = tmp_path_factory.mktemp("bank")
    data = CUSTOMERS | {"path": str(customers(root / "data", 0, 400))}
    made(root / "run", FAST, data, 2, partition=SPLIT, evaluation={"positive": "fraud"})
    customers(root / "same", 3, 300, labelled=False)
    nodes = customers(root / "moved", 2, 300, labelled=False) / "nodes.csv"
    head, *rows = nodes.read_text().splitlines()
    cells = [row.split(",") for row in rows]
    moved = [[c[0], str(float(c[1]) + 15), c[2], "pilot" if at % 4 == 0 else c[3]] for at, c in enumerate(cells)]
    nodes.write_text("\n".join([head, *map(",".join, moved)]) + "\n")
    commands.run("export", root / "run", "--out", root / "export", "--histograms")
    commands.run("export", root / "run", "--out", root / "bare")
    return root


def test_what_moved_is_named_and_the_rest_is_not(bank: Path) -> None:
    same, moved = (drift(bank / "run", bank / name) for name in ("same", "moved"))
    assert not same.alarms
    assert same.examples == (400, 300)
    assert same.new == ()
    assert {"age", "job"} <= {one.name for one in moved.alarms}
    assert not {"debt", "debt is missing"} & {one.name for one in moved.alarms}
    [new] = moved.new
    assert (new.column, new.values, new.rows, new.total) == ("job", ("pilot",), 75, 300)
    assert same.unseen
    assert same.scored == 200
    assert same.flagged is not None


def test_a_column_by_hand(bank: Path) -> None:
    """The counts are those of the column in its own units, and the index is that of these counts."""
    result = drift(bank / "run", bank / "moved")
    age = next(one for one in result.shifts if one.name == "age")
    before, now = (
        np.array([float(line.split(",")[1]) for line in (bank / name / "nodes.csv").read_text().splitlines()[1:]])
        for name in ("data", "moved")
    )
    reference = Reference.load(bank / "export" / HISTOGRAMS)
    histogram = next(one for one in reference.histograms if one.name == "age")
    edges = [-np.inf, *histogram.edges, np.inf]
    p, q = (np.histogram(values, edges)[0] / len(values) for values in (before, now))
    assert histogram.counts == tuple(np.histogram(before, edges)[0].tolist())
    q = np.where(q > 0, q, 1e-4)
    assert age.stability == pytest.approx(float(((q - p) * np.log(q / p)).sum()), abs=1e-9)
    assert age.distance is not None
    assert age.distance == pytest.approx(
        ks_2samp(np.digitize(before, edges), np.digitize(now, edges)).statistic, abs=1e-9
    )


def test_an_export_with_histograms_says_the_same_and_one_without_says_what_to_do(bank: Path, tmp_path: Path) -> None:
    ours, theirs = (drift(bank / name, bank / "moved").record for name in ("run", "export"))
    assert {**ours, "at": ""} == {**theirs, "at": ""}
    assert not (bank / "bare" / HISTOGRAMS).exists()
    assert (bank / "bare" / SCORER).read_bytes() == (bank / "export" / SCORER).read_bytes()
    assert (bank / "export" / HISTOGRAMS).stat().st_mode & 0o077 == 0
    with refusal("drift.none", "--histograms"):
        drift(bank / "bare", bank / "same")
    other = tmp_path / "other"
    shutil.copytree(bank / "export", other)
    reference = json.loads((other / HISTOGRAMS).read_text())
    for change, code in (({"model": "0" * 12}, "drift.other-model"), ({"format": 2}, "drift.damaged")):
        (other / HISTOGRAMS).write_text(json.dumps(reference | change))
        with refusal(code):
            drift(other, bank / "same")
    reference["histograms"][0]["counts"].append(1)
    for text in (json.dumps(reference), "{", "[" * 100_000):
        (other / HISTOGRAMS).write_text(text)
        with refusal("drift.damaged"):
            drift(other, bank / "same")


def test_a_clients_own_data_counts_for_its_model(bank: Path) -> None:
    whole, one = (drift(bank / "run", bank / "same", client=client) for client in (None, "client-0"))
    assert whole.examples[0] == 400
    assert one.examples[0] == 200


def test_the_page_says_what_moved_and_what_to_do(bank: Path) -> None:
    same, moved = (drift(bank / "run", bank / name) for name in ("same", "moved"))
    shown = document(moved)
    assert shown.sign == -1
    check_facts(shown.verdict, "2 of 4", "age")
    assert shown.tiles[0].value == "2 of 4"
    assert len(shown.tiles) == MAX_TILES
    assert [row[0] for row in shown.sections[0].grid.rows] == [one.name for one in moved.shifts]
    still = document(replace(same, flagged=None))
    assert (still.sign, still.tiles[0].value) == (1, "0 of 4")
    scores = replace(moved, shifts=tuple(one._replace(stability=9.0) for one in moved.shifts if one.of == "score"))
    advice = {document(one).tiles[-2].value for one in (moved, replace(same, flagged=None), scores)}
    assert len(advice) == 3


def by_hand(columns: dict[str, float], scores: dict[str, float], new: bool = False) -> TableDrift:
    """Drift with these stability indices, of which those above .25 are drift."""
    shifts = []
    for of, part in (("node", columns), ("score", scores)):
        shifts += [Shift(name, of, "numbers", index, 0.1, None, ("1", 0.5, 0.4)) for name, index in part.items()]
    shifts.sort(key=lambda one: -one.stability)
    values = (NewValues("job", "node", ("pilot",), 2, 100),) if new else ()
    about = ("m", "global", "r", "may", "2026-05-01T00:00:00+00:00", 0.25, (400, 100), 100, True)
    return TableDrift(*about, tuple(shifts), values, None)


STILL, MOVED = 0.01, 0.9
BY_HAND: list[tuple[TableDrift, int, str, str]] = [
    (by_hand({"a": STILL, "b": STILL}, {"score": STILL}), 1, "0 of 2", "nothing"),
    (by_hand({"a": STILL, "b": STILL}, {}), 1, "0 of 2", "nothing"),
    (by_hand({"a": STILL}, {"score": STILL}), 1, "0 of 1", "nothing"),
    (by_hand({"a": STILL}, {"score": STILL}, new=True), 0, "0 of 1", "look at it"),
    (by_hand({}, {"score": STILL}), 0, "none to compare", "look at it"),
    (by_hand({}, {}), 0, "none to compare", "look at it"),
    (by_hand({"a": MOVED, "b": STILL}, {"score": STILL}), -1, "1 of 2", "look at it"),
    (by_hand({"a": MOVED}, {}), -1, "1 of 1", "look at it"),
    (by_hand({"a": MOVED}, {"score": MOVED}), -1, "1 of 1", "retrain"),
    (by_hand({"a": STILL, "b": STILL}, {"score": MOVED}), -1, "0 of 2", "retrain"),
    (by_hand({}, {"score": MOVED}), -1, "none to compare", "retrain"),
]


@pytest.mark.parametrize(("found", "sign", "moved", "advice"), BY_HAND)
def test_verdict_sign_and_advice_agree(found: TableDrift, sign: int, moved: str, advice: str) -> None:
    shown = document(found)
    assert (shown.sign, shown.tiles[0].value, shown.tiles[-2].value) == (sign, moved, advice)
    scored = any(one.of == "score" for one in found.shifts)
    assert ("score" in shown.verdict, "Score" in [one.title for one in shown.tiles]) == (scored, scored)
    assert ("data has moved" in shown.verdict) == any(one.of != "score" for one in found.alarms)
    assert ("no drift" in shown.verdict.lower()) == (moved != "none to compare" and not found.alarms)
    for odd in ("1 of 1", "any of 0", "any of 1 "):
        assert odd not in shown.verdict


def test_the_tile_of_the_score_is_of_one_that_moved() -> None:
    """The class has the larger index, and only the probability, whose chance is smaller, moved beyond chance."""
    found = by_hand({"a": STILL}, {"predicted class": 0.9, "probability": 0.5})
    first, *others = found.shifts
    shown = document(replace(found, shifts=(first._replace(chance=1.0), *others)))
    [tile] = [one for one in shown.tiles if one.title == "Score"]
    assert tile.value == "moved"
    check_facts(tile.notes[0], "probability", "0.50")


def test_flagged_examples_change_beyond_chance_by_hand(bank: Path) -> None:
    """100 and 100 examples: of .1 and .23, 2.58 standard errors are .135; of .1 and .24 they are .137."""
    same = replace(drift(bank / "run", bank / "same"), examples=(400, 100), scored=100)
    assert flagged_change(replace(same, flagged=(0.1, 0.3)))
    assert not flagged_change(replace(same, flagged=(0.1, 0.23)))
    assert flagged_change(replace(same, flagged=(0.1, 0.24)))
    assert not flagged_change(replace(same, flagged=(0.1, 0.3), unseen=False))
    assert not flagged_change(replace(same, flagged=None))


def test_exit_codes_page_and_record(bank: Path, tmp_path: Path) -> None:
    words = ["drift", str(bank / "run"), "--data"]
    commands.run(*words, bank / "same")
    said = commands.run(*words, bank / "moved", "--out", tmp_path / "d.html", code=3)
    check_facts((tmp_path / "d.html").read_text(), "age")
    check_facts(said, "pilot")
    commands.run(*words, bank / "moved", "--threshold", "50", "--out", tmp_path / "d.json")
    record: Any = json.loads((tmp_path / "d.json").read_text())
    assert record["alarms"] == 0
    assert record["shifts"][0]["stability"] > 0.25
    commands.run(*words, bank / "moved", "--out", "d.txt", code=2)


def test_a_new_category_is_still_no_row_to_score(bank: Path) -> None:
    with refusal("data.unlike"):
        scorer_at(bank / "run").score(bank / "moved")


def test_features_of_edges(tmp_path: Path) -> None:
    data = {"name": "folder", "path": str(transfers(tmp_path / "transfers")), "task": "edges", "directed": True}
    data |= {"edge_features": ["amount"], "edge_time": "day", "loops": "keep", "unlabeled": "unknown"}
    data |= {"owner": "bank", "edge_normalize": "standard", "groups": ["cash", "wire"]}
    made(tmp_path / "run", FAST, data, 2, partition={"name": "column"}, model={"name": "gine", "hidden": 4})
    result = drift(tmp_path / "run", tmp_path / "transfers")
    amount = next(one for one in result.shifts if one.name == "amount")
    assert amount.of == "edge"
    assert amount.stability < 0.05
    new = Path(shutil.copytree(tmp_path / "transfers", tmp_path / "new"))
    head, *rows = (new / "edges.csv").read_text().splitlines()
    at = head.split(",").index("amount")
    cells = [row.split(",") for row in rows]
    more = [[*row[:at], str(float(row[at]) * 10 + 500), *row[at + 1 :]] for row in cells]
    (new / "edges.csv").write_text("\n".join([head, *map(",".join, more)]) + "\n")
    moved = drift(tmp_path / "run", new)
    assert "amount" in [one.name for one in moved.alarms]


@pytest.mark.parametrize("how", ["auto", "none", "row", "binary", "scale", "standard", "minmax"])
def test_tables_of_training_have_not_drifted(tmp_path: Path, how: str) -> None:
    """Whole numbers of three clients, who scale them by three means where each scales its own."""
    draw, rows = np.random.default_rng(0), ["id,months,income,bank,label"]
    for at in range(150):
        bank, months = at % 3, 12 * int(draw.integers(4)) + 24
        rows.append(
            f"n{at},{months},{int(draw.integers(1, 30)) * (bank + 1) * 1000},b{bank},{int(draw.random() < 0.4)}"
        )
    (tmp_path / "data").mkdir()
    (tmp_path / "data/nodes.csv").write_text("\n".join(rows) + "\n")
    ends = [f"n{a},n{b},{draw.integers(1, 9)}" for a, b in draw.integers(0, 150, (400, 2)) if a != b]
    (tmp_path / "data/edges.csv").write_text("\n".join(["source,target,amount", *ends]) + "\n")
    data = {"name": "folder", "path": str(tmp_path / "data"), "owner": "bank", "normalize": how, "classes": 2}
    data |= {"edge_features": ["amount"], "edge_normalize": "standard"}
    made(tmp_path / "run", FAST, data, 2, partition={"name": "column"}, model={"name": "gine", "hidden": 8})
    result = drift(tmp_path / "run", tmp_path / "data")
    assert [one.stability for one in result.shifts if one.of != "score"] == [0.0, 0.0, 0.0]
    said = CliRunner().invoke(app, ["drift", str(tmp_path / "run"), "--data", str(tmp_path / "data")])
    assert (said.exit_code, result.alarms) == (0, ())


def test_scores_of_more_of_the_same_raise_few_alarms(bank: Path, tmp_path: Path) -> None:
    """Scores are compared with those of the whole graph of training by the same model, not of each client's part."""
    alarms = [drift(bank / "run", customers(tmp_path / str(seed), seed, 300, False)).alarms for seed in range(10, 18)]
    assert sum(map(bool, alarms)) <= 2

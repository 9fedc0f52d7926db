"""The table of clients: one line each, whatever the terminal."""

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedweave.reports.clients import clients_table
from tests.refusals import check_facts


def lines(columns: dict[str, Any], width: int = 80, classes: tuple[str, ...] = (), **whole: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(clients_table(columns, {"edges": 0, "edges_lost": 0} | whole, classes))
    return [line.strip() for line in console.export_text().splitlines() if line.strip()]


def cut(clients: int, labels: np.ndarray) -> dict[str, Any]:
    numbers = ("nodes", "edges_kept", "edges_cut", "train", "val", "test")
    columns = {name: [1000 * i + at for at in range(clients)] for i, name in enumerate(numbers)}
    return {"client": list(range(clients)), **columns, "labels": labels.tolist()}


def test_every_number_of_a_small_cut_stands_in_its_column() -> None:
    shown = lines(cut(2, np.array([[1, 200, 0], [10, 2, 3]])), edges=1005, edges_lost=402)
    assert [line.split() for line in shown[-3:-1]] == [
        ["0", "0", "1,000", "2,000", "3,000", "4,000", "5,000", "1", "200", "0"],
        ["1", "1", "1,001", "2,001", "3,001", "4,001", "5,001", "10", "2", "3"],
    ]
    assert shown[-3].endswith(" 1 200 0")
    assert shown[-2].endswith("10   2 3"), "classes stand below each other"
    assert shown[-1] == "402 of 1,005 edges (40.0%) lost to all clients"


def test_ten_clients_of_ten_classes_fit_into_80_columns() -> None:
    columns = cut(10, np.full((10, 10), 99)) | {"val": [500] * 10, "test": [1500] * 10}
    shown = lines(columns)
    assert len(shown) == 2 + 1 + 10 + 1
    assert all(line.endswith(" ".join(["99"] * 10)) for line in shown[3:-1])


def test_what_does_not_fit_is_marked_and_costs_no_line() -> None:
    shown = lines(cut(10, np.full((10, 70), 99)))
    assert len(shown) == 2 + 1 + 10 + 1
    assert all(line.endswith("…") and "5,00" in line for line in shown[3:-1])


def test_many_clients_end_in_their_mean() -> None:
    shown = lines(cut(30, np.arange(60).reshape(30, 2)), edges=4)
    assert [line.split()[0] for line in shown[3:-3] if line[0].isdigit()] == [str(i) for i in range(20)]
    [mean] = [line for line in shown if line.startswith("mean")]
    assert mean.split() == ["mean", "14.5", "1014.5", "2014.5", "3014.5", "4014.5", "5014.5", "29.0", "30.0"]
    assert shown[-2:] == ["the first 20 of 30 clients, and the mean of all", "0 of 4 edges (0.0%) lost to all clients"]


def test_parties_stand_under_their_names_with_the_width_of_their_features() -> None:
    columns = cut(2, np.array([[4, 6], [0, 0]])) | {"client": ["bank", "clinic"], "features": [12, 3456]}
    shown = lines(columns)
    assert shown[0].split()[:7] == ["client", "nodes", "features", "edges", "train", "val", "test"]
    assert shown[2].split() == ["bank", "0", "12", "1,000", "3,000", "4,000", "5,000", "4", "6"]
    assert shown[3].split() == ["clinic", "1", "3,456", "1,001", "3,001", "4,001", "5,001", "0", "0"]


def test_clients_with_an_empty_group_are_counted() -> None:
    shown = " ".join(lines(cut(10, np.full((10, 2), 9)), without_sp=3, without_eo=4))
    check_facts(shown, "3 of 10")
    assert shown.endswith("no test node of class 1 of some group at 4 of 10 clients: no EO there")


def test_classes_are_called_by_their_names_where_there_is_room() -> None:
    columns, groups = cut(2, np.array([[1, 2], [3, 4]])), {"without_sp": 0, "without_eo": 1}
    named = " ".join(lines(columns, classes=("default", "paid"), **groups))
    assert "default, paid" in named
    check_facts(named, "class paid", "1 of 2")
    check_facts(" ".join(lines(columns, **groups)), "class 1", "1 of 2")
    assert "default" not in lines(columns, classes=("default", "p" * 60))[1]


def test_names_of_clients_and_classes_are_words_whatever_they_hold() -> None:
    columns = cut(2, np.array([[1, 2], [3, 4]])) | {"client": ["[red]north", "sou\x1b[2Jth"]}
    shown = lines(columns, 160, classes=("[/x]", "b"), without_eo=1, without_sp=0, edges=5)
    assert any("[/x], b" in line for line in shown)
    assert any(line.startswith("[red]north") for line in shown)
    assert any(line.startswith(r"sou\x1b[2Jth") for line in shown)


LINKS = {"edges": 10, "edges_lost": 6, "examples": 10, "held": 4, "global_test": 0}


@pytest.mark.parametrize(
    ("external", "whole", "said"),
    [
        ("refuse", {"edges_lost": 4}, "4 of 10 edges (40.0%) lost to all clients"),
        ("features", {"edges_lost": 4}, "4 of 10 edges (40.0%) between clients, used as features"),
        (
            "exchange",
            {"edges_lost": 4, "given": 18},
            "4 of 10 joined pairs (40.0%; 18 edges join these pairs) between clients, used over the exchange",
        ),
        (
            "features",
            {"edges_lost": 0, "elsewhere": 7},
            "0 of 10 edges (0.0%) between clients, used as features\n"
            "7 edges to other members' nodes in members' own tables, used as features",
        ),
        ("refuse", LINKS, "6 of 10 edges (60.0%) lost, as no client holds both ends"),
        ("predict", LINKS, "6 of 10 edges (60.0%) between clients, predicted by the clients that know them"),
    ],
)
def test_what_becomes_of_edges_between_clients(external: str, whole: dict[str, int], said: str) -> None:
    columns = cut(2, np.array([[1, 2], [3, 4]])) | ({"examples": [2, 2]} if "examples" in whole else {})
    assert clients_table(columns, {"edges": 10} | whole, None, external).caption == said

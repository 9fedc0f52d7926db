"""What `fedweave init --from` writes for each task runs on tables of a user's own."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from fedweave.cli.init import example_experiments
from fedweave.experiment.config import load, read, resolve
from fedweave.sweeps.space import space_of, task_of
from tests.commands import run
from tests.refusals import refusal

BRANCHES = ("north", "south")


def write(path: str, head: str, rows: Iterable[str]) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("\n".join([head, *rows]) + "\n")


def nodes() -> None:
    write("data/nodes.csv", "id,label,age,branch", (f"n{i},{i % 2},{i % 3},{BRANCHES[i // 30]}" for i in range(60)))
    write("data/edges.csv", "source,target", (f"n{i},n{i + 1}" for i in range(59)))


def numbers() -> None:
    write("data/nodes.csv", "id,price,age,branch", (f"n{i},{i * 7 % 9},{i % 3},{BRANCHES[i // 30]}" for i in range(60)))
    write("data/edges.csv", "source,target", (f"n{i},n{i + 1}" for i in range(59)))


def edges() -> None:
    write("data/nodes.csv", "id,branch", (f"n{i},{BRANCHES[i // 30]}" for i in range(60)))
    write("data/edges.csv", "source,target,label,amount", (f"n{i},n{i + 1},{i % 2},{i * 1000}" for i in range(59)))


def links() -> None:
    write("data/nodes.csv", "id,age,branch", (f"n{i},{i % 3},{BRANCHES[i // 30]}" for i in range(60)))
    write("data/edges.csv", "source,target", (f"n{i},n{(i + step) % 60}" for i in range(60) for step in (1, 2, 3)))


def knowledge() -> None:
    rows = [f"e{i},r{i % 4},e{(i + step) % 20}" for i in range(20) for step in (1, 2, 3)]
    write("triples/triples.csv", "head,relation,tail", rows)


def ratings() -> None:
    users, items = [f"u{i},user" for i in range(12)], [f"i{i},item" for i in range(20)]
    write("data/nodes.csv", "id,kind", [*users, *items])
    write("data/edges.csv", "source,target", (f"u{i},i{(i * 3 + step) % 20}" for i in range(12) for step in range(9)))


def molecules() -> None:
    rows = [f"{'C' * i}{end},{label}" for i in range(1, 7) for label, end in enumerate(("O", "Cl", "c1ccccc1"))]
    rows = [row.replace(",2", ",1") for row in rows] + [f"C1CCCCC1{'C' * i},{i % 2}" for i in range(1, 7)]
    write("data/graphs.csv", "smiles,label", rows)


def fraud() -> None:
    """Nothing: it has data of its own."""


TABLES = {
    task.__name__: task for task in (nodes, numbers, edges, links, knowledge, ratings, molecules, fraud)
}  # parties and members: tests/test_public_names.py
KINDS = {"knowledge": "entities", "ratings": "ratings", "edges": "edges", "links": "links", "molecules": "graphs"}


@pytest.mark.parametrize("name", TABLES)
def test_a_starter_runs_on_tables_of_ones_own(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "molecules":
        pytest.importorskip("rdkit")
    monkeypatch.chdir(tmp_path)
    TABLES[name]()
    run("init", "mine.toml", "--from", name)
    small = {"fraud": ("--set", "data.preset=small"), "molecules": ("--set", "partition.clients=2")}.get(name, ())
    run("run", "mine.toml", "--set", "rounds=2", "--set", "engine.threads=1", *small, "--out", "out")
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["clients"] > 1
    assert any(key.startswith("best_val/val/") for key in summary["metrics"])


@pytest.mark.parametrize("name", [*TABLES, "members", "parties"])
def test_a_starter_has_a_budget_of_rounds_and_a_space_to_tune(name: str) -> None:
    document = load(Path(__file__).parents[1] / f"experiments/{name}.toml")
    assert document["evaluation"]["patience"] < document["rounds"]
    assert space_of(document).shared
    assert task_of(resolve(document)) == ("parties" if name == "parties" else KINDS.get(name, "nodes"))


def test_settings_of_starters_say_why() -> None:
    """Each line of a model, an evaluation and an algorithm has a reason, unless it only says how large or how fast."""
    plain = ("name", "hidden", "lr", "layers", "clients", "local_steps", "batch", "fan_out", "optimizer", "directed")
    for name in (*TABLES, "members", "parties"):
        text = example_experiments()[name].partition("[model]")[2]
        settings = [line for line in text.splitlines() if "=" in line]
        assert [line for line in settings if "#" not in line and line.split(" =")[0] not in plain] == [], name


def test_help_names_all_starters() -> None:
    said = " ".join(run("init", "--help").split())
    assert all(name in said for name in (*TABLES, "members", "parties"))


def test_who_tries_a_public_graph_with_the_start_for_links_is_led_to_a_valid_run(tmp_path: Path) -> None:
    path = tmp_path / "links.toml"
    path.write_text(example_experiments()["links"])
    with refusal("config.unknown-key", "data.owner") as error:
        read(path, ["data.name=cora"])
    whole = str(error.value).partition("write --set '")[2].removesuffix("'")
    exchanged = read(path, [whole, "partition.name=louvain"])[0]
    assert exchanged.data.name == "cora"
    assert exchanged.links is not None
    assert exchanged.links.rank_negatives == 100
    assert exchanged.folder is None

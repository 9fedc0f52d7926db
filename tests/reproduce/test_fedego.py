"""FedEgo's tables: numbers as printed, experiments that resolve, and bytes that shapes explain."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.tree import leaves
from fedweave.experiment import config
from fedweave.experiment.runs import run as runs
from fedweave.papers import fedego, fedego_experiments, grid
from fedweave.papers.fedego import FEDEGO
from fedweave.papers.fedego_experiments import COMMUNITIES, experiment
from fedweave.papers.paper import PaperCell, parse_numbers
from fedweave.papers.quantities import megabytes
from fedweave.papers.selection import PROTOCOLS
from fedweave.python.training import Silent

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SECTIONS = ("data", "partition", "model", "algorithm")


def by_shapes(column: str, document: config.Document) -> float:
    """What Table 9's `column` should be for `document`."""
    quantity = next(it.quantity for it in FEDEGO.tables[9].cells if (it.row, it.column) == ("Cora, FedEgo 32", column))
    assert quantity.expected is not None
    return quantity.expected(document)


def test_what_the_paper_says_of_its_numbers_holds() -> None:
    for text, rivals in ((fedego_experiments.PRINTED[3], 9), (fedego_experiments.PRINTED[5], 9)):
        found = parse_numbers(text)
        for dataset in {column for _, column in found}:
            column = {row: it.value or 0 for (row, where), it in found.items() if where == dataset}
            assert len(column) == rivals
            assert max(column, key=lambda row: column[row]) == "FedEgo"  # "surpasses all in the global test"
    cost = parse_numbers(fedego_experiments.PRINTED[9])
    for row in {row for row, _ in cost}:
        egos, parameters, total = (cost[row, f"{what} Cost"].value for what in ("Ego-graphs", "Parameters", "Total"))
        assert egos is not None
        assert parameters is not None
        assert egos + parameters == pytest.approx(total, abs=1)  # each is rounded


CELLS = [
    (f"{kind} {n}", it)
    for kind, tables in (("table", FEDEGO.tables), ("figure", FEDEGO.figures))
    for n, table in tables.items()
    for it in table.cells
]


@pytest.mark.often("figure 5", "table 1", "table 9")
@pytest.mark.parametrize("kind", sorted({name for name, _ in CELLS}))
def test_every_experiment_resolves_and_its_algorithm_accepts_its_model(kind: str) -> None:
    missing = set()
    for it in [it for name, it in CELLS if name == kind]:
        lacks = "; ".join(filter(None, (grid.unknown(section, it.document[section]) for section in SECTIONS)))
        if lacks:
            missing.add(lacks)
            continue
        resolved = config.resolve(it.document | {"seed": 0})
        facts = fedego_experiments.FACTS[resolved.data.name]
        resolved.algorithm.make(resolved.model.make().build(facts.features, facts.classes))
    absent = "there is no data set 'feddblp' yet; there is no partition 'default_split' yet"
    assert missing <= {absent, absent.partition("; ")[0]}, "GraphFL, FedGCN, FedSage and FedSage+ are there, too"


def test_variants_are_what_their_names_say() -> None:
    def changed(it: PaperCell) -> dict[str, Any]:
        base, own = (config.resolve(each).plain() for each in (experiment("Cora"), it.document))
        return {key: own[key.split(".")[0]].get(key.split(".")[1]) for key in config.differences(base, own)}

    shown = {it.row: changed(it) for n in (7, 13) for it in FEDEGO.tables[n].cells if it.column == "Cora"}
    assert shown == {
        "FedEgo w/o Mixup": {"algorithm.mixup": False, "algorithm.allow_raw_ego": True},
        "FedEgo-Linear": {"model.linear": True},
        "FedEgo": {},
        "FedEgo w/o PL (Fixed λ = 0)": {"algorithm.mixing": 0.0},
        "FedEgo (Fixed λ = 0.5)": {"algorithm.mixing": 0.5},
        "FedEgo-Server (Fixed λ = 1)": {"algorithm.mixing": 1.0},
        "FedEgo (Adaptive λ)": {},
    }
    noisy = {it.column: changed(it) for it in FEDEGO.tables[10].cells if it.row == "Cora"}
    assert noisy["0.15"] == {"algorithm.sigma": 0.15}
    assert noisy["0"] == {}
    batches = {it.row: changed(it) for it in FEDEGO.tables[9].cells if it.row.startswith("Cora, FedEgo")}
    assert batches["Cora, FedEgo 128"] == {"algorithm.batch": 128, "partition.isolated": "keep"}


def test_baselines_train_as_much_as_fedego_and_with_the_same_optimizer() -> None:
    own = config.resolve(experiment("Cora")).plain()["algorithm"]
    for method in ("Local Only", "FedAvg", "FedProx"):
        plain = config.resolve(experiment("Cora", method)).plain()
        its = plain["algorithm"]
        assert its["local_steps"] == own["epochs"] * own["batches"]
        assert {key: its[key] for key in ("lr", "optimizer", "weight_decay")} == {
            key: own[key] for key in ("lr", "optimizer", "weight_decay")
        }
        [objective] = [part for part in its["parts"] if isinstance(part, dict)]
        assert objective["name"] == "ego_cross_entropy"
        assert plain["model"]["name"] == "ego"


@pytest.mark.parametrize("dataset", ["Cora", "Citeseer", "Wiki"])
def test_shipped_experiments_are_the_tables_own(dataset: str) -> None:
    path = EXPERIMENTS / f"fedego-{fedego_experiments.DATA[dataset]}.toml"
    if not path.is_file():
        pytest.skip(f"there is no {path.name}")
    shipped, _ = config.read(path)
    assert config.differences(shipped.plain(), config.resolve(experiment(dataset)).plain()) == []


def test_the_papers_parameter_bytes_are_the_uploads_of_width_512() -> None:
    """Table 9: Θ of FedEgo, the whole model of FedAvg, 4 bytes a float, from 5 clients in 200 rounds."""
    cells = [it for it in FEDEGO.tables[9].cells if it.column == "Parameters Cost"]
    assert len(cells) == 12
    for it in cells:
        assert it.quantity.expected is not None
        assert it.document["model"]["hidden"] == 512
        assert it.quantity.expected(it.document) == pytest.approx(it.paper.value, abs=0.7)  # FedAvg's 6,818.4 is 6,819
    facts = fedego_experiments.FACTS["cora"]
    model = config.resolve(experiment("Cora", "FedAvg")).model.make().build(facts.features, facts.classes)
    w = models.init(model, random.key(0))
    whole = sum(leaf.numel() for _, leaf in leaves(w))
    assert whole == 1_787_399
    assert whole * 4 * 5 * 200 / 2**20 == pytest.approx(fedego._uploads(experiment("Cora", "FedAvg")))
    theta = sum(leaf.numel() for _, leaf in leaves({"0": w["0"]}))
    assert theta * 4 * 5 * 200 / 2**20 == pytest.approx(fedego._uploads(experiment("Cora")))
    assert [round(fedego._uploads(experiment(name))) for name in ("Cora", "Citeseer")] == [2801, 7234]


def test_ego_graphs_cost_half_at_twice_the_batch() -> None:
    costs = [by_shapes("Ego-graphs Cost", experiment("Cora", algorithm={"batch": 2**k})) for k in range(3, 8)]
    assert [round(a / b, 2) for a, b in pairwise(costs)] == [round(111 / 56, 2), 56 / 28, 28 / 14, 14 / 7]


@pytest.mark.slow
def test_measured_bytes_are_those_of_the_arithmetic(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDWEAVE_DATA", str(data_root))
    short = {"epochs": 1, "batches": 1, "server_epochs": 1}  # nothing that changes what is sent
    document = experiment("Cora", algorithm=short, partition={"isolated": "keep"}) | {"rounds": 1, "eval_every": 0}
    runs.run(config.resolve(document), tmp_path / "run", Silent())
    egos, theta, phi = (megabytes((key,), way="up").read(tmp_path / "run") for key in ("egos", "theta", "phi"))
    assert egos == pytest.approx(by_shapes("Ego-graphs Cost", document), abs=1e-12)
    assert theta == pytest.approx(by_shapes("Parameters Cost", document), abs=1e-12)
    assert phi == 0
    assert megabytes(("phi",)).read(tmp_path / "run")  # which clients receive


def script(row: str, column: str, table: int = 3, without: str = "") -> config.Document:
    [found] = [it for it in FEDEGO.tables[table].cells if (it.row, it.column) == (row, column)]
    return PROTOCOLS["fedego"]["script"].cell(found, without).document


@pytest.mark.parametrize(("data", "nodes", "tested"), [("Cora", 451, 200), ("Citeseer", 554, 200), ("Wiki", 1610, 300)])
def test_the_scripts_communities_have_its_numbers_of_test_nodes(data: str, nodes: int, tested: int) -> None:
    partition = script("FedEgo", data, 5)["partition"]
    assert partition["packing"] == "in_turn"
    assert nodes * partition["test"] == pytest.approx(tested, abs=0.5)
    assert nodes * partition["slack"] == pytest.approx(20, abs=0.1)
    assert partition["train"] + partition["val"] + partition["test"] == pytest.approx(1)
    assert script("FedEgo", data, 5, "communities dealt in turn")["partition"] == COMMUNITIES[data]


def test_every_cell_of_the_scripts_protocol_is_accepted() -> None:
    protocol = PROTOCOLS["fedego"]["script"]
    known = {}
    for table in (*(protocol.table(it) for it in FEDEGO.tables.values()), protocol.one_off()):
        for it in table.cells:
            if it.document["data"]["name"] != "feddblp":
                known[str(it.document)] = it.document
    for document in known.values():
        resolved = config.resolve(document)
        facts = fedego_experiments.FACTS[resolved.data.name]
        resolved.algorithm.make(resolved.model.make().build(facts.features, facts.classes))
    gammas = {it.row: it.document["algorithm"]["gamma"] for it in protocol.table(FEDEGO.tables[8]).cells}
    assert gammas == {row: float(row) for row in gammas}


def test_the_shipped_script_is_the_protocols_own() -> None:
    shipped, _ = config.read(EXPERIMENTS / "fedego-cora-script.toml")
    own = config.resolve(script("FedEgo", "Cora")).plain()
    assert config.differences(shipped.plain(), own) == []

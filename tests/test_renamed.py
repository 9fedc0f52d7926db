"""Old names of settings keep their meaning, wherever they are given."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch

from fedweave import datasets, models, partition
from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.algorithms.parts import Context, Needs, Outputs, Part, SecureSum
from fedweave.core.algorithm import Capabilities, give_defaults
from fedweave.core.mechanism import Applied
from fedweave.core.model import Layer
from fedweave.core.renamed import OLD_NAMES, RENAMED, current, current_path
from fedweave.datasets import Folder, from_pyg
from fedweave.deploy.flare.sitefile import read_site_file
from fedweave.experiment.config import config_hash, read, resolve
from fedweave.papers.grid import planned_run
from fedweave.sweep.plan import tries
from tests.refusals import refusal

OLD: dict[str, dict[str, Any]] = {
    "data": {
        "name": "folder",
        "path": ".",
        "normalise": "none",
        "edge_normalise": "standard",
        "target": "number",
        "target_normalise": "all",
        "unlabelled": "unknown",
    },
    "partition": {"name": "vertical", "public_split": True, "train_rest": True},
    "algorithm": {"name": "fednova", "most_local_steps": 7},
}

GRAPH = datasets.load("synthetic", nodes=40)


def test_no_setting_of_today_has_an_old_name() -> None:
    assert RENAMED.keys().isdisjoint(OLD_NAMES)
    assert current(current(OLD), OLD_NAMES) == OLD


def test_documents_with_old_names_resolve_to_new_ones() -> None:
    old, new = resolve(OLD | {"algorithm": {"name": "local"}}), resolve(current(OLD) | {"algorithm": {"name": "local"}})
    assert old.plain() == new.plain()
    assert {"normalize", "edge_normalize", "target_normalize", "unlabeled"} <= old.data.values.keys()
    assert resolve({"data": {"name": "cora"}, "algorithm": OLD["algorithm"]}).algorithm.values["max_local_steps"] == 7
    external = {"data": {"name": "folder", "path": ".", "external": "features", "external_least": 3}}
    assert resolve(external).plain()["data"]["min_external"] == 3


def test_hashes_of_runs_and_names_of_planned_runs_stay() -> None:
    """They are of the old names, as versions before have written them."""
    document = {"data": {"name": "cora", "normalise": "row"}, "algorithm": {"name": "fedavg"}}
    assert config_hash(document) == config_hash(current(document))
    assert planned_run(document, Path("x")).name == planned_run(current(document), Path("x")).name


def test_files_options_and_sweeps_take_old_names(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[data]\nname = "cora"\nnormalise = "row"\n')
    assert read(file)[0].data.values["normalize"] == "row"
    for key in ("data.normalise", "data.normalize"):
        assert read(file, overrides=[f"{key}=none"])[0].data.values["normalize"] == "none"
    assert list(tries(file, [], ["data.normalise=row,none"])) == ["data.normalize"]
    assert current_path("algorithm.lr") == "algorithm.lr"
    site = tmp_path / "site.toml"
    site.write_text('[data]\npath = "x"\nnormalise = "standard"\nunlabelled = "none"\n')
    data, _ = read_site_file(site)
    assert (data.normalize, data.unlabeled) == ("standard", "none")


def test_objects_and_functions_take_old_names() -> None:
    net = models.GCN().build(3, 2)
    assert Folder(normalise="none", unlabelled="x") == Folder(normalize="none", unlabeled="x")  # type: ignore[call-arg]
    assert partition.Vertical(public_split=True, train_rest=True) == partition.Vertical(  # type: ignore[call-arg]
        use_dataset_split=True, train_on_rest=True
    )
    assert ALGORITHMS["fednova"](net, most_local_steps=7) == ALGORITHMS["fednova"](net, max_local_steps=7)


def test_from_pyg_takes_old_names() -> None:
    pyg = pytest.importorskip("torch_geometric.data", reason="needs PyTorch Geometric")
    x, y, edges = torch.tensor([[1.0, 3.0], [2.0, 2.0]]), torch.tensor([0, 1]), torch.tensor([[0, 1], [1, 0]])
    graph = pyg.Data(x=x, edge_index=edges, y=y)
    old, new = (from_pyg(graph, **{name: "row"}) for name in ("normalise", "normalize"))
    assert old.x.tolist() == new.x.tolist() == [[0.25, 0.75], [0.5, 0.5]]


def test_a_setting_by_both_names_is_refused() -> None:
    with refusal("config.renamed"):
        resolve({"data": {"name": "cora", "normalise": "row", "normalize": "none"}})


def test_an_old_name_beside_the_new_one_is_refused_in_python() -> None:
    for make in (lambda: replace(Folder(), normalise="row"), lambda: Folder(normalise="row", normalize="none")):  # type: ignore[call-arg]
        with refusal("config.renamed"):
            make()


def test_columns_keep_their_names() -> None:
    """Also those that are called as a setting was."""
    document = {"data": {"name": "folder", "categories": {"unlabelled": ["a"]}, "unlabelled": "x"}}
    assert current(document)["data"] == {"name": "folder", "categories": {"unlabelled": ["a"]}, "unlabeled": "x"}


def test_a_plug_in_keeps_a_setting_that_has_an_old_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom fedweave import datasets\n\n\n@dataclass(frozen=True)\nclass Mine:\n"
        "    normalise: bool = False\n\n    def load(self, path, seed):\n"
        "        return datasets.load('synthetic', nodes=40, seed=seed)\n"
    )
    config = resolve({"data": {"name": f"{file}:Mine", "normalise": True}})
    assert config.data.values == {"normalize": True}  # all readers ask for the current name
    assert config.data.make().normalise
    assert datasets.load(f"{file}:Mine", normalise=True).nodes == 40


def test_what_a_plain_class_sets_hides_the_defaults_of_algorithms() -> None:
    class Plain:
        def __init__(self) -> None:
            self.net, self.notes = "mine", ["one"]

        init = round = evaluate = lambda self, *given: None

    give_defaults(Plain)
    assert (Plain().net, Plain().notes, Plain().most_rounds) == ("mine", ["one"], None)


def test_parts_take_old_names_and_ledgers_keep_theirs() -> None:
    old, new = ({"name": "secure_sum", **names} for names in ({"everyone": False, "least": 3}, {}))
    new |= {"require_all": False, "minimum": 3}
    one, other = (
        resolve({"data": {"name": "cora"}, "algorithm": {"name": "fedavg", "parts": [part]}}).plain()
        for part in (old, new)
    )
    assert one == other
    part = SecureSum(everyone=False, least=3)  # type: ignore[call-arg]
    assert part == SecureSum(require_all=False, minimum=3)
    assert '"everyone": false' in str(Applied("n", (part.masked,)).text())


def test_a_method_by_an_old_name_is_an_error() -> None:
    with refusal("config.renamed-method", "Mine.judged", "personalize"):
        type("Mine", (Part,), {"judged": lambda self, ctx: ctx.start})
    with refusal("config.renamed-method", "Mine.one_judged", "evaluates_one_model"):
        type("Mine", (FedAvg,), {"one_judged": cached_property(lambda self: False)})
    with refusal("config.renamed-method", "Mine.judged", "score_or_store"):
        type("Mine", (FedAvg,), {"judged": lambda self, client, message, w, score: score()})
    with refusal("config.renamed-method", "Mine.tells", "sends_to_peers"):
        type("Mine", (Part,), {"tells": {"h": "embeddings"}})
    mixed_in = type("Shared", (), {"told": lambda self, state, fed: (state, None)})
    with refusal("config.renamed-method", "Shared.told", "evaluation_message"):
        type("Mine", (mixed_in, FedAvg), {})


@pytest.mark.parametrize(
    ("use", "old", "new"),
    [
        (lambda: Needs(sens=True), "Needs.sens", "sensitive"),  # type: ignore[call-arg]
        (lambda: Needs(nodes=True), "Needs.nodes", "data"),  # type: ignore[call-arg]
        (lambda: replace(Needs(), pull=0.1), "Needs.pull", "LocalSteps"),
        (lambda: Needs(tells=True), "Needs.tells", "not needed"),  # type: ignore[call-arg]
        (lambda: Needs().tunes, "Needs.tunes", "personalizes"),  # type: ignore[attr-defined]
        (lambda: Context(None, None, {}).given, "Context.given", "downloaded"),  # type: ignore[arg-type, attr-defined]
        (lambda: Outputs(None, {}, {}).given, "Outputs.given", "inputs"),  # type: ignore[arg-type, attr-defined]
        (lambda: Layer(dict, dict, judged=dict), "Layer.judged", "infer"),  # type: ignore[arg-type, call-arg]
        (lambda: Capabilities(sens=True), "Capabilities.sens", "sensitive"),  # type: ignore[call-arg]
        (lambda: replace(GRAPH, sens=None), "Dataset.sens", "sensitive"),
    ],
)
def test_other_old_names_are_errors_that_state_the_new_ones(use: Callable[[], object], old: str, new: str) -> None:
    with refusal("config.renamed-name", old, new):
        use()


def test_what_still_reads_by_an_old_name() -> None:
    assert GRAPH.sens is GRAPH.sensitive
    assert not hasattr(Context(None, None, {}), "anything_else")  # type: ignore[arg-type]


def test_a_word_that_no_part_can_need_is_refused() -> None:
    with refusal("config.value", "Needs.data", "classes"):
        Needs(data=("class",))  # type: ignore[arg-type]


def test_names_of_classes_and_members_are_no_settings() -> None:
    weights = {"everyone": 1.0, "least": 5.0}
    table = {"class_weight": weights, "everyone": False, "members": {"least": {"normalise": "row"}}}
    expected = {"class_weight": weights, "require_all": False, "members": {"least": {"normalize": "row"}}}
    assert current(table) == expected
    assert current(expected, OLD_NAMES) == table
    assert current_path("algorithm.class_weight.least") == "algorithm.class_weight.least"
    assert current_path("algorithm.least") == "algorithm.minimum"


@pytest.mark.parametrize(("data", "expected"), [({}, 5e-4), ({"task": "links"}, 0.0)], ids=["nodes", "links"])
def test_a_run_states_the_weight_decay_that_it_has_by_default(data: dict[str, Any], expected: float) -> None:
    config = resolve({"data": {"name": "cora"} | data, "algorithm": {"name": "fedavg"}})
    assert config.plain()["algorithm"]["weight_decay"] == expected
    assert resolve(config.plain()).plain() == config.plain()

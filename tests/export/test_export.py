"""`fedweave export`: the exported model gives the outputs of the trained one, and the card describes it."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedweave
from fedweave import datasets
from fedweave.apply.run_predictions import predictions
from fedweave.apply.scorer import Scorer
from fedweave.core.model import init
from fedweave.core.random import key
from fedweave.datasets import features
from fedweave.errors import DiskFull
from fedweave.experiment import config
from fedweave.experiment.config import config_hash
from fedweave.experiment.graphs import graph_of
from fedweave.experiment.runs.outputs import probabilities
from fedweave.experiment.runs.reading import read_run
from fedweave.experiment.runs.trained import Trained, finished_config, load_trained
from fedweave.export import card, source
from fedweave.export.programs import torch_program
from fedweave.models.exported import ExportedModel, build
from fedweave.models.links import DECODERS
from fedweave.privacy.accountant import bounds
from fedweave.sites.operation.experiments import for_sites
from tests import commands
from tests.refusals import check_facts, refusal
from tests.runs.test_edges_as_examples import DATA as OF_EDGES
from tests.runs.test_edges_as_examples import tables as transfers
from tests.runs.test_predictions import COLUMNS, SYNTHETIC, bank, columns, made

# Of each model, the settings under which its layers differ.
MODELS: list[dict[str, Any]] = [
    {"name": "gcn"},
    {"name": "gcn", "linear": True, "layers": 3},
    {"name": "gat", "layers": 3, "hidden": 4, "heads": 3, "output_heads": 2},
    {"name": "sage"},
    {"name": "sage", "share_root_weight": True},
    {"name": "gin"},
    {"name": "mlp", "layers": 3},
    {"name": "gcnii", "hidden": 16, "layers": 3, "alpha": 0.2},
    {"name": "ego", "hidden": 16},
    {"name": "ego", "hidden": 16, "share_root_weight": True, "linear": True},
    {"name": "ego", "hidden": 16, "order": "gnn-mlp"},
    {"name": "sgc"},
    {"name": "gprgnn", "layers": 3},
    {"name": "acmgcn", "hidden": 16},
    {"name": "h2gcn", "hidden": 16},
    {"name": "gatv2", "layers": 3, "hidden": 4, "heads": 3, "output_heads": 2},
    {"name": "transformer", "layers": 3, "hidden": 4, "heads": 3, "output_heads": 2},
    {"name": "appnp", "layers": 3, "alpha": 0.3},
    {"name": "rgcn", "hidden": 16, "bases": 3},
    {"name": "pna", "hidden": 8},
    {"name": "sgc", "hidden": 8, "norm": "layer"},
    {"name": "gcn", "norm": "batch"},
    {"name": "gcn", "residual": True, "input_layer": True, "jump": "cat", "norm": "layer"},
    {"name": "gat", "hidden": 4, "heads": 3, "residual": True, "jump": "max"},
]
POOLED: list[dict[str, Any]] = [
    {"name": name, "pool": pool} for name, pool in (("gcn", "mean"), ("sage", "sum"), ("gin", "sum"), ("mlp", "mean"))
]
POOLED += [{"name": "gin", "pool": "sum", "residual": True, "input_layer": True, "jump": "cat"}]


def loaded(folder: Path) -> Any:
    """The model of an exported folder; a program of torch.export where it has one."""
    program = folder / "model.pt2"
    return torch.export.load(program).module() if program.exists() else fedweave.models.load(folder)


def exported(out: Path, *options: str) -> Path:
    """The folder of an export."""
    commands.run("export", out, *options)
    return out / "export"


def run_of(out: Path) -> Trained:
    return load_trained(out, finished_config(out), "")


def logits(model: Any, data: Any) -> torch.Tensor:
    """The exported module's on a whole data set."""
    x = torch.from_numpy(np.asarray(data.x.todense() if hasattr(data.x, "todense") else data.x))
    batch = None if data.graph_of is None else torch.from_numpy(data.graph_of)
    with torch.no_grad():
        return model(x, torch.from_numpy(data.edges), batch)


def same(out: Path, folder: Path, which: str, client: str | None = None) -> None:
    """Both give the same probabilities on the whole data set, `load_run` the same logits, and weights are not those of
    chance."""
    run = run_of(out)
    data, algorithm = run.built.data, run.built.algorithm
    w = run.model_of(which, client or run.built.fed.clients[0])
    whole = np.zeros((3, data.examples), bool)
    ours = probabilities(algorithm.test_net, w, graph_of(_used(data, whole), data.features))[: data.examples]
    theirs = torch.softmax(logits(loaded(folder), data), -1)
    direct = fedweave.load_run(out).module(None if which == "global" else which, client)
    assert torch.equal(logits(direct, data), logits(loaded(folder), data))
    assert ours.std() > 1e-3
    assert torch.allclose(theirs, ours, atol=1e-5)


def _used(data: Any, masks: np.ndarray) -> Any:
    from dataclasses import replace

    return replace(data, public=masks)


@pytest.mark.often("gcn-True-3", "gat-3-4-3-2", "sage", "rgcn-16-3")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: "-".join(map(str, model.values())))
def test_the_module_gives_the_models_outputs(tmp_path: Path, data_root: Path, model: dict[str, Any]) -> None:
    data = {"name": "citeseer", "path": str(data_root)}  # with 48 nodes without neighbors
    made(tmp_path / "run", {"name": "fedavg", "lr": 0.05}, data, 3, model=model)
    same(tmp_path / "run", exported(tmp_path / "run"), "global")


@pytest.mark.often("sage-sum")
@pytest.mark.parametrize("model", POOLED, ids=lambda model: "-".join(map(str, model.values())))
def test_and_on_small_graphs(tmp_path: Path, data_root: Path, model: dict[str, Any]) -> None:
    data = {"name": "proteins", "path": str(data_root)}
    cut = {"name": "graphs_iid", "clients": 3}
    made(tmp_path / "run", {"name": "fedavg", "lr": 0.01}, data, 2, model=model, partition=cut)
    same(tmp_path / "run", exported(tmp_path / "run", "--format", "torch"), "global")


def edge_logits(model: Any, data: Any) -> torch.Tensor:
    """The exported module's of each edge as it is listed."""
    attr = torch.from_numpy(data.edge_attrs.features)
    with torch.no_grad():
        return model(torch.from_numpy(np.asarray(data.x)), torch.from_numpy(data.edge_attrs.ends), edge_attr=attr)


@pytest.mark.often("gine", "rgcn")
@pytest.mark.parametrize("name", ["gine", "gine both", "gine forward", "sage", "gat", "sgc", "gcn", "appnp", "rgcn"])
def test_and_on_edges_as_examples(tmp_path: Path, name: str) -> None:
    """Each edge once, parallel ones and loops among them."""
    folder = transfers(tmp_path / "data")
    name, _, way = name.partition(" ")
    model = {"name": name} | {"gine": {"directed": way or "none"}, "gat": {"edge_features": 0}}.get(name, {})
    cut = {"name": "random", "clients": 2, "train": 0.5, "val": 0.2, "test": 0.3}
    out, data = tmp_path / "run", {**OF_EDGES, "path": str(folder), "edge_normalize": "standard"}
    made(out, {"name": "fedavg", "lr": 0.05}, data, 2, partition=cut, model=model)
    run, whole = run_of(out), datasets.load(**{**data, "edge_time": "day"})
    w = run.model_of("global", run.built.fed.clients[0])
    graph = graph_of(_used(whole, np.zeros((3, whole.examples), bool)), whole.features)
    ours = probabilities(run.algorithm.test_net, w, graph)[: whole.examples]
    theirs = edge_logits(loaded(exported(out)), whole)
    assert torch.allclose(torch.softmax(theirs, -1), ours, atol=1e-5)
    assert ours.std() > 1e-3
    about = json.loads((out / "export/model.json").read_text())["edges"]
    assert (about["examples"], about["directed"], about["columns"]) == (True, True, ["amount"])
    assert about["scaling"]["how"] == "standard"
    said = (out / "export/README.md").read_text()
    check_facts(said, "edge_attr: 1 column, float32: amount")
    assert "`model(x, edge_index, edge_attr=edge_attr)`" in said
    (out / "config.toml").write_text(config.to_toml(for_sites(finished_config(out).plain()).plain()))
    commands.run("export", out, "--out", tmp_path / "at-sites")
    assert torch.equal(edge_logits(loaded(tmp_path / "at-sites"), whole), theirs)


@pytest.mark.often("fedpub", "dfedgnn")
@pytest.mark.parametrize("name", ["ditto", "fedpub", "local", "dfedgnn", "cgsv", "fedego"])
def test_a_clients_own_model(tmp_path: Path, name: str) -> None:
    own = {"batch": 4} if name == "fedego" else {}
    made(tmp_path / "run", {"name": name, "lr": 0.05} | own, SYNTHETIC, 3)
    folder = exported(tmp_path / "run", "--model", "personal", "--client", "client-1")
    same(tmp_path / "run", folder, "personal", "client-1")
    nobody = commands.run("export", tmp_path / "run", "--model", "personal", "--out", tmp_path / "x", code=2)
    check_facts(nobody, "--client")


def test_the_card_and_the_form_say_what_the_model_wants(tmp_path: Path) -> None:
    out = tmp_path / "run"
    data = {"name": "folder", "path": str(bank(tmp_path / "data")), "normalize": "row"}
    summary = made(out, {"name": "fedavg", "lr": 0.05}, data, 3, partition={"name": "random", "clients": 3})
    folder = exported(out)
    about = json.loads((folder / "model.json").read_text())
    assert (about["columns"], about["labels"]) == ([*COLUMNS], ["high", "low"])
    card = (folder / "README.md").read_text()
    for words in (
        "# fedavg on data",
        "- name: gcn",
        "features: 3 columns, float32: age, income, debt",
        "each row divided by the sum of its absolute values",
        "classes, in the order of the logits: high, low",
        f"{summary['global/accuracy']:.4f}",
        "change of the model weights by local training",
    ):
        assert words in card, words
    told = columns(predictions(out, model="global"))
    ours = torch.softmax(logits(loaded(folder), datasets.load(**data)), -1)[torch.from_numpy(told["node"])]
    alone = run_of(out).built.data.nodes == len(told["node"])
    assert alone
    assert (ours.argmax(-1).numpy() == (told["predicted"] == "low")).mean() > 0.9  # clients miss edges to others
    again = commands.run("export", out, code=2)
    check_facts(again, "export")


@pytest.mark.parametrize("how", ["scale", "standard", "minmax"])
def test_the_scaling_in_the_export_is_that_of_training(tmp_path: Path, how: str) -> None:
    raw = {"name": "folder", "path": str(bank(tmp_path / "data", order=(*COLUMNS, "spare")))}  # spare is constant
    cut = {"name": "random", "clients": 2}
    made(tmp_path / "run", {"name": "fedavg"}, raw | {"normalize": how}, 1, partition=cut)
    given = json.loads((exported(tmp_path / "run") / "model.json").read_text())["scaling"]
    x = np.asarray(datasets.load(**raw).x, np.float64)
    divisor = np.array([np.inf if value is None else value for value in given["divisor"]])
    expected = datasets.load(**raw, normalize=how).x
    assert (x - given["shift"]) / divisor == pytest.approx(expected, abs=1e-6)


def test_what_cannot_be_exported_is_refused(tmp_path: Path, data_root: Path) -> None:
    data, cut = {"name": "proteins", "path": str(data_root)}, {"name": "graphs_iid", "clients": 2}
    made(tmp_path / "run", {"name": "fedavg"}, data, 1, model={"name": "star"}, partition=cut)
    said = commands.run("export", tmp_path / "run", code=2)
    check_facts(said, "'star'")
    assert not (tmp_path / "run/export").exists()


def test_weights_that_an_algorithm_widens_are_refused(tmp_path: Path) -> None:
    settings = {"name": "feddep", "epochs": 1, "exchanges": 0, "hidden": [4]}
    made(tmp_path / "run", settings, {"name": "digits"}, 1, partition={"name": "random", "clients": 2})
    said = commands.run("export", tmp_path / "run", code=2)
    check_facts(said, "0/weight")


def test_an_export_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, cut = {"name": "digits"}, {"name": "random", "clients": 2}
    made(tmp_path / "run", {"name": "fedavg"}, data, 1, partition=cut)

    def write_some(path: Path, fill: Any) -> None:
        if path.name == "model.json":
            raise DiskFull(f"{path} cannot be written, the disk is full.")
        path.write_bytes(b"")

    monkeypatch.setattr("fedweave.experiment.runs.files.write", write_some)
    commands.run("export", tmp_path / "run", code=1)
    assert not (tmp_path / "run/export").exists()


def test_names_of_others_are_no_markup_in_the_card() -> None:
    odd = "<img src=x onerror=alert(1)>, [free](javascript:alert(1))\n\n# fake: \x1b[31mε = 0.1"
    assert card.plain(odd) == (
        r"\<img src=x onerror=alert(1)\>, \[free\](javascript:alert(1)) \# fake: \\x1b\[31mε = 0.1"
    )
    assert card.plain("hidden_layers: 16 _x_") == r"hidden_layers: 16 \_x\_"


def test_the_card_counts_the_weights_that_are_trained(tmp_path: Path, data_root: Path) -> None:
    data, cut = {"name": "proteins", "path": str(data_root)}, {"name": "graphs_iid", "clients": 2}
    model = {"name": "gin", "hidden": 64, "layers": 3, "pool": "sum"}
    made(tmp_path / "run", {"name": "fedavg"}, data, 1, model=model, partition=cut)
    check_facts((exported(tmp_path / "run") / "README.md").read_text(), "29,506")


def test_an_export_that_differs_from_the_model_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "run", {"name": "fedavg"}, SYNTHETIC, 1)
    from fedweave.models.exported import EdgeIndex

    right = EdgeIndex.operator
    monkeypatch.setattr(EdgeIndex, "operator", lambda edges, kind: right(edges, "sum" if kind == "gcn" else kind))
    with refusal("user.export-differs"):
        source.source(tmp_path / "run", None, None)
    commands.run("export", tmp_path / "run", code=2)
    assert not (tmp_path / "run/export").exists()


def test_the_card_knows_every_scaling_and_tells_the_gaps_between_groups(tmp_path: Path) -> None:
    assert set(card._SCALED) == {*features.NORMALIZE, source.AT_SITES, source.HANDED_OUT}
    summary = made(tmp_path / "run", {"name": "fedavg", "lr": 0.05}, SYNTHETIC, 3)
    text = (exported(tmp_path / "run") / "README.md").read_text()
    for gap in ("sp", "eo", "equalised_odds"):
        value, floor = (summary[f"groups/global/{gap}{end}"] for end in ("", "_floor"))
        check_facts(text, f"{value:.4f} ", f" {floor:.4f}")


def test_the_card_has_what_its_owner_states_and_says_what_nobody_stated(tmp_path: Path) -> None:
    made(tmp_path / "run", {"name": "fedavg", "lr": 0.05}, SYNTHETIC, 3, purpose="rehearsal")
    stated = {
        "intended_use": "for a person to look at",
        "limits": "not for companies",
        "data_period": "in 2024",
        "contact": "models@bank.example",
    }
    bare = (exported(tmp_path / "run") / "README.md").read_text()
    assert bare.count("not stated") == 2
    assert "rehearsal" in bare
    file = tmp_path / "card.toml"
    file.write_text("".join(f'{key} = "{value}"\n' for key, value in stated.items()))
    out = tmp_path / "with"
    commands.run("export", tmp_path / "run", "--card", file, "--out", out)
    text = (out / "README.md").read_text()
    assert all(value in text for value in stated.values())
    run = read_run(tmp_path / "run")
    assert config_hash(run.config) in text
    assert Scorer.load(out / "scorer.safetensors").name in text
    partition = run.partition
    check_facts(text, f"{sum(partition['train'].to_pylist())}")
    for wrong in ("moon = 1", "contact = 1", "contact ="):
        file.write_text(wrong)
        commands.run("export", tmp_path / "run", "--card", file, "--out", out / "2", code=2)


def test_the_card_states_the_epsilon(tmp_path: Path) -> None:
    made(tmp_path / "run", {"name": "dp_fedavg"}, SYNTHETIC, 2)
    text = (exported(tmp_path / "run") / "README.md").read_text()
    section = text[text.index("## Privacy") : text.index("## Data flow")]
    assert all(str(bound)[:60] in section for bound in bounds(read_run(tmp_path / "run").ledger))
    check_facts(section, "ε =")


def test_of_a_vertical_run_no_site_is_blamed_for_what_none_can_give(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").write_text(
        '[data]\nname = "folder"\npath = "."\n[algorithm]\nname = "glasu"\n[engine]\nname = "flare"\n'
    )
    (tmp_path / "run/summary.json").write_text("{}")
    (tmp_path / "site/data").mkdir(parents=True)
    (tmp_path / "site/data/nodes.csv").write_text("id,split,age\na,,1\n")  # the labels are another party's
    (tmp_path / "site/site.toml").write_text('[data]\npath = "data"\nclasses = 2\n')
    result = commands.run("sites", "export", tmp_path / "run", "--site", tmp_path / "site", code=2)
    check_facts(result, "vertical")


def test_of_a_run_between_sites_the_global_model_is_exported(tmp_path: Path) -> None:
    """The same files as of the simulation, but for what sites alone know; any other model is refused."""
    pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')
    out = tmp_path / "run"
    made(out, {"name": "fedavg", "lr": 0.05}, SYNTHETIC, 3)
    simulated = exported(out)
    simulated.rename(tmp_path / "simulated")
    chosen, _ = config.read(out / "config.toml")
    (out / "config.toml").write_text(config.to_toml(for_sites(chosen.plain()).plain()))
    folder = exported(out)
    assert (folder / "weights.safetensors").read_bytes() == (tmp_path / "simulated/weights.safetensors").read_bytes()
    about = json.loads((folder / "model.json").read_text())
    assert about["scaling"] == {"how": "sites"}
    check_facts((folder / "README.md").read_text(), "site.toml")
    data = datasets.load(**SYNTHETIC)
    assert torch.equal(logits(loaded(folder), data), logits(loaded(tmp_path / "simulated"), data))
    assert (about["columns"], about["labels"]) == ([], [])
    site = tmp_path / "site"
    tables = bank(site / "data")
    (site / "site.toml").write_text('[data]\npath = "data"\nlabels = ["low", "high"]\nnormalize = "standard"\n')
    fewer = commands.run("sites", "export", out, "--site", site, "--out", tmp_path / "named", code=2)
    check_facts(fewer, "3 features of 2", "12 of 2")
    made(tmp_path / "again", {"name": "fedavg", "lr": 0.05}, {"name": "folder", "path": str(tables)}, 3)
    chosen, _ = config.read(tmp_path / "again/config.toml")
    (tmp_path / "again/config.toml").write_text(config.to_toml(for_sites(chosen.plain()).plain()))
    commands.run("sites", "export", tmp_path / "again", "--site", site)
    about = json.loads((tmp_path / "again/export/model.json").read_text())
    assert (about["columns"], about["labels"]) == ([*COLUMNS], ["low", "high"])
    assert about["scaling"]["how"] == "standard"
    np.testing.assert_allclose(
        about["scaling"]["shift"], datasets.load("folder", path=str(tables)).x.mean(0), rtol=1e-6
    )
    refused = commands.run("export", out, "--client", "client-1", "--out", tmp_path / "other", code=2)
    check_facts(refused, "models")


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_program_scores_any_number_of_pairs_of_any_number_of_nodes(decoder: str) -> None:
    about: dict[str, Any] = {"model": "gcn", "settings": {"hidden": 6}, "features": 3, "classes": 2, "decoder": decoder}
    about["edges"] = {"features": 0, "weighted": False, "examples": True, "directed": False, "relations": 1}
    net = build(about)
    weights = init(net, key(0))
    module = ExportedModel(net, weights, about).eval()
    program = torch.export.load(io.BytesIO(torch_program(about, weights))).module()
    for nodes, count in ((9, 4), (50, 1), (20, 333)):
        ends = torch.randint(nodes, (2, 3 * nodes), generator=torch.Generator().manual_seed(nodes))
        ends = ends[:, ends[0] != ends[1]]
        edges = torch.cat([ends, ends.flip(0)], 1).unique(dim=1)
        x, pairs = torch.randn(nodes, 3), torch.randint(nodes, (2, count))
        relation = torch.zeros(count, dtype=torch.int64)
        with torch.no_grad():
            expected = module(x, edges, pairs=pairs)
            torch.testing.assert_close(program(x, edges, pairs=pairs, relation=relation), expected)


@pytest.mark.parametrize(
    ("model", "decoder"),
    [
        *(("gcn", decoder) for decoder in ("dot", "cosine", "common_neighbors", "distmult", "transe")),
        *(("sage", decoder) for decoder in ("mlp", "complex", "rotate")),
    ],
)
def test_a_model_of_links_scores_pairs_as_predict_does(tmp_path: Path, model: str, decoder: str) -> None:
    """The training links of a client carry the messages; all its pairs are scored."""
    document = {
        "rounds": 2,
        "data": {**SYNTHETIC, "task": "links"},
        "partition": {"clients": 2},
        "model": {"name": model, "hidden": 6, "decoder": decoder},
        "engine": {"threads": 1},
    }
    run = fedweave.run(document, out=tmp_path / "run")
    module = loaded(exported(tmp_path / "run"))
    data = datasets.load(seed=0, **SYNTHETIC)
    rows = [row for row in predictions(tmp_path / "run").to_pylist() if row["client"] == "client-0"]
    nodes = [row["node"] for row in run.embeddings().to_pylist() if row["client"] == "client-0"]
    place = {str(node): at for at, node in enumerate(nodes)}
    pairs = torch.tensor([[place[row["source"]], place[row["target"]]] for row in rows]).T
    message = pairs[:, [row["split"] == "train" and row["true"] == "link" for row in rows]]
    x = torch.from_numpy(np.asarray(data.x, np.float32)[nodes])
    with torch.no_grad():
        scores = module(x, torch.cat([message, message.flip(0)], 1), pairs=pairs)
    np.testing.assert_allclose(scores.sigmoid(), [row["p_link"] for row in rows], atol=1e-5)


def test_what_an_export_of_links_lacks_is_said(tmp_path: Path) -> None:
    """Vectors of single nodes, and ONNX."""
    document = {
        "rounds": 1,
        "data": {**SYNTHETIC, "task": "links"},
        "partition": {"clients": 2},
        "algorithm": {"local_steps": 1},
        "engine": {"threads": 1},
    }
    fedweave.run(document, out=tmp_path / "run")
    learned = {**document, "data": {**SYNTHETIC, "task": "links", "features": "learned"}}
    fedweave.run(learned, out=tmp_path / "learned")
    for options in (["learned"], ["run", "--format", "onnx"], ["run", "--histograms"]):
        commands.run("export", tmp_path / options[0], *options[1:], code=2)
        assert not (tmp_path / options[0] / "export").exists()
    with refusal("user.link-export"):
        source.exportable(tmp_path / "learned")

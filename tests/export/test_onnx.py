"""`fedweave export --format onnx`: ONNX Runtime gives the exported module's outputs, on graphs of any size."""

import ast
import logging
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedweave
from fedweave.core import model as models
from fedweave.core import random
from fedweave.export import programs as exporting
from fedweave.models.exported import ExportedModel, build
from fedweave.ops.onednn import torch_from
from tests import commands
from tests.refusals import check_facts
from tests.runs.test_predictions import bank, made

onnx = pytest.importorskip("onnx", reason='needs pip install "fedweave[onnx]"')
pytest.importorskip("onnxscript", reason='needs pip install "fedweave[onnx]"')
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime, of the extra dev")

if not torch_from(*exporting.OLDEST):
    pytest.skip("this PyTorch is too old", allow_module_level=True)

FEATURES, CLASSES, EDGE_FEATURES = 5, 3, 2
PLAIN = {"layers": 1, "hidden": 4, "pool": "none"}
# The layers that each kind has; gcn is exported by the command, below.
MODELS: dict[str, dict[str, Any]] = {
    "gat": {"layers": 2, "hidden": 2, "heads": 3, "output_heads": 2},
    "sage": PLAIN | {"layers": 2, "residual": True, "input_layer": True, "jump": "cat"},
    "gin": PLAIN | {"pool": "sum"},
    "mlp": PLAIN | {"pool": "mean"},
    "gcnii": {"layers": 2, "hidden": 4, "alpha": 0.2, "theta": 0.5},
    "ego": {"layers": 1, "hidden": 4, "order": "mlp-gnn"},
    "sgc": {"layers": 2},
    "gprgnn": {"layers": 3, "hidden": 4},
    "acmgcn": {"layers": 2, "hidden": 4},
    "h2gcn": {"layers": 2, "hidden": 4},
    "gatv2": {"layers": 2, "hidden": 4, "heads": 2, "output_heads": 2},
    "transformer": {"layers": 2, "hidden": 4, "heads": 2, "output_heads": 2},
    "appnp": {"layers": 3, "hidden": 4, "alpha": 0.2},
    "rgcn": {"layers": 2, "hidden": 4, "bases": 3},
}
# Nodes and edges; the exporter traces with 5 and 6.
SIZES = [(40, 90), (3, 1), (7, 0), (1, 0)]


def graph(nodes: int, edges: int, features: int) -> dict[str, np.ndarray]:
    """Both directions of random edges without self loops, some of them twice; three small graphs at most."""
    rng = np.random.default_rng(nodes)
    source = rng.integers(0, nodes, edges)
    target = (source + rng.integers(1, max(nodes, 2), edges)) % nodes
    edge_index = np.stack([np.r_[source, target], np.r_[target, source]]).astype(np.int64)
    x, attr = (rng.normal(size=size).astype(np.float32) for size in ((nodes, features), (2 * edges, EDGE_FEATURES)))
    return {"x": x, "edge_index": edge_index, "batch": np.sort(rng.integers(0, 3, nodes)), "edge_attr": attr}


def worst(content: bytes, module: Any, inputs: list[str], features: int) -> float:
    """The largest difference over `SIZES`, and that there is something to differ."""
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_inputs()] == inputs
    found = []
    for nodes, edges in SIZES:
        given = {name: array for name, array in graph(nodes, edges, features).items() if name in inputs}
        [ours] = session.run(["logits"], given)
        with torch.no_grad():
            theirs = module(**{name: torch.from_numpy(array) for name, array in given.items()}).numpy()
        assert ours.shape == theirs.shape
        assert nodes < 3 or theirs.size == 0 or theirs.std() > 1e-3
        found.append(float(np.abs(ours - theirs).max(initial=0)))
    return max(found)


def exported(about: dict[str, Any]) -> tuple[ExportedModel, bytes]:
    """The module that `about` describes with random weights, and its ONNX graph."""
    net = build(about)
    w = models.init(net, random.key(0))
    return ExportedModel(net, w, about).eval(), exporting.onnx_graph(about, w)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "gin" else pytest.mark.slow) for name in MODELS]
)
def test_onnx_runtime_gives_the_modules_logits(name: str) -> None:
    about = {"model": name, "features": FEATURES, "classes": CLASSES, "settings": MODELS[name]}
    module, content = exported(about)
    pooled = MODELS[name].get("pool", "none") != "none"
    assert worst(content, module, ["x", "edge_index", "batch"][: 2 + pooled], FEATURES) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("gine", {"directed": "none", "edge_features": None}),
        ("gine", {"directed": "both", "edge_features": None}),
        ("sage", {}),
    ],
)
def test_of_edges_as_examples_it_gives_logits_of_each(name: str, given: dict[str, Any]) -> None:
    """Listed once each, with features, some of them parallel."""
    edges = {"features": EDGE_FEATURES, "weighted": False, "examples": True, "directed": True}
    about = {"model": name, "features": FEATURES, "classes": CLASSES, "settings": PLAIN | given, "edges": edges}
    module, content = exported(about)
    assert worst(content, module, ["x", "edge_index", "edge_attr"], FEATURES) <= 1e-5
    check_facts(exporting.usage(about), "float32 [edges, 3]")


@pytest.mark.slow
def test_the_command_writes_a_model_that_stands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    out, level = tmp_path / "run", logging.getLogger("torch.onnx").level
    model, cut = {"name": "gcn", "linear": True, "layers": 1, "hidden": 8}, {"name": "random", "clients": 2}
    data = {"name": "folder", "path": str(bank(tmp_path / "data")), "normalize": "row"}
    made(out, {"name": "fedavg", "lr": 0.05}, data, 2, model=model, partition=cut)
    commands.run("export", out, "--format", "onnx")
    files = {"model.onnx", "model.json", "README.md", "scorer.safetensors"}
    assert {file.name for file in (out / "export").iterdir()} == files
    content = (out / "export/model.onnx").read_bytes()
    assert worst(content, fedweave.load_run(out).module(), ["x", "edge_index"], 3) <= 1e-5
    proto = onnx.load_model_from_string(content)
    onnx.checker.check_model(proto, full_check=True)
    assert [(one.domain, one.version) for one in proto.opset_import] == [("", exporting.OPSET)]
    assert not any(place in content for place in (b".py", b"site-packages", bytes(Path.cwd())))
    card = (out / "export/README.md").read_text()
    for words in ("opset 20", "`x`: float32 [nodes, 3]", "`edge_index`: int64 [2, edges]", "float32 [nodes, 2]"):
        assert words in card, words
    assert "batch" not in card
    assert logging.getLogger("torch.onnx").level == level
    page = (Path(__file__).parents[2] / "docs/exporting.md").read_text()
    monkeypatch.chdir(out / "export")
    exec(textwrap.dedent(page.split("you need only onnxruntime:\n\n")[1].split("\n\n")[0]), {})
    assert set(ast.literal_eval(capsys.readouterr().out)) <= {"high", "low"}


def test_an_absent_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "find_spec", lambda name: None if name == "onnxscript" else find_spec(name))
    said = commands.run("export", tmp_path, "--format", "onnx", code=2)
    check_facts(said, "onnxscript", '"fedweave[onnx]"')
    assert not (tmp_path / "export").exists()

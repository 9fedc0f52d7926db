"""An exported model as a program of `torch.export`, or as an ONNX graph for runtimes without PyTorch (extra `onnx`)."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch

from fedweave.core.tree import Tree
from fedweave.core.types import Values
from fedweave.errors import UserError
from fedweave.export.source import check_same, example
from fedweave.models.exported import ExportedModel, build
from fedweave.ops.onednn import torch_from

OPSET = 20  # of ONNX's own operators; the graph has no others
OLDEST = (2, 10)  # PyTorch whose exporter writes graphs that run
AXIS = {  # the axis of each input whose size is free
    "x": (0, "nodes"),
    "edge_index": (1, "edges"),
    "batch": (0, "nodes"),
    "edge_attr": (0, "edges"),
    "pairs": (1, "pairs"),
    "relation": (0, "pairs"),
}
INPUTS = {
    "x": "float32 [nodes, {features}]",
    "edge_index": "int64 [2, edges]",
    "batch": "int64 [nodes], each node's graph from 0 on",
    "edge_attr": "float32 [edges, {edge_features}]",
}


def check_onnx() -> None:
    """Raise an error if the extra is not installed, or if PyTorch is too old.

    Raises:
        UserError: the message has the packages and the command.
    """
    if not torch_from(*OLDEST):
        raise UserError(
            f"--format onnx needs PyTorch {'.'.join(map(str, OLDEST))} or newer, this is {torch.__version__}: graphs "
            "that 2.8 writes of models with pooling do not run."
        )
    absent = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if absent:
        raise UserError(
            f"--format onnx needs {' and '.join(absent)}, which this Python has not: "
            'pip install -c constraints.txt ".[onnx]" in a clone, or pip install "fedweave[onnx]".'
        )


def names(about: Values) -> list[str]:
    """The names of the graph's inputs for a model.json; `batch` only where the model pools, `edge_attr` if it reads
    it."""
    edges = about.get("edges") or {"features": 0, "examples": False}
    reads = edges["features"] and (edges["examples"] or about["settings"].get("edge_features", 0) != 0)
    optional = {"batch": about["settings"].get("pool", "none") != "none", "edge_attr": bool(reads)}
    return [name for name in INPUTS if optional.get(name, True)]


def call_of(about: Values) -> str:
    """How a model of this model.json is called in Python."""
    arguments = [name if name in ("x", "edge_index", "batch") else f"{name}={name}" for name in names(about)]
    if "decoder" in about:
        arguments.append("pairs=pairs")
        arguments += ["relation=relation"] if (about.get("edges") or {}).get("relations", 0) > 1 else []
    return f"model({', '.join(arguments)})"


def rows(about: Values) -> str:
    """The examples that the logits are for."""
    if "batch" in names(about):
        return "graphs"
    edges = about.get("edges")
    return "edges" if edges and edges["examples"] else "nodes"


def output(about: Values) -> str:
    """The name of the graph's output."""
    return "numbers" if "scale" in (about.get("targets") or {}) else "logits"


def onnx_graph(about: Values, weights: Tree) -> bytes:
    """The bytes of model.onnx, of a model with these weights.

    It accepts any numbers of nodes and edges. It contains nothing of the machine that wrote it (paths, source lines).

    Raises:
        UserError: the model scores pairs of nodes, or the graph's outputs are not the model's.
    """
    from onnx.reference import ReferenceEvaluator

    if "decoder" in about:
        raise UserError(
            "--format onnx: has no form for models of links. Take safetensors or torch.", code="user.link-export"
        )
    net = build(dict(about))
    inputs, _ = example(net, about["features"], about.get("edges") or {})
    inputs = {name: inputs[name] for name in names(about)}
    module = ExportedModel(net, weights, about).eval()
    with _quiet():
        program = torch.onnx.export(
            module,
            kwargs=inputs,
            dynamo=True,
            verbose=False,
            input_names=list(inputs),
            output_names=[output(about)],
            opset_version=OPSET,
            dynamic_shapes={name: {AXIS[name][0]: AXIS[name][1]} for name in inputs},
        )
    # without the exporter's notes on source files
    proto = program.model_proto  # type: ignore[union-attr]
    graph = proto.graph
    graph.ClearField("value_info")
    graph.ClearField("metadata_props")
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    graph.output[0].type.tensor_type.shape.dim[0].dim_param = rows(about)
    content = bytes(proto.SerializeToString())
    [outputs] = ReferenceEvaluator(content).run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    with torch.no_grad():
        check_same(torch.from_numpy(outputs), module(**inputs), about["model"])
    return content


def torch_program(about: Values, weights: Tree) -> bytes:
    """The bytes of model.pt2: the model as a program of `torch.export`, for any numbers of nodes, edges and pairs.

    Raises:
        UserError: its outputs are not the model's.
    """
    net = build(dict(about))
    inputs, _ = example(net, about["features"], about.get("edges") or {})
    known = ("pairs", "relation") if "decoder" in about else names(about)[2:]
    inputs = {name: inputs[name] for name in ("x", "edge_index", *known)}
    module = ExportedModel(net, weights, about).eval()
    shapes = {name: {AXIS[name][0]: torch.export.Dim.DYNAMIC} for name in inputs}
    positional = [name for name in ("x", "edge_index", "batch") if name in inputs]
    args, named = tuple(inputs[name] for name in positional), {name: inputs[name] for name in known if name != "batch"}
    exported = torch.export.export(module, args, named, dynamic_shapes=shapes)
    with torch.no_grad():
        check_same(exported.module()(*args, **named), module(**inputs), about["model"])
    file = io.BytesIO()
    torch.export.save(exported, file)
    return file.getvalue()


def usage(about: Values) -> str:
    """The model card's lines on the file: inputs, outputs, opset."""
    sizes = {"features": about["features"], "edge_features": (about.get("edges") or {}).get("features")}
    inputs = [f"- input `{name}`: {INPUTS[name].format(**sizes)}" for name in names(about)]
    kind = "float64" if output(about) == "numbers" else "float32"
    result = f"- output `{output(about)}`: {kind} [{rows(about)}, {about['classes']}]"
    head = f"`model.onnx` is an ONNX graph of opset {OPSET}, for any runtime that reads it; sizes in words are free."
    return "\n".join([head, "", *inputs, result])


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's remarks on packages that it does not need and on names of sizes."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)

"""The exported module as an ONNX graph, for runtimes without PyTorch; needs the extra `onnx`."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from fedweave.core.types import Values
from fedweave.errors import UserError
from fedweave.export import pyg
from fedweave.ops.linear import torch_from

OPSET = 20  # of ONNX's own operators; the graph has no others
OLDEST = (2, 10)  # PyTorch whose exporter writes graphs that run
INPUTS = {
    "x": "float32 [nodes, {features}]",
    "edge_index": "int64 [2, edges]",
    "batch": "int64 [nodes], each node's graph from 0 on",
    "edge_attr": "float32 [edges, {edge_features}]",
}


class ONNXPool(pyg.Pool):
    """`pyg.Pool` with an assertion for the exporter that there is a graph.

    The number of graphs is known only at run time.
    """

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        """[n, k] -> [graphs, k]."""
        graphs = batch.max().item() + 1  # int() would make the exporter look for a constant
        torch._check(graphs >= 1)
        result: Tensor = pyg.POOLS[self.how](x, batch, graphs)
        return result


class Attention(nn.Module):
    """A `GATConv` or `GATv2Conv` that receives its self loops.

    PyG's own way of adding them leaves the exporter in doubt whether there are edges at all.
    """

    def __init__(self, layer: pyg.GATConv | pyg.GATv2Conv) -> None:
        super().__init__()
        self.layer = layer
        layer.add_self_loops = False

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """[n, k] -> [n, out]."""
        others = edge_index[:, edge_index[0] != edge_index[1]]
        loops = torch.arange(x.shape[0], device=x.device).expand(2, -1)
        every = torch.cat([others, loops], 1)
        torch._check(every.shape[1] != 0)
        result: Tensor = self.layer(x, every)
        return result


def check() -> None:
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
    wanted = {"batch": about["settings"].get("pool", "none") != "none", "edge_attr": bool(reads)}
    return [name for name in INPUTS if wanted.get(name, True)]


def rows(about: Values) -> str:
    """The examples that the logits are for."""
    edges = about.get("edges")
    return "graphs" if "batch" in names(about) else "edges" if edges and edges["examples"] else "nodes"


def output(about: Values) -> str:
    """The name of the graph's output."""
    return "numbers" if "scale" in (about.get("targets") or {}) else "logits"


def packed(about: Values, weights: Mapping[str, Tensor]) -> bytes:
    """The bytes of model.onnx, from the module that `pyg.build` makes with these weights.

    It accepts any numbers of nodes and edges. It contains nothing of the machine that wrote it (paths, source lines).

    Raises:
        UserError: the model scores pairs of nodes.
    """
    if "decoder" in about:
        raise UserError(
            "--format onnx: has no form for models of links. Take safetensors or torch.", code="user.link-export"
        )
    net = pyg.build(dict(about))
    net.load_state_dict(dict(weights))
    make_exportable(net)
    inputs = names(about)
    sizes = {"x": {0: "nodes"}, "edge_index": {1: "edges"}, "batch": {0: "nodes"}, "edge_attr": {0: "edges"}}
    example = _example(about["features"], (about.get("edges") or {"features": 0})["features"])
    argument_names = list(INPUTS)[: 1 + list(INPUTS).index(inputs[-1])]  # the rest is None
    with _quiet():
        program = torch.onnx.export(
            net.eval(),
            tuple(example[name] if name in inputs else None for name in argument_names),
            dynamo=True,
            verbose=False,
            input_names=inputs,
            output_names=[output(about)],
            opset_version=OPSET,
            dynamic_shapes=tuple(sizes[name] if name in inputs else None for name in argument_names),
        )
    return _bare(program, rows(about))


def make_exportable(module: nn.Module) -> None:
    """Replace layers that the exporter does not understand with layers that it does, with the same outputs."""
    module = module.net if isinstance(module, pyg.UnitsModule) else module
    net: Any = module.nodes if isinstance(module, pyg.EdgeHeadModule) else module
    for number, layer in enumerate(net.layers):
        if isinstance(layer, pyg.Pool):
            net.layers[number] = ONNXPool(layer.how)
        elif isinstance(layer, pyg.GATConv | pyg.GATv2Conv):
            net.layers[number] = Attention(layer)


def usage(about: Values) -> str:
    """The model card's lines on the file: inputs, outputs, opset."""
    sizes = {"features": about["features"], "edge_features": (about.get("edges") or {}).get("features")}
    inputs = [f"- input `{name}`: {INPUTS[name].format(**sizes)}" for name in names(about)]
    kind = "float64" if output(about) == "numbers" else "float32"
    result = f"- output `{output(about)}`: {kind} [{rows(about)}, {about['classes']}]"
    head = f"`model.onnx` is an ONNX graph of opset {OPSET}, for any runtime that reads it; sizes in words are free."
    return "\n".join([head, "", *inputs, result])


def _example(features: int, edge_features: int) -> dict[str, Tensor]:
    """A small graph to trace with: the `INPUTS`."""
    x = torch.linspace(-1, 1, 5 * features, device="cpu").reshape(5, features)
    edge_index = torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]], device="cpu")
    batch = torch.tensor([0, 0, 0, 1, 1], device="cpu")
    attr = torch.linspace(-1, 1, 6 * edge_features, device="cpu").reshape(6, edge_features)
    return {"x": x, "edge_index": edge_index, "batch": batch, "edge_attr": attr}


def _bare(program: Any, rows: str) -> bytes:
    """The program without the exporter's notes on source files; the first size of the output is called `rows`."""
    proto = program.model_proto
    graph = proto.graph
    graph.ClearField("value_info")
    graph.ClearField("metadata_props")
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    graph.output[0].type.tensor_type.shape.dim[0].dim_param = rows
    return bytes(proto.SerializeToString())


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

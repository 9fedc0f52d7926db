"""The exported module as an ONNX graph, for runtimes without PyTorch; needs the extra `onnx`."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from fedweave.core.records import Values
from fedweave.errors import UserError
from fedweave.export import pyg
from fedweave.ops.gemm import torch_from

OPSET = 20  # of ONNX's own operators; the graph has no others
OLDEST = (2, 10)  # PyTorch whose exporter writes graphs that run
INPUTS = {
    "x": "float32 [nodes, {features}]",
    "edge_index": "int64 [2, edges]",
    "batch": "int64 [nodes], each node's graph from 0 on",
}


class Pool(pyg.Pool):
    """`pyg.Pool` that tells the exporter that there is a graph: the number of graphs is known only when it runs."""

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        """[n, k] -> [graphs, k]."""
        graphs = batch.max().item() + 1  # int() would make the exporter look for a constant
        torch._check(graphs >= 1)
        result: Tensor = pyg.POOLS[self.how](x, batch, graphs)
        return result


class Attention(nn.Module):
    """A `GATConv` to which self loops are given: PyG's own way of adding them leaves the exporter in doubt whether
    there are edges at all."""

    def __init__(self, layer: Any) -> None:
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
    """Refuse where the extra is not installed, or PyTorch is too old.

    Raises:
        UserError: names the packages and the command.
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
    """The inputs of the graph of a model.json; `batch` only where the model pools."""
    return [name for name in INPUTS if name != "batch" or about["settings"].get("pool", "none") != "none"]


def packed(about: Values, weights: Mapping[str, Tensor]) -> bytes:
    """The bytes of model.onnx, of the module that `pyg.build` makes with these weights; any numbers of nodes and edges.

    Nothing of the place where it was made (paths, source lines) stands in it.
    """
    net = pyg.build(dict(about))
    net.load_state_dict(dict(weights))
    make_exportable(net)
    inputs = names(about)
    sizes = {"x": {0: "nodes"}, "edge_index": {1: "edges"}, "batch": {0: "nodes"}}
    with _quiet():
        program = torch.onnx.export(
            net.eval(),
            _example(about["features"])[: len(inputs)],
            dynamo=True,
            verbose=False,
            input_names=inputs,
            output_names=["logits"],
            opset_version=OPSET,
            dynamic_shapes=tuple(sizes[name] for name in inputs),
        )
    return _bare(program, "graphs" if "batch" in inputs else "nodes")


def make_exportable(net: pyg.Net) -> None:
    """Put layers that the exporter understands in the place of those that it does not, with the same outputs."""
    for number, layer in enumerate(net.layers):
        if isinstance(layer, pyg.Pool):
            net.layers[number] = Pool(layer.how)
        elif isinstance(layer, pyg.GATConv):
            net.layers[number] = Attention(layer)


def usage(about: Values) -> str:
    """What the model card says of the file: inputs, outputs, opset."""
    inputs = [f"- input `{name}`: {INPUTS[name].format(features=about['features'])}" for name in names(about)]
    rows = "graphs" if "batch" in names(about) else "nodes"
    output = f"- output `logits`: float32 [{rows}, {about['classes']}]"
    head = f"`model.onnx` is an ONNX graph of opset {OPSET}, for any runtime that reads it; sizes in words are free."
    return "\n".join([head, "", *inputs, output])


def _example(features: int) -> tuple[Tensor, ...]:
    """A small graph to trace with: x, edge_index and batch."""
    x = torch.linspace(-1, 1, 5 * features, device="cpu").reshape(5, features)
    edge_index = torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]], device="cpu")
    return x, edge_index, torch.tensor([0, 0, 0, 1, 1], device="cpu")


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
    """Without the exporter's remarks on packages that it does not need and on names of sizes."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)

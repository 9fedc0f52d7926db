"""Fetch a published data set through PyTorch Geometric, once, and keep it checked: a graph as `.npz`, a collection of
small graphs as the text files that it is published as."""

import os
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedweave.datasets import npz
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import check, check_counts
from fedweave.datasets.edges import undirected
from fedweave.errors import DataError

# name: (class in torch_geometric.datasets, its name there, host that must answer)
SOURCES = {
    "cora": ("Planetoid", "Cora", "https://github.com"),
    "citeseer": ("Planetoid", "CiteSeer", "https://github.com"),
    "pubmed": ("Planetoid", "PubMed", "https://github.com"),
    "amazon-computers": ("Amazon", "Computers", "https://github.com"),
    "amazon-photo": ("Amazon", "Photo", "https://github.com"),
    "coauthor-cs": ("Coauthor", "CS", "https://github.com"),
    "coauthor-physics": ("Coauthor", "Physics", "https://github.com"),
    "minesweeper": ("HeterophilousGraphDataset", "Minesweeper", "https://github.com"),
    "roman-empire": ("HeterophilousGraphDataset", "Roman-empire", "https://github.com"),
    "amazon-ratings": ("HeterophilousGraphDataset", "Amazon-ratings", "https://github.com"),
    "tolokers": ("HeterophilousGraphDataset", "Tolokers", "https://github.com"),
    "questions": ("HeterophilousGraphDataset", "Questions", "https://github.com"),
    "corafull": ("CitationFull", "Cora", "https://github.com"),
    "dblp": ("CitationFull", "DBLP", "https://github.com"),
    "flickr-attributed": ("AttributedGraphDataset", "Flickr", "https://drive.usercontent.google.com"),
}
TU_HOST = "https://www.chrsmrrs.com"
ANSWER_SECONDS = 5.0
STALL_SECONDS = 30.0


def fetch(name: str, published: object, path: Path) -> Path:
    """Download data set `name` and write it to `path` atomically; returns `path`.

    `published` are the counts that the download must have (`lookup.Facts`).

    Raises:
        DataError: no public source is known, it does not answer, or what it sends is not the published graph.
    """
    if name not in SOURCES:
        raise DataError("there is no public download for this data set, and its file was not found.")
    kind, own_name, host = SOURCES[name]

    def get(scratch: str) -> Path:
        dataset = convert(_source(kind)(scratch, own_name), name)
        check_counts(dataset, published, host)
        npz.write(check(dataset, host), Path(scratch, "done.npz"))
        return Path(scratch, "done.npz")

    return _kept(host, path, get)


def fetch_texts(own_name: str, accept: Callable[[Path], object], path: Path) -> Path:
    """Download the TU collection `own_name` and put its text files into the folder `path` at once; returns `path`.

    accept: raises for a folder that does not hold the published data.

    Raises:
        DataError: the source does not answer, or what it sends is not accepted.
    """

    def get(scratch: str) -> Path:
        raw = Path(_source("TUDataset")(scratch, own_name).raw_dir)
        accept(raw)
        return raw

    return _kept(TU_HOST, path, get)


def _kept(host: str, path: Path, get: Callable[[str], Path]) -> Path:
    """Put what `get` downloads into a scratch folder and names to `path`, atomically."""
    _answers(host)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch, _impatient():
            os.replace(get(scratch), path)
    except Exception as error:  # network, disk, archive, missing pandas: whatever stops a download is one refusal
        raise DataError(f"the download from {host} failed ({type(error).__name__}: {error}).") from error
    return path


def convert(source: Any, name: str) -> Dataset:
    """A PyG in-memory dataset as ours.

    PyG sets every positive feature of `.npz` sources to 1; their published values are read from the raw file instead.
    """
    data = source[0]
    published = _published(Path(source.raw_paths[0]))
    return Dataset(
        name=name,
        x=_csr(data.x) if published is None else published,
        edges=_without_loops(data.edge_index.numpy(), int(data.num_nodes)),
        y=data.y.numpy().astype(np.int64),
        classes=int(data.y.max()) + 1,
        public=np.stack([_first(data[f"{split}_mask"].numpy()) for split in ("train", "val", "test")])
        if "train_mask" in data
        else None,
    )


def _first(mask: np.ndarray) -> np.ndarray:
    """Of several published splits the first."""
    return mask if mask.ndim == 1 else mask[:, 0]


def _published(raw: Path) -> sp.csr_matrix | None:
    if raw.suffix != ".npz":
        return None
    with np.load(raw, allow_pickle=False) as file:
        if "attr_data" not in file.files:
            return None
        parts = (file["attr_data"].astype(np.float32), file["attr_indices"], file["attr_indptr"])
        return _tidy(sp.csr_matrix(parts, shape=tuple(file["attr_shape"])))


def _csr(x: Any) -> sp.csr_matrix:
    if not x.is_sparse_csr:
        return sp.csr_matrix(x.numpy())
    parts = (x.values().float().numpy(), x.col_indices().numpy(), x.crow_indices().numpy())
    return _tidy(sp.csr_matrix(parts, shape=tuple(x.shape)))


def _tidy(x: sp.csr_matrix) -> sp.csr_matrix:
    x.sum_duplicates()
    return x


def _without_loops(index: np.ndarray, nodes: int) -> np.ndarray:
    source, target = index[:, index[0] != index[1]]
    return undirected(source, target, nodes)


def _source(kind: str) -> Any:
    import torch_geometric.datasets as pyg  # slow to import, and needed only here

    return getattr(pyg, kind)


def _answers(host: str) -> None:
    """Ask for the head of the host's front page: a machine without network shall learn so in seconds."""
    try:
        with urllib.request.urlopen(urllib.request.Request(host, method="HEAD"), timeout=ANSWER_SECONDS):
            pass
    except urllib.error.HTTPError:
        pass  # a refusal of this page is an answer, too
    except OSError as error:
        raise DataError(f"{host} could not be reached for the download ({error}).") from error


@contextmanager
def _impatient() -> Iterator[None]:
    """PyG opens its connections without a time limit; for their duration, give sockets one."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALL_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)

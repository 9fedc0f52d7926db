"""Published data sets fetched through PyTorch Geometric, once, and checked: a graph as `.npz`, a collection of small
graphs as the text files that it is published as.
"""

import os
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedweave.datasets import npz
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.check import check, check_counts
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
    """
    if name not in SOURCES:
        raise DataError("there is no public download for this data set, and its file was not found.")
    kind, published_name, host = SOURCES[name]

    def get(scratch: str) -> Path:
        dataset = convert(pyg_class(kind)(scratch, published_name), name)
        check_counts(dataset, published, host)
        npz.write(check(dataset, host), Path(scratch, "done.npz"))
        return Path(scratch, "done.npz")

    return _download(host, path, get)


def fetch_texts(published_name: str, accept: Callable[[Path], object], path: Path) -> Path:
    """Download the TU collection `published_name` and put its text files into the folder `path`; returns `path`.

    accept: raises for a folder that does not hold the published data.
    """

    def get(scratch: str) -> Path:
        raw = Path(pyg_class("TUDataset")(scratch, published_name).raw_dir)
        accept(raw)
        return raw

    return _download(TU_HOST, path, get)


def _download(host: str, path: Path, get: Callable[[str], Path]) -> Path:
    """Put what `get` downloads into a scratch folder and names to `path`, atomically."""
    check_host(host)
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALL_SECONDS)  # PyG opens its connections without a time limit
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            os.replace(get(scratch), path)
    except Exception as error:  # network, disk, archive, missing pandas: one error for all
        raise DataError(f"the download from {host} failed ({type(error).__name__}: {error}).") from error
    finally:
        socket.setdefaulttimeout(timeout)
    return path


def check_host(host: str) -> None:
    """Ask for the head of the host's front page: a machine without network shall learn so in seconds."""
    try:
        with urllib.request.urlopen(urllib.request.Request(host, method="HEAD"), timeout=ANSWER_SECONDS):
            pass
    except urllib.error.HTTPError:
        pass  # a refusal of this page is an answer, too
    except OSError as error:
        raise DataError(f"{host} could not be reached for the download ({error}).") from error


def pyg_class(kind: str) -> Any:
    """The class of `torch_geometric.datasets` with this name."""
    import torch_geometric.datasets as pyg  # slow to import, and needed only here

    return getattr(pyg, kind)


def convert(source: Any, name: str) -> Dataset:
    """A PyG in-memory dataset as ours; of several published splits the first.

    PyG sets every positive feature of `.npz` sources to 1; their published values are read from the raw file instead.
    """
    data, raw, parts = source[0], Path(source.raw_paths[0]), None
    if raw.suffix == ".npz":
        with np.load(raw, allow_pickle=False) as file:
            if "attr_data" in file.files:
                parts = (file["attr_data"].astype(np.float32), file["attr_indices"], file["attr_indptr"])
                x = sp.csr_matrix(parts, shape=tuple(file["attr_shape"]))
    if parts is None and data.x.is_sparse_csr:
        parts = (data.x.values().float().numpy(), data.x.col_indices().numpy(), data.x.crow_indices().numpy())
        x = sp.csr_matrix(parts, shape=tuple(data.x.shape))
    elif parts is None:
        x = sp.csr_matrix(data.x.numpy())
    if parts is not None:
        x.sum_duplicates()
    masks = list[np.ndarray]()
    for split in ("train", "val", "test") if "train_mask" in data else ():
        mask = data[f"{split}_mask"].numpy()
        masks.append(mask if mask.ndim == 1 else mask[:, 0])
    return Dataset(
        name=name,
        x=x,
        edges=to_undirected(data.edge_index.numpy(), int(data.num_nodes)),
        y=data.y.numpy().astype(np.int64),
        classes=int(data.y.max()) + 1,
        public=np.stack(masks) if masks else None,
    )

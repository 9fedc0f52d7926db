"""How bytes, documents and trees of tensors are damaged, by a generator of random numbers."""

import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedweave.core.tree import Tree, decode, encode

TOKENS = (
    b"", b"\0", b"\xff", b"\n", b"NaN", b"-inf", b"1e400", b"-1", b"99999999999999999999", b"[" * 2000, b"{", b'"',
    b"'", b"null", b"true", b"0.5", b",", b"\r\n", b"=1+1", b"\x1b[2J", b"[red]", b"../x", "é".encode(),
    b"\xf0\x9f\x92\xa9", b"\\ud800",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1.5, 2**31, 2**63, 10**30, -(10**30), float("nan"), float("inf"), "", "x", "1", "é\0",
    "[red]", "a" * 5000, [], [[]], ["x"], [1, "x", None], {}, {"x": 1}, {"name": "gcn"}, "../x", "adam",
)  # fmt: skip

Random = np.random.Generator


def spoilt(rng: Random, blob: bytes) -> bytes:
    """Bytes with one to four of: a bit turned, a piece left out, doubled or replaced, half of what follows left out."""
    found = bytearray(blob)
    for _ in range(rng.integers(1, 5)):
        at, size = int(rng.integers(0, len(found) + 1)), int(rng.integers(1, 9))
        match rng.integers(0, 5):
            case 0 if at < len(found):
                found[at] ^= 1 << int(rng.integers(0, 8))
            case 1:
                del found[at : at + size]
            case 2:
                found[at:at] = found[at : at + size * 4]
            case 3:
                found[at : at + size * int(rng.integers(0, 2))] = TOKENS[rng.integers(0, len(TOKENS))]
            case _:
                del found[at + len(found) // 2 :]
    return bytes(found)


def twisted(rng: Random, document: Any) -> Any:
    """JSON with one to three values, anywhere in it, replaced, left out, or put where there was none."""
    document = json.loads(json.dumps(document))
    for _ in range(rng.integers(1, 4)):
        nodes = [node for node in walked(document) if node]
        if not nodes:
            return document
        node = nodes[rng.integers(0, len(nodes))]
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key, value = keys[int(rng.integers(0, len(keys)))], deepcopy(VALUES[rng.integers(0, len(VALUES))])
        match rng.integers(0, 4):
            case 0:
                del node[key]
            case 1 if isinstance(node, dict):
                node[str(VALUES[rng.integers(12, 18)])] = value
            case _:
                node[key] = value
    return document


def walked(document: Any) -> Iterator[Any]:
    if isinstance(document, dict | list):
        yield document
        for below in document.values() if isinstance(document, dict) else document:
            yield from walked(below)


def leaf(rng: Random) -> Any:
    """What a tree may hold, of a form that nobody asked for."""
    made = (
        torch.tensor(float("nan")), torch.zeros(0), torch.zeros(3, 0), torch.full((2, 2), -1), torch.full((5,), 2**62),
        torch.ones(1, dtype=torch.bool), torch.zeros(32, dtype=torch.uint8), torch.full((8, 16), 1e30), -1, 10**15, 0.5,
        "x", "",
    )  # fmt: skip
    return made[rng.integers(0, len(made))]


def grafted(rng: Random, tree: Tree) -> Tree:
    """A tree with leaves replaced, left out or added."""
    tree = decode(encode(tree))
    for _ in range(rng.integers(1, 4)):
        nodes = [node for node in walked(tree) if node]
        if not nodes:
            return {"x": leaf(rng)}
        node = nodes[rng.integers(0, len(nodes))]
        key = list(node)[int(rng.integers(0, len(node)))]
        match rng.integers(0, 4):
            case 0:
                del node[key]
            case 1:
                node[("x", "w", "n", "0", "ids", "width")[rng.integers(0, 6)]] = leaf(rng)
            case _:
                node[key] = leaf(rng)
    return tree


def message(rng: Random, tree: Tree) -> bytes:
    return spoilt(rng, encode(tree)) if rng.integers(0, 2) else encode(grafted(rng, tree))


def damaged(rng: Random, folder: Path, scratch: Path) -> Path:
    """A copy with one of its files spoilt."""
    copy = Path(shutil.copytree(folder, scratch / folder.name))
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    path = files[rng.integers(0, len(files))]
    path.write_bytes(spoilt(rng, path.read_bytes()))
    return copy


def request(rng: Random, text: str) -> str:
    if rng.integers(0, 2):
        return spoilt(rng, text.encode()).decode(errors="replace")
    return json.dumps(twisted(rng, json.loads(text)))

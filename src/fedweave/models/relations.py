"""Decoders of knowledge graphs: scores of a relation between two entities' vectors; a higher score is likelier.

h, t: [..., d], vectors of head and tail. r: [..., k], vector of the relation. In complex vectors the first half of a
row are real parts and the second half imaginary parts. Each score equals pykeen's interaction of the same name.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.models import blocks


def distmult(h: Tensor, r: Tensor, t: Tensor) -> Tensor:
    """Σ h r t (Yang et al. 2015, "Embedding entities and relations for learning and inference in knowledge bases")."""
    return (h * r * t).sum(-1)


def complex_product(h: Tensor, r: Tensor, t: Tensor) -> Tensor:
    """Re Σ h r conj(t) (Trouillon et al. 2016, "Complex embeddings for simple link prediction", eq. 9)."""
    (hr, hi), (rr, ri), (tr, ti) = _halves(h), _halves(r), _halves(t)
    return ((hr * rr - hi * ri) * tr + (hr * ri + hi * rr) * ti).sum(-1)


def transe(h: Tensor, r: Tensor, t: Tensor, p: float = 1.0) -> Tensor:
    """−‖h + r − t‖_p (Bordes et al. 2013, "Translating embeddings for modeling multi-relational data")."""
    return -_norm(h + r - t, p)


def rotate(h: Tensor, r: Tensor, t: Tensor) -> Tensor:
    """−‖h ∘ e^{iθ} − t‖_2 with θ = r (Sun et al. 2019, "RotatE: knowledge graph embedding by relational rotation in
    complex space", eq. 3), where r has half the width of h and t."""
    (hr, hi), (tr, ti) = _halves(h), _halves(t)
    cos, sin = r.cos(), r.sin()
    return -_norm(torch.cat([hr * cos - hi * sin - tr, hr * sin + hi * cos - ti], -1), 2.0)


def _halves(rows: Tensor) -> tuple[Tensor, Tensor]:
    half = rows.shape[-1] // 2
    return rows[..., :half], rows[..., half:]


def _norm(rows: Tensor, p: float) -> Tensor:
    """‖·‖_p of each row, with a gradient of 0 at 0."""
    if p == 1:
        return rows.abs().sum(-1)
    squares = rows.square().sum(-1)
    return torch.where(squares > 0, squares, 1.0).sqrt() * (squares > 0)


def _rotation(x: Tensor, real: Tensor, imaginary: Tensor) -> Tensor:
    """x times a complex number, elementwise."""
    first, second = _halves(x)
    return torch.cat([first * real - second * imaginary, first * imaginary + second * real], -1)


def _conjugate(r: Tensor) -> Tensor:
    real, imaginary = _halves(r)
    return torch.cat([real, -imaginary], -1)


def products(queries: Tensor, rows: Tensor) -> Tensor:
    """[c, m]: the product of each of queries [c, k] with each of rows [m, k]."""
    return queries @ rows.mT


def _distances(p: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda queries, rows: -torch.cdist(queries, rows, p, "donot_use_mm_for_euclid_dist")


class Decoder(NamedTuple):
    """A decoder and its initialization. `lead` and `near` give the same scores in two steps: the point to which a
    relation leads from one end, and how near candidates are to it.

    score:  (h, r, t) -> score.
    lead:   (x, r) -> the vector that is compared with the other end.
    back:   r -> the relation from tail to head.
    near:   (output of `lead` [c, d], rows [m, d]) -> scores [c, m].
    halves: whether an entity's vector is complex.
    angles: whether a relation's vector has angles of rotations, half the width of an entity's, initially uniform in ±π;
            others have an entity's width, and are initially uniform in ±sqrt(6 / width).
    """

    score: Callable[[Tensor, Tensor, Tensor], Tensor]
    lead: Callable[[Tensor, Tensor], Tensor]
    back: Callable[[Tensor], Tensor]
    near: Callable[[Tensor, Tensor], Tensor]
    halves: bool = False
    angles: bool = False

    def init(self, key: Tensor, relations: int, width: int) -> Tensor:
        """The first vectors of all relations, float32 [R, k]; width: of an entity's vector."""
        size, bound = (width // 2, math.pi) if self.angles else (width, math.sqrt(6 / width))
        return blocks.uniform(random.fold(key, "relation"), (relations, size), bound)


DECODERS: dict[str, Decoder] = {
    "distmult": Decoder(distmult, torch.mul, lambda r: r, products),
    "complex": Decoder(complex_product, lambda x, r: _rotation(x, *_halves(r)), _conjugate, products, halves=True),
    "transe": Decoder(transe, torch.add, torch.neg, _distances(1.0)),
    "rotate": Decoder(
        rotate, lambda x, r: _rotation(x, r.cos(), r.sin()), torch.neg, _distances(2.0), halves=True, angles=True
    ),
}

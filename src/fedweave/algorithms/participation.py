"""Which clients take part in a round."""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.federation import Federation


def sample(fed: Federation, share: float) -> list[str]:
    """round(share · P) clients, at least one, without replacement, in client order. Who they are depends on clients'
    names, and not on the order in which these are listed."""
    named, count = sorted(fed.clients, key=_natural), max(1, round(share * len(fed.clients)))
    drawn = torch.argsort(random.bits(fed.key("participation"), len(named)))[:count]
    chosen = {named[at] for at in drawn.tolist()}
    return [client for client in fed.clients if client in chosen]


def places(fed: Federation, clients: Sequence[str]) -> Tensor:
    """int64 [P]: the places of `clients` among all."""
    place = {client: at for at, client in enumerate(fed.clients)}
    return torch.tensor([place[client] for client in clients], device=fed.device)


def _natural(name: str) -> tuple[list[tuple[bool, int, str]], str]:
    """Names in the order of the numbers in them: client-2 before client-10."""
    parts = re.split(r"([0-9]+)", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts], name

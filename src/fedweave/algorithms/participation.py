"""The choice of the clients of a round."""

import re
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.federation import Federation


def sample(fed: Federation, share: float) -> list[str]:
    """round(share · P) clients, at least one, without replacement, in client order. The draw depends on clients' names,
    and not on their order."""
    return draw_clients(fed.clients, fed.key("participation"), max(1, round(share * len(fed.clients))))


def draw_clients(clients: tuple[str, ...], key: Tensor, count: int) -> list[str]:
    """`count` random clients, in the order of `clients`; the draw does not depend on that order."""
    if count == len(clients):
        return list(clients)  # without waiting for a draw
    by_name = name_order(clients)
    ranks = torch.topk(random.bits(key, len(by_name)), count, largest=False, sorted=False).indices  # [count]
    return [clients[at] for at in by_name[ranks.cpu()].sort().values.tolist()]


def places(fed: Federation, clients: Sequence[str]) -> Tensor:
    """int64 [P]: the places of `clients` among all."""
    if len(clients) == len(fed.clients) and tuple(clients) == tuple(fed.clients):
        return torch.arange(len(clients), device=fed.device)
    return torch.tensor([fed.place[client] for client in clients], device=fed.device)


@lru_cache(maxsize=4)
def name_order(clients: tuple[str, ...]) -> Tensor:
    """Clients' places in the order of their names, int64 [P], by the numbers in them: client-2 before client-10.
    Sorted once: of many clients it takes longer than their draw."""

    def natural_key(at: int) -> tuple[list[tuple[bool, int, str]], str]:
        parts = re.split(r"([0-9]+)", clients[at])
        return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts], clients[at]

    return torch.tensor(sorted(range(len(clients)), key=natural_key), device="cpu")

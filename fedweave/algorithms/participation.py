"""Which clients take part in a round."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.federation import Federation


def sample(fed: Federation, share: float) -> list[str]:
    """round(share · P) clients, at least one, without replacement, in client order."""
    count = max(1, round(share * len(fed.clients)))
    order = torch.argsort(random.bits(fed.key("participation"), len(fed.clients)))
    return [fed.clients[at] for at in sorted(order[:count].tolist())]


def places(fed: Federation, clients: Sequence[str]) -> Tensor:
    """int64 [P]: the places of `clients` among all."""
    place = {client: at for at, client in enumerate(fed.clients)}
    return torch.tensor([place[client] for client in clients], device=fed.device)

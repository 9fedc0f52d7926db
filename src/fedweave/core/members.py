"""The members of one client that holds what all of them hold, so that each can be scored on its own."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedweave.core.portions import Batch
from fedweave.core.replies import Replies
from fedweave.core.sizes import size_classes
from fedweave.core.tree import leaves, nest


def by_size(members: Mapping[str, Tensor]) -> tuple[tuple[tuple[str, int], ...], tuple[Tensor, ...]]:
    """(member, its place among all) and, in the same order, what each holds, int64 [M, m] for those of one size, padded
    by -1."""
    sizes = size_classes([len(own) for own in members.values()])
    order = sorted(range(len(members)), key=sizes.__getitem__)
    names, held = [*members], [*members.values()]
    rows = [torch.nn.functional.pad(held[at], (0, sizes[at] - len(held[at])), value=-1) for at in order]
    widths = dict.fromkeys(len(row) for row in rows)
    classes = tuple(torch.stack([row for row in rows if len(row) == width]) for width in widths)
    return tuple((names[at], at) for at in order), classes


def of_members(replies: Replies, members: tuple[tuple[str, int], ...]) -> Replies:
    """The replies of all members, from the one client's: its leaves [M, …] have a row for each, in the order of
    `members` (`by_size`). As it is where there are none, or where the reply has no such rows."""
    if not members or not len(replies):
        return replies
    [client] = replies.clients
    flat = dict(leaves(replies[client]))
    if any(leaf.shape[:1] != (len(members),) or leaf.dim() < 2 for leaf in flat.values()):
        return replies
    names = [name for name, _ in sorted(members, key=lambda own: own[1])]
    return Replies(names, [Batch(tuple(at for _, at in members), nest(flat))], {})

"""The server's side of a secure sum: what is to be taken away from the sum of masked terms."""

from collections.abc import Mapping, Sequence

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir

from fedweave.errors import FedweaveError
from fedweave.privacy.aggregation.messages import Advert, Answers, Group, Use
from fedweave.privacy.aggregation.pads import add_pad, agreed, private_key
from fedweave.privacy.aggregation.participant import pair_pad, self_pad


def leftover(
    words: Sequence[np.ndarray],
    group: Group,
    use: Use,
    survivors: Sequence[str],
    answers: Sequence[Answers],
    adverts: Mapping[str, Advert],
) -> None:
    """Take the masks that are left in the sum of the survivors' terms away from unsigned `words`, in place: everybody's
    self mask, and the pads that survivors share with those whose terms did not come.

    words: the sum, or one of its terms.

    Raises:
        FedweaveError: too few shares of a site have come, or they do not belong together; names it.
    """
    for site in survivors:
        seed = next((own.mask[site] for own in answers if site in own.mask), None)
        seed = _put_together(site, group, answers) if seed is None else seed
        add_pad(self_pad(seed, group, use, site), words, -1)
    for lost in (site for site in use.peers if site not in survivors):
        key = private_key(_put_together(lost, group, answers))
        if key.public_key().public_bytes_raw() != adverts[lost].keys[1 + use.slot]:
            raise FedweaveError(f"secure sum: the shares of the key of {lost!r} do not belong together.")
        for site in survivors:
            secret = agreed(key, adverts[site].keys[1 + use.slot])
            add_pad(pair_pad(secret, group, use, site, lost), words, -group.sign(site, lost))


def _put_together(site: str, group: Group, answers: Sequence[Answers]) -> bytes:
    found = {holder: share for own in answers for holder, share in own.shares.get(site, {}).items()}
    if len(found) < group.needed:
        raise FedweaveError(
            f"secure sum: {len(found)} shares of the secrets of {site!r} have come, and {group.needed} are needed to "
            "do without it. Bring the sites back and resume the run."
        )
    some = list(found)[: group.needed]
    return Shamir.combine([(group.place[holder] + 1, found[holder]) for holder in some])

"""Which of a site's releases are the same as before."""

import dataclasses
import hashlib

from fedweave.core.federation import StepInfo
from fedweave.core.mechanism import Mechanism, release_of
from fedweave.core.tree import Tree, encode
from fedweave.engines.calls import check_permanent


def with_fingerprints(step: str, info: StepInfo, reply: Tree, state: Tree) -> StepInfo:
    """`info` with every release id followed by a fingerprint of the entry of `state` that it names.

    What a site draws again, because it went back to an earlier state or in another run, is so another release.

    Raises:
        FedweaveError: the state has no such entry.
    """
    check_permanent(step, info, reply, state)
    permanent = {key: own for key, own in info.sends.items() if any(map(release_of, own.mechanisms))}

    def marked(mechanism: Mechanism) -> Mechanism:
        name = release_of(mechanism)
        if not name or name not in state:
            return mechanism
        mark = hashlib.blake2b(encode({name: state[name]}), digest_size=16).hexdigest()
        return dataclasses.replace(mechanism, release=f"{name}:{mark}")  # type: ignore[arg-type]

    found = {
        key: dataclasses.replace(own, mechanism=tuple(map(marked, own.mechanisms))) for key, own in permanent.items()
    }
    return dataclasses.replace(info, sends={**info.sends, **found})

"""Privacy noise of a site's own."""

import hashlib
import os
from pathlib import Path

import torch
from torch import Tensor

from fedweave.core.federation import Lasting
from fedweave.deploy.flare.holdings import LabelVersion
from fedweave.deploy.flare.sitefile import read_secret
from fedweave.ops import secret


def noise_key(path: Path) -> Tensor:
    """A secret key for privacy noise (`ops.secret`) from the site's own secret and fresh entropy: nobody else can
    compute it, not even from noise that left, and no two calls share it.

    Raises:
        ConfigError: there is no secret, or others can read it.
    """
    key = read_secret(path)
    return secret.from_bytes(hashlib.blake2b(os.urandom(32), key=key, digest_size=64).digest())


def lasting(path: Path, version: LabelVersion | None) -> Lasting | None:
    """What noise on labels is drawn from, in every run the same: from the site's own secret, and of the labels as they
    are; None where nothing says which these are.

    Raises:
        ConfigError: as `noise_key`.
    """
    if version is None:
        return None
    key = hashlib.blake2b(b"labels" + version.fingerprint, key=read_secret(path), digest_size=64).digest()
    return Lasting(secret.from_bytes(key), torch.from_numpy(version.places), version.held)

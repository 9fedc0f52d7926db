"""Privacy noise of a site's own."""

import hashlib
import os
from pathlib import Path

from torch import Tensor

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

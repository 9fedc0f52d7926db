"""Privacy noise of a site's own."""

import hashlib
import os
from pathlib import Path

from torch import Tensor

from fedweave.core import random
from fedweave.deploy.flare.sitefile import read_secret


def noise_key(path: Path) -> Tensor:
    """A key for privacy noise from the site's own secret and fresh entropy: neither the server nor a later call can
    work it out, and no two calls share it.

    Raises:
        ConfigError: there is no secret, or others can read it.
    """
    key = read_secret(path)
    return random.key(int.from_bytes(hashlib.blake2b(os.urandom(32), key=key, digest_size=8).digest()))

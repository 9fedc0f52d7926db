"""Federations of real sites on NVIDIA FLARE's Collab API; the only part of fedweave that imports nvflare.

`fedweave sites` is the way in: it provisions a project (`provision`), runs its processes and submits jobs. In a
job, the server's process runs the algorithm on `federation.Flare`; each site's process answers calls
(`site.Site`).
"""

from importlib.util import find_spec

from fedweave.errors import UserError


def require_nvflare() -> None:
    """Refuse to continue without NVFlare.

    Raises:
        UserError: it is not installed.
    """
    if find_spec("nvflare") is None:
        raise UserError('federations of real sites need NVFlare: pip install "fedweave[flare]".')

"""The server's long-lived process, and what the site's processes share with it. It is NVFlare's process with two
additions. First, it rejects certificates that the project's authority has revoked: in the TLS handshake, when a member
proves its name, and before it encrypts anything for a certificate. NVFlare itself does not support revocation. Second,
it serves metrics if its owner asks for that.
"""

import logging
import ssl
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from nvflare.fuel.f3.cellnet import cell_cipher
from nvflare.fuel.f3.drivers import net_utils
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.private.fed.app.server import server_train
from nvflare.private.fed.app.utils import version_check
from nvflare.private.fed.utils.identity_utils import IdentityVerifier

from fedweave.core.types import Record
from fedweave.deploy.flare.folder import LOG, fields, log_to, metrics_port
from fedweave.errors import CallRefused, FedweaveError
from fedweave.privacy.aggregation import REFUSED, REVOKED, STARTUP, read_root

_CONTEXT, _CHAIN, _NAME = net_utils.get_ssl_context, cell_cipher.verify_cert_chain, IdentityVerifier.verify_common_name


def load_revoked(context: ssl.SSLContext, kit: Path) -> ssl.SSLContext:
    """Make a TLS context reject the certificates on the revocation list in a kit's folder, if there is a list."""
    if (path := kit / REVOKED).exists():
        context.load_verify_locations(path)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def obey(kit: Path) -> None:
    """Make this process use the revocation list in a kit's folder. Connections use the list that is there when the
    process begins to accept them; all other checks use the present list."""

    def context(params: Record, ssl_server: bool) -> ssl.SSLContext | None:
        tls = _CONTEXT(params, ssl_server)
        return None if tls is None else load_revoked(tls, Path(params[DriverParams.CA_CERT.value]).parent)

    def chain(leaf_cert: Any, *more: object, **named: object) -> object:
        _check(leaf_cert, kit)
        return _CHAIN(leaf_cert, *more, **named)

    def name(self: IdentityVerifier, *more: object, asserter_cert: Any, **named: object) -> object:
        _check(asserter_cert, kit)
        return _NAME(self, *more, asserter_cert=asserter_cert, **named)

    net_utils.get_ssl_context, cell_cipher.verify_cert_chain = context, chain
    IdentityVerifier.verify_common_name = name


def _check(certificate: Any, kit: Path) -> None:
    if certificate.serial_number in read_root(kit).revoked:
        raise CallRefused(f"the certificate of {certificate.subject.rfc4514_string()} was revoked", code=REFUSED)


def main(train: ModuleType = server_train) -> int:
    """Run the server, or a site with NVFlare's `client_train`, until it is stopped. It takes the arguments of NVFlare's
    module."""
    version_check()
    args = train.parse_arguments()
    obey(Path(args.workspace) / STARTUP)
    expose(Path(args.workspace))
    return int(train.mpm.run(main_func=train.main, run_dir=args.workspace, args=args) or 0)


def expose(folder: Path) -> None:
    """Serve `gauges.Gauges` if the member's file names a port. If the port is not available, the process runs without
    metrics."""
    log_to(folder / LOG)
    try:
        if port := metrics_port(folder):
            from fedweave.deploy.sites.gauges import serve  # with PyTorch, which the process needs for nothing else

            serve(folder, port)
    except (FedweaveError, OSError) as error:
        log = logging.getLogger("fedweave.gauges")
        log.error("no metrics (metrics_port): %s", error, extra=fields("no-metrics", reason=str(error)))


if __name__ == "__main__":
    sys.exit(main())

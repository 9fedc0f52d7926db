"""The server's long-lived process, and what the site's processes have in common with it: NVFlare's own, which take no
certificate that the project's authority has revoked, in the TLS handshake, as a name is shown to be one's own, and
before anything is encrypted for it. NVFlare itself knows of no revocation. And which tell what monitors them if their
owner asks for that.
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
from fedweave.deploy.flare.folder import LOG, log_to, metrics_port
from fedweave.errors import CallRefused, FedweaveError
from fedweave.privacy.aggregation import REFUSED, REVOKED, STARTUP, read_root

_CONTEXT, _CHAIN, _NAME = net_utils.get_ssl_context, cell_cipher.verify_cert_chain, IdentityVerifier.verify_common_name


def load_revoked(context: ssl.SSLContext, kit: Path) -> ssl.SSLContext:
    """Have a TLS context refuse what the list in a kit's folder revokes, if there is one."""
    if (path := kit / REVOKED).exists():
        context.load_verify_locations(path)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def obey(kit: Path) -> None:
    """Have this process heed the list in a kit's folder: connections the one that is there when they begin to be taken,
    all else the present one."""

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
    """Run the server, or a site by NVFlare's `client_train`, until it is stopped; the arguments are those of NVFlare's
    module."""
    version_check()
    args = train.parse_arguments()
    obey(Path(args.workspace) / STARTUP)
    expose(Path(args.workspace))
    return int(train.mpm.run(main_func=train.main, run_dir=args.workspace, args=args) or 0)


def expose(folder: Path) -> None:
    """Serve `gauges.Gauges` where the member's file names a port; a port that cannot be had costs no more than
    these."""
    log_to(folder / LOG)
    try:
        if port := metrics_port(folder):
            from fedweave.deploy.sites.gauges import serve  # with PyTorch, which the process needs for nothing else

            serve(folder, port)
    except (FedweaveError, OSError) as error:
        logging.getLogger("fedweave.gauges").error("no metrics (metrics_port): %s", error)


if __name__ == "__main__":
    sys.exit(main())

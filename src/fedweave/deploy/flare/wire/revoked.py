"""Processes of NVFlare's that take no certificate which the project's authority has revoked: in the TLS handshake, as a
name is shown to be one's own, and before anything is encrypted for it. NVFlare itself knows of no revocation."""

import ssl
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.cellnet import cell_cipher
from nvflare.fuel.f3.drivers import net_utils
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.private.fed.utils.identity_utils import IdentityVerifier

from fedweave.errors import CallRefused
from fedweave.privacy.aggregation import REFUSED, REVOKED, read_root

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

    def context(params: dict[str, Any], ssl_server: bool) -> ssl.SSLContext | None:
        made = _CONTEXT(params, ssl_server)
        return None if made is None else load_revoked(made, Path(params[DriverParams.CA_CERT.value]).parent)

    def chain(leaf_cert: Any, *more: Any, **named: Any) -> Any:
        _check(leaf_cert, kit)
        return _CHAIN(leaf_cert, *more, **named)

    def name(self: IdentityVerifier, *more: Any, asserter_cert: Any, **named: Any) -> Any:
        _check(asserter_cert, kit)
        return _NAME(self, *more, asserter_cert=asserter_cert, **named)

    net_utils.get_ssl_context, cell_cipher.verify_cert_chain = context, chain
    IdentityVerifier.verify_common_name = name


def _check(certificate: Any, kit: Path) -> None:
    if certificate.serial_number in read_root(kit).revoked:
        raise CallRefused(f"the certificate of {certificate.subject.rfc4514_string()} was revoked", code=REFUSED)

"""The files with which a process of a project starts, looked at before it does."""

import json
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from fedweave.deploy.flare.provision import USER, kind
from fedweave.deploy.flare.requests import SERVER
from fedweave.deploy.sites.certificates import certificate, check_certificate, check_issuer, check_name
from fedweave.errors import UserError
from fedweave.runs.files import read

ROOT = "rootCA.pem"  # the authority's certificate, beside a member's own
AGAIN = "Ask the project's operator for the folder again"


def check_startup(folder: Path) -> Path:
    """Refuse the folder of a member, or of the administrator, whose certificate is not valid now, or not its own by the
    authority and with the key beside it; or whose settings are damaged. Returns the certificate's file.

    Raises:
        UserError: names the file.
    """
    path = folder / "startup" / f"{kind(folder)}.crt"
    check_certificate(path)
    check_issuer(path, path.with_name(ROOT))
    check_name(path, _name(folder))
    check_key(path.with_suffix(".key"), path)
    check_settings(folder)
    return path


def _name(folder: Path) -> str:
    """In whose name the certificate in a folder is to be; NVFlare has a site go by its folder's."""
    if (folder / "startup/fed_admin.json").exists():
        return USER
    return SERVER if kind(folder) == "server" else folder.name


def check_key(path: Path, own: Path) -> None:
    """Refuse a private key that is none, or not that of the certificate `own`.

    Raises:
        UserError: names both files.
    """
    try:
        key = load_pem_private_key(read(path), None)
    except (UserError, ValueError, TypeError) as error:
        raise UserError(f"{path} is no private key ({error}). {AGAIN}.") from error
    told = (
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        for public in (key.public_key(), certificate(own).public_key())
    )
    if len(set(told)) > 1:
        raise UserError(f"{path} is not the key of {own}: they are of different folders. {AGAIN}.")


def check_settings(folder: Path) -> None:
    """Refuse a file of settings of the process in `folder` that is damaged.

    Raises:
        UserError: names it.
    """
    for path in sorted([*folder.glob("startup/*.json"), *folder.glob("local/*.json")]):
        try:
            json.loads(read(path))
        except (UserError, ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged ({error}). {AGAIN}.") from error

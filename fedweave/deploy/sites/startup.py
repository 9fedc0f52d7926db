"""The files with which a process of a project starts, looked at before it does."""

import json
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from fedweave.deploy.sites.certificates import certificate
from fedweave.errors import UserError
from fedweave.runs.files import read

AGAIN = "Ask the project's operator for the folder again"


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

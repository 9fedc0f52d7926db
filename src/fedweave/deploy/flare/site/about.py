"""Whose site, or server, it is and what its process needs to know of its machine; the long-lived processes read this
alone, without what knows data and models."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field

from fedweave.core.records import Record
from fedweave.errors import ConfigError
from fedweave.experiment.config import load, own_parameters
from fedweave.experiment.config.choice import checked_values
from fedweave.experiment.config.settings import Device
from fedweave.experiment.config.toml import check_keys

SITE_FILE = "site.toml"  # in a site's folder
SERVER_FILE = "server.toml"  # in the server's, if its owner has written one
LOG = "fedweave.log"  # in either
LOOPBACK = "127.0.0.1"  # where `metrics_port` is
T = TypeVar("T")
Port = Annotated[int, Field(ge=0, lt=65536)]
_Word = Annotated[str, Field(max_length=500)]


@dataclass(frozen=True)
class About:
    """The table [site]: the machine that the site's steps run on, and whose site it is.

    device:     "cpu", "cuda", "cuda:1", or "auto", which takes a GPU where there is one.
    metrics_port: of the loopback interface, on which the site's process tells what monitors it; 0 for none.
    legal_name: of the site's owner, as its reports name it.
    contact:    who answers for the site's data, such as its data protection officer.
    parties:    {site, or "server": legal name of its owner} of the others, as agreed with them.
    """

    device: Device = "cpu"
    metrics_port: Port = 0
    legal_name: _Word = ""
    contact: _Word = ""
    parties: dict[str, _Word] = field(default_factory=dict)


@dataclass(frozen=True)
class ServersMachine:
    """The table [server] of the server's own file.

    metrics_port: as that of a site.
    """

    metrics_port: Port = 0


def read_about(path: Path) -> About:
    """The table [site], checked.

    Raises:
        ConfigError: see `sitefile.read_site_file`.
    """
    try:
        return table(load(path), "site", About)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", code="config.site") from error


def metrics_port(folder: Path) -> int:
    """The one in the file of the site, or of the server, in `folder`; 0 if it names none.

    Raises:
        ConfigError: see `sitefile.read_site_file`.
    """
    if (path := folder / SITE_FILE).exists():
        return read_about(path).metrics_port
    if not (path := folder / SERVER_FILE).exists():
        return 0
    document = load(path)
    try:
        check_keys("", document, ["server"])
        return table(document, "server", ServersMachine).metrics_port
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def table(document: Record, name: str, kind: type[T]) -> T:
    """The table `name` of a document as the dataclass `kind`, checked; its defaults where there is none.

    Raises:
        ConfigError: it is no table, or a key or value is not valid.
    """
    given, own = document.get(name, {}), own_parameters(kind)
    if not isinstance(given, dict):
        raise ConfigError(f"{name}: is a table, written [{name}] with its keys below, got {given!r}")
    check_keys(name, given, list(own))
    return kind(**checked_values(f"{name}.", given, own))

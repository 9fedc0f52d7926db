"""The settings of the machine of a site or of the server, in the member's own file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field

from fedweave.core.types import Record
from fedweave.errors import ConfigError
from fedweave.experiment.config import field_parameters, load
from fedweave.experiment.config.choices import check_values
from fedweave.experiment.config.sections import Device
from fedweave.experiment.config.toml import check_keys
from fedweave.sites.flare.folder import SERVER_FILE, SITE_FILE

T = TypeVar("T")
Port = Annotated[int, Field(ge=0, lt=65536)]
_Word = Annotated[str, Field(max_length=500)]


@dataclass(frozen=True)
class About:
    """The table [site]: the machine that runs the site's steps, and the site's owner.

    device:     "cpu", "cuda", "cuda:1", or "auto", which takes a GPU where there is one.
    metrics_port: port of the loopback interface on which the site's process serves metrics; 0 serves none.
    legal_name: legal name of the site's owner, for its reports.
    contact:    person or office responsible for the site's data, such as a data protection officer.
    parties:    {site, or "server": legal name of its owner} for the other members, as agreed with them.
    """

    device: Device = "cpu"
    metrics_port: Port = 0
    legal_name: _Word = ""
    contact: _Word = ""
    parties: dict[str, _Word] = field(default_factory=dict)


@dataclass(frozen=True)
class ServersMachine:
    """The table [server] of the server's own file.

    metrics_port: port of the loopback interface on which the server's process serves metrics; 0 serves none.
    """

    metrics_port: Port = 0


def read_about(path: Path) -> About:
    """The table [site], checked."""
    try:
        return table(load(path), "site", About)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", code="config.site") from error


def metrics_port(folder: Path) -> int:
    """The metrics port in the file of the site, or of the server, in `folder`; 0 if the file sets none."""
    if (folder / SITE_FILE).exists():
        return read_about(folder / SITE_FILE).metrics_port
    path = folder / SERVER_FILE
    if not path.exists():
        return 0
    document = load(path)
    try:
        check_keys("", document, ["server"])
        return table(document, "server", ServersMachine).metrics_port
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def table(document: Record, name: str, kind: type[T]) -> T:
    """The table `name` of a document as the dataclass `kind`, checked; its defaults where there is none."""
    values, parameters = document.get(name, {}), field_parameters(kind)
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: is a table, written [{name}] with its keys below, got {values!r}")
    check_keys(name, values, list(parameters))
    return kind(**check_values(f"{name}.", values, parameters))

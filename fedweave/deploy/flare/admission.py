"""Which configurations a site takes from a server: what it names is judged before any of it is looked up."""

from pathlib import Path

from fedweave import outside
from fedweave.config import Config, Document, resolve
from fedweave.deploy.flare.policy import PolicyViolation, check_algorithm
from fedweave.deploy.flare.sitefile import Rules


def admitted(rules: Rules, document: Document) -> Config:
    """The configuration in a server's `document`, if the site's policy lets it run.

    Raises:
        PolicyViolation: it names a Python file or an algorithm that the policy does not. ConfigError: it is not valid.
    """
    check_files(rules, document)
    config = resolve(document)
    check_algorithm(rules, config.algorithm.name)
    return config


def check_files(rules: Rules, document: Document) -> None:
    """Refuse a document that names a plug-in by a file, "file.py:Name", that `policy.files` does not: to look it up is
    to run it.

    Raises:
        PolicyViolation: names the file and what to do.
    """
    allowed = {Path(file).expanduser().resolve() for file in rules.files}
    for file in outside.files_in(document):
        if file not in allowed:
            raise PolicyViolation(
                f"policy.files: the job names {file}, which this site would run; its owner can list it there, or "
                "install a package that announces the plug-in (docs/extending.md)"
            )

"""One line about each plug-in, and what its parameters mean."""

import pytest

from fedweave.algorithms import PARTS
from fedweave.experiment import config
from fedweave.experiment.config.plugins import REGISTRIES, parameters
from fedweave.reports.listing import meanings, one_line, source, type_name

KINDS = {f"{section} {name}": kind for section in REGISTRIES for name, kind in config.registry(section).items()}
KINDS |= {f"part {name}": kind for name, kind in PARTS.items()}


class Cited:
    """The term of Li et al. 2020, eq. 2, which
    keeps clients together. A second sentence.

    More.
    """


def test_one_line_is_the_first_sentence_and_an_abbreviation_does_not_end_it() -> None:
    assert one_line(Cited) == "The term of Li et al. 2020, eq. 2, which keeps clients together."


class Base:
    """A base.

    width, height: of it, which
        are two numbers.
    Raises: nothing.
    """


class Heir(Base):
    """An heir.

    height: another one.

    depth: of the heir.
    More about it.
    """


def test_meanings_are_read_from_the_docstrings_of_a_class_and_its_bases() -> None:
    assert meanings(Heir) == {
        "width": "of it, which are two numbers.",
        "height": "another one.",
        "depth": "of the heir.",
    }


def test_the_paper_of_an_algorithm_is_what_its_file_begins_with() -> None:
    assert source(config.registry("algorithm")["ditto"]).startswith("Ditto: Li et al. 2021, ")
    assert "Deviations" not in source(config.registry("algorithm")["fedadam"])


@pytest.mark.parametrize("name", KINDS)
def test_every_parameter_says_what_it_means(name: str) -> None:
    told = meanings(KINDS[name])
    skipped = {"model"} if name.startswith("algorithm ") else set()
    assert not config.field_parameters(KINDS[name]).keys() - told.keys() - skipped


def test_types_are_told_in_words() -> None:
    """No setting of any plug-in shows how a type is written inside Python."""
    kinds = ((section, kind) for section in REGISTRIES for kind in config.registry(section).values())
    told = [type_name(own) for section, kind in kinds for own in parameters(section, kind).values()]
    assert {"int of at least 1 | 'auto'", "float above 0 and at most 1"} <= {*told}
    assert not [name for name in told if "Union[" in name or "Annotated" in name or "Literal" in name]

"""One line about each plug-in."""

from fedweave.report.listing import one_line


class Cited:
    """The term of Li et al. 2020, eq. 2, which
    keeps clients together. A second sentence.

    More.
    """


def test_one_line_is_the_first_sentence_and_an_abbreviation_does_not_end_it() -> None:
    assert one_line(Cited) == "The term of Li et al. 2020, eq. 2, which keeps clients together."

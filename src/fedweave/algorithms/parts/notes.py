"""Settings that parts cannot live with: what is noted before training, naming the part and what to do. What is wrong is
refused (`conflicts`)."""

from collections.abc import Callable, Iterator

from fedweave.algorithms.parts.conflicts import Parts, Settings, Test
from fedweave.algorithms.parts.part import Part

# A part, settings, and what is noted where both are given: nothing of it is wrong, but it does nothing, or no good.
NOTED: tuple[tuple[Test, Callable[[Part, Settings], object], str], ...] = (
    (
        lambda part: bool(part.needs.several_steps),
        lambda part, given: given.one_step,
        "{one}: with local_steps = 1 training ends before {part.needs.several_steps}",
    ),
    (
        lambda part: part.needs.suits is not None,
        lambda part, given: given.optimizer != part.needs.suits,
        "{one} is made for steps of {part.needs.suits}, and those of {given.optimizer} are as long however flat the "
        "objective is; set optimizer = '{part.needs.suits}'",
    ),
    (
        lambda part: part.needs.pull > 0,
        lambda part, given: given.optimizer == "sgd" and given.lr * part.needs.pull > 2,
        "{one}: a step of lr = {given.lr:g} along a pull of strength {part.needs.pull:g} goes beyond where it leads, "
        "and the next ones further; take lr · strength below 2",
    ),
)


def noted(parts: Parts, given: Settings) -> Iterator[str]:
    """What is worth a note, by parts."""
    for name, part in parts.items():
        for concerned, found, sentence in NOTED:
            if concerned(part) and found(part, given):
                yield sentence.format(one=name, part=part, given=given)

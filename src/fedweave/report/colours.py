"""The page's colours, each for light and dark paper, so that it can be told from the paper in both; and its dashes."""

import colorsys
from collections.abc import Sequence

PAPER = ("#ffffff", "#16191d")  # light and dark
DRAWN, WRITTEN = 3.0, 4.5  # least contrast of what is drawn and of text (WCAG 2.2, 1.4.11 and 1.4.3)
# Okabe and Ito 2008, "Color universal design", without the yellow that paper does not show.
# Three more, darker, for a seventh line and those after it.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#882255", "#6A3D9A", "#7F6000")
# Of lines two pixels wide, as SVG has them: they tell as many lines apart in grey.
DASHES = ("", "7 4", "2 3", "8 3 2 3", "14 4", "8 3 2 3 2 3", "4 8", "14 3 4 3", "2 8", "4 3 4 10")
# Tol 2021, "Colour schemes", muted: for classes, which are more than the runs. Orange stands for its olive, which sand
# looks like where it is dark enough for paper.
CLASSES = ("#332288", "#88CCEE", "#44AA99", "#117733", "#EE7733", "#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB")
# Cividis (Nuñez, Anderton and Renslow 2018), at equal distances.
SCALE = ("#00224E", "#35456C", "#666970", "#948E77", "#C8B866", "#FEE838")


def contrast(one: str, other: str) -> float:
    """The contrast of two colours "#rrggbb", 1 to 21 (WCAG 2.2)."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def ink(paper: str) -> str:
    """Black or white, whichever stands out more."""
    return max(("#000000", "#ffffff"), key=lambda colour: contrast(colour, paper))


def legible(colour: str, paper: str, least: float = DRAWN) -> str:
    """The colour, made lighter or darker until it has this contrast to the paper; its hue stays."""
    dark = _luminance(paper) < 0.5
    hue, light, saturation = colorsys.rgb_to_hls(*_rgb(colour))
    while contrast(colour, paper) < least and 0 < light < 1:
        light = min(1.0, light + 0.02) if dark else max(0.0, light - 0.02)
        colour = _hex(colorsys.hls_to_rgb(hue, light, saturation))
    return colour if contrast(colour, paper) >= least else ("#ffffff" if dark else "#000000")


def tone(colour: str) -> str:
    """The colour as CSS, as it is drawn on light and on dark paper."""
    light, dark = (legible(colour, paper) for paper in PAPER)
    return light if light == dark else f"light-dark({light}, {dark})"


def of_run(at: int) -> str:
    """The tone of one run among several."""
    return tone(COLOURS[at % len(COLOURS)])


def of_classes(count: int) -> list[str]:
    """A tone for each class."""
    if count <= len(CLASSES):
        return [tone(colour) for colour in CLASSES[:count]]
    return [tone(shade(at / (count - 1))) for at in range(count)]


def shade(share: float) -> str:
    """The colour of a number from 0 to 1."""
    place = min(max(share, 0.0), 1.0) * (len(SCALE) - 1)
    at = min(int(place), len(SCALE) - 2)
    pairs = zip(_rgb(SCALE[at]), _rgb(SCALE[at + 1]), strict=True)
    return _hex([a + (b - a) * (place - at) for a, b in pairs])


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def _hex(rgb: Sequence[float]) -> str:
    return "#" + "".join(f"{round(255 * one):02x}" for one in rgb)


def _luminance(colour: str) -> float:
    parts = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in _rgb(colour)]
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

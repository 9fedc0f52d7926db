"""The page's colors and dashes: each color has one tone for light and one for dark paper, legible on both."""

import colorsys
from collections.abc import Sequence

PAPER = ("#ffffff", "#16191d")  # light and dark
MIN_MARK_CONTRAST, MIN_TEXT_CONTRAST = 3.0, 4.5  # WCAG 2.2, 1.4.11 and 1.4.3
# Okabe and Ito 2008, "Color universal design", without the yellow that paper does not show.
# Three more, darker, for a seventh line and those after it.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#882255", "#6A3D9A", "#7F6000")
# SVG dashes for lines two pixels wide: a reader can distinguish the same number of lines in gray.
DASHES = ("", "7 4", "2 3", "8 3 2 3", "14 4", "8 3 2 3 2 3", "4 8", "14 3 4 3", "2 8", "4 3 4 10")
# Tol 2021, "Color schemes", muted: for classes, which are more than the runs. Orange stands for its olive, which sand
# looks like where it is dark enough for paper.
CLASSES = ("#332288", "#88CCEE", "#44AA99", "#117733", "#EE7733", "#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB")
# Cividis (Nuñez, Anderton and Renslow 2018), at equal distances.
SCALE = ("#00224E", "#35456C", "#666970", "#948E77", "#C8B866", "#FEE838")


def contrast(one: str, other: str) -> float:
    """The contrast of two colors "#rrggbb", 1 to 21 (WCAG 2.2)."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def ink(paper: str) -> str:
    """Black or white, the one that has the higher contrast to the paper."""
    return max(("#000000", "#ffffff"), key=lambda color: contrast(color, paper))


def legible(color: str, paper: str, min_contrast: float = MIN_MARK_CONTRAST) -> str:
    """The color, made lighter or darker until it has this contrast to the paper; its hue stays."""
    dark = _luminance(paper) < 0.5
    hue, light, saturation = colorsys.rgb_to_hls(*_rgb(color))
    while contrast(color, paper) < min_contrast and 0 < light < 1:
        light = min(1.0, light + 0.02) if dark else max(0.0, light - 0.02)
        color = _hex(colorsys.hls_to_rgb(hue, light, saturation))
    if contrast(color, paper) < min_contrast:
        return "#ffffff" if dark else "#000000"
    return color


def tone(color: str) -> str:
    """The color as CSS, as it is drawn on light and on dark paper."""
    light, dark = legible(color, PAPER[0]), legible(color, PAPER[1])
    return light if light == dark else f"light-dark({light}, {dark})"


def run_tone(index: int) -> str:
    """The tone of one run among several."""
    return tone(COLORS[index % len(COLORS)])


def class_tones(count: int) -> list[str]:
    """A tone for each class."""
    if count <= len(CLASSES):
        return [tone(color) for color in CLASSES[:count]]
    return [tone(shade(index / (count - 1))) for index in range(count)]


def shade(share: float) -> str:
    """The color of a number from 0 to 1."""
    place = min(max(share, 0.0), 1.0) * (len(SCALE) - 1)
    index = min(int(place), len(SCALE) - 2)
    channels = zip(_rgb(SCALE[index]), _rgb(SCALE[index + 1]), strict=True)
    return _hex([low + (high - low) * (place - index) for low, high in channels])


def _rgb(color: str) -> tuple[float, float, float]:
    return int(color[1:3], 16) / 255, int(color[3:5], 16) / 255, int(color[5:7], 16) / 255


def _hex(rgb: Sequence[float]) -> str:
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in rgb)


def _luminance(color: str) -> float:
    """The relative luminance, 0 to 1 (WCAG 2.2): the weighted sum of sRGB's channels in linear light."""
    total = 0.0
    for weight, channel in zip((0.2126, 0.7152, 0.0722), _rgb(color), strict=True):
        total += weight * (channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4)
    return total

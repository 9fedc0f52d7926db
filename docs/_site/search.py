"""What the site's search answers first: weights of pages by their kind, and words that lead to a page although its
headings do not have them."""

import re
from typing import Any

# (pattern of a page, weight), the first that fits; 0 leaves the page out. Other pages weigh 1.
WEIGHTS = (
    (r"results/", 0.0),  # tables of papers
    (r"changelog", 0.05),
    (r"reference/(python|writing)|reference/errors", 0.1),
    (r"findings/|benchmarks|internals|architecture|contributing|reproducing", 0.2),
    (r"reference/", 0.4),
)
# {page: what people type who look for it}. The page answers these words, though its headings may have others.
WORDS = {
    "contributions.md": ("payoff",),
    "data-format.md": ("own data", "missing values"),
    "deployment.md": ("certificate", "new client"),
    "extending.md": ("add model",),
    "first-steps.md": ("resume",),
    "privacy.md": ("epsilon",),
    "rare.md": ("average precision", "calibration", "recall@1%", "threshold"),
    "training.md": ("learning rate", "optimizer"),
}


def meta(page: str) -> dict[str, Any]:
    """What the front matter of a page (its path in the site) says to the search.

    The theme shows a page's words below a hit, as its tags.
    """
    result: dict[str, Any] = {}
    if page in WORDS:
        result["tags"] = list(WORDS[page])
    for pattern, weight in WEIGHTS:
        if re.match(pattern, page):
            result["search"] = {"boost": weight} if weight else {"exclude": True}
            break
    return result

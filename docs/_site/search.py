"""What the site's search answers first: weights of pages by their kind, and the pages that answer frequent queries."""

import re
from typing import Any

# (pattern of a page, weight), the first that fits; 0 leaves the page out. Other pages weigh 1.
WEIGHTS = (
    (r"results/", 0.0),  # tables of papers
    (r"data-format", 2.0),  # what a search for only "data" looks for
    (r"changelog", 0.05),
    (r"reference/(python|writing)|reference/errors", 0.1),
    (r"findings/|benchmarks|internals|architecture|contributing|reproducing", 0.2),
    (r"reference/", 0.4),
)
# {what people type: the page that answers it}. They become words that search finds the page by, as headings are.
ANSWERS = {
    "add model": "extending-modules.md",
    "average precision": "rare.md",
    "byzantine": "robustness.md",
    "certificate": "certificates.md",
    "cite": "index.md",
    "differential privacy": "privacy.md",
    "drift": "after-deployment.md",
    "early stopping": "training.md",
    "epsilon": "privacy.md",
    "export": "exporting.md",
    "GDPR": "gdpr.md",
    "GPU": "scale.md",
    "learning rate": "training.md",
    "link prediction": "links.md",
    "missing values": "data-columns.md",
    "molecules": "molecules.md",
    "new client": "add-site.md",
    "number of clients": "scale.md",
    "optimizer": "training.md",
    "own data": "data-format.md",
    "policy": "policy.md",
    "recall@1%": "rare.md",
    "resume": "first-steps.md",
    "secure aggregation": "security.md",
    "threshold": "rare.md",
}


def meta(page: str) -> dict[str, Any]:
    """What the front matter of a page (its path in the site) says to the search.

    The theme shows a page's words below a hit, as its tags.
    """
    result: dict[str, Any] = {}
    words = [query for query, answer in ANSWERS.items() if answer == page]
    if words:
        result["tags"] = words
    for pattern, weight in WEIGHTS:
        if re.match(pattern, page):
            result["search"] = {"boost": weight} if weight else {"exclude": True}
            break
    return result

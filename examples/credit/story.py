"""Six lenders train alone, together, and together to treat two age groups alike; writes one page about it.

python examples/credit/story.py [--out credit-story.html] [--set section.key=value …]
"""

import argparse
import sys
from pathlib import Path

import page
from training import trained

from fedweave.errors import FedweaveError, UserError


def main(arguments: list[str] | None = None) -> int:
    """Write the page; the exit code: 2 if the data is absent or a setting is wrong, 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("credit-story.html"), metavar="FILE")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="repeatable")
    given = parser.parse_args(arguments)
    try:
        outcomes = {}
        for number, (algorithm, words) in enumerate(page.WAYS.items(), 1):
            print(f"{number}/{len(page.WAYS)} {words.lower()} …", flush=True)
            outcomes[algorithm] = trained(algorithm, given.set)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(page.render(outcomes), encoding="utf-8")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (FedweaveError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"written: {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Six lenders train on their own, together, and together with equal treatment of two age groups; writes one page.

python examples/credit/story.py [--out credit-story.html] [--set section.key=value …]
"""

import argparse
import sys
from pathlib import Path

import page
from training import train_lenders

from fedweave.errors import FedweaveError, UserError


def main(arguments: list[str] | None = None) -> int:
    """Write the page; the exit code: 2 if the data is absent or a setting is wrong, 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("credit-story.html"), metavar="FILE")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="repeatable")
    args = parser.parse_args(arguments)
    try:
        outcomes = {}
        for number, (algorithm, words) in enumerate(page.WAYS.items(), 1):
            print(f"{number}/{len(page.WAYS)} {words.lower()} …", flush=True)
            outcomes[algorithm] = train_lenders(algorithm, args.set)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(page.render(outcomes), encoding="utf-8")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (FedweaveError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"written: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

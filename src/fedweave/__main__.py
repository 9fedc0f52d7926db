"""`python -m fedweave` is the `fedweave` command."""

from fedweave.cli import main

main()

"""`python -m laconic` is the command line."""

from laconic.cli import main

main()

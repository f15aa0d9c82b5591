"""`python -m shorthaul`: the same as the command `shorthaul`, for the Python that is named."""

from shorthaul.cli import main

main()

"""``python -m haotuner``: the same as the haotuner command."""

from haotuner.entry import main

main()

"""`python -m bayesbits` is `bayesbits`."""

from bayesbits.cli.main import main

main()

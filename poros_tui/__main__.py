"""`python -m poros_tui` is the command `poros-tui`."""

from poros_tui.cli import main

if __name__ == "__main__":
    main()

"""`python -m poros` is the command `poros`."""

from poros.cli import main

if __name__ == "__main__":
    main()

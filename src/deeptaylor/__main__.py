"""`python -m deeptaylor`: the command."""

from deeptaylor.app.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m deeptaylor.server`: the page."""

from deeptaylor.app.server.main import main

if __name__ == "__main__":
    raise SystemExit(main())

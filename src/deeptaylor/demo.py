"""`python -m deeptaylor.demo`: five photographs explained."""

from deeptaylor.app.demo import main

if __name__ == "__main__":
    raise SystemExit(main())

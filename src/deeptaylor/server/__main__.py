"""`python -m deeptaylor.server` starts the page."""

from deeptaylor.server.main import main

raise SystemExit(main())

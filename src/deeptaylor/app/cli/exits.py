"""Exit codes, as the help of every verb documents them."""

FINE = 0
CHECK_FAILED = 1  # the network cannot be explained, a ledger does not close, an export differs, the doctor is worried
BAD_INPUT = 2  # nothing was done
SOME_FAILED = 3  # of several photographs
OWN_ERROR = 70  # ours, not the user's
INTERRUPTED = 130

EXITS = (
    "Exit codes: 0 fine; 1 a check failed; 2 bad input; 3 some of several photographs failed; 70 an error in "
    "deeptaylor itself; 130 interrupted."
)

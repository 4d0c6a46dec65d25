"""The page `deeptaylor serve`: a picture in, an explanation out, on this machine alone.

    browser ──► security ──► app ──► jobs ──► explaining ──► the library
                 Host         routes   one at    bytes and
                 Origin       limits   a time,   options to
                 token                 bounded   an answer

    models        the networks on offer, and how far each has been loaded
    options       what can be asked for, and the Python and the command that ask for the same
    schema        what is answered
    folders       words without this machine's folders
    connections   a clock for each, and only so many
    opening       a browser, without the token on its command line
    main          the command

No request leaves anything behind: the picture and every option come with it, and the answer depends on nothing else.
That is why one request cannot see another's.
"""

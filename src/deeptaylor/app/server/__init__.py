"""The page `deeptaylor serve`: a picture in, an explanation out, on this machine alone.

    browser ──► security ──► app ──► jobs ──► explaining ──► the library
                 Host         routes   one at    bytes and           │
                 Origin       limits   a time,   options to  ◄───────┘
                 token                 bounded   explained: numbers, maps, files; words: titles and sentences

    models        the networks on offer, and how far each has been loaded
    options       what can be asked for, and the Python and the command that ask for the same
    schema        what is answered
    samples       photographs to begin with
    dropped       an ONNX file that is dropped on the page
    folders       words without this machine's folders
    connections   a clock for each, and only so many
    opening       a browser, without the token on its command line
    main          the command

The picture and every option come with each request, and the answer depends on nothing else; that is why one request
cannot see another's. What is kept (explainers, the last picture as a network sees it) saves time and changes no answer.
"""

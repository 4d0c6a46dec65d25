"""The page `deeptaylor serve`: a picture in, an explanation out, on this machine alone.

    browser ──► security ──► routes ──► jobs ──► explanations ──► the library
                 Host         requests   one at    bytes and            │
                 Origin       limits     a time,   options to  ◄────────┘
                 token                   bounded   numbers, maps, files

    routes        requests and answers; the state of the server: networks, queues of work, limits, sample photographs
    models        the networks on offer, how far each has been loaded, and an ONNX file that is dropped on the page
    schema        types of requests and answers
    sentences     titles and sentences of an answer about a picture
    texts         answers about texts
    gallery       answers about the store of a run
    connections   a clock for each connection, and a limit on their number
    digits        the explainers of the digits page, which runs wholly inside a browser
    live_page     the files of the page that explains photographs inside a browser
    main          the command

The picture and every option come with each request, and the answer depends on nothing else; that is why one request
cannot see another's. What is cached (explainers, the last picture as a network sees it) saves time and changes no
answer.
"""

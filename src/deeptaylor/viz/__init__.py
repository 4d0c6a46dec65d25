"""An explanation as something to look at: pictures, words, bars, figures and pages.

colors       the one definition of all colours
heatmap      relevance → heat → scale → RGB → the bytes of a file
photograph   the photograph in its own resolution, maps over it, and crops
captions     the sentences above and below a picture
drawings     what an explanation gives to be drawn: a map with its scale and its words
figures      figures of matplotlib: maps, many maps, curves, slices, crops
named_values words in colours, and the values of a table as bars
pages        HTML files that need nothing else: a map that answers the pointer, and reports
"""

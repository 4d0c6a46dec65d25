"""Texts in, coloured words out: networks with their tokenizers.

TextModel.explain(text)                what `dt.load("hf:…")` gives, and what `dt.explain` and `dt.similarity` call
├── encoding      texts as token numbers, padded, with what each token is
├── references    what the words are replaced by: [MASK], padding, the mean embedding
├── networks      the network as a function from token numbers to scores
├── trials        what it does with padding and vectors, tried on texts of its own; hiding: with hidden words
├── guesses       what the network holds to be most probable
├── explainer     the secants between the two, or rules by name
└── explanation   the answer: tokens and words in colours, and a sentence that adds up (sentences)
"""

"""Texts in, coloured words out: networks with their tokenizers.

TextModel.explain(text)     what `dt.load("hf:…")` gives, and what `dt.explain` and `dt.similarity` call
├── model                   the network with its tokenizer
├── encoding                texts as token numbers, padded, with what each token is
├── text_references         what the words are replaced by; what the network does with padding and hidden words
├── networks                the network as a function from token numbers to scores; its guesses
├── text_explainer          the secants between text and reference, or rules by name; continuations of a prompt
└── text_explanation        the answer: tokens and words in colours, and sentences that add up
"""

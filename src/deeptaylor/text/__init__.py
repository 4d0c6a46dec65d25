"""Texts in, coloured words out: networks with their tokenizers.

TextModel.explain(text)     what `dt.load("hf:…")` gives, and what `dt.explain` and `dt.similarity` call
├── model                   the network with its tokenizer
├── encoding                texts as token numbers, padded, with what each token is
├── text_references         what the words are replaced by: [MASK], padding, the mean embedding
├── networks                the network as a function from token numbers to scores; its guesses
├── hiding                  what it does with padding, vectors and hidden words, tried on texts made for it
├── continuations           what follows a prompt, perhaps compared with something else
├── text_explainer          the secants between text and reference, or rules by name
└── text_explanation        the answer: tokens and words in colours, and sentences that add up
"""

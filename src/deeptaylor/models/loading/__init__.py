"""`deeptaylor.load`: trained networks from names, other libraries and files.

load           which source is meant, and what is read from it
request        the arguments of the user, the content of the source, and an error that asks for what is missing
model_files    what a file is, without running anything in it; state dicts; programs, run only if the user trusts them
estimators     linear models and perceptrons of scikit-learn
hubs           timm, torchvision, transformers
"""

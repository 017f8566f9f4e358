.PHONY: setup run test check format bench
# Everything here needs Python 3.11 or newer and make, and sets up the rest in .venv by itself.
BIN := .venv/bin

setup: .venv/ready
.venv/ready: pyproject.toml uv.lock ; @sh tools/setup .venv
run: setup ; @$(BIN)/diptych demo
test: setup ; @sh tools/test $(BIN)
check: setup ; @sh tools/check $(BIN)
format: setup ; @$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
bench: setup ; @$(BIN)/python -m bench

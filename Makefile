.PHONY: setup run test coverage check format bench models conformance kind e2e rotate-keys restore-elsewhere soak sbom audit docs release-dry-run
# Everything here needs Python 3.11 or newer and make, and sets up the rest in .venv by itself.
BIN := .venv/bin

setup: .venv/ready
.venv/ready: pyproject.toml uv.lock ; @sh tools/setup .venv
run: setup ; @$(BIN)/diptych demo
test: setup ; @sh tools/test $(BIN)
coverage: setup ; @sh tools/test $(BIN) --cov --cov-report=term:skip-covered
check: setup ; @sh tools/check $(BIN)
format: setup ; @$(BIN)/ruff check --fix . ; $(BIN)/ruff format . ; sh tools/generate $(BIN)
kind: setup ; @sh tools/kind $(BIN)
e2e: setup ; @sh tools/e2e $(BIN)
rotate-keys: setup ; @sh tools/e2e_script $(BIN) rotate_keys
restore-elsewhere: setup ; @sh tools/e2e_script $(BIN) second_cluster
sbom: setup ; @sh tools/sbom $(BIN)
audit: setup ; @sh tools/audit $(BIN)
docs: setup ; @sh tools/docs $(BIN)
release-dry-run: setup ; @sh tools/release $(BIN)
bench: setup ; @$(BIN)/python -m bench
models: setup ; @sh tools/models $(BIN)
conformance: setup ; @sh tools/conformance $(BIN)
soak: setup ; @sh tools/redis && DIPTYCH_SOAK=1 $(BIN)/pytest --no-cov -s -o faulthandler_timeout=0 tests/chaos -k soak

# The project's commands. Each sets up what it needs; see README.md.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' broker-image/pyproject.toml)
PACKAGES := broker-image client operator spark-operator-jobs
PYTHON ?= python3
BIN := .venv/bin
# Whatever the shell says: without the compiled modules every process that a test starts takes twice the time.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# One process more than there are cores, as tests wait a lot; the tests of a file run in one, in their order.
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 5 ? cores + 1 : 6)))
RUN_TESTS = $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
KAFKA_JARS := .jars/kafka-4.1.1
IMAGE_BUILD ?= docker build -t
MAVEN := mvn -B -q -Dstyle.color=never

.PHONY: setup demo test test-all mutation faults e2e bench lint images jars kafka-jars lock clean docs/protocol.md

# $(call timed,NAME,COMMAND): run it and say how long it took.
timed = begun=$$(date +%s); $(2) && echo "$(1): done in $$(($$(date +%s) - begun)) s"

setup: .venv/.installed

.venv/.installed: requirements-dev.txt $(PACKAGES:%=%/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'setup: $(PYTHON) is too old: install Python 3.11 or newer, or name one with PYTHON=…'; exit 1; }
	@echo "setup: making .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv
	@echo "setup: installing the $$(grep -c == $<) packages of $< (500 MB, most of it Spark: one to three minutes)"
	@$(call timed,setup,$(PIP) -r $<)
	@echo "setup: installing $(PACKAGES) from their folders"
	@$(call timed,setup,$(PIP) --no-deps --no-build-isolation $(PACKAGES:%=-e ./%))
	@touch $@

# Everything but the long tests: tests/harness/millstream_harness/long_tests.py says which those are.
test: setup jars kafka-jars
	$(RUN_TESTS) -m 'not long' $(PYTEST)

test-all: setup jars kafka-jars
	$(RUN_TESTS) $(PYTEST)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(PACKAGES:%=%/src) tests/harness tests/faults/millstream_faults tests/mutation e2e bench examples/flights
	$(BIN)/lint-imports

# Contexts are the folders themselves; the Spark image takes its jars from one of them.
images: jars
	rm -rf spark-operator-jobs/jars && cp -r .jars/spark spark-operator-jobs/jars
	$(IMAGE_BUILD) millstream/broker:$(VERSION) broker-image
	$(IMAGE_BUILD) millstream/operator:$(VERSION) operator
	$(IMAGE_BUILD) millstream/client:$(VERSION) client
	$(IMAGE_BUILD) millstream/spark:$(VERSION) spark-operator-jobs

e2e: setup images
	$(BIN)/pytest e2e --timeout 900 $(PYTEST)

lock: requirements-dev.in
	$(BIN)/pip-compile --quiet --allow-unsafe --strip-extras --no-annotate --no-header --no-emit-index-url \
	  --no-emit-trusted-host --no-emit-find-links -o requirements-dev.lock requirements-dev.in
	{ echo '# Every pin, written by `make lock` from requirements-dev.in and the pyprojects.'; \
	  grep -v '^-e ' requirements-dev.lock; } > requirements-dev.txt
	rm requirements-dev.lock

clean:
	rm -rf .venv .jars .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-out

# Beside Apache Kafka, in turn, with its own clients: ROUNDS=3, BENCH="--only start,producer-200b --scale 0.1".
ROUNDS ?= 5
bench: setup $(KAFKA_JARS)/.complete
	@PYTHONPATH=bench/src:tests/harness:examples/flights $(BIN)/python -P -m millstream_bench --rounds $(ROUNDS) $(BENCH)

# A cluster is broken for twenty minutes: FAULTS="--seconds 300 --faults 50 --seed 3 --out DIR".
faults: setup
	@PYTHONPATH=tests/harness:tests/faults $(BIN)/python -P -m millstream_faults $(FAULTS)

# Which APIs and versions are served, from the handlers themselves.
docs/protocol.md: setup
	PYTHONPATH=tests/harness $(BIN)/python -P -m millstream_harness.protocol_document > $@.new
	mv $@.new $@

# Changes the code one operator at a time, for hours: MUTATION="--only log/compaction --only groups".
mutation: setup
	@$(BIN)/python tests/mutation/mutate.py $(MUTATION)

# Apache Kafka and its tools, which tests and benchmarks run beside Millstream.
$(KAFKA_JARS)/.complete: bench/kafka/pom.xml
	@command -v mvn >/dev/null || { echo 'jars: Apache Kafka comes from Maven: install Maven and Java 17'; exit 1; }
	@echo "jars: fetching Apache Kafka 4.1.1 into $(KAFKA_JARS) (54 MB)"
	@rm -rf $(KAFKA_JARS)
	@$(call timed,jars,$(MAVEN) -f bench/kafka/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
	  -DoutputDirectory=$(CURDIR)/$(KAFKA_JARS))
	@touch $@

kafka-jars:
	@$(call fetched,$(KAFKA_JARS),bench/kafka/pom.xml,what needs Apache Kafka is not tested)

# What Spark needs to read the log. Without Maven, Spark fetches the same jars itself (spark.jars.packages).
SPARK_JARS := .jars/spark

jars:
	@$(call fetched,$(SPARK_JARS),spark-operator-jobs/pom.xml,Spark will fetch its Kafka source itself (spark.jars.packages))

$(SPARK_JARS)/.complete: spark-operator-jobs/pom.xml
	@echo "jars: fetching Spark's Kafka source into $(SPARK_JARS) (10 MB)"
	@rm -rf $(SPARK_JARS)
	@$(call timed,jars,$(MAVEN) -f spark-operator-jobs/pom.xml)
	@touch $@

# $(call fetched,FOLDER,POM,CONSEQUENCE): have its jars, or say what follows if there is no Maven.
fetched = if [ $(1)/.complete -nt $(2) ]; then :; \
  elif mvn -v >/dev/null 2>&1; then $(MAKE) -s --no-print-directory $(1)/.complete; \
  else echo 'jars: no Maven with Java 17: $(3)'; fi

demo: setup jars
	@$(BIN)/python examples/flights/demo.py

# The project's commands. Each sets up what it needs; see README.md.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' broker-image/pyproject.toml)
PACKAGES := broker-image client operator spark-operator-jobs
PYTHON ?= python3
BIN := .venv/bin
KAFKA_JARS := .jars/kafka-4.1.1
IMAGE_BUILD ?= docker build -t

.PHONY: setup demo test mutation faults e2e bench lint images jars lock clean

setup: .venv/.installed

.venv/.installed: requirements-dev.txt $(PACKAGES:%=%/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'setup: $(PYTHON) is too old: install Python 3.11 or newer, or name one with PYTHON=…'; exit 1; }
	@echo "setup: installing the Python packages into .venv"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation $(PACKAGES:%=-e ./%)
	@touch $@

test: setup jars
	$(BIN)/pytest $(PYTEST)

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

# Changes the code one operator at a time, for hours: MUTATION="--only log/compaction --only groups".
mutation: setup
	@$(BIN)/python tests/mutation/mutate.py $(MUTATION)

# Apache Kafka and its tools, which tests and benchmarks run beside Millstream.
$(KAFKA_JARS)/.complete: bench/kafka/pom.xml
	@command -v mvn >/dev/null || { echo 'jars: Apache Kafka comes from Maven: install Maven and Java 17'; exit 1; }
	@echo "jars: fetching Apache Kafka 4.1.1 into $(KAFKA_JARS)"
	@rm -rf $(KAFKA_JARS)
	@mvn -B -q -Dstyle.color=never -f bench/kafka/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
	  -DoutputDirectory=$(CURDIR)/$(KAFKA_JARS)
	@touch $@

# What Spark needs to read the log. Without Maven, Spark fetches the same jars itself (spark.jars.packages).
SPARK_JARS := .jars/spark

jars:
	@if [ $(SPARK_JARS)/.complete -nt spark-operator-jobs/pom.xml ]; then :; \
	elif mvn -v >/dev/null 2>&1; then $(MAKE) -s --no-print-directory $(SPARK_JARS)/.complete; \
	else echo 'jars: no Maven with Java 17: Spark will fetch its Kafka source itself (spark.jars.packages)'; fi

$(SPARK_JARS)/.complete: spark-operator-jobs/pom.xml
	@echo "jars: fetching Spark's Kafka source into $(SPARK_JARS)"
	@rm -rf $(SPARK_JARS)
	@mvn -B -q -Dstyle.color=never -f spark-operator-jobs/pom.xml
	@touch $@

demo: setup jars
	@$(BIN)/python examples/flights/demo.py

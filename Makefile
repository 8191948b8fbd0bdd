# The project's commands. Each sets up what it needs; see README.md.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' broker-image/pyproject.toml)
PACKAGES := broker-image client kafka-protocol operator spark-operator-jobs
PYTHON ?= python3
BIN := .venv/bin
# Whatever the shell says: without the compiled modules every process that a test starts takes twice the time.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/pip install --progress-bar off --disable-pip-version-check
# Two processes more than there are cores, as tests wait a lot: three left two cores idle for 40% of the time. The tests of
# a file run in one, in their order.
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 5 ? cores + 2 : 6)))
RUN_TESTS = $(BIN)/python -P tests/harness/millstream_harness/run_tests.py --workers $(WORKERS) --
# bench/kafka/pom.xml names the version; KAFKA_VERSION=4.1.1 takes another release instead (`make compat-matrix`).
KAFKA_VERSION ?= $(shell sed -n 's|.*<kafka.version>\(.*\)</kafka.version>.*|\1|p' bench/kafka/pom.xml)
KAFKA_JARS := .jars/kafka-$(KAFKA_VERSION)
IMAGE_BUILD ?= docker build -t
MAVEN := mvn -B -Dstyle.color=never

.PHONY: setup demo demo-failover test test-unit test-process test-soak test-all test-oldest compat-matrix durations mutation past-defects faults e2e bench operator-scale lint types spelling workflows images contexts wheels chart version jars kafka-jars spark-classes moto quix lock clean definitions docs docs/protocol.md docs/command.md docs/metrics.md docs/reference/authorization.md docs/reference/broker-configuration.md docs/reference/conditions.md docs/images/dashboards docs/images/dashboards/operator

# $(call timed,NAME,COMMAND): run it, show what goes on, and how long it took.
timed = $(PYTHON) .ci/step.py $(1) $(2)

setup: .venv/.installed

.venv/.installed: requirements-dev.txt $(PACKAGES:%=%/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'setup: $(PYTHON) is too old: install Python 3.11 or newer, or name one with PYTHON=…'; exit 1; }
	@echo "setup: making .venv with $(PYTHON)"
	@$(call timed,setup,$(PYTHON) -m venv .venv)
	@echo "setup: installing the $$(grep -c == $<) packages of $< (500 MB, most of it Spark: one to three minutes)"
	@$(call timed,setup,$(PIP) -r $<)
	@echo "setup: installing $(PACKAGES) from their folders"
	@$(call timed,setup,$(PIP) --no-deps --no-build-isolation $(PACKAGES:%=-e ./%))
	@touch $@

# Tests are in tiers (CONTRIBUTING.md): `make test` leaves out the soak tests. SOAK=2/5 chooses a fifth of those, and
# SHARD=1/4 a quarter of everything.
SHARES = $(if $(SOAK),--soak=$(SOAK)) $(if $(SHARD),--shard=$(SHARD))

test: setup jars kafka-jars spark-classes
	$(RUN_TESTS) --tiers=unit,process $(SHARES) $(PYTEST)

test-unit: setup
	$(RUN_TESTS) --tiers=unit $(SHARES) $(PYTEST)

test-process: setup jars kafka-jars spark-classes
	$(RUN_TESTS) --tiers=process $(SHARES) $(PYTEST)

test-soak: setup jars kafka-jars spark-classes
	$(RUN_TESTS) --tiers=soak $(SHARES) $(PYTEST)

test-all: setup jars kafka-jars spark-classes
	$(RUN_TESTS) $(SHARES) $(PYTEST)

# The clients' and tools' tests, and the comparisons, with other releases of Apache Kafka: COMPAT_VERSIONS=3.9.1.
COMPAT_VERSIONS ?= 3.9.1 4.1.1 4.4.0
compat-matrix: setup jars spark-classes
	@for version in $(COMPAT_VERSIONS); do \
	  echo "compat: Apache Kafka $$version"; \
	  export KAFKA_VERSION=$$version; \
	  $(MAKE) -s --no-print-directory .jars/kafka-$$version/.complete && $(RUN_TESTS) tests/compat $(PYTEST) || exit 1; \
	done

# The library's tests, with the oldest versions that it and the command's packages allow instead of the pinned ones.
OLDEST := .cache/oldest
test-oldest: $(OLDEST)/.installed
	PYTHONPATH=$(CURDIR)/$(OLDEST) $(RUN_TESTS) --tiers=unit,process tests/client $(PYTEST)

$(OLDEST)/.installed: client/pyproject.toml kafka-protocol/pyproject.toml | setup
	@rm -rf $(OLDEST)
	@$(call timed,oldest,$(PIP) --no-deps --target $(OLDEST) $$(grep -ohE '"[a-z0-9-]+>=[0-9.]+' $^ | sed 's/"//; s/>=/==/'))
	@touch $@

# How long each file took, which shares and the tiers' limits go by.
durations: setup jars kafka-jars spark-classes
	$(RUN_TESTS) --record-durations $(PYTEST)

lint: setup types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy $(PACKAGES:%=%/src) tests/harness tests/faults/millstream_faults tests/mutation e2e bench examples/flights examples/failover docs/hooks.py

# The spelling of every text file in git; .ci/spelling lists what tests misspell on purpose.
CODESPELL := 2.4.3
spelling: .cache/codespell-$(CODESPELL)/.installed
	@git ls-files -z | PYTHONPATH=$(<D) xargs -0 $(BIN)/python -P -m codespell_lib --ignore-words .ci/spelling

.cache/codespell-$(CODESPELL)/.installed: | setup
	@$(call timed,spelling,$(PIP) --no-deps --target $(@D) codespell==$(CODESPELL))
	@touch $@

# GitHub's workflows: expressions, inputs of actions. Without shellcheck, which only some machines have. Needs Go.
ACTIONLINT := v1.7.7
workflows: .cache/actionlint-$(ACTIONLINT)/actionlint
	@$< -shellcheck= -pyflakes= .github/workflows/*.yml

.cache/actionlint-$(ACTIONLINT)/actionlint:
	@command -v go >/dev/null || { echo 'workflows: actionlint is built with Go: install it'; exit 1; }
	@GOBIN=$(CURDIR)/$(@D) go install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT)

images: jars contexts
	rm -rf spark-operator-jobs/jars && cp -r .jars/spark spark-operator-jobs/jars
	$(IMAGE_BUILD) millstream/broker:$(VERSION) broker-image
	$(IMAGE_BUILD) millstream/operator:$(VERSION) operator
	$(IMAGE_BUILD) millstream/client:$(VERSION) client
	$(IMAGE_BUILD) millstream/spark:$(VERSION) spark-operator-jobs

# An image's context is its folder; these also need the package that they share.
contexts:
	for context in broker-image client operator; do rm -rf $$context/kafka-protocol && cp -r kafka-protocol $$context/; done

# A release's wheels and chart, into DIST.
DIST ?= dist
wheels: setup
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir $(DIST) $(PACKAGES:%=./%)

chart:
	helm package charts/millstream --destination $(DIST)

version:
	@echo $(VERSION)

# IMAGES= leaves the images as they are.
IMAGES ?= images
e2e: setup $(IMAGES)
	$(BIN)/python -P tests/harness/millstream_harness/run_tests.py -- e2e --timeout 900 $(PYTEST)

# UPGRADE=--upgrade, or --upgrade-package=NAME: newer releases, where the pyprojects allow them.
PIP_COMPILE = $(BIN)/pip-compile $(UPGRADE) --quiet --allow-unsafe --strip-extras --no-annotate --no-header --no-emit-index-url \
  --no-emit-trusted-host --no-emit-find-links
# $(call image_lock,FOLDER,OPTIONS): what an image installs, and what builds its package, with hashes, as pinned above. The
# image builds our own packages, so their pins are removed.
image_lock = $(PIP_COMPILE) --generate-hashes --find-links .lock-wheels -c requirements-dev.txt $(2) -o $(1)/requirements.txt \
    $(1)/pyproject.toml && \
  sed -i '/^millstream-/,/[^\\]$$/d' $(1)/requirements.txt && \
  cp .build-requirements.txt $(1)/requirements-build.txt

lock: requirements-dev.in
	$(PIP_COMPILE) -o requirements-dev.lock requirements-dev.in
	{ echo '# Every pin, written by `make lock` from requirements-dev.in and the pyprojects.'; \
	  grep -v '^-e ' requirements-dev.lock; } > requirements-dev.txt
	rm requirements-dev.lock
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir .lock-wheels ./kafka-protocol
	echo hatchling | $(PIP_COMPILE) --generate-hashes -c requirements-dev.txt -o .build-requirements.txt -
	$(call image_lock,broker-image,--extra uvloop)
	$(call image_lock,operator)
	$(call image_lock,client,--extra command)
	rm -r .build-requirements.txt .lock-wheels
	$(PIP_COMPILE) --generate-hashes -o tests/jobs/moto-requirements.txt tests/jobs/moto-requirements.in
	$(PIP_COMPILE) --generate-hashes -o tests/compat/quix/requirements.txt tests/compat/quix/requirements.in

clean:
	rm -rf .venv .jars .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-out demo-failover-out

# Beside Apache Kafka, in turn, with its own clients: ROUNDS=3, BENCH="--only start,producer-200b --scale 0.1".
ROUNDS ?= 5
bench: setup $(KAFKA_JARS)/.complete .cache/bench-python/.installed
	@PYTHONPATH=bench/src:tests/harness:examples/flights MILLSTREAM_BROKER=$(CURDIR)/.cache/bench-python/bin/millstream-broker $(BIN)/python -P -m millstream_bench --rounds $(ROUNDS) $(BENCH)

# One operator with thousands of resources, on the API server that KUBECONFIG names: SCALE="--topics 500 --clusters 5".
operator-scale: setup
	@PYTHONPATH=tests/harness $(BIN)/python -P -m millstream_harness.operator_scale $(SCALE)

# A cluster is broken for twenty minutes: FAULTS="--seconds 300 --faults 50 --seed 3 --out DIR".
# Or batch loads are: FAULTS="loads --format Delta --rounds 50 --seed 3 --out DIR".
# Or mirrors between two clusters are: FAULTS="mirrors --rounds 60 --seed 3 --out DIR".
faults: setup
	@PYTHONPATH=tests/harness:tests/faults $(BIN)/python -P -m millstream_faults $(FAULTS)

# The site, into site/: a link that leads nowhere fails.
SITE ?= site
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir $(abspath $(SITE))

# The definitions' pod templates, the copies in chart and operator, and the pages with all fields.
definitions: setup
	$(BIN)/python -m millstream_operator.tools.definitions crds
	cp crds/*.yaml charts/millstream/crds/
	cp crds/*.yaml operator/src/millstream_operator/crds/
	$(BIN)/python -m millstream_operator.tools.document examples/resources docs

# Which APIs and versions are served, from the handlers themselves.
docs/protocol.md: setup
	PYTHONPATH=tests/harness $(BIN)/python -P -m millstream_harness.protocol_document > $@.new
	mv $@.new $@

# Every command of `millstream`, from its parser.
docs/command.md: setup
	PYTHONPATH=tests/harness $(BIN)/python -P -m millstream_harness.command_document > $@.new
	mv $@.new $@

# Every metric, from the tables that the programs use.
docs/metrics.md: setup
	PYTHONPATH=tests/harness $(BIN)/python -P -m millstream_harness.metrics_document > $@.new
	mv $@.new $@

# Pictures of dashboards, from five minutes of a cluster, a mirror and a Prometheus.
docs/images/dashboards: setup
	PYTHONPATH=tests/harness $(BIN)/python -P -m millstream_harness.dashboard_pictures $@

# The two of loads and of the operator, from seven minutes of a Kubernetes. It needs what e2e needs; make images first.
docs/images/dashboards/operator: setup
	PYTHONPATH=tests/harness $(BIN)/python -P -m millstream_harness.operator_pictures $(@D)

# Every configuration key, from the broker's own tables.
docs/reference/broker-configuration.md: setup
	PYTHONPATH=tests/harness $(BIN)/python -P -m millstream_harness.configuration_document > $@.new
	mv $@.new $@

# What each request needs to be allowed, from the handlers' registrations.
docs/reference/authorization.md: setup
	PYTHONPATH=tests/harness $(BIN)/python -P -m millstream_harness.authorization_document > $@.new
	mv $@.new $@

# Every condition and reason, with what to do.
docs/reference/conditions.md: setup
	PYTHONPATH=tests/harness $(BIN)/python -P -m millstream_harness.conditions_document > $@.new
	mv $@.new $@

# Changes the code one operator at a time, for hours: MUTATION="--only log/compaction --only groups".
mutation: setup
	@$(BIN)/python tests/mutation/mutate.py $(MUTATION)

# Puts defects of the past back, one at a time, and runs the tests that must notice: DEFECTS="--only log".
past-defects: setup
	@$(BIN)/python tests/mutation/past_defects.py $(DEFECTS)

# Apache Kafka and its tools, which tests and benchmarks run beside Millstream. Releases whose connect-mirror is not in
# Maven Central come without MirrorMaker 2, and its tests are skipped.
WITHOUT_MIRRORMAKER := 4.4.0
$(KAFKA_JARS)/.complete: bench/kafka/pom.xml
	@command -v mvn >/dev/null || { echo 'jars: Apache Kafka comes from Maven: install Maven and Java 17'; exit 1; }
	@echo "jars: fetching Apache Kafka $(KAFKA_VERSION) into $(KAFKA_JARS) (54 MB)"
	@rm -rf $(KAFKA_JARS)
	@$(call timed,jars,$(MAVEN) -f bench/kafka/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
	  -Dkafka.version=$(KAFKA_VERSION) $(if $(filter $(KAFKA_VERSION),$(WITHOUT_MIRRORMAKER)),-Dwithout.mirrormaker) \
	  -DoutputDirectory=$(CURDIR)/$(KAFKA_JARS))
	@touch $@

# The broker of benchmarks: Debian's interpreter and the packages of the image (broker-image/Dockerfile).
BENCH_PYTHON ?= /usr/bin/python3
.cache/bench-python/.installed: broker-image/requirements.txt
	@echo 'bench: making .cache/bench-python with $(BENCH_PYTHON)'
	@$(BENCH_PYTHON) -m venv --clear --without-pip .cache/bench-python
	@$(call timed,bench,$(BIN)/pip --python .cache/bench-python/bin/python install --progress-bar off --disable-pip-version-check --require-hashes -r $<)
	@printf '%s\n' $(CURDIR)/kafka-protocol/src $(CURDIR)/broker-image/src > $$(echo .cache/bench-python/lib/python3*/site-packages)/millstream.pth
	@printf '#!%s\nfrom millstream_broker.main import main\nmain()\n' $(CURDIR)/.cache/bench-python/bin/python > .cache/bench-python/bin/millstream-broker
	@chmod +x .cache/bench-python/bin/millstream-broker
	@touch $@

# Programs of tests in environments of their own: the S3 server, and Quix Streams (see their requirements.in).
moto quix: %: .cache/%/.installed

.cache/moto/.installed: tests/jobs/moto-requirements.txt
.cache/quix/.installed: tests/compat/quix/requirements.txt

.cache/moto/.installed .cache/quix/.installed: .cache/%/.installed:
	@echo '$*: making .cache/$*, for tests'
	@$(call timed,$*,$(PYTHON) -m venv .cache/$*)
	@echo "$*: installing the $$(grep -c == $<) packages of $<"
	@$(call timed,$*,.cache/$*/bin/pip install --progress-bar off --disable-pip-version-check --require-hashes -r $<)
	@touch $@

# Iceberg's REST catalog server, which tests load tables through.
REST_JARS := .jars/iceberg-rest

$(REST_JARS)/.complete: tests/jobs/iceberg-rest/pom.xml
	@echo "jars: fetching Iceberg's REST catalog server into $(REST_JARS) (19 MB)"
	@rm -rf $(REST_JARS)
	@$(call timed,jars,$(MAVEN) -f $< dependency:copy-dependencies -DincludeScope=runtime \
	  -DoutputDirectory=$(CURDIR)/$(REST_JARS))
	@touch $@

# Kafka Streams and Connect's connector for files.
FRAMEWORK_JARS := .jars/frameworks

$(FRAMEWORK_JARS)/.complete: tests/compat/frameworks/pom.xml
	@echo "jars: fetching Kafka Streams and Connect into $(FRAMEWORK_JARS) (108 MB)"
	@rm -rf $(FRAMEWORK_JARS)
	@$(call timed,jars,$(MAVEN) -f $< dependency:copy-dependencies -DincludeScope=runtime \
	  -DoutputDirectory=$(CURDIR)/$(FRAMEWORK_JARS))
	@touch $@

# Flink with its Kafka connector.
FLINK_JARS := .jars/flink

$(FLINK_JARS)/.complete: tests/compat/flink/pom.xml
	@echo "jars: fetching Flink into $(FLINK_JARS) (85 MB)"
	@rm -rf $(FLINK_JARS)
	@$(call timed,jars,$(MAVEN) -f $< dependency:copy-dependencies -DincludeScope=runtime \
	  -DoutputDirectory=$(CURDIR)/$(FLINK_JARS))
	@touch $@

kafka-jars:
	@$(call fetched,$(KAFKA_JARS),bench/kafka/pom.xml,what needs Apache Kafka is not tested)

# Jars that Spark needs (spark-operator-jobs/pom.xml). Without Maven, Spark fetches its Kafka source itself (spark.jars.packages).
SPARK_JARS := .jars/spark

jars:
	@$(call fetched,$(SPARK_JARS),spark-operator-jobs/pom.xml,Spark will fetch its Kafka source itself (spark.jars.packages))

$(SPARK_JARS)/.complete: spark-operator-jobs/pom.xml
	@echo "jars: fetching Spark's Kafka source, Delta, Iceberg and S3A into $(SPARK_JARS) (86 MB)"
	@rm -rf $(SPARK_JARS)
	@$(call timed,jars,$(MAVEN) -f spark-operator-jobs/pom.xml)
	@touch $@

# Tests start Spark with an archive of its classes. It is made here, as on a busy machine that takes longer than a test may.
spark-classes: setup jars
	@[ ! -d $(SPARK_JARS) ] || ! command -v java >/dev/null || \
	  PYTHONPATH=tests/harness $(BIN)/python -P -m millstream_harness.spark_classes

# $(call fetched,FOLDER,POM,CONSEQUENCE): have its jars, or say what follows if there is no Maven.
fetched = if [ $(1)/.complete -nt $(2) ]; then :; \
  elif mvn -v >/dev/null 2>&1; then $(MAKE) -s --no-print-directory $(1)/.complete; \
  else echo 'jars: no Maven with Java 17: $(3)'; fi

demo: setup jars
	@$(BIN)/python examples/flights/demo.py

demo-failover: setup
	@$(BIN)/python examples/failover/failover.py

# Commands for people, in front of CMake. `make help` lists them.

PREFIX ?= /usr/local
DESTDIR ?=
JOBS ?= $(shell nproc)

# Number of seeds for the simulator's tests. The sanitized build is slower and runs 3 of 10.
VERBENA_SIM_SEEDS ?= 1000
VERBENA_SIM_SEEDS_ASAN ?= $(shell expr \( $(VERBENA_SIM_SEEDS) \* 3 + 9 \) / 10)
VERBENA_SOAK_MINUTES ?= 60
VERBENA_FUZZ_SECONDS ?= 60

# Rounds of `make bench`; docs/performance.md needs at least 5.
RUNS ?= 5
# Flows of each run of the fat tree on ns-3.
FLOWS ?= 1000
bench_targets = ibverbs rdmacm verbena verbena_bench udp_reference core_distance qp_load qp_census thread_load cm_flood half_round_trip
network_targets = ibverbs rdmacm verbena udp_reference incast bottleneck

# CMake reads the generator from the environment only for a new build folder.
configure = CMAKE_GENERATOR="$${CMAKE_GENERATOR:-$$(command -v ninja >/dev/null 2>&1 \
	&& echo Ninja || echo 'Unix Makefiles')}" cmake --preset $(1) --log-level=NOTICE $(2)
compile = cmake --build --preset $(1) -j $(JOBS)
# Disables features that this kernel does not support, before programs run.
steering = for setting in $$(scripts/steering.sh); do export "$$setting"; done
# The files for clang-format and clang-tidy: tracked and new ones.
sources = git ls-files -co --exclude-standard -- 'src/*.h' 'src/*.cc' 'tools/*.h' 'tools/*.cc' \
	'tests/*.h' 'tests/*.cc' 'bench/*.h' 'bench/*.cc' 'examples/*.h' 'examples/*.cc'

# clang-tidy needs the headers of ns-3 for these, which only `make scale` installs.
without_ns3 = $(if $(wildcard /usr/include/ns3/ptr.h),,|^bench/scale/|^tests/scale/)

.DEFAULT_GOAL := build
.NOTPARALLEL:
.PHONY: build demo test test-ecosystem bench bench-scaling bench-networks scale interop soak fuzz install deb clean format tidy help

build: ## build the library and the tool into build/ (default)
	scripts/install-packages.sh build
	$(call configure,default)
	$(call compile,default) --target ibverbs rdmacm verbena

demo: ## run Debian's ib_write_bw on Verbena, both ends on this machine
	scripts/install-packages.sh build demo
	$(call configure,default)
	$(call compile,default) --target ibverbs rdmacm verbena
	@$(steering); scripts/demo.sh

test: ## build plain and sanitized, run every test (under 30 minutes on 2 cores)
	scripts/install-packages.sh build test
	$(call configure,default)
	$(call configure,asan)
	$(call configure,tsan)
	$(call compile,default)
	$(call compile,asan)
	$(call compile,tsan)
	@$(steering); failed=; \
	echo "== thread sanitizer: runtime, abi, lanes, rdmacm, rsocket"; \
	ctest --preset tsan -j $(JOBS) || failed="$$failed tsan"; \
	echo "== address and undefined-behaviour sanitizers: all but runtime, some programs"; \
	VERBENA_SIM_SEEDS=$(VERBENA_SIM_SEEDS_ASAN) \
	ctest --preset asan -j $(JOBS) || failed="$$failed asan"; \
	echo "== plain build: all tests"; \
	VERBENA_SIM_SEEDS=$(VERBENA_SIM_SEEDS) \
	ctest --preset default -j $(JOBS) || failed="$$failed default"; \
	if [ -n "$$failed" ]; then echo "make test: FAILED in:$$failed" >&2; exit 1; fi; \
	echo "make test: all passed"

bench: ## measure and compare with other programs; writes docs/performance.md (under 10 minutes; RUNS=5)
	scripts/install-packages.sh build bench
	$(call configure,default)
	$(call compile,default) --target $(bench_targets)
	RUNS=$(RUNS) python3 -B bench/suite --build build

bench-scaling: ## measure throughput over the number of threads; writes its section of docs/performance.md (under 3 minutes)
	scripts/install-packages.sh build bench
	$(call configure,default)
	$(call compile,default) --target ibverbs thread_load
	python3 -B bench/suite --build build --scaling-only
	python3 -B bench/suite --scaling-from build/bench/scaling.json

bench-networks: ## measure slow links, many senders and small MTUs; writes its section of docs/performance.md (under 8 minutes)
	scripts/install-packages.sh build bench
	$(call configure,default)
	$(call compile,default) --target $(network_targets)
	python3 -B bench/suite --build build --networks-only
	python3 -B bench/suite --networks-from build/bench/networks.json

scale: ## simulate an incast and a fat tree of 320 hosts on ns-3; writes docs/scale.md (under 10 minutes on 2 cores; FLOWS=1000)
	scripts/install-packages.sh build scale
	$(call configure,default)
	$(call compile,default) --target verbena-scale
	python3 -B bench/suite/scale.py --build build --flows $(FLOWS) --jobs $(JOBS)

interop: ## run the interoperability tests (tests/interop/*.sh); skips those that cannot run here
	scripts/install-packages.sh build interop
	$(call configure,default)
	$(call compile,default)
	@$(steering); failed=; for script in $(sort $(wildcard tests/interop/*.sh)); do \
		echo "== $$script"; rc=0; VERBENA_BUILD=$(CURDIR)/build bash $$script || rc=$$?; \
		case $$rc in 0) echo "passed: $$script";; 77) echo "skipped: $$script";; \
		*) echo "FAILED: $$script"; failed=1;; esac; done; test -z "$$failed"

test-ecosystem: ## run UCX, libfabric, MPI, storage, QEMU as Debian packages them; table in build/ecosystem.md (6 minutes on 2 cores)
	scripts/install-packages.sh build ecosystem
	$(call configure,default)
	$(call compile,default) --target ibverbs rdmacm verbena
	@$(steering); scripts/ecosystem.sh build

soak: ## stress 8 lanes with 64 threads (1 minute), kill and stop some of 64 processes (1 minute), read out eight boards (2 minutes), simulate new seeds for VERBENA_SOAK_MINUTES (60)
	scripts/install-packages.sh build
	$(call configure,default)
	$(call compile,default)
	$(steering); VERBENA_LANES=8 VERBENA_STRESS_THREADS=64 VERBENA_STRESS_FACTOR=30 tests/support/own_namespace.sh \
		build/tests/verbena_lanes_tests --gtest_brief=1 --gtest_filter='Connections.*:Shared*'
	$(steering); VERBENA_CROWD_SECONDS=60 bash tests/programs/crowd.sh
	$(steering); VERBENA_DAQ_MESSAGES=150000 bash tests/programs/daq_boards.sh
	VERBENA_SOAK_MINUTES=$(VERBENA_SOAK_MINUTES) VERBENA_SOAK_JOBS=$(JOBS) scripts/soak.sh

fuzz: ## run each libFuzzer target for VERBENA_FUZZ_SECONDS (60)
	scripts/install-packages.sh build fuzz
	$(call configure,fuzz)
	$(call compile,fuzz)
	VERBENA_FUZZ_SECONDS=$(VERBENA_FUZZ_SECONDS) scripts/fuzz.sh

install: ## install under PREFIX (/usr/local), staged under DESTDIR if given
	scripts/install-packages.sh build
	$(call configure,default,-DCMAKE_INSTALL_PREFIX=$(PREFIX))
	$(call compile,default)
	DESTDIR=$(DESTDIR) cmake --install build

deb: ## build a Debian package into build/ (verbena_VERSION_ARCH.deb)
	scripts/install-packages.sh build deb
	$(call configure,default)
	$(call compile,default) --target ibverbs rdmacm verbena
	scripts/deb.sh build build

clean: ## remove the build folders
	rm -rf build build-asan build-tsan build-fuzz

format: ## format all C++ in place
	scripts/install-packages.sh tidy
	$(sources) | xargs -r clang-format -i

tidy: ## check layering, formatting and clang-tidy; a warning fails (20 minutes on 2 cores, later only changed files)
	scripts/install-packages.sh build tidy
	$(call configure,default)
	tests/tidy/layering.sh
	$(sources) | xargs -r clang-format --dry-run --Werror
	$(sources) | grep '\.cc$$' | grep -vE '^tests/ecosystem/$(without_ns3)' | python3 -B scripts/tidy.py build $(JOBS)

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' Makefile
	@echo "Variables: PREFIX DESTDIR JOBS VERBENA_SIM_SEEDS VERBENA_SIM_SEEDS_ASAN"
	@echo "           VERBENA_SOAK_MINUTES VERBENA_SOAK_FROM VERBENA_FUZZ_SECONDS VERBENA_SKIP_PACKAGES RUNS FLOWS"

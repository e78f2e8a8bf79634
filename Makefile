# belay: `make` builds, `make demo` shows, `make test` proves. See README.md; `make help` lists the targets.
MAKEFLAGS += --no-builtin-rules --no-print-directory
.SUFFIXES:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all
SHELL := /bin/bash

BUILD   ?= build
OBJ     := $(BUILD)/obj
VERSION := 0.1.0
CC      := gcc
PKGS    := libcurl jansson yaml-0.1 libcrypto zlib libmicrohttpd

WARN     := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef -Werror
CFLAGS   := -std=gnu17 -O2 -g -D_GNU_SOURCE -D_FORTIFY_SOURCE=3 -fstack-protector-strong -ftrivial-auto-var-init=zero \
            -fPIE -pthread $(WARN)
CPPFLAGS := -Ipkg -Iapi -Icmd/belay -DBELAY_VERSION='"$(VERSION)"'
LDFLAGS  := -pthread -pie -Wl,-z,relro,-z,now
# SAN=address,undefined or SAN=thread: give BUILD too, for a tree of its own (the asan and tsan targets do).
ifdef SAN
CFLAGS   := $(filter-out -D_FORTIFY_SOURCE=3,$(CFLAGS)) -fsanitize=$(SAN) -fno-omit-frame-pointer
LDFLAGS  += -fsanitize=$(SAN)
endif

PKG_C      := $(sort $(wildcard pkg/*/*.c))
CMD_C      := $(sort $(wildcard cmd/belay/*.c))
UNIT_C     := $(sort $(wildcard test/unit/*_test.c))
CONTRACT_C := $(sort $(wildcard test/contract/*_test.c))
PKG_O      := $(PKG_C:%.c=$(OBJ)/%.o)
CMD_O      := $(CMD_C:%.c=$(OBJ)/%.o)
UNIT       := $(UNIT_C:test/unit/%_test.c=$(BUILD)/unit/%_test)
CONTRACT   := $(CONTRACT_C:test/contract/%_test.c=$(BUILD)/contract/%_test)
# Asked for when the first program is linked: the libraries may have been installed by this very run.
LIBS        = $(shell pkg-config --libs $(PKGS))

include test/cluster/cluster.mk

.PHONY: all
all: bootstrap
	@$(MAKE) $(BUILD)/belay

.PHONY: help
help:
	@echo "make             build/belay"
	@echo "make demo        install, upgrade, kill the holder, watch the takeover, on a real control plane"
	@echo "make test        everything below, with a summary"
	@echo "make unit | contract | e2e | cluster-check | asan | tsan | lint     parts of it"
	@echo "make fuzz SECONDS=n     the parsers of outside input under libFuzzer"
	@echo "make bench       edit to Released=True beside bare helm, and memory; build/bench.json"
	@echo "make cluster | cluster-stop    the dev control plane in the background; build/cluster/kubeconfig"

.PHONY: bootstrap
bootstrap:
	@BUILD=$(BUILD) test/bootstrap

$(OBJ)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CC) $(CFLAGS) $(CPPFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/libbelay.a: $(PKG_O)
	@rm -f $@ && ar rcs $@ $^

$(BUILD)/belay: $(CMD_O) $(BUILD)/libbelay.a
	@echo "  LINK  $@"
	@$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

$(BUILD)/unit/%_test: $(OBJ)/test/unit/%_test.o $(BUILD)/libbelay.a
	@mkdir -p $(@D)
	@$(CC) $(LDFLAGS) -o $@ $^ $(LIBS) -lcmocka

$(BUILD)/contract/%_test: $(OBJ)/test/contract/%_test.o $(BUILD)/libbelay.a
	@mkdir -p $(@D)
	@$(CC) $(LDFLAGS) -o $@ $^ $(LIBS) -lcmocka

SIM := $(BUILD)/sim/lock_sim
# The wrapped calls wake simulated threads, see test/sim/fiber.h.
$(SIM): $(patsubst %.c,$(OBJ)/%.o,$(sort $(wildcard test/sim/*.c))) $(BUILD)/libbelay.a
	@mkdir -p $(@D)
	@$(CC) $(LDFLAGS) -Wl,--wrap=cond_signal,--wrap=cond_broadcast -o $@ $^ $(LIBS)

# Keep the objects of the tests, or each run would compile them anew.
.SECONDARY: $(UNIT_C:%.c=$(OBJ)/%.o) $(CONTRACT_C:%.c=$(OBJ)/%.o)

# ---- tests ----

.PHONY: unit-run contract-run
unit-run: $(UNIT)
	@test/run-cmocka unit $(UNIT)
contract-run: $(CONTRACT)
	@test/with-cluster $(BUILD)/contract-cluster test/run-cmocka contract $(CONTRACT)

.PHONY: unit contract e2e test demo
unit: bootstrap
	@$(MAKE) -j2 unit-run
contract: tools
	@$(MAKE) -j2 contract-run
e2e: tools
	@$(MAKE) -j2 $(BUILD)/belay
	@test/e2e/run
demo: tools
	@$(MAKE) -j2 $(BUILD)/belay
	@test/demo
test:
	@test/all

# SEED=n STEPS=n: seeds from n on until so many steps are done.
.PHONY: sim sim-run
SEED  ?= 1
STEPS ?= 1000000
sim: bootstrap
	@$(MAKE) -j2 sim-run
sim-run: $(SIM)
	@$(SIM) $(SEED) $(STEPS)
	@$(SIM) --mutants 1 200

.PHONY: asan tsan
# Leaks count too. The thread sanitizer needs a memory layout without much randomness, which not every kernel gives by itself.
asan: tools
	@$(MAKE) -j2 unit-run BUILD=$(BUILD)/asan SAN=address,undefined TOOLS=$(abspath $(BUILD)/bin)
	@$(MAKE) -j2 contract-run BUILD=$(BUILD)/asan SAN=address,undefined TOOLS=$(abspath $(BUILD)/bin)
tsan: tools
	@setarch -R $(MAKE) -j2 unit-run BUILD=$(BUILD)/tsan SAN=thread TOOLS=$(abspath $(BUILD)/bin)
	@setarch -R $(MAKE) -j2 contract-run BUILD=$(BUILD)/tsan SAN=thread TOOLS=$(abspath $(BUILD)/bin)
export TOOLS

.PHONY: lint
lint:
	@BUILD=$(BUILD) test/bootstrap dev
	@test/lint

.PHONY: fuzz
SECONDS ?= 20
fuzz:
	@BUILD=$(BUILD) test/bootstrap dev
	@test/fuzz/run $(SECONDS)

.PHONY: bench
bench: tools
	@$(MAKE) -j2 $(BUILD)/belay
	@test/bench/run

.PHONY: clean
clean:
	rm -rf $(OBJ) $(BUILD)/unit $(BUILD)/contract $(BUILD)/asan $(BUILD)/tsan $(BUILD)/belay $(BUILD)/libbelay.a

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)

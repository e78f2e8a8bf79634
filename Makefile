# belay: `make` builds, `make demo` shows, `make test` proves. See README.md.
MAKEFLAGS += --no-builtin-rules --no-print-directory
.SUFFIXES:
.DELETE_ON_ERROR:

BUILD   ?= build
OBJ     := $(BUILD)/obj
VERSION := 0.1.0
CC      := gcc
PKGS    := libcurl jansson yaml-0.1 libcrypto zlib libmicrohttpd

WARN   := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef -Werror
CFLAGS := -std=gnu17 -O2 -g -D_GNU_SOURCE -D_FORTIFY_SOURCE=3 -fstack-protector-strong -ftrivial-auto-var-init=zero \
          -fPIE -pthread $(WARN)
CPPFLAGS := -Ipkg -Iapi -I$(OBJ) -DBELAY_VERSION='"$(VERSION)"'
LDFLAGS := -pthread -pie -Wl,-z,relro,-z,now
# SAN=address,undefined or SAN=thread builds into a tree of its own (see the asan and tsan targets).
ifdef SAN
CFLAGS  := $(filter-out -D_FORTIFY_SOURCE=3,$(CFLAGS)) -fsanitize=$(SAN) -fno-omit-frame-pointer
LDFLAGS += -fsanitize=$(SAN)
endif

PKG_C  := $(sort $(wildcard pkg/*/*.c))
UNIT_C := $(sort $(wildcard test/unit/*_test.c))
PKG_O  := $(PKG_C:%.c=$(OBJ)/%.o)
CMD_O  := $(patsubst %.c,$(OBJ)/%.o,$(sort $(wildcard cmd/belay/*.c)))
UNIT   := $(UNIT_C:test/unit/%_test.c=$(BUILD)/unit/%_test)
# Resolved at first use, after the dependencies are there.
LIBS    = $(shell pkg-config --libs $(PKGS))

.PHONY: all
all: $(BUILD)/belay

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

.PHONY: unit
unit: $(UNIT)
	@test/run-unit $(UNIT)

.PHONY: clean
clean:
	rm -rf $(OBJ) $(BUILD)/unit $(BUILD)/belay $(BUILD)/libbelay.a

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)

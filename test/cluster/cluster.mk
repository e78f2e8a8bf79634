# The dev control plane and the tools around it; included by the Makefile. What they are: test/cluster/README.md
CLUSTER_DIR ?= $(BUILD)/cluster

# Everything that a test with a cluster needs besides belay: compilers and libraries, Go, and what is built with it.
.PHONY: tools
tools:
	@BUILD=$(BUILD) test/bootstrap
	@BUILD=$(BUILD) test/cluster/build

.PHONY: cluster
cluster: tools
	@$(BUILD)/bin/devcluster up --dir $(CLUSTER_DIR) --bin $(BUILD)/bin

.PHONY: cluster-stop
cluster-stop:
	@if [ -x $(BUILD)/bin/devcluster ]; then $(BUILD)/bin/devcluster down --dir $(CLUSTER_DIR); fi

# The tests of these tools themselves.
.PHONY: cluster-check
cluster-check: tools
	@BUILD=$(BUILD) test/cluster/check

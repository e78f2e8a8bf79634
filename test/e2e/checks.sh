# Sourced by crd_test.sh and chart_test.sh: one line for each check, "ok NAME" or "not ok NAME" with what was seen below it.
passed=0 failed=0
out=

k() { "${KUBECTL:-${TOOLS:+$TOOLS/}kubectl}" --request-timeout=30s "$@"; }
pass() { passed=$((passed + 1)); echo "ok $1"; }
fail() { failed=$((failed + 1)); echo "not ok $1"; sed 's/^/#   /' <<<"${2:-$out}"; }
# ok NAME COMMAND...: it succeeds.
ok() {
    local name=$1; shift
    if out=$("$@" 2>&1); then pass "$name"; else fail "$name"; fi
}
# refused NAME TEXT COMMAND...: it fails, and says TEXT.
refused() {
    local name=$1 text=$2; shift 2
    if out=$("$@" 2>&1); then fail "$name" "was taken: $out"; elif grep -qF -- "$text" <<<"$out"; then pass "$name"; else fail "$name"; fi
}
# is NAME WANT COMMAND...: it prints just that.
is() {
    local name=$1 want=$2; shift 2
    if out=$("$@" 2>&1) && [ "$out" = "$want" ]; then pass "$name"; else fail "$name" "is   $out
want $want"; fi
}
# says NAME TEXT COMMAND...: it succeeds, and TEXT is in what it prints.
says() {
    local name=$1 text=$2; shift 2
    if out=$("$@" 2>&1) && grep -qF -- "$text" <<<"$out"; then pass "$name"; else fail "$name"; fi
}
# The last line of a script; its exit code.
summary() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}

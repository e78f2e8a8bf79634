#!/usr/bin/env bash
# api/crd.yaml on a real API server: what it takes, refuses, defaults, keeps and shows. Needs KUBECONFIG (of an admin) and KUBECTL.
# CRD=FILE tests another CRD. Prints "ok NAME" or "not ok NAME" for each check; the last line is "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
: "${KUBECONFIG:?the cluster to test on}"
crd=${CRD:-api/crd.yaml}
ns=crd-test-$$
source test/e2e/checks.sh

hr() { k -n "$ns" "$@"; }
url() { echo "/apis/helm.fluxcd.io/v1/namespaces/$ns/helmreleases${1:+/$1}"; }
object() { echo "{\"apiVersion\":\"helm.fluxcd.io/v1\",\"kind\":\"HelmRelease\",\"metadata\":{\"name\":\"$1\",\"namespace\":\"$ns\"},$2}"; }
# As a plain client sends it: kubectl's own check of the fields, and its dropping of nulls, would be in the way.
create() { object "$1" "$2" | k create --raw "$(url)" -f -; }
field() { hr get hr "$1" -o "jsonpath={$2}"; }
status_merge() { hr patch hr "$1" --subresource=status --type=merge -p "{\"status\":$2}"; }
status_json() { hr patch hr "$1" --subresource=status --type=json -p "$2"; }
version_of() { field "$1" .metadata.resourceVersion; }
# put NAME STATUS: the whole status, as an operator writes it that knows no lease.
put() {
    object "$1" "\"spec\":{\"chart\":$chart},\"status\":$2" |
        sed "s/\"metadata\":{/&\"resourceVersion\":\"$(version_of "$1")\",/" | k replace --raw "$(url "$1")/status" -f -
}

chart='{"name":"c","repository":"http://127.0.0.1/","version":"1.0.0"}'

# Names of our own in ours only: nothing else of the cluster is touched but the CRD.
trap 'k delete namespace "$ns" --wait=false >/dev/null 2>&1; rm -rf "$tmp"' EXIT
tmp=$(mktemp -d)
ok "the server takes the CRD" k apply --server-side --force-conflicts -f "$crd"
k wait --for=condition=Established crd/helmreleases.helm.fluxcd.io --timeout=30s >/dev/null || exit 1
ok "a namespace for the test" k create namespace "$ns"

# ---- names ----
is "names, scope and short names" "HelmRelease HelmReleaseList helmreleases helmrelease [\"hr\",\"hrs\"] Namespaced" k get crd helmreleases.helm.fluxcd.io \
    -o 'jsonpath={.spec.names.kind} {.spec.names.listKind} {.spec.names.plural} {.spec.names.singular} {.spec.names.shortNames} {.spec.scope}'
is "v1 is served and stored, and no other version" "v1 true true" k get crd helmreleases.helm.fluxcd.io \
    -o 'jsonpath={range .spec.versions[*]}{.name} {.served} {.storage}{end}'
is "the schema is structural and without faults" "" k get crd helmreleases.helm.fluxcd.io -o 'jsonpath={.status.conditions[?(@.type=="NonStructuralSchema")].message}'

# ---- the spec: all that helm-operator's CRD took ----
# Keys sorted: so jsonpath prints them.
full='{"chart":{"chartPullSecret":{"name":"p"},"git":"g@h:o/r","name":"c","path":"p","ref":"main","repository":"http://h/","secretRef":{"name":"s","namespace":"n"},"skipDepUpdate":true,"version":"^1.2"},"disableOpenAPIValidation":true,"forceUpgrade":true,"helmVersion":"v2","maxHistory":0,"releaseName":"r","resetValues":false,"rollback":{"disableHooks":true,"enable":true,"force":true,"maxRetries":0,"recreate":true,"retry":true,"timeout":1,"wait":true},"skipCRDs":true,"targetNamespace":"t","test":{"cleanup":false,"enable":true,"ignoreFailures":true,"timeout":2},"timeout":9007199254740993,"valueFileSecrets":[{"name":"v"}],"values":{"deep":{"list":[1,{"a":null}],"text":"1e3"},"n":1000000},"valuesFrom":[{"configMapKeyRef":{"key":"k","name":"c","namespace":"n","optional":true}},{"secretKeyRef":{"key":"k","name":"c","namespace":"n","optional":true}},{"externalSourceRef":{"optional":true,"url":"http://u"}},{"chartFileRef":{"optional":true,"path":"p"}}],"wait":false}'
ok "every field of helm-operator is taken" create full "\"spec\":$full"
is "every field of helm-operator is kept as it was" "$full" field full .spec
while read -r name spec; do
    ok "taken: ${name//_/ }" create "${name//_/-}" "\"spec\":$spec"
done <<EOF
an_empty_chart {"chart":{}}
a_name_of_60_characters {"chart":$chart,"releaseName":"aaaaaaaaaabbbbbbbbbbaaaaaaaaaabbbbbbbbbbaaaaaaaaaabbbbbbbbbb"}
a_name_that_helm_refuses {"chart":$chart,"releaseName":"Not Legal"}
empty_texts {"chart":$chart,"releaseName":"","targetNamespace":""}
numbers_below_zero {"chart":$chart,"timeout":-1,"maxHistory":-1,"rollback":{"maxRetries":-1}}
a_source_of_values_without_reference {"chart":$chart,"valuesFrom":[{}]}
two_references_in_one_source {"chart":$chart,"valuesFrom":[{"secretKeyRef":{"name":"a"},"configMapKeyRef":{"name":"b"}}]}
nulls {"chart":$chart,"wait":null,"values":null,"valuesFrom":[{"configMapKeyRef":null,"secretKeyRef":{"name":"a"}}]}
an_unknown_field {"chart":$chart,"atomic":true}
EOF
is "an unknown field is dropped" "" field an-unknown-field .spec.atomic

while read -r path spec; do
    refused "refused: $path ${spec:0:60}" "$path" create bad "\"spec\":$spec"
done <<EOF
spec.chart {}
spec.chart {"chart":"c"}
spec.chart.version {"chart":{"version":1.5}}
spec.chart.secretRef.name {"chart":{"secretRef":{}}}
spec.chart.chartPullSecret.name {"chart":{"chartPullSecret":{}}}
spec.chart.skipDepUpdate {"chart":{"skipDepUpdate":"no"}}
spec.helmVersion {"chart":{},"helmVersion":"v4"}
spec.releaseName {"chart":{},"releaseName":1}
spec.timeout {"chart":{},"timeout":"5m"}
spec.timeout {"chart":{},"timeout":1.5}
spec.wait {"chart":{},"wait":"true"}
spec.maxHistory {"chart":{},"maxHistory":"10"}
spec.values {"chart":{},"values":[1]}
spec.values {"chart":{},"values":"a: 1"}
spec.valuesFrom {"chart":{},"valuesFrom":{}}
spec.valuesFrom[0].configMapKeyRef.name {"chart":{},"valuesFrom":[{"configMapKeyRef":{}}]}
spec.valuesFrom[0].secretKeyRef.name {"chart":{},"valuesFrom":[{"secretKeyRef":{"key":"k"}}]}
spec.valuesFrom[0].externalSourceRef.url {"chart":{},"valuesFrom":[{"externalSourceRef":{}}]}
spec.valuesFrom[0].chartFileRef.path {"chart":{},"valuesFrom":[{"chartFileRef":{}}]}
spec.valueFileSecrets[0].name {"chart":{},"valueFileSecrets":[{}]}
spec.rollback.enable {"chart":{},"rollback":{"enable":"yes"}}
spec.test.timeout {"chart":{},"test":{"timeout":"1s"}}
EOF
refused "refused: no spec" "spec: Required value" create bad '"x":1'

# ---- the status that nobody has written yet ----
create x "\"spec\":{\"chart\":$chart}" >/dev/null
is "a new object says that nobody has looked at it" '{"observedGeneration":-1}' field x .status
create sent "\"spec\":{\"chart\":$chart},\"status\":{\"observedGeneration\":1,\"phase\":\"Succeeded\"}" >/dev/null
is "a status that comes with a new object is not believed" '{"observedGeneration":-1}' field sent .status
ok "a status without observedGeneration is taken" status_json sent '[{"op":"replace","path":"/status","value":{"phase":"Failed"}}]'
is "and reads as not looked at" '{"observedGeneration":-1,"phase":"Failed"}' field sent .status
ok "a status in an edit of the object is taken" hr patch hr x --type=merge -p '{"metadata":{"labels":{"a":"b"}},"status":{"phase":"Succeeded"}}'
is "and ignored" "b " field x '.metadata.labels.a} {.status.phase'

# ---- words ----
for phase in $(sed -nE 's/^PHASE\((.*)\)$/\1/p' api/phase.def); do
    ok "phase $phase" status_merge sent "{\"phase\":\"$phase\"}"
done
refused "no other phase" "status.phase" status_merge sent '{"phase":"Migrating"}'
for type in $(sed -nE 's/^CONDITION\((.*)\)$/\1/p' api/condition.def); do
    ok "condition $type" status_merge sent "{\"conditions\":[{\"type\":\"$type\",\"status\":\"Unknown\"}]}"
done
refused "no other condition" "status.conditions[0].type" status_merge sent '{"conditions":[{"type":"Happy","status":"True"}]}'
refused "no other truth" "status.conditions[0].status" status_merge sent '{"conditions":[{"type":"Ready","status":"Perhaps"}]}'
refused "no condition without its status" "status.conditions[0].status" status_merge sent '{"conditions":[{"type":"Ready"}]}'
refused "no time that is none" "status.conditions[0].lastTransitionTime" \
    status_merge sent '{"conditions":[{"type":"Ready","status":"True","lastTransitionTime":"yesterday"}]}'

# ---- the life of a lock ----
# As docs/lock.md has it. Keys sorted again.
locked='{"attempt":{"digest":"1:aa","failures":2,"generation":1,"notBefore":"2026-12-01T12:00:00Z","upgrades":1,"windowStart":"2026-12-01T12:00:00Z"},"conditions":[{"lastTransitionTime":"2026-12-01T12:00:31Z","lastUpdateTime":"2026-12-01T12:00:31Z","message":"m","observedGeneration":1,"reason":"Upgrading","status":"Unknown","type":"Released"},{"observedGeneration":1,"reason":"Upgrading","status":"Unknown","type":"Ready"},{"observedGeneration":1,"reason":"Upgrading","status":"True","type":"Reconciling"}],"lastAttemptedRevision":"1.1.0","lease":{"acquireTime":"2026-12-01T12:00:31.250000Z","holderIdentity":"p/u/1","leaseDurationSeconds":30,"leaseTransitions":5,"renewTime":"2026-12-01T12:00:41.250000Z"},"observedGeneration":1,"phase":"Upgrading","releaseName":"r","releaseStatus":"deployed","revision":"1.0.0","rollbackCount":1,"source":{"digest":"sha256:bb","resolvedAt":"2026-12-01T12:00:32Z","revision":"1.1.0"}}'
take() { hr patch hr x --subresource=status --type=merge -p "{\"metadata\":{\"resourceVersion\":\"$1\"},\"status\":$locked}"; }
before=$(version_of x)
ok "a lock is taken" take "$before"
is "nothing of it is dropped" "$locked" field x .status
refused "a lock is not taken from an old view" "the object has been modified" take "$before"
renew() {
    status_json x '[{"op":"test","path":"/status/lease/holderIdentity","value":"'"$1"'"},{"op":"test","path":"/status/lease/leaseTransitions","value":5},
        {"op":"test","path":"/status/conditions/0/type","value":"Released"},{"op":"test","path":"/status/conditions/0/status","value":"Unknown"},
        {"op":"replace","path":"/status/conditions/0/lastTransitionTime","value":"2026-12-01T12:00:'"$2"'Z"}]'
}
ok "its holder renews it" renew p/u/1 41
is "the grant is later then" "2026-12-01T12:00:41Z" field x '.status.conditions[0].lastTransitionTime'
refused "another does not renew it" "rejected our request" renew p/u/2 42
is "the grant is as it was" "2026-12-01T12:00:41Z" field x '.status.conditions[0].lastTransitionTime'

# ---- what would lose the epoch ----
falls="never falls and never vanishes" changes="changes only together with a higher leaseTransitions"
refused "the epoch does not fall" "$falls" status_merge x '{"lease":{"leaseTransitions":4}}'
refused "it does not fall for a new holder either" "$falls" status_merge x '{"lease":{"leaseTransitions":4,"holderIdentity":"q"}}'
refused "the epoch does not vanish" "$falls" status_merge x '{"lease":{"leaseTransitions":null}}'
refused "the lease does not vanish" "$falls" status_merge x '{"lease":null}'
refused "nor by a JSON Patch" "$falls" status_json x '[{"op":"remove","path":"/status/lease"}]'
refused "nor is it emptied" "$falls" status_json x '[{"op":"replace","path":"/status/lease","value":{}}]'
refused "the status does not become null" "$falls" hr patch hr x --subresource=status --type=merge -p '{"status":null}'
refused "the status does not vanish" "$falls" status_json x '[{"op":"remove","path":"/status"}]'
refused "an operator that knows no lease does not write" "$falls" put x '{"observedGeneration":1,"phase":"Succeeded"}'
refused "nor one that knows no status" "$falls" put x null
refused "no other holder in this epoch" "$changes" status_merge x '{"lease":{"holderIdentity":"p/u/2"}}'
refused "no nobody in this epoch" "$changes" status_merge x '{"lease":{"holderIdentity":null}}'
refused "the epoch is a number" "status.lease.leaseTransitions" status_merge x '{"lease":{"leaseTransitions":"6"}}'
is "after all that the lease is as it was" 'p/u/1 5' field x '.status.lease.holderIdentity} {.status.lease.leaseTransitions'

# ---- what goes on all the same ----
unlock='{"conditions":[{"type":"Released","status":"True","reason":"Succeeded","message":"all is well"},{"type":"Ready","status":"True"}],"attempt":{"notBefore":null},"phase":"Succeeded"}'
ok "the lock is freed in its epoch" status_merge x "$unlock"
is "the lease stays, to tell the epoch" 'p/u/1 5' field x '.status.lease.holderIdentity} {.status.lease.leaseTransitions'
ok "notBefore may be null" status_json x '[{"op":"add","path":"/status/attempt/notBefore","value":null}]'
ok "windowStart may be null" status_json x '[{"op":"add","path":"/status/attempt/windowStart","value":null}]'
is "and both are kept so" '"notBefore":null "windowStart":null' eval 'field x .status.attempt | grep -oE "\"[a-zA-Z]+\":null" | xargs -d "\n"'
ok "the same holder takes the next epoch" status_merge x '{"lease":{"leaseTransitions":6}}'
ok "another holder takes the next epoch" status_merge x '{"lease":{"leaseTransitions":7,"holderIdentity":"p/u/2"}}'
ok "epochs may be left out" status_merge x '{"lease":{"leaseTransitions":9000000000,"holderIdentity":"p/u/3"}}'
object x "\"spec\":{\"chart\":$chart,\"timeout\":7}" >"$tmp/x.json"
ok "kubectl replace of a file without status" hr replace -f "$tmp/x.json"
is "has left the lock alone" "7 p/u/3 9000000000" field x '.spec.timeout} {.status.lease.holderIdentity} {.status.lease.leaseTransitions'
ok "kubectl apply" hr apply --server-side --force-conflicts -f "$tmp/x.json"
# A lease that a hand began, without an epoch, binds nobody.
ok "a lease without an epoch is taken" status_merge sent '{"lease":{"holderIdentity":"a"}}'
ok "its holder may change" status_merge sent '{"lease":{"holderIdentity":"b"}}'
ok "it may vanish" status_merge sent '{"lease":null}'
status_merge sent '{"lease":{"holderIdentity":"a","leaseTransitions":1,"colour":"red"}}' >/dev/null 2>&1
is "a field of the lease that we do not know is dropped" '{"holderIdentity":"a","leaseTransitions":1}' field sent .status.lease

# ---- what kubectl get shows ----
# Not head: it would end while kubectl writes, and kubectl then fails.
is "the columns" "NAME RELEASE PHASE RELEASESTATUS MESSAGE AGE" eval 'hr get hrs x | sed -n 1p | xargs'
is "more columns with -o wide" "NAME RELEASE PHASE RELEASESTATUS MESSAGE AGE READY HOLDER" eval 'hr get hr x -o wide | sed -n 1p | xargs'
is "what is in them" "x r Succeeded deployed all is well True p/u/3" eval "hr get helmrelease x -o wide --no-headers | sed -E 's/ +[0-9]+[smh][0-9smh]* +/ /' | xargs"

# ---- deleting ----
ok "a finalizer is put on" hr patch hr x --type=merge -p '{"metadata":{"finalizers":["helm.fluxcd.io/belay"]}}'
ok "a deletion is asked for" hr delete hr x --wait=false
ok "the lock can still be taken" status_merge x '{"lease":{"leaseTransitions":9000000001,"holderIdentity":"p/u/4"}}'
refused "and its epoch does not fall" "$falls" status_merge x '{"lease":{"leaseTransitions":1}}'
ok "the finalizer goes" hr patch hr x --type=json -p '[{"op":"test","path":"/metadata/finalizers/0","value":"helm.fluxcd.io/belay"},{"op":"remove","path":"/metadata/finalizers/0"}]'
refused "and with it the object" "NotFound" hr get hr x

summary

#!/usr/bin/env bash
# charts/belay: what both helms make of it, what a real API server says to that, and whether belay can work with just the rights of
# least-rights.yaml and with a Role. Needs KUBECONFIG (of an admin); TOOLS (build/bin) and BELAY (build/belay) say where things are.
# Prints "ok NAME" or "not ok NAME" for each check; the last line is "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
: "${KUBECONFIG:?the cluster to test on}"
tools=${TOOLS:-$PWD/build/bin} belay=${BELAY:-$PWD/build/belay}
KUBECTL=${KUBECTL:-$tools/kubectl}
source test/e2e/checks.sh

chart=charts/belay
system=chart-test-$$ app=chart-test-app-$$
tmp=$(mktemp -d)
pids=()
stop_all() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null; done
    # Its finalizer goes with belay, which is gone by now.
    k patch helmrelease x -n "$app" --type=merge -p '{"metadata":{"finalizers":null}}' >/dev/null 2>&1
    k delete namespace "$system" "$app" --wait=false >/dev/null 2>&1
    k delete clusterrole,clusterrolebinding "$system" --ignore-not-found >/dev/null 2>&1
    rm -rf "$tmp"
}
trap stop_all EXIT
# render HELM ARGS...: the chart as helm renders it for a cluster of today.
render() { local helm=$1; shift; "$tools/$helm" template r "$chart" -n "$system" --kube-version 1.37.2 --set fullnameOverride="$system" "$@"; }
admitted() { render "$@" >"$tmp/all.yaml" && k create --dry-run=server -n "$system" -f "$tmp/all.yaml"; }
kinds() { render "$@" | sed -n 's/^kind: //p' | sort | xargs; }
# The notes are shown by an install only, and helm 3 asks the cluster even for a dry one: so without the kubeVersion.
notes() { local helm=$1; shift; "$tools/$helm" install r "$tmp/chart" -n "$system" --dry-run=client "$@"; }
set_is_in() { local text=$1; shift; says "set: $1" "$text" render helm4 --set "$1" -s templates/deployment.yaml; }

ok "the CRD of the chart is that of api/" cmp api/crd.yaml $chart/crds/helmreleases.yaml
k apply --server-side --force-conflicts -f api/crd.yaml >/dev/null || exit 1
k wait --for=condition=Established crd/helmreleases.helm.fluxcd.io --timeout=30s >/dev/null || exit 1
# The strictest of Kubernetes' own policies for pods.
for ns in "$system" "$app"; do k create namespace "$ns" >/dev/null || exit 1; done
k label namespace "$system" pod-security.kubernetes.io/enforce=restricted >/dev/null || exit 1

cp -r $chart "$tmp/chart" && sed -i /^kubeVersion/d "$tmp/chart/Chart.yaml"

# All values of helm-operator's chart: those that mean the same here, and those that mean nothing.
cat >"$tmp/helm-operator.yaml" <<Y
image: {repository: belay, tag: "1", pullPolicy: Always, pullSecret: pull-me}
service: {type: ClusterIP, port: 3030}
createCRD: false
allowNamespace:
updateChartDeps: true
logFormat: json
logReleaseDiffs: false
chartsSyncInterval: 4m
statusUpdateInterval: 30s
workers: 9
helm: {versions: "v2,v3"}
tillerHost:
tillerPort: 44134
tillerNamespace: kube-system
tls: {enable: false}
convert: {releaseStorage: secrets}
tillerSidecar: {enabled: false}
configureRepositories: {enable: true, volumeName: v, secretName: my-repositories, cacheVolumeName: c, repositories: []}
initPlugins: {enable: false}
git: {pollInterval: 5m, ssh: {secretName: s}}
rbac: {create: true, pspEnabled: false}
serviceAccount: {create: true, annotations: {who: me}, name: }
clusterRole: {create: true, name: }
kube: {config: x}
prometheus: {enabled: true, serviceMonitor: {create: true, interval: }}
extraEnvs: [{name: EXTRA, value: env}]
livenessProbe: {periodSeconds: 10}
readinessProbe: {periodSeconds: 10}
podAnnotations: {pod-annotation: a}
podLabels: {pod-label: l}
nodeSelector: {node-label: here}
tolerations: [{key: toleration-key, operator: Exists}]
affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}
extraVolumeMounts: [{name: extra, mountPath: /extra-mount}]
extraVolumes: [{name: extra, emptyDir: {}}]
initContainers: [{name: first, image: init-image}]
resources: {requests: {cpu: 123m}}
hostAliases: {}
priorityClassName: my-priority
dashboards: {enabled: false}
securityContext: {}
containerSecurityContext: {helmOperator: {}, tiller: {}}
sidecarContainers:
Y

# ---- what both helms make of it ----
for helm in helm3 helm4; do
    ok "$helm lint" "$tools/$helm" lint --strict "$chart"
    ok "$helm lint with least-rights.yaml" "$tools/$helm" lint --strict "$chart" -f $chart/least-rights.yaml
    is "$helm: the kinds" "ClusterRole ClusterRoleBinding Deployment PodDisruptionBudget Service ServiceAccount" kinds $helm
    is "$helm: the kinds of one namespace" "Deployment PodDisruptionBudget Role RoleBinding Service ServiceAccount" kinds $helm --set clusterRole.create=false
    is "$helm: without what others make" "Deployment Service" kinds $helm --set rbac.create=false,serviceAccount.create=false,podDisruptionBudget.enabled=false
    ok "$helm: the server takes all of it" admitted $helm
    ok "$helm: and that of one namespace" admitted $helm --set clusterRole.create=false
    ok "$helm: and that of helm-operator's values" admitted $helm -f "$tmp/helm-operator.yaml"
    says "$helm: the notes name what is ignored" "git, kube, createCRD, livenessProbe, readinessProbe, dashboards, prometheus.serviceMonitor." \
        notes $helm -f "$tmp/helm-operator.yaml"
    out=$(notes $helm 2>&1)
    if grep -q "mean nothing" <<<"$out" || ! grep -q "all namespaces with 2 replicas" <<<"$out"; then fail "$helm: the notes without them"; else pass "$helm: the notes without them"; fi
done

# ---- values ----
render helm4 -f "$tmp/helm-operator.yaml" >"$tmp/all.yaml" 2>&1
for text in '"belay:1"' 'imagePullPolicy: Always' 'name: "pull-me"' '--workers=9' '--charts-sync-interval=4m' '--log-format=json' 'secretName: "my-repositories"' \
    '--helm-repository-import=v3:/repositories/repositories.yaml' 'who: me' 'prometheus.io/scrape: "true"' 'name: EXTRA' 'pod-annotation: a' 'pod-label: l' \
    'node-label: here' 'key: toleration-key' 'podAntiAffinity' 'mountPath: /extra-mount' 'image: init-image' 'cpu: 123m' 'priorityClassName: "my-priority"'; do
    says "helm-operator's value arrives: $text" "$text" cat "$tmp/all.yaml"
done
set_is_in '--lease-timeout=1m30s' leaseTimeout=1m30s
set_is_in '--shutdown-grace=59s999ms' shutdownGrace=59s999ms
set_is_in '--foreign-pending-timeout=2h' foreignPendingTimeout=2h
# A values file has all its numbers as floats, which print as 1e+06.
echo 'terminationGracePeriodSeconds: 1000000' >"$tmp/number.yaml"
says "a large number stays one" 'terminationGracePeriodSeconds: 1000000' render helm4 -f "$tmp/number.yaml"
set_is_in '"--allow-namespace=only"' allowNamespace=only
set_is_in "\"--allow-namespace=$system\"" clusterRole.create=false
set_is_in '"--watch-label-selector=team: a # b"' 'watchLabelSelector=team: a # b'
set_is_in '"belay:0.1.0"' 'image.tag='
set_is_in 'serviceAccountName: default' serviceAccount.create=false
set_is_in '- --more' 'extraArgs={--more}'
says "the role may be named" "name: my-role" render helm4 --set clusterRole.name=my-role
for text in '{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}' '{name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}' \
    '{name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}' 'livenessProbe: {httpGet: {path: /healthz, port: http}' \
    'readinessProbe: {httpGet: {path: /readyz, port: http}' 'containerPort: 3030' 'readOnlyRootFilesystem: true' 'terminationGracePeriodSeconds: 60' \
    '{name: http, port: 3030, targetPort: http}' 'replicas: 2' 'type: RollingUpdate'; do
    says "by default: $text" "$text" render helm4
done
# --version is looked at when all flags have been read: so each of them is one, with a legal value.
parsed() { render helm3 "$@" -s templates/deployment.yaml | sed -nE "s/^ +- [\"']?(--[^\"']*)[\"']?\$/\1/p" | xargs -d '\n' "$belay" --version; }
says "belay takes its arguments" "0.1.0" parsed
says "and those of helm-operator's values" "0.1.0" parsed -f "$tmp/helm-operator.yaml" --set watchLabelSelector=a=b,clusterRole.create=false
refused "(or says what it does not take)" "--no-such" parsed --set 'extraArgs={--no-such}'
# The cluster-wide role is as wide as helm-operator's was; rbac.rules is all there is if it is given.
says "all rights by default" '["*"]' render helm4 -s templates/rbac.yaml
out=$(render helm4 -s templates/rbac.yaml --set 'rbac.rules[0].verbs={get},rbac.rules[0].apiGroups={x},rbac.rules[0].resources={y}' 2>&1)
if grep -qF '*' <<<"$out" || ! grep -q '^  - get$' <<<"$out"; then fail "rbac.rules replaces them"; else pass "rbac.rules replaces them"; fi

while IFS='|' read -r set text; do
    refused "refused: $set" "$text" render helm3 --set "$set"
    refused "refused by helm 4: $set" "$text" render helm4 --set "$set"
done <<EOF
leaseTimeout=4s|leaseTimeout is 4s; it must be from 5s to 1h
leaseTimeout=1h1ms|it must be from 5s to 1h
shutdownGrace=1m|it must be more than shutdownGrace (1m)
clusterRole.create=false,allowNamespace=other|makes a Role in the release's namespace $system only
worker=3|worker
workers=0|workers
workers=65|workers
leaseTimeout=30|leaseTimeout
leaseTimeout=soon|leaseTimeout
logFormat=xml|logFormat
image.tag=15|tag
nodeSelector.a=true|nodeSelector
replicas=-1|replicas
service.port=99999|port
extraArgs=--more|extraArgs
podLabels.a=1|podLabels
EOF

# ---- applied ----
# Not by `helm install`: the dev control plane tells no version that Chart.yaml's kubeVersion could be compared with.
rolled_out() { render "$@" >"$tmp/all.yaml" && k apply -n "$system" -f "$tmp/all.yaml" && k rollout status deployment "$system" -n "$system" --timeout=60s; }
ok "its pods are admitted under the restricted policy and become ready" rolled_out helm4
is "two of them" 2 k get deployment "$system" -n "$system" -o 'jsonpath={.status.readyReplicas}'
ok "a rolling update" rolled_out helm3 --set leaseTimeout=40s
ok "all of it can be deleted" k delete -n "$system" -f "$tmp/all.yaml" --timeout=60s

# ---- the rights ----
server=$(k config view --raw --minify -o 'jsonpath={.clusters[0].cluster.server}')
k config view --raw --minify --flatten -o 'jsonpath={.clusters[0].cluster.certificate-authority-data}' | base64 -d >"$tmp/ca.crt"
mkdir "$tmp/repo"
for v in 0.1.0 0.2.0; do "$tools/chartserver" pack --dir "$tmp/repo" --version $v test/charts/one >/dev/null || exit 1; done
"$tools/chartserver" --listen 127.0.0.1:0 --dir "$tmp/repo" --addr-file "$tmp/addr" >/dev/null 2>&1 & pids+=($!)
until [ -s "$tmp/addr" ]; do sleep 0.1; done
repo=http://$(<"$tmp/addr")/

# start_belay NAMESPACE ARGS...: with the ServiceAccount and RBAC that the chart renders with ARGS.
start_belay() {
    local ns=$1; shift
    "$tools/helm3" template r "$chart" -n "$ns" --kube-version 1.37.2 --set fullnameOverride="$system" -s templates/rbac.yaml -s templates/serviceaccount.yaml \
        "$@" | k apply -n "$ns" -f - || return 1
    (umask 077 && k create token "$system" -n "$ns" --duration 1h >"$tmp/token") || return 1
    cat >"$tmp/belay.kubeconfig" <<Y
{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: "$server", certificate-authority: $tmp/ca.crt}}],
 users: [{name: u, user: {tokenFile: $tmp/token}}], contexts: [{name: c, context: {cluster: c, user: u}}]}
Y
    POD_NAMESPACE=$ns "$belay" --kubeconfig "$tmp/belay.kubeconfig" --helm "$tools/helm3" --identity chart-test --cache-dir "$tmp/cache" --listen 127.0.0.1:0 \
        --allow-namespace "$app" --lease-timeout 5s --charts-sync-interval 2s --log-level debug >>"$tmp/belay.log" 2>&1 & pids+=($!)
}
apply_x() {
    k apply -f - <<Y
{apiVersion: helm.fluxcd.io/v1, kind: HelmRelease, metadata: {name: x, namespace: $app}, spec: {releaseName: rel, chart: {repository: "$repo", name: one, version: 0.$1.0},
 valuesFrom: [{secretKeyRef: {name: x}}, {configMapKeyRef: {name: x}}]}}
Y
}
# stop_belay: as the kubelet does it.
stop_belay() {
    local pid=${pids[-1]}
    unset 'pids[-1]'
    kill -TERM "$pid" 2>/dev/null
    for _ in $(seq 300); do kill -0 "$pid" 2>/dev/null || return 0; sleep 0.1; done
    tail -n 5 "$tmp/belay.log"
    return 1
}
# works NAME [FUNCTION]: a life of a HelmRelease, with FUNCTION in its middle.
works() {
    k create secret generic x -n "$app" --from-literal=values.yaml='a: 1' >/dev/null 2>&1
    k create configmap x -n "$app" --from-literal=values.yaml='b: 1' >/dev/null 2>&1
    apply_x 1 >/dev/null
    ok "$1: a release is installed" k wait -n "$app" hr/x --for=condition=Released --timeout=60s
    apply_x 2 >/dev/null
    ok "$1: and upgraded" k wait -n "$app" hr/x --for=condition=Released --timeout=60s
    is "$1: with its values" '{"a":1,"b":1,"greeting":"hello"}' k get configmap rel -n "$app" -o 'jsonpath={.data.all}'
    ${2:-:}
    ok "$1: and uninstalled" k delete hr x -n "$app" --timeout=60s
    refused "$1: nothing of it is left" NotFound k get configmap rel -n "$app"
    if stop_belay; then pass "$1: belay ends well"; else fail "$1: belay ends well"; fi
}
# reason_of NAME REASON TEXT: the condition Released of that HelmRelease comes to say both.
reason_of() {
    for _ in $(seq 100); do
        seen=$(k get hr "$1" -n "$app" -o 'jsonpath={.status.conditions[?(@.type=="Released")].reason}: {.status.conditions[?(@.type=="Released")].message}')
        [[ $seen == "$2: "*"$3"* ]] && return 0
        sleep 0.1
    done
    echo "$seen"
    return 1
}
# tells: what belay asks for only to tell a person what is wrong, while release rel of HelmRelease x exists.
tells() {
    k apply -f - >/dev/null <<Y
{apiVersion: helm.fluxcd.io/v1, kind: HelmRelease, metadata: {name: second, namespace: $app}, spec: {releaseName: rel, chart: {repository: "$repo", name: one, version: 0.1.0}}}
---
{apiVersion: helm.fluxcd.io/v1, kind: HelmRelease, metadata: {name: lost, namespace: $app}, spec: {targetNamespace: no-such-$$, releaseName: lost, chart: {repository: "$repo", name: one, version: 0.1.0}}}
Y
    ok "the least rights: a second owner is told of the first" reason_of second OwnedByOther "$app/x"
    ok "the least rights: a missing namespace is told" reason_of lost Failed 'namespace "no-such-'$$'" does not exist'
    ok "the least rights: both can be deleted" k delete hr second lost -n "$app" --timeout=60s
    ok "the least rights: and the release is still there" k get configmap rel -n "$app"
    # As after a restore from a backup: the same HelmRelease, with another UID.
    stop_belay >/dev/null
    is "the least rights: a replica that ends leaves no Lease behind" "" k get leases -n "$system" -o name
    k patch hr x -n "$app" --type=merge -p '{"metadata":{"finalizers":null}}' >/dev/null
    k delete hr x -n "$app" >/dev/null
    start_belay "$system" -f $chart/least-rights.yaml >/dev/null
    apply_x 2 >/dev/null
    ok "the least rights: a release whose owner is gone is adopted" k wait -n "$app" hr/x --for=condition=Released --timeout=30s
}

# helm's -f replaces lists: so the chart's own rights come by a role of their own.
k create role chart-objects -n "$app" --verb=create,patch,delete --resource=configmaps >/dev/null
k create rolebinding chart-objects -n "$app" --role=chart-objects --serviceaccount="$system:$system" >/dev/null
if start_belay "$system" -f $chart/least-rights.yaml >"$tmp/apply.log" 2>&1; then
    works "the least rights" tells
    # So the API server words it; 403 alone stands in many an id.
    out=$(grep -F 'is forbidden' "$tmp/belay.log")
    if [ -z "$out" ]; then pass "the least rights: nothing was forbidden"; else fail "the least rights: nothing was forbidden"; fi
else
    fail "belay with the least rights" "$(cat "$tmp/apply.log")"
fi
k delete clusterrole,clusterrolebinding "$system" >/dev/null 2>&1
k delete role,rolebinding chart-objects -n "$app" >/dev/null 2>&1

# The chart in the namespace of the HelmReleases, with a Role: neither the CRD nor the namespace may be read, and it goes on.
if start_belay "$app" --set clusterRole.create=false >"$tmp/apply.log" 2>&1; then
    works "a Role"
    says "a Role: belay has said what it may not read" "the CRD may not be read" cat "$tmp/belay.log"
else
    fail "belay with a Role" "$(cat "$tmp/apply.log")"
fi

summary

{{- define "belay.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "belay.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "belay.labels" -}}
{{ include "belay.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | trunc 63 | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "belay.serviceAccountName" -}}
{{- default (ternary (include "belay.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "belay.roleName" -}}
{{- default (include "belay.fullname" .) .Values.clusterRole.name -}}
{{- end -}}

{{- define "belay.allowNamespace" -}}
{{- if .Values.allowNamespace -}}
{{- .Values.allowNamespace -}}
{{- else if not .Values.clusterRole.create -}}
{{- .Release.Namespace -}}
{{- end -}}
{{- end -}}

{{- /* Seconds of a duration as Go writes it: 1m30s is 90. */ -}}
{{- define "belay.seconds" -}}
{{- $unit := dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9.]+(ms|s|m|h)" . -1 -}}
{{- $sum = addf $sum (mulf (regexFind "^[0-9.]+" . | float64) (get $unit (regexFind "[a-z]+$" .))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{- /* What a schema cannot say, because it takes two values. */ -}}
{{- define "belay.validate" -}}
{{- $lease := include "belay.seconds" .Values.leaseTimeout | float64 -}}
{{- if or (lt $lease 5.0) (gt $lease 3600.0) -}}
{{- fail (printf "leaseTimeout is %s; it must be from 5s to 1h" .Values.leaseTimeout) -}}
{{- end -}}
{{- if le (float64 .Values.terminationGracePeriodSeconds) (include "belay.seconds" .Values.shutdownGrace | float64) -}}
{{- fail (printf "terminationGracePeriodSeconds is %v; it must be more than shutdownGrace (%s), or the pod is killed before it has freed its locks" .Values.terminationGracePeriodSeconds .Values.shutdownGrace) -}}
{{- end -}}
{{- if and .Values.rbac.create (not .Values.clusterRole.create) .Values.allowNamespace (ne .Values.allowNamespace .Release.Namespace) -}}
{{- fail (printf "allowNamespace is %s, but clusterRole.create=false makes a Role in the release's namespace %s only; install belay into %s, or make the RBAC yourself (rbac.create=false)" .Values.allowNamespace .Release.Namespace .Values.allowNamespace) -}}
{{- end -}}
{{- end -}}
